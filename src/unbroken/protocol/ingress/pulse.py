"""The pulse: when the sources cut their streams, stretched and shrunk to what the flow can carry."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.errors import require

HEADROOM = 1.05
"""A flow that is full releases pulses at the rate it can carry; the period aims this much above it, so that
what has piled up drains."""

WEIGHT = 0.5
"""Share of the way from the present period to the one just measured. One slow micro-batch is no trend: with service
times that vary by 20 %, half the way keeps the period calmer than the whole way and is as quick after a rise."""

NUDGE = 1.02
"""Least factor on the period when a pulse had to be held back: the measured one may be no longer than it."""

STRETCH = 1.25
"""Largest factor on the period when a pulse had to be held back: a stall of seconds says nothing about the rate
afterwards, and coming down again takes many pulses."""

SHRINK = 0.97
"""Factor on the period after a pulse that found the flow with room: small, so that the period creeps down to
what the slowest segment can carry and stays near it."""

CREEP = 0.99
"""Factor when the flow just had room for this pulse: a chain of segments that is evenly filled looks like that,
and could still carry more."""

ROOMY_STREAK = 8
"""Pulses with room in a row after which the load must have fallen: in balance it is one to three."""

FAST_SHRINK = 0.92
"""Factor on the period from then on: from 900 ms to 250 ms in about 12 s instead of 22 s."""

EASE = 1.5
"""Factor on the time between pulses while a newcomer catches up: it processes unit by unit like everybody, so it gains
on the others only if units come more slowly than it takes them."""

EASE_MORE = 0.5
EASE_EVERY_MS = 15_000.0
MOST_EASE = 3.0
"""What is added to the factor as long as that was not enough, how often, and where that ends."""


@dataclass
class AdaptivePulse:
    """Decides when the next pulse is due.

    A pulse faster than the slowest segment can process builds a backlog that never goes away. The number of
    pulses in flight (cut, but not yet processed by the fastest replica of every shard) is bounded by
    ``in_flight_bound``; a pulse that would exceed it is held. The time from the pulse before it to its
    release is how fast the flow goes, and the period is set by that instead of by trial and error.

    While somebody catches up (``ease``), pulses come less often than the flow could carry, and the period stays.

    Invariants: ``min_ms <= period_ms <= max_ms``; no pulse is due while ``in_flight_bound`` are in flight.
    """

    min_ms: float
    max_ms: float
    in_flight_bound: int
    period_ms: float
    last_ms: float | None = None
    held: bool = False
    roomy: int = 0
    eased_ms: float | None = None
    factor: float = 1.0
    least_ms: float = 0.0

    def ease(self, now_ms: float, catching_up: bool, least_ms: float = 0.0) -> None:
        """Whether somebody catches up at this moment; then pulses are at least ``least_ms`` apart."""
        self.least_ms = least_ms if catching_up else 0.0
        if not catching_up:
            self.eased_ms, self.factor = None, 1.0
            return
        self.eased_ms = now_ms if self.eased_ms is None else self.eased_ms
        steps = int((now_ms - self.eased_ms) / EASE_EVERY_MS)
        self.factor = min(MOST_EASE, EASE + EASE_MORE * steps)

    def due(self, now_ms: float, in_flight: int, steady: bool = False) -> bool:
        """Whether to cut at ``now_ms``; the caller cuts at once when told so.

        With ``steady``, that the flow has room says nothing, as part of it waits.
        """
        if now_ms < self.next_due_ms():
            return False
        if in_flight >= self.in_flight_bound:
            self.held = True
            return False
        if self.held:
            self._stretch(now_ms)
        elif self.last_ms is not None and self.factor == 1.0 and not steady:
            self._shrink(in_flight)
        self.held = False
        self.last_ms = now_ms
        return True

    def soonest_ms(self) -> float:
        """When the next pulse is due if nobody catches up."""
        return 0.0 if self.last_ms is None else self.last_ms + self.period_ms

    def next_due_ms(self) -> float:
        return 0.0 if self.last_ms is None else self.last_ms + max(self.period_ms * self.factor, self.least_ms)

    def check(self) -> None:
        require(self.min_ms <= self.period_ms <= self.max_ms, f"pulse period {self.period_ms} out of bounds")

    def _shrink(self, in_flight: int) -> None:
        """The flow took this pulse at once: try a shorter period, boldly if it was well ahead for a while."""
        if self.in_flight_bound - in_flight > 1 or self.in_flight_bound == 1:
            self.roomy += 1
            factor = SHRINK if self.roomy < ROOMY_STREAK else FAST_SHRINK
        else:
            self.roomy = 0
            factor = CREEP
        self.period_ms = max(self.min_ms, self.period_ms * factor)

    def _stretch(self, now_ms: float) -> None:
        """Move the period towards the time that the flow took to make room for one more pulse."""
        self.roomy = 0
        period = self.period_ms
        carried = period if self.last_ms is None else (now_ms - self.last_ms) * HEADROOM
        wanted = period + (carried - period) * WEIGHT
        self.period_ms = min(self.max_ms, max(period * NUDGE, min(wanted, period * STRETCH)))

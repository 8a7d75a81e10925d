"""Tentative units: what comes of them to a replica, and what leaves its fork."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.plausibility import Implausible, Plausibility
from unbroken.protocol.values.ids import NodeId, StreamId
from unbroken.protocol.values.units import UnitHeader

KEPT_UNITS = 1_000
"""Tentative units that a fork keeps for those who ask later; older ones have been overtaken by time anyway."""


def beyond(numbers: range, units: Mapping[int, UnitHeader], pulse: int) -> range:
    """The numbers of units, whose pulses do not fall, from the first one that reaches beyond a pulse on."""
    return numbers[bisect_right(numbers, pulse, key=lambda number: units[number].pulse) :]


def check_tentative(header: UnitHeader, names: Plausibility) -> None:
    """Raises `Implausible` if no node would send this tentative unit."""
    if names.around.topology.has(header.stream) or header.stream.home == header.stream:
        raise Implausible(f"a tentative unit is in {header.stream}, which has stable ones")
    names.stream(header.stream.home)
    if header.since >= header.pulse:
        raise Implausible(f"it covers pulses from {header.since} to {header.pulse}")


@dataclass
class TentativeInbox:
    """The tentative units of one input, each beyond everything that came before it.

    The results of two producers without all of their input need not agree, and a row may be in different units of
    theirs. So only units that reach beyond all others are taken, which is how nothing is taken twice, and one
    producer is listened to as long as it is heard at least every ``patience_ms``.

    ``through`` is the highest pulse that was taken, ``units`` are those that a fork may need, by the number they are
    kept under.

    Invariant: ``units`` are the last ones that were taken, without a hole, and their pulses rise with their numbers.
    """

    stream: StreamId
    patience_ms: float
    through: int = 0
    count: int = 0
    sender: NodeId | None = None
    heard_ms: float = 0.0
    units: dict[int, UnitHeader] = field(default_factory=dict)

    def arrive(self, header: UnitHeader, sender: NodeId, stable: int, now_ms: float) -> int | None:
        """Take a unit, given the pulse that is complete in stable units; the number to keep it under, or None."""
        require(
            header.stream.home == self.stream,
            f"unit of {header.stream} in the inbox of {self.stream}",
            header.stream,
            self.stream,
            unit=header.number,
        )
        if sender == self.sender:
            self.heard_ms = now_ms
        if header.pulse <= max(self.through, stable):
            return None
        if self.sender is not None and sender != self.sender and now_ms < self.heard_ms + self.patience_ms:
            return None
        self.sender, self.heard_ms = sender, now_ms
        self.through = header.pulse
        self.count += 1
        self.units[self.count] = header
        return self.count

    @property
    def numbers(self) -> range:
        return range(self.count - len(self.units) + 1, self.count + 1)

    def lost(self, sender: NodeId) -> None:
        """Nothing will come from this producer: the next one may be listened to at once."""
        if sender == self.sender:
            self.sender = None

    def overtaken(self, stable: int) -> tuple[int, ...]:
        """Stable units up to a pulse are part of the state; the numbers that are not needed any more."""
        numbers = self.numbers
        done = tuple(numbers[: len(numbers) - len(beyond(numbers, self.units, stable))])
        for number in done:
            del self.units[number]
        return done

    def check(self) -> None:
        require([*self.units] == [*self.numbers], f"tentative units of {self.stream} have a hole", self.stream)
        pulses = [header.pulse for _, header in sorted(self.units.items())]
        require(pulses == sorted(set(pulses)), f"tentative units of {self.stream} overlap: {pulses}", self.stream)
        require(
            not pulses or pulses[-1] <= self.through, f"{self.stream}: a tentative unit was not counted", self.stream
        )


@dataclass
class Results:
    """The units that one tentative micro-batch has given, one for each output stream, and when its input had come."""

    headers: tuple[UnitHeader, ...]
    came_ms: float

    @property
    def pulse(self) -> int:
        return max((header.pulse for header in self.headers), default=0)


@dataclass
class TentativeOutbox:
    """What a fork has made: results that are held back, and those that were given out.

    Invariants: results are given out in order, and none of them after the stable ones of its pulse.
    """

    waiting: list[Results] = field(default_factory=list)
    given: list[Results] = field(default_factory=list)
    through: int = 0

    def add(self, results: Results) -> None:
        self.waiting.append(results)

    def release(self, came_before_ms: float) -> list[Results]:
        """Give out what came early enough."""
        out: list[Results] = []
        while self.waiting and self.waiting[0].came_ms <= came_before_ms:
            out.append(self.waiting.pop(0))
            self.through = max(self.through, out[-1].pulse)
        self.given += out
        return out

    def restart(self) -> None:
        """The fork that made them is gone, and nobody will be given these any more."""
        self.waiting, self.given = [], []

    def overtaken(self, stable: int) -> Iterator[UnitHeader]:
        """The units that nobody needs any more, because stable ones are there or they are many."""
        for kept in (self.waiting, self.given):
            late = [results for results in kept if results.pulse <= stable]
            late += [results for results in kept if results.pulse > stable][:-KEPT_UNITS]
            for results in late:
                kept.remove(results)
                yield from results.headers

    def check(self) -> None:
        pulses = [results.pulse for results in [*self.given, *self.waiting]]
        require(pulses == sorted(set(pulses)), f"tentative results out of order: {pulses}")

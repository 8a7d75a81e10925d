"""The time of cuts on one node, which several of its threads ask for."""

from __future__ import annotations

import threading

from unbroken.node.ingress.surroundings import IngressClocks
from unbroken.protocol.ingress.cut_clock import ClockLeap, ClockOffset, CutClock


class CutTimes:
    """A `CutClock` with the clocks of this node. Any thread may use it."""

    def __init__(self, clocks: IngressClocks) -> None:
        self._clocks = clocks
        self._clock = CutClock()
        self._lock = threading.Lock()

    @property
    def offset_ms(self) -> float:
        """How far the clock of this machine is ahead of the time by which pulses are cut."""
        return self._clock.offset_ms

    def now_ms(self, last_ms: int) -> int:
        """The time at this moment, if the last cut in the log was at ``last_ms``."""
        with self._lock:
            return int(self._clock.now_ms(*self._now_ms(), last_ms))

    def cut_ms(self, last_ms: int) -> int:
        """The time of a cut that is made at this moment."""
        with self._lock:
            return self._clock.cut(*self._now_ms(), last_ms)

    def agreed(self, cut_ms: int) -> None:
        """A cut is in the log."""
        with self._lock:
            self._clock.agreed(cut_ms, *self._now_ms())

    def news(self) -> tuple[ClockOffset | None, ClockLeap | None]:
        """What is worth telling of the clock of this machine since this was asked last."""
        with self._lock:
            return self._clock.step(), self._clock.leap()

    def _now_ms(self) -> tuple[float, float]:
        return self._clocks.wall_s() * 1000, self._clocks.steady_s() * 1000

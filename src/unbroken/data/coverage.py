"""Which pulses tentative results were given out for, as readers and sinks keep track of it."""

from __future__ import annotations

from dataclasses import dataclass

RANGES = 64
"""Ranges that are kept apart. There is one as long as no tentative result is lost on its way; if there are ever more
than this, the oldest two count as one, and a stable result between them as the correction of something."""


@dataclass(frozen=True)
class Coverage:
    """Ranges of pulses, each after its first number up to its second, in order and apart from each other.

    Tentative results are taken only if they reach beyond all others, so ranges are only ever added at the end, and
    stable results take them away from the beginning.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def last(self) -> int:
        """The highest pulse; 0 if there is none."""
        return self.ranges[-1][1] if self.ranges else 0

    def add(self, since: int, pulse: int) -> Coverage:
        """With a tentative result that covers the pulses after ``since`` up to ``pulse``, which is beyond the last."""
        if pulse <= self.last:
            return self
        apart = tuple(known for known in self.ranges if known[1] < since)
        joined = self.ranges[len(apart) :]
        kept = (*apart, (min(since, joined[0][0] if joined else since), pulse))
        if len(kept) > RANGES:
            kept = ((kept[0][0], kept[1][1]), *kept[2:])
        return Coverage(kept)

    def beyond(self, pulse: float) -> Coverage:
        """What is left of it when stable results have reached ``pulse``."""
        if self.ranges and self.ranges[0][0] >= pulse:
            return self
        return Coverage(tuple((max(first, int(pulse)), last) for first, last in self.ranges if last > pulse))

    def meets(self, since: float, pulse: float) -> bool:
        """Whether any pulse after ``since`` up to ``pulse`` is covered."""
        return any(first < pulse and last > since for first, last in self.ranges)

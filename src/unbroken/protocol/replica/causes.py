"""How far back the input of a replica still matters to its results."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.values.strategy import STATELESS, Strategy


@dataclass
class Causes:
    """The offset indicators of one replica: from an output unit to the first input unit that still matters.

    ``marks`` holds, for each unit, the time that was in force while it was processed: the watermark, or the time of its
    cut. Time never goes back. A row is forgotten by the state when time has moved ``horizon_ms`` past what it was when
    the row came.

    A spare does not know the watermark that earlier rows had moved, and at first takes rows for on time that were late.
    That does no harm: the unit that moved the watermark to where it was when the results begin to count is among those
    that are processed again, and with it such rows are forgotten.

    Units that were taken together were processed at the same time, which all of them have moved to where the next
    micro-batch found it. They have all their results in the last one, so the first of them matters until that one is
    safe. ``folded`` maps the last of them to the first; to 1 if that is not known.

    Invariant: marks are dense. What has no mark any more, or not yet again after a restart, is taken to matter.
    """

    strategy: Strategy
    marks: dict[int, float] = field(default_factory=dict)
    folded: dict[int, int] = field(default_factory=dict)

    def note(self, number: int, time_ms: float, first: int = 0) -> None:
        """Unit ``number`` is processed at ``time_ms``, together with those from ``first`` on if it was not alone. Units
        that are processed again have the time they had."""
        first = first or number
        if first < number:
            self.folded[number] = first
        if self.strategy.horizon_ms == STATELESS or number in self.marks:
            return
        if self.marks and first != max(self.marks) + 1:
            self.marks.clear()
        self.marks |= dict.fromkeys(range(first, number + 1), time_ms)

    def unknown(self) -> None:
        """Units were processed of which it is not known with which others, and at what time."""
        self.marks.clear()

    def before(self, through: int) -> int:
        """Input up to this unit does not matter for any result after ``through``; 0 while that cannot be told."""
        # In the middle of units that were taken together: their result is after all of them.
        through = next((first - 1 for last, first in self.folded.items() if first <= through < last), through)
        if self.strategy.horizon_ms == STATELESS:
            return through
        if through not in self.marks:
            return 0
        return self._timed(through) if self.strategy.timed else self._by_cut(through)

    def forget(self, through: int) -> None:
        """No question about earlier units will come."""
        for number in [n for n in self.marks if n < through]:
            del self.marks[number]
        for last in [last for last in self.folded if last <= through]:
            del self.folded[last]

    def check(self) -> None:
        numbers = sorted(self.marks)
        require(numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True, "marks have a hole")

    def _timed(self, through: int) -> int:
        limit = self.marks[through] - self.strategy.horizon_ms
        oldest = min(self.marks)
        if self.marks[oldest] > limit:
            return 0
        # The watermark in force for what follows a unit, and those that were taken with it, is what they moved it to.
        newest = max(self.marks)
        lasts = {n: last for last, first in self.folded.items() for n in range(max(first, oldest), last)}
        moved = ((n, lasts.get(n, n) + 1) for n in range(oldest, through))
        return next((n for n, after in moved if after > newest or self.marks[after] > limit), through) - 1

    def _by_cut(self, through: int) -> int:
        limit = self.marks[through] - self.strategy.horizon_ms
        oldest = min(self.marks)
        first = next(n for n in range(oldest, through + 1) if self.marks[n] > limit)
        return first - 1 if first > oldest else 0

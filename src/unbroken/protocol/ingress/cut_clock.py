"""The time by which pulses are cut: it follows the clock of the machine, and never jumps."""

from __future__ import annotations

from dataclasses import dataclass

SLEW = 0.1
"""How much faster or slower than real time the time of cuts may pass while it follows the clock of the machine. Clocks
that are kept by NTP are off by milliseconds, which it makes up for within a pulse; a wrong one misleads it by a tenth
of the time for which it is wrong."""

STEP_MS = 1_000.0
"""A clock that differs by more than this has been set, or was wrong before: worth a notice."""

LEAP_MS = 60_000.0
"""A first cut that is later than the last one in the log by more than this is worth a notice: restarts of a whole
flow take less, and a wrong clock that matters to windows is off by more."""


@dataclass(frozen=True)
class ClockLeap:
    """The first cut of a process, at ``to_ms`` by the clock of its machine, is long after the last one of the log."""

    from_ms: int
    to_ms: int


@dataclass(frozen=True)
class ClockOffset:
    """The clock of the machine is ``offset_ms`` ahead of the time of cuts (behind it, if that is negative); 0: no
    longer."""

    offset_ms: float


@dataclass
class CutClock:
    """The time of cuts on one member of the ingress.

    It passes like monotonic time, and bends towards the clock of the machine by at most ``SLEW``. Cuts of another
    leader set it, so that a member that becomes the leader continues from the last agreed cut.

    Only a process that has neither cut nor seen cuts being made takes its clock at its word, if that is later than the
    last cut in the log: how long no process of the flow ran cannot be told otherwise. A wrong clock is taken at its
    word as well, and later cuts cannot be earlier; so a long leap is reported (`leap`), for an operator to judge.

    Invariants: between cuts of others, time never goes back, and passes at between ``1 - SLEW`` and ``1 + SLEW`` of the
    rate of monotonic time. Every cut is later than the one before it.
    """

    at_ms: float = 0.0
    monotonic_ms: float | None = None
    issued_ms: int = 0
    seen: tuple[int, float] | None = None
    offset_ms: float = 0.0
    told_ms: float = 0.0
    trusting: bool = False
    leapt: ClockLeap | None = None

    def now_ms(self, wall_ms: float, monotonic_ms: float, last_cut_ms: int = 0) -> float:
        """The time of cuts at this moment. ``last_cut_ms`` is that of the log, where it begins."""
        if self.monotonic_ms is None:
            self.at_ms = max(wall_ms, float(last_cut_ms))
            self.trusting = True
        else:
            elapsed = max(0.0, monotonic_ms - self.monotonic_ms)
            bend = SLEW * elapsed
            self.at_ms += elapsed + min(bend, max(-bend, wall_ms - self.at_ms - elapsed))
        self.monotonic_ms = monotonic_ms
        self.offset_ms = wall_ms - self.at_ms
        return self.at_ms

    def cut(self, wall_ms: float, monotonic_ms: float, last_cut_ms: int) -> int:
        """The time of the next cut, after the last one in the log."""
        cut_ms = max(int(self.now_ms(wall_ms, monotonic_ms, last_cut_ms)), last_cut_ms + 1)
        if self.trusting and not self.issued_ms and last_cut_ms and cut_ms - last_cut_ms > LEAP_MS:
            self.leapt = ClockLeap(last_cut_ms, cut_ms)
        self.issued_ms = cut_ms
        return cut_ms

    def agreed(self, cut_ms: int, wall_ms: float, monotonic_ms: float) -> None:
        """A cut has just come into the log here; one of another leader sets the time."""
        if cut_ms == self.issued_ms:
            return
        before, self.seen = self.seen, (cut_ms, monotonic_ms)
        if self.monotonic_ms is None and (before is None or not _live(before, self.seen)):
            return
        self.at_ms, self.monotonic_ms, self.trusting = float(cut_ms), monotonic_ms, False
        self.offset_ms = wall_ms - self.at_ms

    def leap(self) -> ClockLeap | None:
        """The leap of the first cut of this process, if it was one; once."""
        leapt, self.leapt = self.leapt, None
        return leapt

    def step(self) -> ClockOffset | None:
        """What is new about the clock of the machine since the last time that this was asked."""
        offset, told = self.offset_ms, self.told_ms
        if abs(offset) < STEP_MS:
            if not told or abs(offset) > STEP_MS / 2:
                return None
            self.told_ms = 0.0
            return ClockOffset(0.0)
        if told and told * offset > 0 and abs(offset) < abs(told) + STEP_MS:
            # It is being followed, which is not worth another notice.
            self.told_ms = min(told, offset, key=abs)
            return None
        self.told_ms = offset
        return ClockOffset(offset)


def _live(earlier: tuple[int, float], later: tuple[int, float]) -> bool:
    """Whether two cuts came as they were made: what is read again from a log comes much faster."""
    return 0 < later[0] - earlier[0] <= 2 * (later[1] - earlier[1])

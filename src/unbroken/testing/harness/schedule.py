"""The faults of a run at their moments: those that sources stand still for, and those whose time has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from unbroken.testing.faults import Fault


class SourceHolds(Protocol):
    """Where sources stand still, by names: they go on when a hold is over."""

    def reached(self) -> Iterable[str]:
        """The holds that a source waits at, or has waited at."""
        ...

    def end_hold(self, hold: str) -> None: ...


class NoSourceHolds:
    """Sources that never stand still."""

    def reached(self) -> Iterable[str]:
        return ()

    def end_hold(self, hold: str) -> None:
        """There is none."""


@dataclass(frozen=True)
class PutOff:
    """A fault that waits at its moment: since when by the monotonic clock, and for what."""

    fault: Fault
    since: float
    reason: str


class FaultSchedule:
    """Has faults done whenever it is looked at (`look`), by ``strike``.

    ``timed`` faults happen in the order of their ``after_s``, which counts from `begin`; ``held`` ones while sources
    stand still at the hold of that name, in their order there. ``obstacle`` tells why a fault has to wait, None if it
    has not. A timed fault that waits puts off those behind it by as long, so that they keep their distance.
    """

    def __init__(
        self,
        strike: Callable[[Fault], object],
        obstacle: Callable[[Fault], str | None],
        timed: Iterable[Fault] = (),
        held: Mapping[str, Sequence[Fault]] | None = None,
        holds: SourceHolds | None = None,
    ) -> None:
        self._strike = strike
        self._obstacle = obstacle
        self._timed = sorted(timed, key=_after_s)
        self._held = {hold: list(faults) for hold, faults in (held or {}).items()}
        self._holds: SourceHolds = holds or NoSourceHolds()
        self._began: float | None = None
        self._delay_s = 0.0
        self._put_off: dict[Fault, PutOff] = {}

    def begin(self) -> None:
        """The first result is here; saying so again does nothing."""
        if self._began is None:
            self._began = time.monotonic()

    @property
    def began(self) -> bool:
        return self._began is not None

    def elapsed_s(self) -> float:
        """Since the first result."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def look(self) -> None:
        """Do what there is to be done at this moment."""
        for hold in sorted(self._holds.reached()):
            if hold in self._held:
                self._at_hold(hold, self._held[hold])
        while self._began is not None and self._timed:
            fault = self._timed[0]
            late_s = self.elapsed_s() - _after_s(fault) - self._delay_s
            if late_s < 0 or not self._may(fault):
                return
            if fault in self._put_off:
                self._delay_s += late_s
            self._timed.pop(0)
            self._do(fault)

    def pending(self) -> list[Fault]:
        """The faults that have not happened."""
        return [*(fault for faults in self._held.values() for fault in faults), *self._timed]

    def put_off(self) -> list[PutOff]:
        """The faults whose moment has come, and that wait."""
        return list(self._put_off.values())

    def release(self) -> None:
        """Let sources go on, whether or not anything has happened there."""
        for hold in self._held:
            self._holds.end_hold(hold)

    def _at_hold(self, hold: str, left: list[Fault]) -> None:
        """Strike while sources wait; they go on when everything has happened that is to happen there."""
        while left and self._may(left[0]):
            self._do(left.pop(0))
        if not left:
            del self._held[hold]
            self._holds.end_hold(hold)

    def _may(self, fault: Fault) -> bool:
        reason = self._obstacle(fault)
        if reason is None:
            return True
        known = self._put_off.get(fault)
        self._put_off[fault] = PutOff(fault, time.monotonic() if known is None else known.since, reason)
        return False

    def _do(self, fault: Fault) -> None:
        self._put_off.pop(fault, None)
        self._strike(fault)


def _after_s(fault: Fault) -> float:
    assert fault.after_s is not None, f"{fault} has no moment by the clock"
    return fault.after_s

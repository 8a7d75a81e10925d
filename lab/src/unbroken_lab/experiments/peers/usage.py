"""How much processor time the systems use: of all descendants of this process, those that are killed included."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil

LOOK_S = 0.5
"""A process that is killed has used at most so much more than is known of it."""

END_S = 5.0

ROUNDED_S = 0.05
"""Times are told in hundredths of a second, and added up of a few of them."""

Identity = tuple[int, float]
"""Id and start of a process: ids are used again."""


@dataclass(frozen=True)
class Used:
    """What a process and those children of it that it has waited for have used so far, in seconds."""

    process: Identity
    parent: int
    seconds: float


@dataclass
class Ledger:
    """Adds up what processes have used since the first look.

    A process that is gone is remembered, unless its parent has waited for it and counts it among its own. That shows in
    the parent's time, which has then grown by all that the process had used.
    """

    first: dict[Identity, float] = field(default_factory=dict)
    latest: dict[Identity, Used] = field(default_factory=dict)
    began: bool = False

    def look(self, seen: Iterable[Used]) -> None:
        known = {used.process: used for used in seen}
        grown = {
            process[0]: used.seconds - self.latest[process].seconds
            for process, used in known.items()
            if process in self.latest
        }
        for used in [used for used in self.latest.values() if used.process not in known]:
            if grown.get(used.parent, 0.0) + ROUNDED_S >= used.seconds:
                grown[used.parent] = grown.get(used.parent, 0.0) - used.seconds
                del self.latest[used.process]
                self._absorb(used)
        for process, used in known.items():
            # What runs already when the first look is taken has used something before.
            self.first.setdefault(process, 0.0 if self.began else used.seconds)
            self.latest[process] = used
        self.began = True

    def total(self) -> float:
        return sum(used.seconds - self.first[used.process] for used in self.latest.values())

    def _absorb(self, used: Used) -> None:
        """What a process had used before the first look now shows in its parent, and does not count there either."""
        before = self.first.pop(used.process)
        for process in self.latest:
            if process[0] == used.parent:
                self.first[process] += before


class Meter:
    """Takes looks on a thread of its own from ``start`` until ``stop``."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def start(self) -> None:
        self._ledger.look(descendants())
        self._thread.start()

    def stop(self) -> float:
        """Processor time in seconds since the start."""
        self._stopped.set()
        self._thread.join(END_S)
        self._ledger.look(descendants())
        return round(self._ledger.total(), 2)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self._ledger.look(descendants())


def descendants() -> list[Used]:
    out = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            seconds = times.user + times.system + times.children_user + times.children_system
            out.append(Used((each.pid, each.create_time()), each.ppid(), seconds))
    return out

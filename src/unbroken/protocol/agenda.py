"""Which parts of a node have something to do: because something has happened to them, or because it is time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from unbroken.protocol.instructions import Instruction

NEVER_MS = float("inf")


class Stage(IntEnum):
    """When within a tick a part has its turn. A part sees what those before it have decided."""

    REPLICAS = 0
    BEFORE_SINKS = 1
    SINKS = 2
    OUTPUT = 3
    NODES = 4
    INPUT = 5
    NEWCOMERS = 6
    SOURCES = 7
    """Last: a replica that has just begun here may be all that a pulse has waited for."""


@dataclass(eq=False)
class Errand:
    """What one part may have to do.

    ``tick`` does it, ``times`` are the moments at which there may be something to do. The part itself says when there
    is: ``mark`` for once, at the end of the event that is being handled. While ``busy`` says so it is asked after every
    event, for business that any event may move on.

    ``wake_ms`` is the first of its moments as far as that is known: after a tick it has to be asked for again.
    """

    stage: Stage
    tick: Callable[[float], list[Instruction]]
    times: Callable[[], Iterable[float]] = tuple
    busy: Callable[[], bool] | None = None
    marked: bool = True
    wake_ms: float | None = None
    ran: bool = False

    def mark(self) -> None:
        self.marked = True

    def no_later(self, time_ms: float) -> None:
        """There is something to do at this time, whatever ``times`` has said."""
        if self.wake_ms is not None and time_ms < self.wake_ms:
            self.wake_ms = time_ms

    def next_ms(self) -> float:
        if self.wake_ms is None:
            self.wake_ms = min(self.times(), default=NEVER_MS)
        return self.wake_ms

    def due(self, now_ms: float) -> bool:
        if self.marked or self.wake_ms is None or now_ms >= self.wake_ms:
            return True
        return self.busy is not None and self.busy()


@dataclass
class Agenda:
    """The errands of a node's parts, in the order in which they are run.

    Invariant: right after an event has been handled, a tick of all parts gives no instruction that the parts which were
    due have not given (``overlooked``).
    """

    errands: list[Errand] = field(default_factory=list)

    def add(
        self,
        stage: Stage,
        tick: Callable[[float], list[Instruction]],
        times: Callable[[], Iterable[float]] = tuple,
        busy: Callable[[], bool] | None = None,
    ) -> Errand:
        errand = Errand(stage, tick, times, busy)
        self.errands.append(errand)
        self.errands.sort(key=lambda known: known.stage)
        return errand

    def mark_all(self) -> None:
        """Something has happened that may concern every part."""
        for errand in self.errands:
            errand.marked = True

    def run(self, now_ms: float) -> list[Instruction]:
        """Let the parts that are due do what they have to. What an earlier part marks is still run, a later part
        that marks an earlier one has it run with the next event."""
        out: list[Instruction] = []
        for errand in self.errands:
            errand.ran = errand.due(now_ms)
            if errand.ran:
                errand.marked = False
                errand.wake_ms = None
                out += errand.tick(now_ms)
        return out

    def next_ms(self) -> float:
        """When ``run`` is worth calling even if nothing happens; that may turn out to have been too early."""
        return min((errand.next_ms() for errand in self.errands), default=NEVER_MS)

    def overlooked(self, now_ms: float) -> list[Instruction]:
        """What the parts would do that were not due in the last run: nothing, unless one failed to mark itself.

        For tests alone, as these parts have then been run.
        """
        out: list[Instruction] = []
        for errand in [errand for errand in self.errands if not errand.ran]:
            errand.wake_ms = None
            out += errand.tick(now_ms)
        return out

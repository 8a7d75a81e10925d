"""A kernel that leaves the order to whoever drives it: every step that is possible may be the next one.

What costs nothing in a setup is a step and waits to be chosen. What takes time is a timer, and happens when time has
passed. So the costs of a setup say what may happen in any order, and the code of the simulator is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop
from typing import Any, cast

from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken_lab.sim.kernel import Action, Kernel
from unbroken_lab.sim.links import Connection
from unbroken_lab.sim.machine import NodeProcess

NEVER_MS = 1e9
"""A timer for this time or a later one does not go off: sources would have rows for all the time until then, and
schedules last for minutes."""

KINDS = {
    "Network._message": "message",
    "Network._unit": "unit",
    "Network._connect": "connect",
    "Network._client_notices": "lost",
    "Network._server_notices": "gone",
    "Orders._read": "read",
    "SimulatedEngine._stopped": "end",
    "StoreClient._read": "document",
    "StoreClient._tell": "document",
    "ZooKeeper._maybe_expire": "forget",
    "begin_session": "return",
}
"""Kinds of steps by the function that does them."""

PARTS = {
    "queries": "spark",
    "engine": "spark",
    "sources": "source",
    "buckets": "source",
    "workers": "force",
    "effects": "sink",
    "transfers": "transfer",
    "snapshots": "transfer",
    "orders": "request",
    "coordination": "write",
}
"""Kinds of all other steps by the module that does them."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Something that can happen next: its kind, whose it is, and what it is about.

    ``process`` has to run for it, if there is one. Of the steps of a ``lane`` only the first can be taken.
    """

    serial: int
    kind: str
    nodes: tuple[NodeId, ...]
    about: object
    process: NodeProcess | None
    lane: object
    action: Action
    argument: Any

    def __str__(self) -> str:
        return " ".join([self.kind, *self.nodes, *([] if self.about is None else [str(self.about)])])


class StepKernel(Kernel):
    """Keeps what can happen at this moment as steps, in the order in which they became possible.

    Invariants: time never goes back; what is sent over a connection stays in order; a step is taken at most once.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._steps: dict[int, Step] = {}

    def at(self, time_ms: float, action: Action, argument: Any = None) -> None:
        if time_ms > self.now_ms:
            super().at(time_ms, action, argument)
        else:
            self._serial += 1
            self._steps[self._serial] = step_of(self._serial, action, argument)

    def after(self, delay_ms: float, action: Action, argument: Any = None) -> None:
        self.at(self.now_ms + delay_ms, action, argument)

    def steps(self) -> list[Step]:
        """The steps of processes that run, the first of each lane; those of processes that have ended are forgotten."""
        over = [step.serial for step in self._steps.values() if step.process is not None and not step.process.alive]
        for serial in over:
            del self._steps[serial]
        lanes: set[object] = set()
        found: list[Step] = []
        for step in self._steps.values():
            if step.lane is not None:
                if step.lane in lanes:
                    continue
                lanes.add(step.lane)
            if step.process is None or not step.process.frozen:
                found.append(step)
        return found

    def take(self, step: Step) -> bool:
        """Do it; False if it was possible a moment ago and is not any more."""
        if self._steps.pop(step.serial, None) is None:
            return False
        self.events += 1
        step.action(step.argument)
        return True

    def advance(self, until_ms: float = float("inf"), held: Callable[[Step], bool] | None = None) -> bool:
        """Let time pass until something is due, but not beyond a moment; False if that is reached, or nothing is ever
        due. What is ``held`` and due becomes a step."""
        if not self._heap or self._heap[0][0] > until_ms or self._heap[0][0] >= NEVER_MS:
            self.now_ms = until_ms if until_ms != float("inf") else self.now_ms
            return False
        self.now_ms = self._heap[0][0]
        while self._heap and self._heap[0][0] <= self.now_ms:
            _, serial, action, argument = heappop(self._heap)
            if held is not None and held(step := step_of(serial, action, argument)):
                self._steps[serial] = step
                continue
            self.events += 1
            action(argument)
        return True


def step_of(serial: int, action: Action, argument: Any) -> Step:
    """What a step is, by the function that does it and what that is given."""
    process: NodeProcess | None = None
    if getattr(action, "__func__", None) is NodeProcess._due:
        process = cast("NodeProcess", action.__self__)  # type: ignore[attr-defined]
        inner, given = argument
    else:
        inner, given = action, argument
    name, module = inner.__qualname__, str(inner.__module__).rpartition(".")[2]
    kind = KINDS.get(name) or ("control" if name.startswith("Controller.") else PARTS.get(module, module))
    known = _known(inner, given)
    about = next((found for one in known if (found := _subject(one)) is not None), None)
    lane, nodes = None, tuple(dict.fromkeys(name for one in known for name in _names(one)))
    for one in known:
        if isinstance(one, Connection):
            process = cast("NodeProcess", one.client if kind in ("unit", "lost") else one.server)
            lane = (kind, id(one))
    return Step(serial, kind, nodes, about, process, lane, action, argument)


def _known(action: Any, argument: Any) -> list[Any]:
    """What a function has to do with: its object, what it closes over, and its argument."""
    cells = getattr(action, "__closure__", None) or ()
    given = argument if isinstance(argument, tuple) else (argument,)
    owner = getattr(action, "__self__", None)
    return [owner, *(cell.cell_contents for cell in cells), *given]


def _subject(one: Any) -> ReplicaId | StreamId | None:
    if isinstance(one, ReplicaId | StreamId):
        return one
    header = getattr(one, "header", None)
    found = header.stream if header is not None else getattr(one, "replica", None)
    return found if isinstance(found, ReplicaId | StreamId) else None


def _names(one: Any) -> Iterator[NodeId]:
    """The nodes that something belongs to."""
    if isinstance(one, Connection):
        yield from (one.client.name, one.server.name)
    elif isinstance(one, NodeProcess):
        yield one.name
    elif isinstance(getattr(one, "process", None), NodeProcess):
        yield one.process.name
    elif isinstance(getattr(one, "_process", None), NodeProcess):
        yield one._process.name
    elif isinstance(one, str):
        yield one

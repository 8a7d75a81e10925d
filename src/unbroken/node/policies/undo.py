"""How a node undoes the tentative state of a replica."""

from __future__ import annotations

from collections.abc import Callable

from unbroken.node.policies import NodePolicy, PolicyHost
from unbroken.node.replicas.queries import Queries
from unbroken.protocol.policies.undo.instructions import UndoEffects, UndoReplica


class Undone(UndoEffects):
    """Sets replicas back when a query is started: it waits there until no query uses the checkpoint.

    ``undo`` changes the disk; the same code runs in a node and in the simulator.
    """

    def __init__(self, undo: Callable[[UndoReplica], None], queries: Callable[[], Queries | None]) -> None:
        self._undo = undo
        self._queries = queries

    def undo_replica(self, step: UndoReplica) -> None:
        queries = self._queries()
        if queries is not None:
            queries.prepare(step.replica, lambda: self._undo(step))


class NodeUndone(Undone, NodePolicy):
    """The replicas of a node that are set back."""


def build(host: PolicyHost) -> NodeUndone:
    return NodeUndone(lambda step: host.dirs.forget_state(step.replica, step.base, step.valid), lambda: host.queries)

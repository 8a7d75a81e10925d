"""Faults by hand: buttons of a page and the command line kill and freeze nodes with the vocabulary of the test kit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from unbroken.coordination.documents import Member
from unbroken.errors import Refused
from unbroken.protocol.values.ids import NodeId
from unbroken.testing.faults import Fault, Freeze, Kill
from unbroken.testing.injection.executor import Executor, Struck
from unbroken.testing.injection.found_nodes import Found, FoundNodes, FoundProcess, nodes_here, own_addresses

UNTIL_THAWED_S = 30 * 86_400.0
"""How long a node stays frozen that is not thawed by hand: longer than a demonstration lasts."""


class FaultsByHand:
    """Kills, freezes and thaws nodes of this host; safe to use from several threads.

    Nodes that were frozen from here continue when this is closed, so that none is left frozen by oversight.
    """

    def __init__(self, find: Callable[[], Found]) -> None:
        self._find = find
        self._ground = FoundNodes(find)
        self._executor = Executor(self._ground, self._ground.roles)
        self._frozen: dict[NodeId, Struck] = {}
        self._lock = threading.Lock()

    def local(self) -> set[NodeId]:
        return set(self._find())

    def frozen(self) -> set[NodeId]:
        """Nodes that are stopped at this moment, from here or from elsewhere."""
        return {name for name, process in self._find().items() if FoundProcess(process).frozen()}

    def kill(self, node: NodeId) -> int:
        """kill -9 of a node's process; its number. UnbrokenError if there is none here."""
        with self._lock:
            process = self._ground.process_of(node)
            self._strike(Kill(node))
            return process.pid

    def freeze(self, node: NodeId) -> int:
        """Stop a node until it is thawed; the number of its process. UnbrokenError if it is not here, or frozen."""
        with self._lock:
            process = self._ground.process_of(node)
            if process.frozen():
                raise Refused(f"{node} is frozen already")
            self._frozen[node] = self._strike(Freeze(node, UNTIL_THAWED_S))
            return process.pid

    def thaw(self, node: NodeId) -> int:
        """Let a node continue, whoever has frozen it; the number of its process. UnbrokenError if it is not frozen."""
        with self._lock:
            process = self._ground.process_of(node)
            if not process.frozen():
                raise Refused(f"{node} is not frozen")
            struck = self._frozen.pop(node, None)
            if struck is not None:
                self._executor.end(struck)
            process.thaw()
            return process.pid

    def close(self) -> None:
        with self._lock:
            self._frozen.clear()
            self._executor.settle()

    def _strike(self, fault: Fault) -> Struck:
        struck = self._executor.strike(fault)
        if not struck.done:
            raise Refused(struck.what)
        return struck


def faults_by_hand(members: Callable[[], Mapping[NodeId, Member]]) -> FaultsByHand:
    """Faults for those nodes of a flow that run on this host."""
    addresses = own_addresses()
    return FaultsByHand(lambda: nodes_here(members(), addresses))

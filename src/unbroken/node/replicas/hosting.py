"""What the replicas of a node consist of, how it begins and ends, and what the controller is told of it.

The same code runs in a node, where they are directories, Spark queries and sinks, and in the simulator.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial
from typing import Generic, Protocol, TypeVar

from unbroken.data.checksum import Damaged
from unbroken.node.replicas.queries import Queries
from unbroken.node.workers import Job
from unbroken.protocol.instructions import (
    GiveUp,
    ReportCaughtUp,
    ReportSwitched,
    StopReplica,
    Suspect,
    Trust,
)
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, generation_of
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import NodeSuspected, SuspicionEnded, WatchEnded
from unbroken.protocol.values.notices.replicas import ReplicaBehind, ReplicaUnreadable
from unbroken.protocol.values.recovery import StoredReplica

log = logging.getLogger(__name__)


class Directories(Protocol):
    """What the disk of a node holds of its replicas."""

    def present(self) -> list[ReplicaId]: ...

    def clean(self, wanted: Iterable[ReplicaId]) -> None:
        """Remove what an earlier process left; replicas that are not ``wanted`` are retired."""

    def begun(self, replica: ReplicaId) -> bool:
        """Whether ``replica`` has ever had a directory here."""

    def begin(self, replicas: Iterable[ReplicaId]) -> None:
        """Make the directories of replicas that begin with nothing."""

    def state(self, replica: ReplicaId) -> StoredReplica:
        """What a replica can continue from; `Damaged` if that cannot be read."""

    def doubt(self, replica: ReplicaId) -> None:
        """Note that a replica was stopped, for a reason that may lie in its state."""

    def retire(self, replica: ReplicaId) -> None:
        """Put a replica aside; nothing writes to it."""


class IngressPart(Protocol):
    """The ingress of a node. It is asked for things before it is started; it does them then."""

    def start(self) -> None:
        """Open the log and begin; returns at once."""

    def end(self, then: Job) -> None:
        """End; returns at once. ``then`` is done when nothing of it writes any longer."""

    def close(self) -> None:
        """End, and wait for that."""


class Outlets(Protocol):
    """The sinks that replicas here deliver to."""

    def open(self, replica: ReplicaId) -> None: ...

    def close_one(self, replica: ReplicaId) -> None: ...

    def close(self) -> None: ...


class LayoutReporter(Protocol):
    """Where a node reports how its replicas and the other nodes are."""

    def replica_stopped(self, replica: ReplicaId, reason: str) -> None: ...

    def caught_up(self, replica: ReplicaId) -> None: ...

    def switched(self, shard: ShardId) -> None: ...

    def suspects(self, node: NodeId, reason: str) -> None: ...

    def trusts(self, node: NodeId) -> None: ...


Ingress = TypeVar("Ingress", bound=IngressPart)
IngressMade = TypeVar("IngressMade", bound=IngressPart, covariant=True)


class HostingNode(Protocol[IngressMade]):
    """What hosting needs of its node."""

    @property
    def name(self) -> NodeId: ...

    @property
    def dirs(self) -> Directories: ...

    @property
    def outlets(self) -> Outlets: ...

    @property
    def controller(self) -> LayoutReporter | None: ...

    def topology_of(self, layout: Layout) -> Topology: ...

    def open_ingress(self, replica: ReplicaId) -> IngressMade: ...

    def dropped(self, replica: ReplicaId) -> None:
        """A replica is not wanted here any longer."""

    def tell(self, notice: Notice) -> None: ...


class ReplicaHost(Generic[Ingress]):
    """Starts, stops and removes what the replicas of a node consist of, and tells the controller how they are.

    All is called by the loop, and nothing waits for a query or the ingress: the directory of a replica is put aside
    when what runs on it has ended, and one ingress begins when the one before it has ended.
    """

    def __init__(self, host: HostingNode[Ingress]) -> None:
        self._host = host
        self.ingress: Ingress | None = None
        self.queries: Queries | None = None
        self._leaving: dict[ReplicaId, threading.Event] = {}

    def recover(self, layout: Layout, disk: str) -> dict[ReplicaId, StoredReplica]:
        """What the disk has of the replicas that are placed here; those that have yet to begin begin with nothing."""
        dirs, name, topology = self._host.dirs, self._host.name, self._host.topology_of(layout)
        placed = layout.hosted(name) if layout.nodes.get(name) == disk else []
        dirs.clean(placed)
        present = set(dirs.present())
        first = [
            replica
            for replica in placed
            if replica not in present | layout.joining
            and replica.index < topology.replicas[replica.shard.part] + topology.strategy(replica.shard.part).holding
            and generation_of(replica.shard.part) == 1
            and not dirs.begun(replica)
        ]
        dirs.begin(first)
        found = {replica: self._recover(replica) for replica in placed if replica in present | set(first)}
        return {replica: state for replica, state in found.items() if state is not None}

    def _recover(self, replica: ReplicaId) -> StoredReplica | None:
        """What the disk has of a replica; None if it is damaged, and the replica has to be copied from another one."""
        try:
            return self._host.dirs.state(replica)
        except Damaged as error:
            self._host.tell(ReplicaUnreadable(replica, self._host.name, str(error)))
            return None

    def start(self, replica: ReplicaId) -> None:
        """Start what a replica runs on what its directory holds; a query that has failed is started again."""
        if replica.shard == INGRESS:
            before, self.ingress = self.ingress, self._host.open_ingress(replica)
            if before is None:
                self.ingress.start()
            else:
                before.end(self.ingress.start)  # two of them would write one log
            return
        self._host.outlets.open(replica)
        if self.queries is not None:
            self.queries.start(replica)

    def stop(self, step: StopReplica) -> None:
        """End a replica that cannot continue; its directory stays until the layout has another one."""
        self._host.dirs.doubt(step.replica)
        self._tell_controller(step.replica, step.reason)
        if self.queries is not None:
            self.queries.pause(step.replica)

    def drop(self, replica: ReplicaId) -> None:
        """End a replica that is not wanted here, and put its directory aside when nothing writes to it."""
        self._host.dropped(replica)
        if replica.shard == INGRESS:
            ended, self.ingress = self.ingress, None
            left = self._leaving[replica] = threading.Event()
            if ended is None:
                self._retire(replica, left)
            else:
                ended.end(partial(self._retire, replica, left))
            return
        self._host.outlets.close_one(replica)
        if self.queries is not None:
            self.queries.drop(replica, lambda: self._host.dirs.retire(replica))

    def await_leave(self, replica: ReplicaId, timeout_s: float) -> bool:
        """Wait until the directory of a replica that was dropped is put aside; False if that takes longer. Another copy
        must not take its place before. Any thread may call it."""
        left = self._leaving.get(replica)
        return left is None or left.wait(timeout_s)

    def caught_up(self, step: ReportCaughtUp) -> None:
        self._host.tell(step.notice)
        if self._host.controller is not None:
            self._host.controller.caught_up(step.replica)

    def switched(self, step: ReportSwitched) -> None:
        if self._host.controller is not None:
            self._host.controller.switched(step.shard)

    def give_up(self, step: GiveUp) -> None:
        """A replica of another node holds up more than it is worth."""
        self._host.tell(ReplicaBehind(step.replica, step.stream, step.units))
        self._tell_controller(step.replica, step.reason)

    def suspect(self, step: Suspect) -> None:
        """The node of a replica that follows one of this node in its ring does not answer."""
        self._host.tell(NodeSuspected(self._host.name, step.node, step.reason))
        if self._host.controller is not None:
            self._host.controller.suspects(step.node, step.reason)

    def trust(self, step: Trust) -> None:
        kind = SuspicionEnded if step.heard else WatchEnded
        self._host.tell(kind(self._host.name, step.node))
        if self._host.controller is not None:
            self._host.controller.trusts(step.node)

    def close(self) -> None:
        if self.queries is not None:
            self.queries.close()
        if self.ingress is not None:
            self.ingress.close()
        self._host.outlets.close()

    def _retire(self, replica: ReplicaId, left: threading.Event) -> None:
        try:
            self._host.dirs.retire(replica)
        except OSError:
            log.exception("the directory of %s cannot be put aside", replica)
        left.set()

    def _tell_controller(self, replica: ReplicaId, reason: str) -> None:
        if self._host.controller is not None:
            self._host.controller.replica_stopped(replica, reason)

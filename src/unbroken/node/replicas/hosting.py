"""The replicas of a node as they really are: directories, queries, sinks, and the ingress."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from unbroken.connectors.base import SinkConnector
from unbroken.data.checksum import Damaged
from unbroken.node.ingress.service import IngressService
from unbroken.node.sink_threads import SinkWorkers
from unbroken.protocol.instructions import (
    BeginReplica,
    Deliver,
    GiveUp,
    ReportCaughtUp,
    ReportSwitched,
    StopReplica,
    Suspect,
    Trust,
)
from unbroken.protocol.replica.recovery import ReplicaState
from unbroken.protocol.values.ids import ReplicaId, StreamId, generation_of
from unbroken.protocol.values.layout import INGRESS, Layout

if TYPE_CHECKING:
    from unbroken.node.node import Node
    from unbroken.node.replicas.queries import Queries

log = logging.getLogger(__name__)


class Hosting:
    """Starts, stops and removes what the replicas of a node consist of, and tells the controller how they are."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sinks = SinkWorkers(
            node.post, node.read_outbox, lambda: node.letters, node.flow.settings.refusals, node.tell
        )
        self.ingress: IngressService | None = None
        self.queries: Queries | None = None

    def recover(self, layout: Layout, disk: str) -> dict[ReplicaId, ReplicaState]:
        """What the disk has of the replicas that are placed here; those that have yet to begin begin with nothing."""
        dirs, topology = self._node.dirs, self._node.programs.use(layout)
        placed = layout.hosted(self._node.name) if layout.nodes.get(self._node.name) == disk else []
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

    def _recover(self, replica: ReplicaId) -> ReplicaState | None:
        """What the disk has of a replica; None if it is damaged, and the replica has to be copied from another one."""
        try:
            return self._node.dirs.state(replica)
        except Damaged as error:
            self._node.tell(f"{replica} is not taken from the disk of {self._node.name}: {error}")
            return None

    def begin_anew(self, step: BeginReplica) -> None:
        """A replica begins with nothing but what its producers have kept."""
        self._node.dirs.begin_anew(step)

    def start(self, replica: ReplicaId) -> None:
        """Start what a replica runs on what its directory holds; a query that has failed is started again."""
        if replica.shard == INGRESS:
            self.ingress = IngressService(self._node, replica)
            self.ingress.start()
            return
        for stream, connector in self._sinks_of(replica):
            stops = self._node.flow.sinks[stream.consumer.part].on_refusal == "stop"
            self._sinks.open(stream, connector, self._node.dirs.root, stops)
        if self.queries is not None:
            self.queries.start(replica)

    def stop(self, step: StopReplica) -> None:
        """End a replica that cannot go on; its directory stays until the layout has another one."""
        self._node.dirs.doubt(step.replica)
        self._tell_controller(step.replica, step.reason)
        if self.queries is not None:
            self.queries.stop_one(step.replica)

    def drop(self, replica: ReplicaId) -> None:
        """End a replica that is not wanted here, and put its directory aside when nothing writes to it."""
        self._node.orders.forget(replica)
        if replica.shard == INGRESS:
            if self.ingress is not None:
                self.ingress.close()
                self.ingress = None
            self._node.dirs.retire(replica)
            return
        for stream, _ in self._sinks_of(replica):
            self._sinks.close_one(stream)
        if self.queries is not None:
            self.queries.stop_one(replica, lambda: self._node.dirs.retire(replica))

    def deliver(self, step: Deliver) -> None:
        self._sinks.deliver(step)

    def caught_up(self, step: ReportCaughtUp) -> None:
        self._node.tell(step.sentence)
        if self._node.coordination is not None:
            self._node.coordination.caught_up(step.replica)

    def switched(self, step: ReportSwitched) -> None:
        if self._node.coordination is not None:
            self._node.coordination.switched(step.shard)

    def give_up(self, step: GiveUp) -> None:
        """A replica of another node holds up more than it is worth."""
        self._node.tell(f"{step.replica} is to be built again: {step.reason}")
        self._tell_controller(step.replica, step.reason)

    def suspect(self, step: Suspect) -> None:
        """The node of a replica that follows one of this node in its ring does not answer."""
        self._node.tell(f"{self._node.name} suspects {step.node}: {step.reason}")
        if self._node.coordination is not None:
            self._node.coordination.suspects(step.node, step.reason)

    def trust(self, step: Trust) -> None:
        what = f"hears {step.node} again" if step.heard else f"does not watch {step.node} any more"
        self._node.tell(f"{self._node.name} {what}")
        if self._node.coordination is not None:
            self._node.coordination.trusts(step.node)

    def sink_writes(self, stream: StreamId) -> int:
        """Units of a stream that this node put into the sink itself."""
        return self._sinks.writes.get(stream, 0)

    def sink_busy_s(self) -> dict[StreamId, float]:
        """For how long each sink has not come back from one attempt to hand it a unit."""
        return self._sinks.busy_s()

    def close(self) -> None:
        if self.queries is not None:
            self.queries.close()
        if self.ingress is not None:
            self.ingress.close()
        self._sinks.close()

    def _sinks_of(self, replica: ReplicaId) -> list[tuple[StreamId, SinkConnector]]:
        """The streams of a replica that are written to sinks."""
        sinks, topology = self._node.flow.sinks, self._node.programs.topology
        outputs = topology.outputs(replica.shard)
        for name, sink in sinks.items():
            # One that is never handed anything tentative need not keep account of it.
            sink.connector.tentative = name in topology.tentative_sinks
            sink.connector.run = self._node.run
        found = [(stream, sinks[stream.consumer.part].connector) for stream in outputs if stream.consumer.part in sinks]
        return [(stream, connector) for stream, connector in found if not connector.client]

    def _tell_controller(self, replica: ReplicaId, reason: str) -> None:
        if self._node.coordination is not None:
            self._node.coordination.replica_stopped(replica, reason)

"""How things stand on a node, told to those who need to know: acknowledgements, progress, what sinks have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.protocol.events import SnapshotTaken
from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.messages import Ack, Delivered, Progress
from unbroken.protocol.output.outboxes import snapshot_of
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

SINK_BACKLOG = 64
"""Units that may wait for a sink before the replica counts as behind and the pulse is held: a sink that is away
for a moment costs nothing, one that is down for long must not fill the disk."""

TURN_BACKLOG = 2
"""The same where units are delivered at most once: what waits for a sink is lost with the one who has the turn, so
little is cut as long as nothing is delivered."""


@dataclass
class Standing:
    """What a node says about itself, when it changes and again to whoever may have missed it.

    Invariant: all of it only grows, so that saying it twice, or late, does no harm.
    """

    node: NodeProtocol

    # --- to whoever may have missed it ----------------------------------------------------------------

    def greet(self, to: NodeId) -> list[Instruction]:
        """Ask a node again for what is wanted of it, and say how things stand here: it may have missed both."""
        return [*self.node.subscriptions.renew(to), *self.tell(to)]

    def tell(self, to: NodeId) -> list[Instruction]:
        node = self.node
        out = [step for replica in node.replicas.values() for step in self.report(replica, {to})]
        out += [*node.holding.tell(to), *node.records.tell(to), *node.forking.tell(to), *self.pass_on(to)]
        for shard in node.snapshots:
            out += self._release_before_snapshot(shard, {to})
        for stream, delivery in node.sinks.deliveries.items():
            if delivery.delivered and to in node.hosting.concerned(stream.producer):
                out.append(Send(to, self._delivered(stream)))
        return [*out, *node.comparison.repeat(to, node.hosted(), node.layout)]

    def pass_on(self, to: NodeId) -> list[Instruction]:
        """What a member of the ingress has heard of replicas elsewhere, for the one that cuts the sources."""
        node = self.node
        if node.sources is None or to != node.sync.leader or to == node.me:
            return []
        others = [r for r in sorted(node.progress) if node.layout.placement.get(r) not in (None, to, node.me)]
        return [Send(to, self._progress(replica)) for replica in others]

    def report(self, replica: SegmentReplica, nodes: Collection[NodeId]) -> list[Instruction]:
        """How far a replica is, for those that keep its input and for those that cut the pulses."""
        node = self.node
        out: list[Instruction] = []
        for to in sorted(nodes):
            for stream in replica.inputs:
                taken = replica.inboxes[stream].consumed
                if taken and to in node.subscriptions.producers(stream):
                    out.append(Send(to, Ack(stream, str(replica.replica), taken)))
            out += node.upstream.repeat(replica.replica, to)
            out.append(Send(to, self._progress(replica.replica)))
        return out

    def committed(self, replica: SegmentReplica) -> list[Instruction]:
        """Acknowledge what a replica has committed, every few units; and the last ones, as nothing will follow them."""
        node = self.node
        ended = replica.final is not None and replica.committed >= replica.final
        if replica.committed < replica.acknowledged + node.settings.ack_every and not ended:
            return []
        replica.acknowledged = replica.committed
        return [
            Send(to, Ack(stream, str(replica.replica), replica.inboxes[stream].consumed))
            for stream in replica.inputs
            for to in sorted(node.subscriptions.producers(stream))
        ]

    # --- when it changes ------------------------------------------------------------------------------

    def progress(self, replica: SegmentReplica) -> list[Instruction]:
        """Tell the ingress how far a replica is; one whose sink does not take its units is not far."""
        node, pulse = self.node, replica.pulse
        backlog = TURN_BACKLOG if node.topology.at_most_once else SINK_BACKLOG
        for stream in node.topology.outputs(replica.replica.shard):
            delivery, box = node.sinks.deliveries.get(stream), node.outboxes.boxes.get(stream)
            waits = None if delivery is None or box is None else box.headers.get(delivery.delivered + backlog)
            if waits is not None:
                pulse = min(pulse, waits.pulse)
        if pulse <= node.progress.get(replica.replica, 0):
            return []
        node.progress[replica.replica] = pulse
        node.moved[replica.replica] = node.seen_ms
        message = self._progress(replica.replica)
        return [Send(to, message) for to in sorted(node.sync.members) if to != node.me]

    def _progress(self, replica: ReplicaId) -> Progress:
        return Progress(replica, self.node.progress.get(replica, 0), self.node.ahead.get(replica, 0))

    def delivered(self, stream: StreamId) -> list[Instruction]:
        """How far a sink has come, for those that could deliver the same, and for those that wait to follow."""
        node, delivery = self.node, self.node.sinks.deliveries.get(stream)
        if delivery is None:
            return []
        node.handover.delivered(stream, delivery.delivered)
        note = self._delivered(stream)
        return [Send(to, note) for to in sorted(node.hosting.concerned(stream.producer))]

    def _delivered(self, stream: StreamId) -> Delivered:
        sinks = self.node.sinks
        return Delivered(stream, sinks.deliveries[stream].delivered, sinks.stopped.get(stream, 0))

    def mark_delivered(self, stream: StreamId, through: int, stopped: int = 0) -> list[Instruction]:
        """Another node says how far a sink has come."""
        if stopped:
            self.node.sinks.stop(stream, stopped)
        self.node.handover.delivered(stream, through)
        return [*self.node.sinks.delivered(stream, through), *self.progress_of(stream)]

    def progress_of(self, stream: StreamId) -> list[Instruction]:
        replicas = [replica for replica in self.node.replicas.values() if replica.replica.shard == stream.producer]
        return [step for replica in replicas for step in self.progress(replica)]

    def snapshot_taken(self, event: SnapshotTaken, _now_ms: float) -> list[Instruction]:
        node = self.node
        node.snapshots[event.shard] = max(event.version, node.snapshots.get(event.shard, 0))
        return self._release_before_snapshot(event.shard, node.links)

    def _release_before_snapshot(self, shard: ShardId, nodes: Collection[NodeId]) -> list[Instruction]:
        """What a shard's snapshot contains need not be kept on its account."""
        node = self.node
        return [
            Send(to, Ack(stream, str(snapshot_of(shard)), node.snapshots[shard]))
            for stream in node.topology.inputs(shard)
            for to in sorted(node.subscriptions.producers(stream) & set(nodes))
        ]

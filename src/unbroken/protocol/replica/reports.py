"""How things stand on a node, told to those who need to know: acknowledgements, progress, what sinks have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.protocol.events import SnapshotTaken
from unbroken.protocol.ingress.seat import Advance
from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.messages import Ack, Delivered, Progress
from unbroken.protocol.output.digest_exchange import DigestExchange
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes, snapshot_of
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId

SINK_BACKLOG = 64
"""Units that may wait for a sink before the replica counts as behind and the pulse is held: a sink that is away
for a moment costs nothing, one that is down for long must not fill the disk."""


class Additions(Protocol):
    """What else is to be said, and what changes how far a replica is said to be."""

    def briefing(self, to: NodeId) -> list[Instruction]: ...

    def report(self, replica: ReplicaId, to: NodeId) -> list[Instruction]: ...

    def backlog(self) -> int | None: ...


@dataclass
class Reports:
    """What a node says about itself, when it changes and again to whoever may have missed it.

    Invariant: all of it only grows, so that saying it twice, or late, does no harm.
    """

    around: Surroundings
    roster: Roster
    advance: Advance
    outboxes: Outboxes
    sinks: Sinks
    generation_switch: GenerationSwitch
    digest_exchange: DigestExchange
    subscriptions: Subscriptions
    additions: Additions
    snapshots: dict[ShardId, int] = field(default_factory=dict)

    # --- to whoever may have missed it ----------------------------------------------------------------

    def greet(self, to: NodeId) -> list[Instruction]:
        """Ask a node again for what is wanted of it, and say how things stand here: it may have missed both."""
        return [*self.subscriptions.renew(to), *self.tell(to)]

    def tell(self, to: NodeId) -> list[Instruction]:
        out = [step for replica in self.roster.replicas.values() for step in self.report(replica, {to})]
        out += [*self.additions.briefing(to), *self.pass_on(to)]
        for shard in self.snapshots:
            out += self._release_before_snapshot(shard, {to})
        for stream, delivery in self.sinks.deliveries.items():
            if delivery.delivered and to in self.around.concerned(stream.producer):
                out.append(Send(to, self._delivered(stream)))
        return [*out, *self.digest_exchange.repeat(to, self.roster.hosted(), self.around.layout)]

    def pass_on(self, to: NodeId) -> list[Instruction]:
        """What a member of the ingress has heard of replicas elsewhere, for the one that cuts the sources."""
        around = self.around
        if self.roster.seat.sources is None or to != around.sync.leader or to == around.me:
            return []
        reached, placement = self.advance.reached, around.layout.placement
        others = [r for r in sorted(reached) if placement.get(r) not in (None, to, around.me)]
        return [Send(to, self._progress(replica)) for replica in others]

    def report(self, replica: SegmentReplica, nodes: Collection[NodeId]) -> list[Instruction]:
        """How far a replica is, for those that keep its input and for those that cut the pulses."""
        out: list[Instruction] = []
        for to in sorted(nodes):
            for stream in replica.inputs:
                taken = replica.inboxes[stream].consumed
                if taken and to in self.around.producers(stream):
                    out.append(Send(to, Ack(stream, str(replica.replica), taken)))
            out += self.additions.report(replica.replica, to)
            out.append(Send(to, self._progress(replica.replica)))
        return out

    def committed(self, replica: SegmentReplica) -> list[Instruction]:
        """Acknowledge what a replica has committed, every few units; and the last ones, as nothing will follow them."""
        ended = replica.final is not None and replica.committed >= replica.final
        if replica.committed < replica.acknowledged + self.around.settings.ack_every and not ended:
            return []
        replica.acknowledged = replica.committed
        return [
            Send(to, Ack(stream, str(replica.replica), replica.inboxes[stream].consumed))
            for stream in replica.inputs
            for to in sorted(self.around.producers(stream))
        ]

    # --- when it changes ------------------------------------------------------------------------------

    def progress(self, replica: SegmentReplica) -> list[Instruction]:
        """Tell the ingress how far a replica is; one whose sink does not take its units is not far."""
        pulse, fewer = replica.pulse, self.additions.backlog()
        backlog = SINK_BACKLOG if fewer is None else fewer
        for stream in self.around.topology.outputs(replica.replica.shard):
            delivery, box = self.sinks.deliveries.get(stream), self.outboxes.boxes.get(stream)
            waits = None if delivery is None or box is None else box.headers.get(delivery.delivered + backlog)
            if waits is not None:
                pulse = min(pulse, waits.pulse)
        if not self.advance.reaches(replica.replica, pulse, self.around.seen_ms):
            return []
        return self.announce(replica.replica)

    def announce(self, replica: ReplicaId) -> list[Instruction]:
        """Tell the ingress how far a replica is."""
        message = self._progress(replica)
        return [Send(to, message) for to in sorted(self.around.sync.members) if to != self.around.me]

    def _progress(self, replica: ReplicaId) -> Progress:
        return Progress(replica, self.advance.reached.get(replica, 0), self.advance.ahead.get(replica, 0))

    def delivered(self, stream: StreamId) -> list[Instruction]:
        """How far a sink has come, for those that could deliver the same, and for those that wait to follow."""
        delivery = self.sinks.deliveries.get(stream)
        if delivery is None:
            return []
        self.generation_switch.delivered(stream, delivery.delivered)
        note = self._delivered(stream)
        return [Send(to, note) for to in sorted(self.around.concerned(stream.producer))]

    def _delivered(self, stream: StreamId) -> Delivered:
        return Delivered(stream, self.sinks.deliveries[stream].delivered, self.sinks.stopped.get(stream, 0))

    def sink_took(self, stream: StreamId, number: int) -> list[Instruction]:
        """A sink came back with a unit that was handed to it here."""
        out = self.sinks.finished(stream, number)
        return [*out, *self.progress_of(stream), *self.delivered(stream)]

    def mark_delivered(self, stream: StreamId, through: int, stopped: int = 0) -> list[Instruction]:
        """Another node says how far a sink has come."""
        if stopped:
            self.sinks.stop(stream, stopped)
        self.generation_switch.delivered(stream, through)
        return [*self.sinks.delivered(stream, through), *self.progress_of(stream)]

    def progress_of(self, stream: StreamId) -> list[Instruction]:
        replicas = [replica for replica in self.roster.replicas.values() if replica.replica.shard == stream.producer]
        return [step for replica in replicas for step in self.progress(replica)]

    def snapshot_taken(self, event: SnapshotTaken, _now_ms: float) -> list[Instruction]:
        self.snapshots[event.shard] = max(event.version, self.snapshots.get(event.shard, 0))
        return self._release_before_snapshot(event.shard, self.around.links)

    def _release_before_snapshot(self, shard: ShardId, nodes: Collection[NodeId]) -> list[Instruction]:
        """What a shard's snapshot contains need not be kept on its account."""
        return [
            Send(to, Ack(stream, str(snapshot_of(shard)), self.snapshots[shard]))
            for stream in self.around.topology.inputs(shard)
            for to in sorted(self.around.producers(stream) & set(nodes))
        ]

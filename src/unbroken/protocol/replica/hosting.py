"""The replicas at work on a node: how they begin, how they stop, how they are let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.protocol.events import QueryFailed, ReplicaStopped
from unbroken.protocol.ingress.log import IngressLog
from unbroken.protocol.ingress.pulse import AdaptivePulse
from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.instructions import Instruction, Report, Send, StartReplica, StopReplica
from unbroken.protocol.messages import DigestNote, Serving
from unbroken.protocol.replica.recovery import ReplicaState, StoredUnits
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol


@dataclass
class Hosting:
    """Begins and ends a node's work as a replica.

    Invariants: a replica that diverged produces, sends and delivers nothing more; one that stopped for another reason
    produces nothing more, but what it had produced is as good as its siblings' and is still handed on.
    """

    node: NodeProtocol

    # --- beginning and letting go ---------------------------------------------------------------------

    def placed_here(self) -> list[ReplicaId]:
        """What the layout wants here; a layout that knows another disk under this name means that one."""
        node = self.node
        return node.layout.hosted(node.me) if node.layout.nodes.get(node.me) == node.disk else []

    def start(self, now_ms: float) -> list[Instruction]:
        """Take up what the layout places here, with what the disk has of it."""
        node = self.node
        out: list[Instruction] = []
        for replica in self.placed_here():
            state = node.recovered.get(replica)
            if replica in node.layout.held:
                out += node.holding.begin(replica, state, now_ms)
            elif replica in node.layout.joining:
                out += node.joining.begin(replica, state, now_ms)
            elif state is None:
                out.append(self.absent(replica))
            else:
                out += self.host(replica, state)
        return out

    def absent(self, replica: ReplicaId) -> StopReplica:
        """A replica that counts as redundancy, and whose state is not here."""
        return StopReplica(replica, f"its state is not on the disk of {self.node.me}")

    def host(self, replica: ReplicaId, state: ReplicaState) -> list[Instruction]:
        """Begin to work as ``replica`` from ``state``, and let everybody know."""
        node = self.node
        if replica.shard == INGRESS:
            node.ingress = replica
            node.sources = self._open_sources(state)
            shards = [ShardId(source, 0) for source in node.topology.sources]
        else:
            feeds = node.subscriptions.feeds(replica)
            part = replica.shard.part
            node.replicas[replica] = SegmentReplica.recovered(
                replica, feeds, state, node.topology.strategy(part).foldable, part in node.topology.led
            )
            node.replicas[replica].placed_by(node.layout)
            shards = [replica.shard]
        node.serving.add(replica)
        node.upstream.open(replica)
        node.comparison.open(replica.shard)
        for stream in [stream for shard in shards for stream in node.topology.outputs(shard)]:
            begun = state.log.units.get(stream.producer.part, max(state.committed, state.valid))
            stored = state.outboxes.get(stream, StoredUnits(begun))
            node.outboxes.open(stream, replica, node.layout, stored)
            node.upstream.stored(replica, stored.headers)
            sink = stream.consumer.part
            if sink in node.topology.sinks:
                node.handover.open(stream)
            if sink in node.topology.sinks and sink not in node.topology.client_sinks:
                node.sinks.open(stream, replica, node.layout, self._tried(replica, state, stored))
        out: list[Instruction] = [StartReplica(replica)]
        for stream in [box.stream for box in node.outboxes.of(replica)]:
            # Replicas ask again when they are told of this one; clients are told by nobody.
            early = node.outboxes.take_early(stream)
            if stream.consumer.part in node.topology.client_sinks:
                out += [step for question in early for step in node.outboxes.subscribe(*question)]
        if node.sources is not None and replica == node.ingress:
            out += node.sources.begin()
        if replica in node.replicas:
            out += node.leading.open(node.replicas[replica])
            node.forking.open(node.replicas[replica])
        if replica in node.replicas:
            node.progress[replica] = max(node.replicas[replica].pulse, node.progress.get(replica, 0))
            out += node.standing.report(node.replicas[replica], node.links)
        # Others here may read what the replica produces, and have come further than its outboxes know.
        out += node.standing.greet(node.me)
        return [*out, *(Send(to, Serving(replica)) for to in sorted(node.links - {node.me}))]

    def _tried(self, replica: ReplicaId, state: ReplicaState, stored: StoredUnits) -> int:
        """The last unit that an earlier process on this disk may have handed to a sink.

        It may have dropped it, too, before it committed the micro-batch; then the input of that is still here.
        """
        if replica not in self.node.recovered:
            return 0
        running = state.committed + 1
        ran = any(header.number == running for headers in state.inboxes.values() for header in headers)
        return max(stored.base + len(stored.headers), running if ran else 0)

    def unhost(self, replica: ReplicaId) -> None:
        """Stop working as ``replica``."""
        node = self.node
        node.outboxes.close(replica)
        node.upstream.close(replica)
        node.leading.close(replica)
        node.forking.close(replica)
        node.handover.close(replica)
        node.sinks.close(replica)
        node.comparison.close(replica.shard)
        node.serving.discard(replica)
        node.progress.pop(replica, None)
        node.ahead.pop(replica, None)
        node.replicas.pop(replica, None)
        if replica == node.ingress:
            node.ingress = node.sources = None

    def _open_sources(self, state: ReplicaState) -> SourceSide:
        node, tuned, held = self.node, self.node.settings, state.log
        bound = len(node.topology.segments) + tuned.in_flight_slack
        pulse = AdaptivePulse(tuned.pulse_min_ms, tuned.pulse_max_ms, bound, tuned.pulse_start_ms)
        log_state = (held.committed, held.entries, held.pulse, held.finished)
        if held.admission is None:
            log = IngressLog.recovered(node.me, node.sync, *log_state)
        else:
            log = IngressLog.learner(node.me, node.sync, held.admission, *log_state)
        node.lives += 1
        return SourceSide(node.me, log, pulse, tuned.grace_ms, life=node.lives, led=log.leading)

    # --- stopping -------------------------------------------------------------------------------------

    def compare(self, note: DigestNote) -> list[Instruction]:
        """Compare what a replica of a shard at home here has produced; a divergent one is stopped."""
        found = self.node.comparison.compare(note)
        if found is None:
            return []
        out: list[Instruction] = [Report(str(found))]
        if found.stopped in self.node.replicas:
            self._silence(found.stopped, str(found))
            out.append(StopReplica(found.stopped, str(found)))
        return out

    def stopped(self, event: ReplicaStopped, now_ms: float) -> list[Instruction]:
        if self.node.forking.find(event.replica) is not None:
            return self.node.forking.query_failed(QueryFailed(event.replica, event.reason), now_ms)
        state = self.node.replicas.get(event.replica)
        if state is None or state.stopped is not None:
            return []
        state.stopped = event.reason
        sentence = f"{event.replica} stopped on {self.node.me}: {event.reason}"
        return [Report(sentence), StopReplica(event.replica, event.reason)]

    def query_failed(self, event: QueryFailed, now_ms: float) -> list[Instruction]:
        if self.node.forking.find(event.replica) is not None:
            return self.node.forking.query_failed(event, now_ms)
        replica = self.node.replicas.get(event.replica)
        if replica is None or replica.stopped is not None:
            return []
        out: list[Instruction] = [*replica.forget_questions()]
        if replica.resting or replica.query_failed(now_ms):
            return out
        return [*out, *self.stopped(ReplicaStopped(event.replica, event.reason), now_ms)]

    def diverged(self, replica: ReplicaId) -> bool:
        return any(box.muted for box in self.node.outboxes.of(replica))

    def _silence(self, replica: ReplicaId, reason: str) -> None:
        """Nothing of a divergent replica goes out any more; what it has sent is judged by the others' digests."""
        state = self.node.replicas[replica]
        state.stopped = state.stopped or reason
        self.node.sinks.close(replica)
        for box in self.node.outboxes.of(replica):
            box.muted = True

    def concerned(self, shard: ShardId) -> set[NodeId]:
        """The other nodes with a replica of ``shard``, or of the one that takes its place."""
        node = self.node
        later = node.topology.successor(shard.part)
        nodes = set(node.layout.working_nodes_of(shard))
        if later is not None:
            nodes |= set(node.layout.working_nodes_of(ShardId(later, shard.index)))
        return nodes - {node.me}

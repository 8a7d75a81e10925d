"""From whom the replicas of a node get their input, and what happens when it does not come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.protocol.instructions import Instruction, Send, StopReplica
from unbroken.protocol.messages import Missing, Subscribe, Unsubscribe
from unbroken.protocol.replica.feeds import Feed
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.layout import INGRESS

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

UNSTABLE = (Consistency.UP_FAILURE, Consistency.STABILIZATION)


@dataclass
class Subscriptions:
    """The feeds of the replicas that are at work on a node.

    Everything here is repeated whenever it may have been lost: when a link stands again, when a replica begins to
    serve, when the layout or the in-sync set changes.

    Invariant: a replica that needs a unit is subscribed to whoever can be reached and may have it, as the way of
    delivery wants it.
    """

    node: NodeProtocol

    def feeds(self, replica: ReplicaId) -> dict[StreamId, Feed]:
        tuned = self.node.settings
        return {
            stream: Feed(tuned.single_delivery, tuned.patience_ms, stream.producer.part in self.node.topology.led)
            for stream in self.node.topology.inputs(replica.shard)
        }

    # --- who produces ---------------------------------------------------------------------------------

    def producers(self, stream: StreamId) -> set[NodeId]:
        """Where a stream comes from. The in-sync set has the last word on who cuts the sources, so a member that
        only the layout has given up is still listened to."""
        shard = self.node.topology.host_shard(stream.producer)
        return set(self.node.layout.working_nodes_of(shard)) | (self.node.sync.members if shard == INGRESS else set())

    def reachable(self, stream: StreamId) -> list[NodeId]:
        """The nodes that can send a stream at this moment, this one first, then by the age of their replicas."""
        node = self.node
        hosts = node.layout.working_nodes_of(node.topology.host_shard(stream.producer))
        idle = {name for name, replica in hosts.items() if replica in node.layout.joining - node.serving}
        nodes = (self.producers(stream) & node.links) - idle
        if hosts.get(node.me) not in node.hosted():
            nodes.discard(node.me)
        return sorted(nodes, key=lambda name: (name != node.me, hosts[name].index if name in hosts else 0, name))

    def _preferred(self, stream: StreamId, replica: ReplicaId) -> list[NodeId]:
        """The same for one that takes a stream from one node: its own first, then others, not all replicas the same.

        A copy of the whole dataflow takes nothing from others."""
        nodes = self.reachable(stream)
        if self.node.topology.whole:
            return [name for name in nodes if name == self.node.me]
        others = [name for name in nodes if name != self.node.me]
        start = replica.index % len(others) if others else 0
        return [*(name for name in nodes if name == self.node.me), *others[start:], *others[:start]]

    def keepers(self, stream: StreamId) -> set[NodeId]:
        """The nodes that have to keep a stream for a replica before it counts: full producers, and whoever serves.

        In a whole copy, its own producer in any case; the others, because that one may have to be built again."""
        shard = self.node.topology.host_shard(stream.producer)
        own = {self.node.me} if self.node.topology.whole else set()
        return set(self.node.layout.full_nodes_of(shard)) | set(self.reachable(stream)) | own

    # --- subscribing ----------------------------------------------------------------------------------

    def update(self, replica: SegmentReplica) -> list[Instruction]:
        """Subscribe to those producers that can be reached, as the way of delivery wants it."""
        out: list[Instruction] = []
        if replica.stopped is not None:
            return out
        name = str(replica.replica)
        for stream, feed in replica.feeds.items():
            joined, left = feed.update(self._preferred(stream, replica.replica))
            after = replica.inboxes[stream].available
            out += [Send(node, Unsubscribe(stream, name)) for node in left if node in self.node.links]
            heard = self.node.forking.wants(replica.replica, stream)
            out += [Send(node, Subscribe(stream, name, after, heard)) for node in joined]
        return out

    def update_all(self) -> list[Instruction]:
        return [step for replica in self.node.replicas.values() for step in self.update(replica)]

    def renew(self, node: NodeId) -> list[Instruction]:
        """What ``node`` was asked for may be lost: ask again."""
        for replica in self.node.replicas.values():
            for feed in replica.feeds.values():
                feed.forget(node)
        return self.update_all()

    def refetch(self, replica: SegmentReplica, stream: StreamId) -> list[Instruction]:
        """Ask for what follows the units of a stream that are here, as if nothing more had been sent."""
        feed = replica.feeds[stream]
        for node in sorted(feed.subscribed):
            feed.forget(node)
        return self.update(replica)

    def turn(self, replica: SegmentReplica, now_ms: float) -> list[Instruction]:
        """Turn away from producers that keep a replica waiting for too long, which with a single one in reach is to ask
        it once more; and at once from one that lacks input to one that does not.
        """
        if not self.node.settings.single_delivery:
            return []
        out: list[Instruction] = []
        unfed = replica.unfed() if replica.asked and replica.stopped is None else []
        for stream, feed in replica.feeds.items():
            better = self._better(stream, feed, replica)
            if better is not None:
                out += self._leave(replica, stream, feed.turn_to(better))
            elif stream not in unfed:
                feed.content()
            elif feed.starve(now_ms):
                out += self._leave(replica, stream, feed.turn_away())
        return out

    def _leave(self, replica: SegmentReplica, stream: StreamId, left: list[NodeId]) -> list[Instruction]:
        """Tell those who were given up, and ask others in their place."""
        name = str(replica.replica)
        out: list[Instruction] = [Send(node, Unsubscribe(stream, name)) for node in left if node in self.node.links]
        return [*out, *self.update(replica)]

    def _better(self, stream: StreamId, feed: Feed, replica: SegmentReplica) -> int | None:
        """Where among the producers one is whose results are known to be stable, if those of the present one are known
        not to be. One that had nothing to send does not count: it may lack the same, and not have noticed yet."""
        if replica.stopped is not None or not any(self._state(stream, node) in UNSTABLE for node in feed.subscribed):
            return None
        nodes = enumerate(self._preferred(stream, replica.replica))
        others = ((place, node) for place, node in nodes if node not in feed.silent)
        return next((place for place, node in others if self._state(stream, node) is Consistency.STABLE), None)

    def _state(self, stream: StreamId, node: NodeId) -> Consistency | None:
        """How the results of a producer stand, as far as that is known."""
        shard = self.node.topology.host_shard(stream.producer)
        replica = self.node.layout.working_nodes_of(shard).get(node)
        watch = None if replica is None else self.node.forking.watches.get(replica)
        if watch is not None:
            return watch.state
        return None if replica is None else self.node.forking.reconciling.siblings.get(replica)

    # --- what cannot be had ---------------------------------------------------------------------------

    def missing(self, sender: NodeId, message: Missing) -> list[Instruction]:
        """A producer has dropped what a replica here needs."""
        replica = self.node.replicas.get(ReplicaId.parse(message.subscriber))
        if replica is None:
            return []
        replica.holes[message.stream, sender] = message.base
        return self.lacking(replica)

    def lacking(self, replica: SegmentReplica) -> list[Instruction]:
        """If every producer has dropped what a replica needs next, it has to be built again."""
        if replica.stopped is not None:
            return []
        for stream in sorted({stream for stream, _ in replica.holes}):
            inbox = replica.inboxes[stream]
            nodes = {self.node.me} if self.node.topology.whole else self.producers(stream)
            if nodes and all(replica.holes.get((stream, node), 0) > inbox.available for node in nodes):
                replica.stopped = f"unit {inbox.available + 1} of {stream} is kept nowhere any more"
                return [StopReplica(replica.replica, replica.stopped)]
        return []

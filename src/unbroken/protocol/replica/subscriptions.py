"""From whom the replicas of a node get their input, and what happens when it does not come."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from unbroken.errors import require
from unbroken.protocol.instructions import Instruction, Send, StopReplica
from unbroken.protocol.messages import Missing, Subscribe, Unsubscribe
from unbroken.protocol.replica.feeds import Feed
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId

UNSTABLE = (Consistency.UP_FAILURE, Consistency.STABILIZATION)


class Preferences(Protocol):
    """What decides from whom a replica takes its input, beyond who has it."""

    def numbered(self, part: str) -> bool: ...

    def wants(self, replica: ReplicaId, stream: StreamId) -> int: ...

    def standing(self, replica: ReplicaId) -> Consistency | None: ...

    def feeders(self, nodes: Collection[NodeId]) -> Collection[NodeId]: ...

    def keepers(self) -> set[NodeId]: ...


@dataclass
class Subscriptions:
    """The feeds of the replicas that are at work on a node.

    Everything here is repeated whenever it may have been lost: when a link stands again, when a replica begins to
    serve, when the layout or the in-sync set changes.

    Invariant: a replica that needs a unit is subscribed to whoever can be reached and may have it, as the way of
    delivery wants it.
    """

    around: Surroundings
    roster: Roster
    preferences: Preferences

    def feeds(self, replica: ReplicaId) -> dict[StreamId, Feed]:
        tuned = self.around.settings
        return {
            stream: Feed(tuned.single_delivery, tuned.patience_ms, self.preferences.numbered(stream.producer.part))
            for stream in self.around.topology.inputs(replica.shard)
        }

    def check(self) -> None:
        for name, replica in self.roster.replicas.items():
            for stream, feed in replica.feeds.items() if replica.stopped is None else ():
                lost = feed.subscribed - self.around.links
                require(not lost, f"{name} counts on {sorted(lost)} for {stream}, which cannot be reached")

    # --- who produces ---------------------------------------------------------------------------------

    def reachable(self, stream: StreamId) -> list[NodeId]:
        """The nodes that can send a stream at this moment, this one first, then by the age of their replicas."""
        around = self.around
        hosts = around.layout.working_nodes_of(around.topology.host_shard(stream.producer))
        idle = {name for name, replica in hosts.items() if replica in around.layout.joining - around.serving}
        nodes = (around.producers(stream) & around.links) - idle
        if hosts.get(around.me) not in self.roster.hosted():
            nodes.discard(around.me)
        return sorted(nodes, key=lambda name: (name != around.me, hosts[name].index if name in hosts else 0, name))

    def _preferred(self, stream: StreamId, replica: ReplicaId) -> list[NodeId]:
        """The same for one that takes a stream from one node: its own first, then others, not all replicas the same."""
        nodes = self.preferences.feeders(self.reachable(stream))
        others = [name for name in nodes if name != self.around.me]
        start = replica.index % len(others) if others else 0
        return [*(name for name in nodes if name == self.around.me), *others[start:], *others[:start]]

    def keepers(self, stream: StreamId) -> set[NodeId]:
        """The nodes that have to keep a stream for a replica before it counts: full producers, and whoever serves."""
        shard = self.around.topology.host_shard(stream.producer)
        return set(self.around.layout.full_nodes_of(shard)) | set(self.reachable(stream)) | self.preferences.keepers()

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
            out += [Send(node, Unsubscribe(stream, name)) for node in left if node in self.around.links]
            heard = self.preferences.wants(replica.replica, stream)
            out += [Send(node, Subscribe(stream, name, after, heard)) for node in joined]
        return out

    def update_all(self) -> list[Instruction]:
        return [step for replica in self.roster.replicas.values() for step in self.update(replica)]

    def renew(self, node: NodeId) -> list[Instruction]:
        """What ``node`` was asked for may be lost: ask again."""
        for replica in self.roster.replicas.values():
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
        if not self.around.settings.single_delivery:
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
        out: list[Instruction] = [Send(node, Unsubscribe(stream, name)) for node in left if node in self.around.links]
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
        shard = self.around.topology.host_shard(stream.producer)
        replica = self.around.layout.working_nodes_of(shard).get(node)
        return None if replica is None else self.preferences.standing(replica)

    # --- what cannot be had ---------------------------------------------------------------------------

    def missing(self, sender: NodeId, message: Missing) -> list[Instruction]:
        """A producer has dropped what a replica here needs."""
        replica = self.roster.replicas.get(ReplicaId.parse(message.subscriber))
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
            nodes = self.preferences.feeders(self.around.producers(stream))
            if nodes and all(replica.holes.get((stream, node), 0) > inbox.available for node in nodes):
                replica.stopped = f"unit {inbox.available + 1} of {stream} is kept nowhere any more"
                return [StopReplica(replica.replica, replica.stopped)]
        return []

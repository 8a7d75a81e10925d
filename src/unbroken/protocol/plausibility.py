"""What can be true of the names and numbers in a message, by what this node knows for sure.

Which replica is where never changes as long as the replica exists, shards and streams follow from the code of a
generation, numbers only grow. A peer may know more, as layouts and code reach nodes at different times, so what may be
true of a later layout passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.output.outbox import SNAPSHOT
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, generation_of, segment_of
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.units import Digest

MOST_NUMBER = 2**48
"""No counter gets here: a thousand units per second would take nine thousand years."""

FAR = 10_000_000
"""Units or entries by which a peer may be ahead of what this node knows: days of pulses, and far more entries than are
kept for a member or a learner that is behind."""

VERSIONS_AHEAD = 1_000_000
"""Layouts that a node may have missed; each takes a decision of the controller."""

INDEXES_AHEAD = 10_000
"""Replicas of one shard that may have been placed since the layout that this node knows."""

GENERATIONS_AHEAD = 1_000
"""Generations of the code that may have been declared since the layout that this node knows."""

LONGEST_NAME = 200
MOST_LEVELS = 100
"""Segments in a row of which an acknowledgement may report: each level is a call deep."""

MOST_FLOATS = 10_000
"""Floating-point columns of a unit."""


class Implausible(Exception):
    """What a peer says cannot be true."""


class Stale(Implausible):
    """What a peer says is about something that is gone, of which it may not have heard yet."""


@dataclass(frozen=True)
class Plausibility:
    """Checks of names and numbers, of which those of messages are made.

    Invariant: a check changes nothing. It raises `Implausible` for what no node would send at any time, or another
    error about a value that it cannot make anything of.
    """

    around: Surroundings
    outboxes: Outboxes

    def shard(self, shard: ShardId) -> None:
        """A shard exists, or may exist in code that this node has not heard of yet."""
        topology, part = self.around.topology, shard.part
        if shard == INGRESS:
            return
        if part in topology.segments or part in topology.sources or part in topology.sinks:
            if not 0 <= shard.index < topology.segments.get(part, 1):
                raise Implausible(f"{part} has no shard {shard.index}")
            return
        generation, newest = generation_of(part), self.around.layout.generations[-1]
        if newest < generation <= newest + GENERATIONS_AHEAD and 0 <= shard.index <= FAR:
            return
        if segment_of(part) in {segment_of(known) for known in topology.segments} and 0 < generation <= newest:
            raise Stale(f"{part} is not part of the flow any more")
        raise Implausible(f"there is no {shard} in the flow")

    def stream(self, stream: StreamId) -> None:
        if self.around.topology.has(stream):
            return
        self.shard(stream.producer)
        self.shard(stream.consumer)
        newest = self.around.layout.generations[-1]
        if max(generation_of(stream.producer.part), generation_of(stream.consumer.part)) <= newest:
            raise Implausible(f"there is no {stream} in the flow")

    def replica(self, replica: ReplicaId) -> None:
        """A replica exists, has existed, or may exist in a later layout."""
        if replica in self.around.layout.placement:
            return
        shard = replica.shard
        self.shard(shard)
        if shard != INGRESS and shard.part in (*self.around.topology.sources, *self.around.topology.sinks):
            raise Implausible(f"{shard.part} has no replicas")
        if not 0 <= replica.index < self.around.layout.next_index.get(shard, 0) + INDEXES_AHEAD:
            raise Implausible(f"there is no {replica}")

    def own(self, sender: NodeId, replica: ReplicaId) -> None:
        """A node speaks for a replica of its own."""
        host = self.around.layout.placement.get(replica)
        if host == sender:
            return
        if host is not None:
            raise Implausible(f"{replica} is on {host}")
        self.replica(replica)

    def reader(self, sender: NodeId, stream: StreamId, subscriber: str, snapshots: bool = False) -> None:
        """A node speaks for a replica of its own that reads a stream, or a client for itself."""
        self.stream(stream)
        if subscriber == sender:
            return
        box = self.outboxes.boxes.get(stream)
        replica = None if box is None else box.names.get(subscriber)
        if replica is None:
            check_name(subscriber)
            replica = ReplicaId.parse(subscriber)
            if replica.shard != stream.consumer:
                raise Implausible(f"{replica} does not read {stream}")
        if replica.index == SNAPSHOT and snapshots and self.around.settings.snapshots:
            return
        self.own(sender, replica)

    def produced(self, stream: StreamId, number: int) -> None:
        """A unit exists, or a sibling that is ahead of the replica here may have produced it."""
        check_counter(number)
        box = self.outboxes.boxes.get(stream)
        if box is not None and number > box.last + FAR:
            raise Implausible(f"unit {number} of {stream} is far beyond {box.last}")

    def version(self, version: int) -> None:
        if not 0 <= version <= self.around.layout.version + VERSIONS_AHEAD:
            raise Implausible(f"there is no layout {version}")


def check_counter(value: int) -> None:
    if not 0 <= value <= MOST_NUMBER:
        raise Implausible(f"no number of a flow is {value}")


def check_name(text: str) -> None:
    if len(text) > LONGEST_NAME:
        raise Implausible(f"a name has {len(text)} characters")


def check_digest(digest: Digest) -> None:
    check_counter(digest.rows)
    if not -(2**64) < digest.exact < 2**64 or len(digest.floats) > MOST_FLOATS:
        raise Implausible("a digest is too long")


def check_rebuilt(rebuilt: Rebuilt, levels: int = MOST_LEVELS) -> None:
    if levels == 0:
        raise Implausible(f"it reports of more than {MOST_LEVELS} levels")
    check_counter(rebuilt.valid)
    for _, known in rebuilt.consumers:
        check_rebuilt(known, levels - 1)

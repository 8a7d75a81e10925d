"""What runs where: the topology of a dataflow and the layout of its replicas on nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from unbroken.errors import require
from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, generation_of
from unbroken.protocol.values.memo import remembered
from unbroken.protocol.values.pause import Pause
from unbroken.protocol.values.strategy import Strategy
from unbroken.protocol.values.turns import Turn

INGRESS = ShardId("ingress", 0)
"""The shard that keeps the ingress log and reads every source."""


Group = TypeVar("Group", bound=Hashable)
Member = TypeVar("Member")


def _grouped(pairs: Iterable[tuple[Group, Member]]) -> dict[Group, tuple[Member, ...]]:
    out: dict[Group, list[Member]] = {}
    for group, member in pairs:
        out.setdefault(group, []).append(member)
    return {group: tuple(members) for group, members in out.items()}


@dataclass(frozen=True)
class Topology:
    """The shards and streams of a dataflow, in the order in which data passes them.

    ``sources`` name the parts read by the ingress, ``segments`` maps each segment to its number of shards,
    ``sinks`` names the parts at the end and ``edges`` holds (producer part, consumer part) pairs.
    ``replicas`` is the number of copies of each segment's shards and of the ingress that process, ``strategies`` says
    what else keeps a segment available.

    While the code of segments is being replaced, the parts with the code that comes run beside those with the code that
    goes: ``replaces`` maps the former to the latter. Both process every unit; of their results for sinks those count
    that the unit's generation asks for.

    With ``at_most_once`` a shard's replicas take turns in delivering to sinks, so that none is given a unit twice.

    The replicas of the parts in ``led`` take their input as a leader among them says, the others by pulses.

    Parts with an ``availability`` go on without input that is missing for too long, with tentative results, which
    ``tentative_sinks`` take.

    In a ``bucketed`` flow sources are not cut together: unit b of a source has its rows of the b-th stretch of event
    time, and comes when that source says that there are no more of them.

    With ``whole``, a node has replicas of all shards or of none: a copy of the dataflow that takes its input from
    nobody else and is given up as a whole.
    """

    sources: tuple[str, ...]
    segments: Mapping[str, int]
    sinks: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    replicas: Mapping[str, int]
    client_sinks: frozenset[str] = frozenset()
    replaces: Mapping[str, str] = field(default_factory=dict)
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    at_most_once: bool = False
    whole: bool = False
    led: frozenset[str] = frozenset()
    availability: Mapping[str, DelayBound] = field(default_factory=dict)
    bucketed: bool = False
    tentative_sinks: frozenset[str] = frozenset()

    @remembered
    def strategy(self, part: str) -> Strategy:
        """How a part is kept available; unless it says otherwise, by replicas that all do everything."""
        return self.strategies.get(part) or Strategy(backups=self.replicas.get(part, 1) - 1)

    @remembered
    def shards(self, part: str) -> tuple[ShardId, ...]:
        return tuple(ShardId(part, i) for i in range(self.segments.get(part, 1)))

    @cached_property
    def streams(self) -> tuple[StreamId, ...]:
        return tuple(
            StreamId(producer, consumer)
            for producer_part, consumer_part in self.edges
            for producer in self.shards(producer_part)
            for consumer in self.shards(consumer_part)
        )

    def has(self, stream: StreamId) -> bool:
        return stream in self._stream_set

    @cached_property
    def _stream_set(self) -> frozenset[StreamId]:
        return frozenset(self.streams)

    def inputs(self, shard: ShardId) -> tuple[StreamId, ...]:
        return self._inputs.get(shard, ())

    def outputs(self, shard: ShardId) -> tuple[StreamId, ...]:
        return self._outputs.get(shard, ())

    @cached_property
    def _inputs(self) -> Mapping[ShardId, tuple[StreamId, ...]]:
        return _grouped((stream.consumer, stream) for stream in self.streams)

    @cached_property
    def _outputs(self) -> Mapping[ShardId, tuple[StreamId, ...]]:
        return _grouped((stream.producer, stream) for stream in self.streams)

    def successor(self, part: str) -> str | None:
        return next((later for later, earlier in self.replaces.items() if earlier == part), None)

    def predecessor(self, shard: ShardId) -> ShardId | None:
        """The shard whose state a shard with the code that comes begins with."""
        earlier = self.replaces.get(shard.part)
        return None if earlier is None else ShardId(earlier, shard.index)

    def counts(self, part: str, generation: int) -> bool:
        """Whether a part's results are those for sinks, in units of ``generation``."""
        later = self.successor(part)
        return generation_of(part) <= generation and (later is None or generation < generation_of(later))

    def producers_of(self, part: str) -> tuple[str, ...]:
        return self._producers.get(part, ())

    def consumers_of(self, part: str) -> tuple[str, ...]:
        return self._consumers.get(part, ())

    @cached_property
    def _producers(self) -> Mapping[str, tuple[str, ...]]:
        return _grouped((consumer, producer) for producer, consumer in self.edges)

    @cached_property
    def _consumers(self) -> Mapping[str, tuple[str, ...]]:
        return _grouped(self.edges)

    def is_sink(self, shard: ShardId) -> bool:
        return shard.part in self.sinks

    def host_shard(self, shard: ShardId) -> ShardId:
        """The placed shard that does the work of ``shard``: the ingress does that of every source."""
        return INGRESS if shard.part in self.sources else shard

    @cached_property
    def placed_shards(self) -> tuple[ShardId, ...]:
        """Everything that needs a place on nodes, ingress first."""
        return (INGRESS, *(shard for part in self.segments for shard in self.shards(part)))

    def replicas_of(self, shard: ShardId) -> list[ReplicaId]:
        return [ReplicaId(shard, i) for i in range(self.replicas[shard.part])]


@dataclass(frozen=True)
class Layout:
    """Which node hosts which replica, as one versioned document.

    ``nodes`` maps each node that takes part to the identity of its disk: a node that comes back under its name with
    another disk has lost what it hosted. ``joining`` replicas have a place but do not count as redundancy yet; what
    they will need is kept for them. ``held`` ones do not work: their nodes hold a copy of the shard's state, which is
    brought up to date from time to time, and what follows it is kept for them; while one joins it has no copy yet.
    A replica that is lost is not in the document any more, and ``next_index`` sees
    to it that its name is never used again. ``short_since`` says since when (ms since the epoch) a shard has fewer full
    replicas than it should. ``generations`` are those of the code that runs, ``generation`` the one whose results the
    sources ask for from their next pulse on. ``homes`` are the nodes that shards get back to when these return.
    ``turns`` say who delivers what shards produce, if that is to be at most once. With a ``pause`` the sources are not
    read. ``run`` is the id of the run that the layout belongs to; a node whose disk belongs to another refuses it.
    """

    version: int
    nodes: Mapping[NodeId, str]
    placement: Mapping[ReplicaId, NodeId]
    next_index: Mapping[ShardId, int]
    joining: frozenset[ReplicaId] = frozenset()
    draining: frozenset[NodeId] = frozenset()
    short_since: Mapping[ShardId, int] = field(default_factory=dict)
    generation: int = 1
    generations: tuple[int, ...] = (1,)
    held: frozenset[ReplicaId] = frozenset()
    homes: Mapping[ShardId, NodeId] = field(default_factory=dict)
    turns: Mapping[ShardId, Turn] = field(default_factory=dict)
    pause: Pause | None = None
    run: str = ""

    def counted(self, shard: ShardId) -> frozenset[ReplicaId]:
        """Everybody for whom units are kept."""
        return self._by_shard.get(shard, frozenset())

    @remembered
    def full(self, shard: ShardId) -> frozenset[ReplicaId]:
        """The replicas that are as good as each other."""
        return self.counted(shard) - self.joining - self.held

    @remembered
    def working(self, shard: ShardId) -> frozenset[ReplicaId]:
        """The replicas that process, or will as soon as they can."""
        return self.counted(shard) - self.held

    @remembered
    def holding(self, shard: ShardId) -> frozenset[ReplicaId]:
        """The replicas that hold a copy of the state."""
        return self.counted(shard) & self.held

    @cached_property
    def _by_shard(self) -> Mapping[ShardId, frozenset[ReplicaId]]:
        found = _grouped((replica.shard, replica) for replica in self.placement)
        return {shard: frozenset(replicas) for shard, replicas in found.items()}

    @remembered
    def eldest(self, shard: ShardId) -> ReplicaId | None:
        """The oldest full replica: what one has to do for all, it does."""
        return min(self.full(shard), default=None)

    @cached_property
    def alone(self) -> tuple[ReplicaId, ...]:
        """The replicas that nobody else could stand in for."""
        return tuple(sorted(replica for replica in self.placement if len(self.counted(replica.shard)) == 1))

    def hosted(self, node: NodeId) -> list[ReplicaId]:
        return list(self._by_node.get(node, ()))

    @cached_property
    def _by_node(self) -> Mapping[NodeId, tuple[ReplicaId, ...]]:
        return _grouped((node, replica) for replica, node in sorted(self.placement.items()))

    def replica_on(self, node: NodeId, shard: ShardId) -> ReplicaId | None:
        return next((replica for replica in self._by_node.get(node, ()) if replica.shard == shard), None)

    def eldest_on(self, node: NodeId) -> list[ShardId]:
        """The shards of which the oldest full replica is on ``node``."""
        return [replica.shard for replica in self.hosted(node) if replica == self.eldest(replica.shard)]

    @remembered
    def nodes_of(self, shard: ShardId) -> Mapping[NodeId, ReplicaId]:
        """The nodes that host a replica of ``shard``, oldest replica first."""
        return {self.placement[replica]: replica for replica in sorted(self.counted(shard))}

    @remembered
    def working_nodes_of(self, shard: ShardId) -> Mapping[NodeId, ReplicaId]:
        return {self.placement[replica]: replica for replica in sorted(self.working(shard))}

    @remembered
    def full_nodes_of(self, shard: ShardId) -> Mapping[NodeId, ReplicaId]:
        return {self.placement[replica]: replica for replica in sorted(self.full(shard))}

    def without_nodes(self, gone: Iterable[NodeId]) -> Layout:
        """The layout after these nodes are lost: their replicas are not waited for any more."""
        dead = set(gone)
        return self.without(replica for replica, node in self.placement.items() if node in dead)

    def without(self, replicas: Iterable[ReplicaId]) -> Layout:
        """The layout that does not count these replicas any more."""
        dropped = frozenset(replicas)
        return replace(
            self,
            version=self.version + 1,
            placement={replica: node for replica, node in self.placement.items() if replica not in dropped},
            joining=self.joining - dropped,
            held=self.held - dropped,
        )

    def with_joining(self, shard: ShardId, node: NodeId) -> tuple[Layout, ReplicaId]:
        """The layout with one more replica of ``shard``, on ``node``, under a name of its own."""
        replica = ReplicaId(shard, self.next_index.get(shard, 0))
        layout = replace(
            self,
            version=self.version + 1,
            placement={**self.placement, replica: node},
            joining=self.joining | {replica},
            next_index={**self.next_index, shard: replica.index + 1},
        )
        return layout, replica

    def with_held(self, shard: ShardId, node: NodeId) -> tuple[Layout, ReplicaId]:
        """The layout with one more copy of the state of ``shard``, held by ``node``."""
        layout, replica = self.with_joining(shard, node)
        return replace(layout, held=self.held | {replica}), replica

    def with_begun(self, replica: ReplicaId) -> Layout:
        """The layout in which a held replica goes to work with the state it has."""
        return replace(self, version=self.version + 1, held=self.held - {replica}, joining=self.joining | {replica})

    def with_full(self, replicas: Iterable[ReplicaId]) -> Layout:
        """The layout in which these joining replicas count as redundancy."""
        return replace(self, version=self.version + 1, joining=self.joining - frozenset(replicas))

    def check(self) -> None:
        require(self._sound, "a layout that was found wrong is in use")

    @cached_property
    def _sound(self) -> bool:
        """Looked at once, because a layout never changes and is checked all the time."""
        taken: set[tuple[ShardId, NodeId]] = set()
        for replica, node in self.placement.items():
            require((replica.shard, node) not in taken, f"two replicas of {replica.shard} share {node}", replica.shard)
            require(
                replica.index < self.next_index[replica.shard], f"{replica} may be used for another replica", replica
            )
            taken.add((replica.shard, node))
        require(self.joining | self.held <= set(self.placement), "a replica joins or is held that has no place")
        require(self.generation in self.generations, f"the code of generation {self.generation} does not run")
        require(all(turn.since <= self.version for turn in self.turns.values()), "a turn begins with a later layout")
        return True

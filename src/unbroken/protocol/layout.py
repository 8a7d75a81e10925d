"""What runs where: the topology of a dataflow and the layout of its replicas on nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from unbroken.errors import require
from unbroken.protocol.ids import NodeId, ReplicaId, ShardId, StreamId

INGRESS = ShardId("ingress", 0)
"""The shard that keeps the ingress log and reads every source."""


@dataclass(frozen=True)
class Topology:
    """The shards and streams of a dataflow, in the order in which data passes them.

    ``sources`` name the parts read by the ingress, ``segments`` maps each segment to its number of shards,
    ``sinks`` names the parts at the end and ``edges`` holds (producer part, consumer part) pairs.
    ``replicas`` is the number of copies of each segment's shards and of the ingress.
    """

    sources: tuple[str, ...]
    segments: Mapping[str, int]
    sinks: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    replicas: Mapping[str, int]
    client_sinks: frozenset[str] = frozenset()

    def shards(self, part: str) -> list[ShardId]:
        return [ShardId(part, i) for i in range(self.segments.get(part, 1))]

    @cached_property
    def streams(self) -> tuple[StreamId, ...]:
        return tuple(
            StreamId(producer, consumer)
            for producer_part, consumer_part in self.edges
            for producer in self.shards(producer_part)
            for consumer in self.shards(consumer_part)
        )

    def inputs(self, shard: ShardId) -> list[StreamId]:
        return [stream for stream in self.streams if stream.consumer == shard]

    def outputs(self, shard: ShardId) -> list[StreamId]:
        return [stream for stream in self.streams if stream.producer == shard]

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
    """Which node hosts which replica, as one versioned document; ``lost`` replicas are no longer counted."""

    version: int
    nodes: tuple[NodeId, ...]
    placement: Mapping[ReplicaId, NodeId]
    lost: frozenset[ReplicaId] = field(default_factory=frozenset)

    def counted(self, shard: ShardId) -> frozenset[ReplicaId]:
        return frozenset(r for r in self.placement if r.shard == shard and r not in self.lost)

    def hosted(self, node: NodeId) -> list[ReplicaId]:
        return sorted(r for r, where in self.placement.items() if where == node)

    def nodes_of(self, shard: ShardId) -> dict[NodeId, ReplicaId]:
        """The nodes that host a counted replica of ``shard``."""
        return {self.placement[replica]: replica for replica in sorted(self.counted(shard))}

    def without_nodes(self, gone: Iterable[NodeId]) -> Layout:
        """The layout after these nodes are lost: their replicas are not waited for any more."""
        dead = set(gone)
        return self.without(replica for replica, node in self.placement.items() if node in dead)

    def without(self, replicas: Iterable[ReplicaId]) -> Layout:
        """The layout that does not count these replicas any more."""
        return Layout(self.version + 1, self.nodes, self.placement, self.lost | frozenset(replicas))

    def check(self) -> None:
        taken: set[tuple[ShardId, NodeId]] = set()
        for replica, node in self.placement.items():
            if (replica.shard, node) in taken:
                require(False, f"two replicas of {replica.shard} share {node}")
            taken.add((replica.shard, node))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "nodes": list(self.nodes),
            "placement": {str(replica): node for replica, node in sorted(self.placement.items())},
            "lost": sorted(str(replica) for replica in self.lost),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Layout:
        return cls(
            version=int(value["version"]),
            nodes=tuple(value["nodes"]),
            placement={ReplicaId.parse(r): node for r, node in value["placement"].items()},
            lost=frozenset(ReplicaId.parse(r) for r in value["lost"]),
        )


def chained_placement(topology: Topology, nodes: tuple[NodeId, ...]) -> Layout:
    """Chained declustering: replica r of the i-th shard lives on node i + r.

    The load of a lost node spreads over its two neighbours in the chain, and two replicas of a shard never
    share a node as long as there are at least as many nodes as replicas.
    """
    placement: dict[ReplicaId, NodeId] = {}
    for position, shard in enumerate(topology.placed_shards):
        for replica in topology.replicas_of(shard):
            placement[replica] = nodes[(position + replica.index) % len(nodes)]
    layout = Layout(version=1, nodes=nodes, placement=placement)
    layout.check()
    return layout

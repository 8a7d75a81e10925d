"""Where replicas are when a flow begins."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.protocol.placement.policy import PlacementPolicy
from unbroken.protocol.registry import having
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout, Topology


def chained_placement(topology: Topology, nodes: Mapping[NodeId, str], run: str = "") -> Layout:
    """Chained declustering: replica r of the i-th shard lives on node i + r.

    The load of a lost node spreads over its two neighbours in the chain, and two replicas of a shard never
    share a node as long as there are at least as many nodes as replicas. ``nodes`` maps names to disks.

    A policy may let all shards begin at the first node instead, and completes the layout with what it needs.
    """
    policies: list[PlacementPolicy] = having("PLACEMENT")
    chained = all(policy.chained(topology) for policy in policies)
    chain = tuple(nodes)
    placement: dict[ReplicaId, NodeId] = {}
    next_index: dict[ShardId, int] = {}
    held: set[ReplicaId] = set()
    for position, shard in enumerate(topology.placed_shards):
        working = topology.replicas_of(shard)
        copies = [ReplicaId(shard, len(working) + i) for i in range(topology.strategy(shard.part).holding)]
        for replica in [*working, *copies]:
            first = position if chained else 0
            placement[replica] = chain[(first + replica.index) % len(chain)]
        held.update(copies)
        next_index[shard] = len(working) + len(copies)
    layout = Layout(1, dict(nodes), placement, next_index, held=frozenset(held), run=run)
    for policy in policies:
        layout = policy.begin(topology, layout)
    layout.check()
    return layout

"""How far a flow is from full redundancy."""

from __future__ import annotations

from unbroken.coordination.documents import Member
from unbroken.protocol.values.ids import NodeId, segment_of
from unbroken.protocol.values.layout import Layout, Topology


def shortage_of(layout: Layout, members: dict[NodeId, Member], topology: Topology) -> str | None:
    """Why a layout is not fully redundant on the nodes that are there; None if it is."""
    if len(layout.generations) > 1:
        return f"generation {layout.generations[-1]} of the code on its way"
    if layout.joining:
        return f"{', '.join(sorted(map(str, layout.joining)))} joining"
    if layout.short_since:
        return f"{', '.join(sorted(map(str, layout.short_since)))} short of replicas"
    for shard in topology.placed_shards:
        segment = (segment_of(shard.part), shard.index)
        full = [r for r in layout.placement if (segment_of(r.shard.part), r.shard.index) == segment]
        hosts = [layout.placement[replica] for replica in full]
        there = [node for node in hosts if node in members and members[node].disk == layout.nodes.get(node)]
        if len(there) < topology.replicas[shard.part]:
            return f"{shard} only on {', '.join(there) or 'no node'}"
    return None

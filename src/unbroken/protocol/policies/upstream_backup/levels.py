"""The level of acknowledgement at which producers may drop what a segment with upstream backup was sent."""

from __future__ import annotations

from collections import defaultdict

from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.strategy import Ha


def needed_levels(topology: Topology, layout: Layout, part: str) -> int:
    """How many segments in a row, from ``part`` on, can be lost with ``k_safety`` nodes; 0 if it keeps its state safe.

    Nodes are lost, not segments: one that hosts several segments of the row takes all of them with it. The answer is
    never too small, and is ``k_safety`` where each segment of the row has nodes of its own.
    """
    strategy = topology.strategy(part)
    if strategy.ha is not Ha.UPSTREAM:
        return 0
    row, longest = relying_row(topology, part)
    hosted: dict[NodeId, set[str]] = defaultdict(set)
    for replica, node in layout.placement.items():
        if replica.shard.part in row:
            hosted[node].add(replica.shard.part)
    most = sorted((len(parts) for parts in hosted.values()), reverse=True)
    return min(longest, max(strategy.backups, sum(most[: strategy.backups])))


def relying_row(topology: Topology, part: str) -> tuple[frozenset[str], int]:
    """The segments that follow ``part`` without one in between that keeps its state safe, and how long their longest
    row is, both with ``part`` itself."""
    lengths: dict[str, int] = {}

    def length(name: str) -> int:
        if name not in lengths:
            relying = [consumer for consumer in topology.consumers_of(name) if _relies(topology, consumer)]
            lengths[name] = 1 + max((length(consumer) for consumer in relying), default=0)
        return lengths[name]

    longest = length(part)
    return frozenset(lengths), longest


def _relies(topology: Topology, part: str) -> bool:
    return topology.strategy(part).ha is Ha.UPSTREAM

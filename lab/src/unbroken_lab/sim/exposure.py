"""Which nodes a flow cannot lose at the same time, as it is placed, and how long it takes until it does.

The formula is that of ``reliability`` for pairs, ``mttf^2 / (2 * mttr)`` for each pair that is deadly, and what it is a
case of: ``n`` nodes with independent repairs are down at once every ``mttf^n / (n * mttr^(n - 1))``. All of them add up
as rates, because losses are rare.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from itertools import combinations

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.strategy import Ha

LARGEST = 3
"""Sets of nodes that are looked at: more at once are out of reach of any repair that takes minutes."""


@dataclass(frozen=True)
class Exposure:
    """The numbers of smallest sets of nodes whose loss ends it, by their size: one node, a pair, three nodes."""

    deadly: tuple[int, ...]

    @property
    def fewest(self) -> int | None:
        """How many nodes have to be down at once; None: more than were looked at."""
        return next((size for size, count in enumerate(self.deadly, start=1) if count), None)

    def mean_hours(self, mttf_h: float, mttr_h: float) -> float | None:
        """Mean time until one of them is down; None if none of them is deadly."""
        rates = [count * size * mttr_h ** (size - 1) / mttf_h**size for size, count in enumerate(self.deadly, start=1)]
        return 1 / sum(rates) if sum(rates) else None


def exposure_of(topology: Topology, layout: Layout) -> Exposure:
    """The sets of nodes that a flow cannot do without, in this layout."""
    nodes = sorted(set(layout.placement.values()))
    if len(nodes) > 200:
        raise UnbrokenError(f"{len(nodes)} nodes are too many to look at every two of them; give at most 200")
    most = LARGEST if len(nodes) <= 40 else 2
    found: list[frozenset[NodeId]] = []
    counts = []
    for size in range(1, most + 1):
        sets = [frozenset(some) for some in combinations(nodes, size)]
        fatal = [some for some in sets if not any(known <= some for known in found) and _deadly(topology, layout, some)]
        found += fatal
        counts.append(len(fatal))
    return Exposure(tuple(counts))


def _deadly(topology: Topology, layout: Layout, down: Set[NodeId]) -> bool:
    return any(_lost(topology, layout, shard, down) for shard in topology.placed_shards)


def _lost(topology: Topology, layout: Layout, shard: ShardId, down: Set[NodeId]) -> bool:
    """Whether a shard cannot go on without these nodes: nobody has its state, or can build it again."""
    if not set(layout.nodes_of(shard)) <= down:
        return False
    if topology.strategy(shard.part).ha is not Ha.UPSTREAM:
        return True
    producers = {topology.host_shard(stream.producer) for stream in topology.inputs(shard)}
    return any(set(layout.nodes_of(producer)) <= down for producer in producers)

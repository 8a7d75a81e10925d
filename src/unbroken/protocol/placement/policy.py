"""What policies decide about where replicas are."""

from __future__ import annotations

from unbroken.protocol.placement.decision import Deciding
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import Layout, Topology


class PlacementPolicy:
    """A policy that leaves all decisions to the controller; each one overrides the hooks that it needs."""

    def chained(self, topology: Topology) -> bool:
        """Whether the first layout spreads shards along the chain of nodes; if not, all begin at its first one."""
        return True

    def begin(self, topology: Topology, layout: Layout) -> Layout:
        """Complete the first layout."""
        return layout

    def deciding(self, topology: Topology) -> type[Deciding] | None:
        """Another way to decide, for the whole flow."""
        return None

    def rebuilt(self, topology: Topology) -> frozenset[str]:
        """The parts whose state can be rebuilt from what their producers keep."""
        return frozenset()

    def take_over(self, work: Deciding, shard: ShardId) -> None:
        """Put another replica in the place of a shard's only working one, as soon as that one is suspected."""

    def successor(self, work: Deciding, shard: ShardId) -> NodeId | None:
        """The node that a shard without redundancy goes to."""
        return None

    def moved(self, work: Deciding, shard: ShardId, home: NodeId) -> None:
        """A shard has left its home for a successor."""

    def give_back(self, work: Deciding) -> None:
        """Move shards back to where they belong."""

    def settle(self, work: Deciding, version: int) -> None:
        """Complete the layout of this version, when all replicas have their places."""

"""How the shards of a segment stand in for each other, and give the place back."""

from __future__ import annotations

from dataclasses import replace

from unbroken.protocol.placement.decision import Deciding
from unbroken.protocol.placement.policy import PlacementPolicy
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.notices.placement import PlaceReturned, Purpose, ReplicaPlaced


class StandIn(PlacementPolicy):
    """The next in the ring of a segment's shards takes the place of one that is lost, until its node returns."""

    def successor(self, work: Deciding, shard: ShardId) -> NodeId | None:
        """The node of the next colleague in the ring of those that share a segment's load."""
        if not work.topology.strategy(shard.part).shares:
            return None
        colleagues = work.topology.shards(shard.part)
        doubtful = work.unwell() | work.suspected()
        for other in [*colleagues[shard.index + 1 :], *colleagues[: shard.index]]:
            for replica in sorted(work.layout.full(other) - doubtful):
                node = work.layout.placement[replica]
                if node not in work.layout.nodes_of(shard):
                    return node
        return None

    def moved(self, work: Deciding, shard: ShardId, home: NodeId) -> None:
        if work.topology.strategy(shard.part).shares:
            work.layout = replace(work.layout, homes={shard: home} | dict(work.layout.homes))

    def give_back(self, work: Deciding) -> None:
        """A node that has returned gets the places back that others have taken for it."""
        fit = set(work.situation.present) - work.situation.draining - work.situation.suspected
        for shard, home in sorted(work.layout.homes.items()):
            there = work.layout.replica_on(home, shard)
            if there in work.healthy(shard):
                others = work.layout.working(shard) - {there}
                homes = {other: node for other, node in work.layout.homes.items() if other != shard}
                work.layout = replace(work.layout.without(others), homes=homes)
                if there is not None:
                    work.notices.append(PlaceReturned(there, home))
                continue
            settled = bool(work.healthy(shard)) and not work.layout.joining & work.layout.counted(shard)
            known = home in fit and work.layout.nodes.get(home) == work.situation.present[home]
            if there is None and known and settled:
                work.layout, replica = work.layout.with_joining(shard, home)
                work.notices.append(ReplicaPlaced(replica, home, Purpose.RETURN))

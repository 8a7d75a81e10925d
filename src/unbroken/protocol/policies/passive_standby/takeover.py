"""How a copy comes into the place of a shard's only working replica.

With active replication nothing is decided before results go on. Here it is: a copy of the state goes to work. The lost
replica leaves the layout in the same step in which the other one enters it, so that producers keep for the one what
they kept for the other.
"""

from __future__ import annotations

from unbroken.protocol.placement.decision import Deciding
from unbroken.protocol.placement.policy import PlacementPolicy
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.values.notices.placement import TakenOver
from unbroken.protocol.values.strategy import Ha


class CopyTakesOver(PlacementPolicy):
    """Lets a held copy go to work as soon as the working replica is suspected."""

    def take_over(self, work: Deciding, shard: ShardId) -> None:
        if work.topology.strategy(shard.part).ha is not Ha.PASSIVE:
            return
        lost = work.lost(shard)
        doubtful = work.unwell() | work.suspected()
        copies = sorted(work.layout.holding(shard) - work.layout.joining - doubtful)
        if lost and copies:
            nodes = work.where(lost)
            work.layout = work.layout.without(work.layout.working(shard)).with_begun(copies[0])
            node = work.layout.placement[copies[0]]
            work.notices.append(TakenOver(tuple(sorted(lost)), nodes, copies[0], node, from_copy=True))

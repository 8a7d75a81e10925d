"""How a spare comes into the place of a shard's only working replica.

The lost replica leaves the layout in the same step in which the spare enters it, so that producers keep for the one
what they kept for the other.
"""

from __future__ import annotations

from dataclasses import replace

from unbroken.protocol.placement.decision import Deciding
from unbroken.protocol.placement.policy import PlacementPolicy
from unbroken.protocol.registry import having
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices.placement import TakenOver
from unbroken.protocol.values.strategy import Ha


class SpareTakesOver(PlacementPolicy):
    """Lets a spare begin with what producers have kept as soon as the working replica is suspected."""

    def rebuilt(self, topology: Topology) -> frozenset[str]:
        return frozenset(part for part in topology.segments if topology.strategy(part).ha is Ha.UPSTREAM)

    def take_over(self, work: Deciding, shard: ShardId) -> None:
        if work.topology.strategy(shard.part).ha is Ha.UPSTREAM and (lost := work.lost(shard)):
            _begin_elsewhere(work, shard, lost, work.where(lost))


def _begin_elsewhere(
    work: Deciding, shard: ShardId, lost: frozenset[ReplicaId], lost_nodes: tuple[NodeId, ...]
) -> None:
    """A spare begins with what producers kept; one that was to get its state from the lost one does so too."""
    if lost != work.layout.working(shard):
        work.layout = work.layout.without(lost)
        work.notices.append(TakenOver(tuple(sorted(lost)), lost_nodes))
        return
    others: list[PlacementPolicy] = having("PLACEMENT")
    named = [node for policy in others if (node := policy.successor(work, shard)) is not None]
    spare = named[0] if named else work.best_node(shard, _blank(work))
    if spare is None:
        return
    home = work.layout.placement[min(lost)]
    nodes = {**work.layout.nodes, spare: work.situation.present[spare]}
    work.layout, replica = replace(work.layout, nodes=nodes).without(lost).with_joining(shard, spare)
    for policy in others:
        policy.moved(work, shard, home)
    work.notices.append(TakenOver(tuple(sorted(lost)), lost_nodes, replica, spare))


def _blank(work: Deciding) -> frozenset[NodeId]:
    """Nodes that have lost their disk while the layout still has replicas on it: these have to leave it first."""
    nodes, present = work.layout.nodes, work.situation.present
    lost = {node for node, disk in present.items() if nodes.get(node, disk) != disk}
    return frozenset(node for node in lost if work.layout.hosted(node))

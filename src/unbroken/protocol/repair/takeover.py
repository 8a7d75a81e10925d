"""How another replica comes into the place of a shard's only working one, and how it gives the place back.

With active replication nothing is decided before results go on. Here it is: a copy of the state goes to work, or
a spare begins with what producers have kept. The lost replica leaves the layout in the same step in which the other one
enters it, so that producers keep for the one what they kept for the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.strategy import Ha

if TYPE_CHECKING:
    from unbroken.protocol.placement.controller import Deciding


def take_over(work: Deciding) -> None:
    """Put another in the place of a shard's only working replica, as soon as that one is suspected."""
    for shard in work.topology.placed_shards:
        strategy = work.topology.strategy(shard.part)
        if strategy.ha not in (Ha.PASSIVE, Ha.UPSTREAM) or work.coming(shard):
            continue
        working, doubtful = work.layout.working(shard), work.unwell() | work.suspected()
        lost = working & doubtful
        if not lost or (working - doubtful) & work.layout.full(shard):
            continue
        where = ", ".join(f"{replica} on {work.layout.placement[replica]}" for replica in sorted(lost))
        copies = sorted(work.layout.holding(shard) - work.layout.joining - doubtful)
        if copies:
            work.layout = work.layout.without(working).with_begun(copies[0])
            node = work.layout.placement[copies[0]]
            work.sentences.append(f"{where} lost; {copies[0]} takes over on {node} from its copy")
        elif strategy.ha is Ha.UPSTREAM:
            _begin_elsewhere(work, shard, lost, where)


def _begin_elsewhere(work: Deciding, shard: ShardId, lost: frozenset[ReplicaId], where: str) -> None:
    """A spare begins with what producers kept; one that was to get its state from the lost one does so too."""
    if lost != work.layout.working(shard):
        work.layout = work.layout.without(lost)
        work.sentences.append(f"{where} lost; its successor goes on with what producers kept")
        return
    spare = _successor(work, shard) or work.best_node(shard, _blank(work))
    if spare is None:
        return
    home = work.layout.placement[min(lost)]
    nodes = {**work.layout.nodes, spare: work.situation.present[spare]}
    work.layout, replica = replace(work.layout, nodes=nodes).without(lost).with_joining(shard, spare)
    if work.topology.strategy(shard.part).shares:
        work.layout = replace(work.layout, homes={shard: home} | dict(work.layout.homes))
    work.sentences.append(f"{where} lost; {replica} takes over on {spare} with what producers kept")


def _blank(work: Deciding) -> frozenset[NodeId]:
    """Nodes that have lost their disk while the layout still has replicas on it: these have to leave it first."""
    nodes, present = work.layout.nodes, work.situation.present
    lost = {node for node, disk in present.items() if nodes.get(node, disk) != disk}
    return frozenset(node for node in lost if work.layout.hosted(node))


def _successor(work: Deciding, shard: ShardId) -> NodeId | None:
    """The node of the next colleague in the ring of those that share a segment's load."""
    colleagues = work.topology.shards(shard.part)
    doubtful = work.unwell() | work.suspected()
    for other in [*colleagues[shard.index + 1 :], *colleagues[: shard.index]]:
        for replica in sorted(work.layout.full(other) - doubtful):
            node = work.layout.placement[replica]
            if work.topology.strategy(shard.part).shares and node not in work.layout.nodes_of(shard):
                return node
    return None


def give_back(work: Deciding) -> None:
    """A node that has returned gets the places back that others have taken for it."""
    fit = set(work.situation.present) - work.situation.draining - work.situation.suspected
    for shard, home in sorted(work.layout.homes.items()):
        there = work.layout.replica_on(home, shard)
        if there in work.healthy(shard):
            others = work.layout.working(shard) - {there}
            homes = {other: node for other, node in work.layout.homes.items() if other != shard}
            work.layout = replace(work.layout.without(others), homes=homes)
            work.sentences.append(f"{there} has the place of {shard} back on {home}")
            continue
        settled = bool(work.healthy(shard)) and not work.layout.joining & work.layout.counted(shard)
        known = home in fit and work.layout.nodes.get(home) == work.situation.present[home]
        if there is None and known and settled:
            work.layout, replica = work.layout.with_joining(shard, home)
            work.sentences.append(f"{replica} is placed on {home}, which has returned, to have its place back")

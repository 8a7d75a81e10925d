"""The controller's decisions about the generations of the user's code: prepare, switch, retire, or withdraw.

The code that comes runs beside the code that goes, from the same input. It begins with a copy of the state, one replica
of each shard at a time, and is asked for results only when all of it is as redundant as the flow has to be; until then
it can be withdrawn as if it had never been. Level-triggered like the rest of the controller.
"""

from __future__ import annotations

from dataclasses import replace

from unbroken.protocol.placement.controller import Decision, Situation
from unbroken.protocol.values.ids import ReplicaId, ShardId, generation_of
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices.upgrades import (
    UpgradeDone,
    UpgradePrepared,
    UpgradeReady,
    UpgradeRefused,
    UpgradeSetBack,
)


def next_generation(topology: Topology, situation: Situation, current: Layout) -> Decision | None:
    """What has to change about the generations, or None while nothing does."""
    newest = current.generations[-1]
    if len(current.generations) == 1:
        return _prepare(situation, current)
    if current.generation == newest:
        return _retire(topology, situation, current)
    failed = sorted(set(situation.stopped) & _replicas(topology, current))
    if failed:
        return _withdraw(topology, current, failed[0], situation.stopped[failed[0]])
    if situation.wished != newest:
        return _withdraw(topology, current)
    return _begin_again(topology, situation, current) or _switch(topology, situation, current)


def coming_shards(topology: Topology) -> list[ShardId]:
    """The shards with the code that comes, in the order in which data passes them."""
    return [shard for part in topology.segments if part in topology.replaces for shard in topology.shards(part)]


def _replicas(topology: Topology, layout: Layout) -> set[ReplicaId]:
    return {replica for replica in layout.placement if replica.shard.part in topology.replaces}


def _prepare(situation: Situation, layout: Layout) -> Decision | None:
    wished = situation.wished
    if wished is None or wished <= layout.generation:
        return None
    generations = (*layout.generations, wished)
    layout = replace(layout, version=layout.version + 1, generations=generations)
    return Decision(layout, (UpgradePrepared(wished, generations[0]),))


def _begin_again(topology: Topology, situation: Situation, layout: Layout) -> Decision | None:
    """A shard that has lost all its replicas begins again with a later state, and so must all that read from it."""
    bare = {shard.part for shard in coming_shards(topology) if not _healthy(layout, situation, shard)}
    behind: set[str] = set()
    for part in topology.segments:
        if part in topology.replaces and any(before in bare | behind for before in topology.producers_of(part)):
            behind.add(part)
    doomed = {
        replica
        for replica in _replicas(topology, layout)
        if replica.shard.part in behind
        or _orphaned(layout, situation, replica)
        or layout.placement[replica] not in situation.present
    }
    if not doomed:
        return None
    lost = UpgradeSetBack(layout.generations[-1], tuple(sorted(doomed)))
    return Decision(layout.without(doomed), (lost,))


def _orphaned(layout: Layout, situation: Situation, replica: ReplicaId) -> bool:
    """Whether nobody is left who has begun as this replica did. What joins may or may not have a copy of the one that
    is lost, and replicas that begin at different versions would differ for ever."""
    alone = replica in layout.joining and layout.counted(replica.shard) == {replica}
    return not alone and not _healthy(layout, situation, replica.shard)


def _switch(topology: Topology, situation: Situation, layout: Layout) -> Decision | None:
    for shard in coming_shards(topology):
        if len(_healthy(layout, situation, shard)) < topology.replicas[shard.part]:
            return None
    newest = layout.generations[-1]
    layout = replace(layout, version=layout.version + 1, generation=newest)
    return Decision(layout, (UpgradeReady(newest),))


def _retire(topology: Topology, situation: Situation, layout: Layout) -> Decision | None:
    """The code that goes is let go when every sink has turned to its successor."""
    last = {producer for producer, consumer in topology.edges if consumer in topology.sinks}
    if any(shard.part in last and shard not in situation.switched for shard in coming_shards(topology)):
        return None
    going = {replica for replica in layout.placement if topology.successor(replica.shard.part) is not None}
    newest = layout.generation
    parts = tuple(sorted(part for part in topology.replaces if generation_of(part) == newest))
    layout = replace(layout.without(going), generations=(newest,))
    return Decision(layout, (UpgradeDone(newest, parts),))


def _withdraw(topology: Topology, layout: Layout, failed: ReplicaId | None = None, reason: str = "") -> Decision:
    newest, kept = layout.generations[-1], layout.generations[:-1]
    refused = UpgradeRefused(newest, layout.generation, failed, reason)
    layout = replace(layout.without(_replicas(topology, layout)), generations=kept)
    return Decision(layout, (refused,))


def _healthy(layout: Layout, situation: Situation, shard: ShardId) -> set[ReplicaId]:
    """Full replicas on nodes that are there with the disk they had."""
    return {
        replica
        for replica in layout.full(shard)
        if situation.present.get(layout.placement[replica]) == layout.nodes.get(layout.placement[replica])
    }

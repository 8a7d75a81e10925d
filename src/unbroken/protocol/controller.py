"""The controller's decisions: which layout follows from who is there."""

from __future__ import annotations

from collections.abc import Collection

from unbroken.protocol.ids import NodeId, ReplicaId
from unbroken.protocol.layout import Layout, Topology, chained_placement


def next_layout(
    topology: Topology,
    wanted_nodes: int,
    present: Collection[NodeId],
    current: Layout | None,
    stopped: Collection[ReplicaId] = (),
) -> tuple[Layout, str] | None:
    """The layout to publish and the sentence that explains it, or None while nothing has to change.

    The first layout waits for all the nodes that were asked for, so that a slow starter is not left out. A
    node that has gone is not counted any more; it does not come back under the same layout. Nor is a
    replica that ``stopped`` on a node that is well (diverged, or its query failed): what is kept for it upstream
    would otherwise grow for ever.

    Every shard keeps a counted replica. When all that are left seem to be gone, none of them is dropped: being
    gone may only mean that ZooKeeper lost sight of a node, and what is kept for its replicas is then all that
    the shard can go on with.
    """
    if current is None:
        if len(present) < wanted_nodes:
            return None
        nodes = tuple(sorted(present)[:wanted_nodes])
        return chained_placement(topology, nodes), f"first layout on {', '.join(nodes)}"
    gone, ended = _not_working(current, present, stopped)
    kept = _last_of_their_shards(current, gone, ended)
    dropped = sorted((gone | ended) - kept)
    if not dropped:
        return None
    return current.without(dropped), _explain(current, dropped, ended, kept)


def _not_working(
    current: Layout, present: Collection[NodeId], stopped: Collection[ReplicaId]
) -> tuple[set[ReplicaId], set[ReplicaId]]:
    """Counted replicas on nodes that are gone, and those that stopped on nodes that are well."""
    counted = set(current.placement) - current.lost
    gone = {replica for replica in counted if current.placement[replica] not in present}
    return gone, counted & set(stopped) - gone


def _last_of_their_shards(current: Layout, gone: set[ReplicaId], ended: set[ReplicaId]) -> set[ReplicaId]:
    """Replicas that stay counted because their shard would have none without them.

    One whose node is out of sight may still work, one that has stopped will not, so the first is kept.
    """
    kept: set[ReplicaId] = set()
    for shard in {replica.shard for replica in gone | ended}:
        counted = current.counted(shard)
        if counted <= gone | ended:
            kept |= (counted & gone) or counted
    return kept


def _explain(current: Layout, dropped: list[ReplicaId], ended: set[ReplicaId], kept: set[ReplicaId]) -> str:
    nodes = sorted({current.placement[replica] for replica in dropped if replica not in ended})
    causes = [f"{node} lost" for node in nodes]
    causes += [f"{replica} stopped" for replica in dropped if replica in ended]
    sentence = f"{', '.join(causes)}; no longer waiting for {', '.join(str(replica) for replica in dropped)}"
    if kept:
        last = ", ".join(str(replica) for replica in sorted(kept))
        sentence += f"; still counting {last}, as nothing else is left of the shard"
    return sentence

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
    """
    if current is None:
        if len(present) < wanted_nodes:
            return None
        nodes = tuple(sorted(present)[:wanted_nodes])
        return chained_placement(topology, nodes), f"first layout on {', '.join(nodes)}"
    counted = {node for replica, node in current.placement.items() if replica not in current.lost}
    gone = sorted(counted - set(present))
    ended = sorted(replica for replica in set(stopped) & set(current.placement) - current.lost)
    if not gone and not ended:
        return None
    dead = [replica for replica, node in current.placement.items() if node in gone]
    following = current.without([*dead, *ended])
    dropped = sorted(str(replica) for replica in following.lost - current.lost)
    causes = [*(f"{node} lost" for node in gone), *(f"{replica} stopped" for replica in ended)]
    return following, f"{', '.join(causes)}; no longer waiting for {', '.join(dropped)}"

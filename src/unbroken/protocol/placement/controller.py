"""The controller's decisions: which layout follows from who is there and how they are.

Level-triggered: the decision depends on the present layout and the present situation alone, so a controller that
takes over goes on where the last one stopped, and deciding twice does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from unbroken.protocol.placement.decision import Deciding, Situation
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.placement.policy import PlacementPolicy
from unbroken.protocol.registry import having
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import FirstLayout, FirstLayoutRefused
from unbroken.protocol.values.notices.upgrades import UpgradeRefused

__all__ = ["Decision", "Situation", "first_layout", "next_layout"]


@dataclass(frozen=True)
class Decision:
    """The layout to publish, and what was found and done."""

    layout: Layout
    notices: tuple[Notice, ...]

    @property
    def refused(self) -> UpgradeRefused | None:
        """Why the generation that was wished for is not taken, if it is not."""
        return next((notice for notice in self.notices if isinstance(notice, UpgradeRefused)), None)


def first_layout(
    topology: Topology, wanted_nodes: int, present: Mapping[NodeId, str], runs: Mapping[NodeId, str], run: str
) -> Decision | FirstLayoutRefused | None:
    """The layout that ``run`` begins with; it waits for all nodes that were asked for, so that a slow starter is not
    left out.

    ``runs`` are the runs that the disks of all members belong to, "" for a disk that never took a layout. A flow whose
    disks belong to a run is never begun anew: its documents are missing, its data are not.
    """
    owned = sorted((owner, node) for node, owner in runs.items() if owner)
    if owned:
        return FirstLayoutRefused(tuple(node for _, node in owned), tuple(owner for owner, _ in owned))
    if len(present) < wanted_nodes:
        return None
    nodes = {node: present[node] for node in sorted(present)[:wanted_nodes]}
    return Decision(chained_placement(topology, nodes, run), (FirstLayout(tuple(nodes)),))


def next_layout(topology: Topology, situation: Situation, current: Layout, transfers: int) -> Decision | None:
    """What has to change, or None while nothing does.

    Replicas that are gone or have stopped are not counted any more; replacements are placed on other nodes, those
    nearest to the sources first and at most ``transfers`` at a time, and count as redundancy once they have caught up.

    Every shard keeps a counted replica. When all that are left seem to be gone, none of them is dropped: being
    gone may only mean that ZooKeeper lost sight of a node, and what is kept for its replicas is then all that
    the shard can go on with. What one working replica does for all (passive standby, upstream backup) is different:
    another takes its place at once and in the same step, so that nothing that is kept for the shard is let go.
    """
    policies: list[PlacementPolicy] = having("PLACEMENT")
    kinds = [kind for policy in policies if (kind := policy.deciding(topology)) is not None]
    work = (kinds[0] if kinds else Deciding)(topology, situation, current)
    work.rebuilt = frozenset(part for policy in policies for part in policy.rebuilt(topology))
    work.promote()
    for shard in topology.placed_shards:
        for policy in policies:
            policy.take_over(work, shard)
    work.drop_lost()
    work.note_nodes()
    work.leave_draining()
    work.renew()
    for policy in policies:
        policy.give_back(work)
    work.place(transfers)
    work.note_shortage()
    for policy in policies:
        policy.settle(work, current.version + 1)
    work.follow_pause()
    if work.layout == current:
        return None
    return Decision(replace(work.layout, version=current.version + 1), tuple(work.notices))

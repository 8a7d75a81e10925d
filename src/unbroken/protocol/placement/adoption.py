"""How a flow continues whose coordination documents are lost: from what the disks of its nodes hold.

Each node keeps a copy of the layout and of the in-sync set that it has taken, written before it acts on them. So the
newest layout and the newest in-sync set of the run are on the disks of the nodes that took part in them, and restoring
both is the same as if ZooKeeper had kept them and all nodes had been restarted.

Safety: a later layout or in-sync set that is on no disk here can only have been acted on by a node of the newest
layout that is here, or by one that is missing. So every node that the newest layout places a replica on has to be
present with the disk it had; an operator may leave one out by name, and so accept that entries of the ingress that
only it had are lost.

Orders of leaders (`protocol.policies.leader`) that were kept in ZooKeeper are refused: the disks do not hold all of
them. A replica has on its disk the orders that Spark has planned there; those that it has read and not begun are in
its memory. Take two replicas of a shard. The first one leads, and is at order 300 when its node is lost; its units up
to 300 are with consumers. The second one has read the orders up to 300 and is at 100. The controller replaces the
first one, and then ZooKeeper loses its data. All nodes of the newest layout are present, and no disk has orders 101
to 300. Ordered anew, they would have other cuts: the second replica would make other units 101 to 300, consumers
would drop them as duplicates of those they have, and rows between the cuts would be lost or counted twice.

Orders in Kafka outlive ZooKeeper, and who leads is written there as well, so nothing of them has to be rebuilt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from unbroken.errors import Refused
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, generation_of
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.run import disks_of_runs


@dataclass(frozen=True, order=True)
class LogEnd:
    """The last entry of an ingress log; of two logs the greater one is more advanced."""

    term: int = 0
    index: int = 0


@dataclass(frozen=True)
class DiskReport:
    """What a node says of its disk.

    ``held`` are the replicas on it with the last unit of their input that is part of their state, ``log`` is the end of
    its ingress log. ``running`` says that the node works on all of it at this moment, so the numbers have moved on.
    ``orders_lost`` are the segments whose orders were in ZooKeeper.
    """

    node: NodeId
    disk: str
    run: str
    layout: Layout | None = None
    sync: InSync | None = None
    held: Mapping[ReplicaId, int] | None = None
    log: LogEnd = LogEnd()
    running: bool = False
    orders_lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adoption:
    """The documents that a flow continues with; ``sync.version`` is above all that its nodes have seen."""

    layout: Layout
    sync: InSync
    disks: tuple[NodeId, ...]
    lost: tuple[ReplicaId, ...]


def adopt(reports: Collection[DiskReport], without: Collection[NodeId] = ()) -> Adoption:
    """The layout and the in-sync set with which the run on these disks continues.

    Every replica that is on the disk of its node keeps its place; the others are left to the controller, which rebuilds
    them from their peers.

    Raises
    ------
    Refused
        If there is no run, if there are several, if something is missing, or if orders were in ZooKeeper; nothing may
        be published then.
    """
    owned = [report for report in reports if report.run and report.layout is not None and report.sync is not None]
    runs = {report.run for report in owned}
    if not runs:
        raise Refused("no node here has the disk of a run: start the nodes on their directories, then adopt")
    if len(runs) > 1:
        told = disks_of_runs(sorted((report.run, report.node) for report in owned))
        raise Refused(f"the disks are of different runs: {told}. Stop the nodes of all runs but the one to continue")
    _refuse_lost_orders(owned)
    newest = max((report.layout for report in owned if report.layout is not None), key=lambda layout: layout.version)
    sync = max((report.sync for report in owned if report.sync is not None), key=lambda sync: (sync.term, sync.version))
    disks = {report.node: report for report in owned if newest.nodes.get(report.node) == report.disk}
    _refuse_missing(newest, disks, without)
    lost = {r for r, node in newest.placement.items() if node not in disks or not _is_held(newest, r, disks[node])}
    layout = replace(newest.without(lost), version=newest.version + 1)
    _refuse_lost(newest, layout)
    following = _continued(layout, sync, disks)
    versions = max(report.sync.version for report in owned if report.sync is not None)
    continued = replace(following, version=versions + 1)
    return Adoption(layout, continued, tuple(sorted(disks)), tuple(sorted(lost)))


def _refuse_lost_orders(reports: Collection[DiskReport]) -> None:
    lost = sorted({segment for report in reports for segment in report.orders_lost})
    if lost:
        raise Refused(
            f"the orders of the leaders of {', '.join(lost)} were in ZooKeeper and are lost with its data: no disk has "
            "all of them. Restore the data of ZooKeeper, or begin anew with `unbroken run --fresh`; flows with orders "
            "in Kafka (order_log) can be adopted"
        )


def _refuse_missing(layout: Layout, disks: Mapping[NodeId, DiskReport], without: Collection[NodeId]) -> None:
    hosts = set(layout.placement.values())
    missing = sorted(hosts - set(disks) - set(without))
    if missing:
        parts = "; ".join(
            f"{node} with {', '.join(str(replica) for replica in layout.hosted(node))}" for node in missing
        )
        raise Refused(
            f"nodes of layout {layout.version} are not here with the disks they had: {parts}. Start them on their "
            f"directories; or, if a disk is lost, leave its node out with --without {missing[0]}: rows that only it "
            "had accepted are lost then"
        )


def _is_held(layout: Layout, replica: ReplicaId, report: DiskReport) -> bool:
    """Whether a node has what the layout places on it; one that joins is copied to it anyway."""
    return replica in layout.joining or report.running or replica in (report.held or {})


def _refuse_lost(before: Layout, after: Layout) -> None:
    """Every shard whose results count needs a replica that has its state."""
    shards = {replica.shard for replica in before.placement if _counts(before, replica.shard)}
    bare = sorted(str(shard) for shard in shards if not _able(after, shard))
    if bare:
        raise Refused(
            f"no disk here holds the state of {', '.join(bare)}: start the nodes that do, or begin anew with "
            "`unbroken run --fresh`"
        )


def _counts(layout: Layout, shard: ShardId) -> bool:
    return generation_of(shard.part) <= layout.generation


def _able(layout: Layout, shard: ShardId) -> frozenset[ReplicaId]:
    """The replicas of a shard that have its state."""
    return layout.counted(shard) - layout.joining


def _continued(layout: Layout, sync: InSync, disks: Mapping[NodeId, DiskReport]) -> InSync:
    """The in-sync set after the restart of its members: led by the one whose log is most advanced.

    All members hold every committed entry, so any of them may lead; the most advanced one loses nothing that any of
    them has. A running member may have committed more by now, so nothing changes while all of them run. If no member is
    left, a log outside the set is all there is.
    """
    hosts = layout.nodes_of(INGRESS)
    members = frozenset(node for node in sync.members if node in hosts and node in disks)
    if members == sync.members and all(disks[node].running for node in members):
        return sync
    if not members:
        members = frozenset({max(layout.full_nodes_of(INGRESS), key=lambda node: (disks[node].log, node))})
    ahead = max(disks[node].log for node in members)
    leader = sync.leader if sync.leader in members and disks[sync.leader].log == ahead else None
    leader = leader or min(node for node in members if disks[node].log == ahead)
    term = max(sync.term, *(disks[node].log.term for node in members)) + 1
    return InSync(term, leader, members, sync.version)

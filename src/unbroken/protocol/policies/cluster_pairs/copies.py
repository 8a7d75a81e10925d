"""Whole-dataflow pairs: the controller's decisions when every copy of the dataflow lives and dies as one.

This is the way of *cluster pairs*, against which pairs of partitions are measured: a copy is all on one node, is fed by
its own producers alone, and is given up with the first of its replicas that is lost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from unbroken.protocol.placement.decision import Deciding
from unbroken.protocol.placement.policy import PlacementPolicy
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import (
    CopyDropped,
    CopyJoined,
    CopyPlaced,
    FlowRedundant,
    NodeDrained,
    NodeDraining,
    ReplicaJoined,
    ReplicaRenewed,
)


@dataclass
class DecidingCopies(Deciding):
    """A decision about copies instead of replicas. A copy is the replicas of all segments on a node.

    The ingress stays outside of the pairs, as it does in Flux: a node that its other members went on without gets its
    log again and keeps its copy, which waits for it; where a copy is given up, the log stays until it is as safe
    without; and a log counts as soon as it is one. Otherwise what happens to a copy would endanger rows that were
    acknowledged to their producers.

    While no copy is sound, none is given up for what others might still have: those out of sight may be sound, and
    replicas that stopped are built again one by one from the copies that still have their state. ``left`` are the nodes
    whose copies this decision gives up.
    """

    left: set[NodeId] = field(default_factory=set)

    def promote(self) -> None:
        """A copy counts when all of it has caught up and its node has a log, and then at once; a log by itself."""
        unwell = self.unwell()
        ready = (self.layout.joining & set(self.situation.caught_up)) - unwell - self._outside()
        logs = sorted(replica for replica in ready if replica.shard == INGRESS)
        if logs:
            self.layout = self.layout.with_full(logs)
            self.notices += [ReplicaJoined(replica, self.layout.placement[replica]) for replica in logs]
        for node in sorted({self.layout.placement[replica] for replica in ready.difference(logs)}):
            coming = self._copy(node) & self.layout.joining
            logged = self.layout.replica_on(node, INGRESS) in self.healthy(INGRESS)
            if not logged or self._lacking(node) or unwell & self._copy(node) or not ready >= coming:
                continue
            self.layout = self.layout.with_full(coming)
            self.notices += [CopyJoined(node, tuple(sorted(coming))), *self._restored()]

    def _restored(self) -> list[Notice]:
        since = [start for shard, start in self.layout.short_since.items() if shard != INGRESS]
        if not since or any(self._short(shard) for shard in self.topology.placed_shards):
            return []
        return [FlowRedundant((self.situation.now_ms - min(since)) / 1000)]

    def drop_lost(self) -> None:
        gone, ended = self._gone(), self._ended()
        unwell = self.unwell()
        placement = self.layout.placement
        kept = self._last_of_their_shards(gone | ended)
        doomed = set(unwell)
        if any(self._sound(node) for node in self._hosts()):
            doomed |= {other for r in unwell if r.shard != INGRESS for other in self._copy(placement[r])}
        else:
            kept |= {replica for replica in gone - self.layout.joining if replica.shard != INGRESS}
        dropped = doomed - kept
        if not dropped:
            return
        self.left |= {placement[replica] for replica in dropped if replica.shard != INGRESS}
        with_it = dropped - unwell
        if dropped & unwell:
            self.notices += self._explain(sorted(dropped & unwell), gone, kept & (gone | ended))
        if with_it:
            nodes = tuple(sorted({placement[replica] for replica in with_it}))
            self.notices.append(CopyDropped(nodes, tuple(sorted(with_it))))
        self.layout = self.layout.without(dropped)

    def leave_draining(self) -> None:
        draining = self.situation.draining & set(self.layout.nodes)
        before = {node for node in draining if self.layout.hosted(node)}
        for node in sorted(draining & self._hosts()):
            copy = self._copy(node)
            unneeded = self.layout.joining >= copy and not copy & self._last_of_their_shards(copy)
            others = [other for other in self._hosts() - draining if self._complete(other)]
            if unneeded or len(others) >= self._wanted(INGRESS):
                self.layout = self.layout.without(copy)
        self._leave_logs(draining)
        drained = sorted(node for node in before if not self.layout.hosted(node))
        self.notices += [NodeDrained(node) for node in drained]
        if draining != self.layout.draining:
            for node in sorted(draining - self.layout.draining):
                self.notices.append(NodeDraining(node, len(self.layout.hosted(node))))
            self.layout = replace(self.layout, draining=draining)

    def _leave_logs(self, draining: Collection[NodeId]) -> None:
        """Let go of the ingress where there is no copy, once there are enough of it with copies."""
        for node, replica in self.layout.nodes_of(INGRESS).items():
            if self._copy(node):
                continue
            places = [self.layout.placement[other] for other in self.healthy(INGRESS)]
            elsewhere = [place for place in places if place not in draining and self._copy(place)]
            unneeded = replica in self.layout.joining and replica not in self._last_of_their_shards({replica})
            if unneeded or len(elsewhere) >= self._wanted(INGRESS):
                self.layout = self.layout.without([replica])

    def renew(self) -> None:
        """Build a copy again where it is, if that is asked of one of its replicas; of the ingress, only the log."""
        fit = set(self.situation.present) - self.situation.draining
        for replica in sorted(set(self.situation.renewed) & set(self.layout.placement)):
            node = self.layout.placement.get(replica)
            if node not in fit or not any(self._complete(other) for other in self._hosts() - {node}):
                continue
            copy = self._copy(node)
            if copy:
                self.layout = self.layout.without([replica] if replica.shard == INGRESS else copy)
                newcomers = self._join(node, self._lacking(node))
                self.notices.append(ReplicaRenewed(replica, node, tuple(sorted(newcomers)), whole_copy=True))

    def place(self, transfers: int) -> None:
        """Complete the copies that lack something, then begin as many as are missing.

        All of a copy joins at once, however many transfers that takes: half of it is worth nothing.
        """
        for node in sorted(self._hosts() & set(self.situation.present)):
            shards = [shard for shard in self._lacking(node) if self._recoverable(shard)]
            shards = [shard for shard in shards if (shard, node) not in self.situation.avoid]
            if shards:
                newcomers = self._join(node, shards)
                self.notices.append(CopyPlaced(node, tuple(sorted(newcomers)), completes=True))
        while len(self._staying()) < self._wanted(INGRESS):
            home = self._best_home()
            if home is None or not all(self._recoverable(shard) for shard in self.topology.placed_shards):
                return
            newcomers = self._join(home, self._lacking(home))
            self.notices.append(CopyPlaced(home, tuple(sorted(newcomers))))

    # --- how things are -------------------------------------------------------------------------------

    def _copy(self, node: NodeId) -> set[ReplicaId]:
        return {replica for replica in self.layout.hosted(node) if replica.shard != INGRESS}

    def _hosts(self) -> set[NodeId]:
        """The nodes with a copy, or what is left of one."""
        return {node for replica, node in self.layout.placement.items() if replica.shard != INGRESS}

    def _lacking(self, node: NodeId) -> list[ShardId]:
        return [shard for shard in self.topology.placed_shards if self.layout.replica_on(node, shard) is None]

    def _sound(self, node: NodeId) -> bool:
        """Whether the flow could go on with the copy on ``node`` alone, given a log."""
        copy = self._copy(node)
        whole = not set(self._lacking(node)) - {INGRESS}
        return whole and not copy & (self.layout.joining | self.unwell())

    def _complete(self, node: NodeId) -> bool:
        return self._sound(node) and self.layout.replica_on(node, INGRESS) in self.healthy(INGRESS)

    def _staying(self) -> set[NodeId]:
        """The nodes whose copies are sound, or on the way to be."""
        unwell = self.unwell()
        nodes = (self._hosts() & set(self.situation.present)) - self.situation.draining
        return {node for node in nodes if not self._copy(node) & unwell}

    def _best_home(self) -> NodeId | None:
        """A node without a copy: rather one whose copy was not just given up, rather one with nothing to do."""
        unfit = self._hosts() | self.situation.draining | self.situation.suspected
        unfit |= {node for shard, node in self.situation.avoid if shard in self._lacking(node)}
        fit = set(self.situation.present) - unfit
        return min(fit, key=lambda node: (node in self.left, len(self.layout.hosted(node)), node), default=None)

    def _join(self, node: NodeId, shards: Collection[ShardId]) -> list[ReplicaId]:
        """Let replicas of these shards join on ``node``, under one number: of two copies that differ, the younger one
        is wrong in all of its replicas."""
        number = max(self.layout.next_index.get(shard, 0) for shard in shards)
        self.layout = replace(self.layout, next_index={**self.layout.next_index, **dict.fromkeys(shards, number)})
        newcomers: list[ReplicaId] = []
        for shard in shards:
            self.layout, replica = self.layout.with_joining(shard, node)
            newcomers.append(replica)
        return newcomers


class CopyPlacement(PlacementPolicy):
    """Decides about copies where the flow runs in whole ones.

    They are not declustered: replica r of every shard begins on node r, and further nodes have nothing to do until a
    copy needs another home.
    """

    def chained(self, topology: Topology) -> bool:
        return not topology.whole

    def deciding(self, topology: Topology) -> type[Deciding] | None:
        return DecidingCopies if topology.whole else None

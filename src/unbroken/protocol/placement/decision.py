"""A decision of the controller in the making: what it knows, and the steps to the next layout."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from unbroken.protocol.ingress.pause import changed_pause
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, generation_of
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import (
    LastReplicasAwaited,
    NodeDrained,
    NodeDraining,
    NodeReady,
    Purpose,
    ReplicaJoined,
    ReplicaPlaced,
    ReplicaRenewed,
    ReplicasDropped,
    ShardRedundant,
)
from unbroken.protocol.values.pause import Pause


@dataclass(frozen=True)
class Situation:
    """What the controller knows.

    ``present`` maps the nodes that count as present to their disks; the return of ``given_up`` ones is not believed in
    any more. ``stopped`` replicas do not run on nodes that
    are well, ``caught_up`` ones have reported that they keep up. ``in_sync`` are the members of the ingress (empty:
    not known). ``draining`` nodes are to be left, ``renewed`` replicas to be built again from their peers, and a
    shard is not placed on a node it has just failed on (``avoid``). ``restorable`` says that there are snapshots.
    ``suspected`` nodes do not answer, although ZooKeeper has not given them up.
    ``wished`` is the generation of the code that the flow is to go over to, ``switched`` are the shards whose results
    have taken the place of their predecessors'. With a ``pause`` the sources are not to be read.
    """

    now_ms: int
    present: Mapping[NodeId, str]
    given_up: frozenset[NodeId] = frozenset()
    stopped: Mapping[ReplicaId, str] = field(default_factory=dict)
    caught_up: Collection[ReplicaId] = ()
    in_sync: frozenset[NodeId] = frozenset()
    draining: frozenset[NodeId] = frozenset()
    renewed: Collection[ReplicaId] = ()
    avoid: Collection[tuple[ShardId, NodeId]] = ()
    restorable: bool = False
    wished: int | None = None
    switched: Collection[ShardId] = ()
    suspected: frozenset[NodeId] = frozenset()
    pause: Pause | None = None


@dataclass
class Deciding:
    """One decision in the making: each step changes ``layout`` and says so.

    ``rebuilt`` are the parts whose state can be rebuilt from what their producers keep.
    """

    topology: Topology
    situation: Situation
    layout: Layout
    notices: list[Notice] = field(default_factory=list)
    rebuilt: frozenset[str] = frozenset()

    def promote(self) -> None:
        ready = sorted((self.layout.joining & set(self.situation.caught_up)) - self.unwell() - self._outside())
        for replica in ready:
            self.layout = self.layout.with_full([replica])
            held = replica in self.layout.held
            self.notices.append(ReplicaJoined(replica, self.layout.placement[replica], held))
            since = self.layout.short_since.get(replica.shard)
            if since is not None and not self._short(replica.shard):
                took_s = (self.situation.now_ms - since) / 1000
                self.notices.append(ShardRedundant(replica.shard, took_s, again=not self.coming(replica.shard)))

    def drop_lost(self) -> None:
        gone, ended = self._gone(), self._ended()
        kept = self._last_of_their_shards(gone | ended | self._wiped())
        dropped = sorted((gone | ended | self._wiped()) - kept)
        if not dropped:
            return
        self.notices += self._explain(dropped, gone, kept & (gone | ended))
        self.layout = self.layout.without(dropped)

    def leave_draining(self) -> None:
        draining = self.situation.draining & set(self.layout.nodes)
        for replica, node in sorted(self.layout.placement.items()):
            if node not in draining:
                continue
            held = replica in self.layout.held
            alike = self._copies(replica.shard) if held else self.healthy(replica.shard)
            elsewhere = [r for r in alike if self.layout.placement[r] not in draining]
            needed = replica in self._last_of_their_shards({replica})
            # One that is only waited for to finish is left where it is for so long.
            wanted = self._wanted_copies(replica.shard) if held else self._wanted(replica.shard)
            enough = len(elsewhere) >= max(1, wanted)
            if (replica in self.layout.joining and not needed) or enough:
                self.layout = self.layout.without([replica])
                if not self.layout.hosted(node):
                    self.notices.append(NodeDrained(node))
        if draining != self.layout.draining:
            for node in sorted(draining - self.layout.draining):
                self.notices.append(NodeDraining(node, len(self.layout.hosted(node))))
            self.layout = replace(self.layout, draining=draining)

    def renew(self) -> None:
        """Build a replica again where it is; only while its shard has another one. A draining node loses it anyway."""
        fit = set(self.situation.present) - self.situation.draining
        for replica in sorted(set(self.situation.renewed) & set(self.layout.placement)):
            node = self.layout.placement[replica]
            if node in fit and self.healthy(replica.shard) - {replica}:
                smaller = self.layout.without([replica])
                place = smaller.with_held if replica in self.layout.held else smaller.with_joining
                self.layout, newcomer = place(replica.shard, node)
                self.notices.append(ReplicaRenewed(replica, node, (newcomer,)))

    def note_nodes(self) -> None:
        """Nodes that came are known from here on; of those that went only the ones that something is kept for."""
        hosts = set(self.layout.placement.values())
        came = {node: disk for node, disk in self.situation.present.items() if self.layout.nodes.get(node) != disk}
        went = set(self.layout.nodes) - set(self.situation.present) - hosts
        if not came and not went:
            return
        self.notices += [NodeReady(node) for node in sorted(came)]
        nodes = {node: disk for node, disk in self.layout.nodes.items() if node not in went}
        self.layout = replace(self.layout, nodes={**nodes, **came})

    def place(self, transfers: int) -> None:
        for shard in self.topology.placed_shards:
            while self._copying(shard) < transfers and self._missing(shard) > 0 and self._recoverable(shard):
                node = self.best_node(shard)
                if node is None:
                    break
                self.layout, replica = self.layout.with_joining(shard, node)
                purpose = Purpose.UPGRADE if self.coming(shard) else Purpose.REDUNDANCY
                self.notices.append(ReplicaPlaced(replica, node, purpose))
            while self._copying(shard) < transfers and self._missing_copies(shard) > 0 and self.healthy(shard):
                node = self.best_node(shard)
                if node is None:
                    break
                self.layout, replica = self.layout.with_held(shard, node)
                self.notices.append(ReplicaPlaced(replica, node, Purpose.COPY))

    def note_shortage(self) -> None:
        """Remember since when a shard is short of replicas, to report for how long it was."""
        before = self.layout.short_since
        since = {
            shard: before.get(shard, self.situation.now_ms)
            for shard in self.topology.placed_shards
            if self._short(shard)
        }
        if since != before:
            self.layout = replace(self.layout, short_since=since)

    def follow_pause(self) -> None:
        before, wished = self.layout.pause, self.situation.pause
        if before != wished:
            self.notices.append(changed_pause(before, wished, self.situation.now_ms))
            self.layout = replace(self.layout, pause=wished)

    # --- how things are -------------------------------------------------------------------------------

    def _gone(self) -> set[ReplicaId]:
        return {replica for replica, node in self.layout.placement.items() if node not in self.situation.present}

    def _wiped(self) -> set[ReplicaId]:
        """Replicas on nodes that came back with another disk: they exist nowhere."""
        nodes, present = self.layout.nodes, self.situation.present
        return {r for r, node in self.layout.placement.items() if present.get(node, nodes[node]) != nodes[node]}

    def _ended(self) -> set[ReplicaId]:
        """Replicas that do not work on nodes that are well, or that the other ingress members went on without."""
        placement = self.layout.placement
        ended = (set(self.situation.stopped) & set(placement)) | (self._outside() - self.layout.joining)
        return ended - self._gone()

    def _outside(self) -> set[ReplicaId]:
        """Replicas of the ingress that are not members of it (any more, or yet)."""
        if not self.situation.in_sync:
            return set()
        hosts = self.layout.nodes_of(INGRESS)
        return {replica for node, replica in hosts.items() if node not in self.situation.in_sync}

    def unwell(self) -> set[ReplicaId]:
        return self._gone() | self._wiped() | self._ended()

    def suspected(self) -> set[ReplicaId]:
        return {replica for replica, node in self.layout.placement.items() if node in self.situation.suspected}

    def lost(self, shard: ShardId) -> frozenset[ReplicaId]:
        """The working replicas that a shard has lost, if it has no other full one and its results count."""
        working, doubtful = self.layout.working(shard), self.unwell() | self.suspected()
        if self.coming(shard) or (working - doubtful) & self.layout.full(shard):
            return frozenset()
        return working & doubtful

    def where(self, replicas: Collection[ReplicaId]) -> tuple[NodeId, ...]:
        """The nodes of these replicas, in the order of the replicas."""
        return tuple(self.layout.placement[replica] for replica in sorted(replicas))

    def healthy(self, shard: ShardId) -> set[ReplicaId]:
        return set(self.layout.full(shard)) - self.unwell()

    def _copies(self, shard: ShardId) -> set[ReplicaId]:
        """The held replicas that could take over."""
        return set(self.layout.holding(shard)) - self.layout.joining - self.unwell()

    def _short(self, shard: ShardId) -> bool:
        copies = len(self._copies(shard)) < self._wanted_copies(shard)
        return copies or len(self.healthy(shard)) < self._wanted(shard)

    def _last_of_their_shards(self, doomed: set[ReplicaId]) -> set[ReplicaId]:
        """Replicas that stay counted because their shard might have none without them.

        One whose node is out of sight may still work, and one that has stopped may have been given up for being slow.
        A member of the ingress has the whole log, even if it does not count as redundancy yet. Nothing is kept of what
        can be restored from a snapshot and is not expected to return. One that can be rebuilt from what producers keep
        for it stays until another has its place, even if it exists nowhere.
        """
        kept: set[ReplicaId] = set()
        for shard in {replica.shard for replica in doomed}:
            if not self.healthy(shard) and not self.coming(shard):
                hopeless = self._restored_elsewhere(shard)
                hopeless |= set() if shard.part in self.rebuilt else self._wiped()
                kept |= (self.layout.full(shard) - hopeless) or (self.layout.counted(shard) - hopeless)
                if shard == INGRESS and self.situation.in_sync:
                    kept |= self.layout.counted(shard) - self._wiped() - self._outside()
        return kept

    def _restored_elsewhere(self, shard: ShardId) -> set[ReplicaId]:
        """The replicas of a shard that a snapshot replaces, because their nodes are not expected to return."""
        if not self.situation.restorable or shard == INGRESS:
            return set()
        return {r for r in self.layout.counted(shard) if self.layout.placement[r] in self.situation.given_up}

    def _wanted(self, shard: ShardId) -> int:
        """How many replicas a shard should have. One whose successor has taken over is only waited for to finish."""
        later = self.topology.successor(shard.part)
        if later is not None and self.layout.generation >= generation_of(later):
            return 0
        return self.topology.replicas[shard.part]

    def _wanted_copies(self, shard: ShardId) -> int:
        return self.topology.strategy(shard.part).holding if self._wanted(shard) else 0

    def _missing_copies(self, shard: ShardId) -> int:
        staying = {r for r in self._copies(shard) if self.layout.placement[r] not in self.situation.draining}
        joining = self.layout.joining & self.layout.holding(shard)
        return self._wanted_copies(shard) - len(staying) - len(joining)

    def coming(self, shard: ShardId) -> bool:
        """Whether a shard runs code whose results do not count yet."""
        return self.layout.generation < generation_of(shard.part)

    def _may_begin(self, shard: ShardId) -> bool:
        """Whether a shard with the code that comes may get its first replica: its predecessor has the state, and what
        it reads is being produced. Only one at first: the others are copies of it."""
        earlier = self.topology.predecessor(shard)
        before = [part for part in self.topology.producers_of(shard.part) if part in self.topology.replaces]
        return (
            earlier is not None
            and bool(self.healthy(earlier))
            and not self.layout.counted(shard)
            and all(self.healthy(producer) for part in before for producer in self.topology.shards(part))
        )

    def _copying(self, shard: ShardId) -> int:
        """Transfers that one more has to wait for. Code that comes may have to wait for the flow itself to be repaired,
        and so does not hold that up."""
        coming = self.coming(shard)
        return sum(1 for replica in self.layout.joining if coming or not self.coming(replica.shard))

    def _missing(self, shard: ShardId) -> int:
        staying = {r for r in self.healthy(shard) if self.layout.placement[r] not in self.situation.draining}
        return self._wanted(shard) - len(staying) - len(self.layout.joining & self.layout.working(shard))

    def _recoverable(self, shard: ShardId) -> bool:
        """Whether somebody can give a newcomer the shard's state."""
        if self.coming(shard) and not self.healthy(shard):
            return self._may_begin(shard)
        if not self.layout.counted(shard):
            return self.situation.restorable
        able = self.layout.full(shard)
        if shard == INGRESS and self.situation.in_sync:
            able = self.layout.counted(shard) - self._outside()
        return any(self.layout.placement[replica] in self.situation.present for replica in able)

    def best_node(self, shard: ShardId, without: Collection[NodeId] = ()) -> NodeId | None:
        """The node with least to do among those that have no replica of the shard; idle standbys come first."""
        hosts = {*self.layout.nodes_of(shard), *without}
        fit = [
            node
            for node in self.situation.present
            if node not in hosts
            and node not in self.situation.draining | self.situation.suspected
            and (shard, node) not in self.situation.avoid
        ]
        return min(fit, key=lambda node: (len(self.layout.hosted(node)), node), default=None)

    def _explain(self, dropped: list[ReplicaId], gone: set[ReplicaId], kept: set[ReplicaId]) -> list[Notice]:
        placement = self.layout.placement
        wiped = self._wiped()
        lost = ReplicasDropped(
            tuple(dropped),
            lost=tuple(sorted({placement[r] for r in dropped if r in gone})),
            without_disk=tuple(sorted({placement[r] for r in dropped if r in wiped})),
            stopped=tuple(replica for replica in dropped if replica not in gone | wiped),
        )
        return [lost, LastReplicasAwaited(tuple(sorted(kept)))] if kept else [lost]

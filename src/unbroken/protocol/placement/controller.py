"""The controller's decisions: which layout follows from who is there and how they are.

Level-triggered: the decision depends on the present layout and the present situation alone, so a controller that
takes over goes on where the last one stopped, and deciding twice does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from unbroken.protocol.ingress.pause import Pause, told
from unbroken.protocol.output.at_most_once import Turn, next_turn
from unbroken.protocol.repair.takeover import give_back, take_over
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, generation_of
from unbroken.protocol.values.layout import INGRESS, Layout, Topology, chained_placement
from unbroken.protocol.values.run import unadopted
from unbroken.protocol.values.strategy import Ha


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


@dataclass(frozen=True)
class Decision:
    """The layout to publish, and what was found and done, one sentence each.

    ``refused`` says why the generation that was wished for is given up.
    """

    layout: Layout
    sentences: tuple[str, ...]
    refused: str | None = None


@dataclass(frozen=True)
class NoLayout:
    """No layout may be published, and why."""

    reason: str


def first_layout(
    topology: Topology, wanted_nodes: int, present: Mapping[NodeId, str], runs: Mapping[NodeId, str], run: str
) -> Decision | NoLayout | None:
    """The layout that ``run`` begins with; it waits for all nodes that were asked for, so that a slow starter is not
    left out.

    ``runs`` are the runs that the disks of all members belong to, "" for a disk that never took a layout. A flow whose
    disks belong to a run is never begun anew: its documents are missing, its data are not.
    """
    reason = unadopted(runs)
    if reason is not None:
        return NoLayout(reason)
    if len(present) < wanted_nodes:
        return None
    nodes = {node: present[node] for node in sorted(present)[:wanted_nodes]}
    return Decision(chained_placement(topology, nodes, run), (f"first layout on {', '.join(nodes)}",))


def next_layout(topology: Topology, situation: Situation, current: Layout, transfers: int) -> Decision | None:
    """What has to change, or None while nothing does.

    Replicas that are gone or have stopped are not counted any more; replacements are placed on other nodes, those
    nearest to the sources first and at most ``transfers`` at a time, and count as redundancy once they have caught up.

    Every shard keeps a counted replica. When all that are left seem to be gone, none of them is dropped: being
    gone may only mean that ZooKeeper lost sight of a node, and what is kept for its replicas is then all that
    the shard can go on with. What one working replica does for all (passive standby, upstream backup) is different:
    another takes its place at once and in the same step, so that nothing that is kept for the shard is let go.
    """
    work = _deciding(topology)(topology, situation, current)
    work.promote()
    take_over(work)
    work.drop_lost()
    work.note_nodes()
    work.leave_draining()
    work.renew()
    give_back(work)
    work.place(transfers)
    work.note_shortage()
    work.pass_turns(current.version + 1)
    work.follow_pause()
    if work.layout == current:
        return None
    return Decision(replace(work.layout, version=current.version + 1), tuple(work.sentences))


def _deciding(topology: Topology) -> type[Deciding]:
    if not topology.whole:
        return Deciding
    from unbroken.protocol.placement.cluster_pairs import DecidingCopies  # It builds on this module.

    return DecidingCopies


@dataclass
class Deciding:
    """One decision in the making: each step changes ``layout`` and says so."""

    topology: Topology
    situation: Situation
    layout: Layout
    sentences: list[str] = field(default_factory=list)

    def promote(self) -> None:
        ready = sorted((self.layout.joining & set(self.situation.caught_up)) - self.unwell() - self._outside())
        for replica in ready:
            self.layout = self.layout.with_full([replica])
            done = "holds a copy" if replica in self.layout.held else "has caught up"
            sentence = f"{replica} on {self.layout.placement[replica]} {done}"
            since = self.layout.short_since.get(replica.shard)
            if since is not None and not self._short(replica.shard):
                again = "" if self.coming(replica.shard) else " again"
                took_s = (self.situation.now_ms - since) / 1000
                sentence += f"; {replica.shard} is redundant{again} after {took_s:.1f} s"
            self.sentences.append(sentence)

    def drop_lost(self) -> None:
        gone, ended = self._gone(), self._ended()
        kept = self._last_of_their_shards(gone | ended | self._wiped())
        dropped = sorted((gone | ended | self._wiped()) - kept)
        if not dropped:
            return
        self.sentences.append(self._explain(dropped, gone, kept & (gone | ended)))
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
                    self.sentences.append(f"{node} is drained: nothing depends on it any more")
        if draining != self.layout.draining:
            for node in sorted(draining - self.layout.draining):
                self.sentences.append(f"{node} is being drained of {len(self.layout.hosted(node))} replicas")
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
                self.sentences.append(f"{replica} on {node} is built again from its peer as {newcomer}")

    def note_nodes(self) -> None:
        """Nodes that came are known from here on; of those that went only the ones that something is kept for."""
        hosts = set(self.layout.placement.values())
        came = {node: disk for node, disk in self.situation.present.items() if self.layout.nodes.get(node) != disk}
        went = set(self.layout.nodes) - set(self.situation.present) - hosts
        if not came and not went:
            return
        self.sentences += [f"{node} is ready to take replicas" for node in sorted(came)]
        nodes = {node: disk for node, disk in self.layout.nodes.items() if node not in went}
        self.layout = replace(self.layout, nodes={**nodes, **came})

    def place(self, transfers: int) -> None:
        for shard in self.topology.placed_shards:
            while self._copying(shard) < transfers and self._missing(shard) > 0 and self._recoverable(shard):
                node = self.best_node(shard)
                if node is None:
                    break
                self.layout, replica = self.layout.with_joining(shard, node)
                why = "for the code that comes" if self.coming(shard) else f"to restore the redundancy of {shard}"
                self.sentences.append(f"{replica} is placed on {node} {why}")
            while self._copying(shard) < transfers and self._missing_copies(shard) > 0 and self.healthy(shard):
                node = self.best_node(shard)
                if node is None:
                    break
                self.layout, replica = self.layout.with_held(shard, node)
                self.sentences.append(f"{replica} is placed on {node} to hold a copy of {shard}")

    def note_shortage(self) -> None:
        """Remember since when a shard is short of replicas, for the sentence that says it is not any more."""
        before = self.layout.short_since
        since = {
            shard: before.get(shard, self.situation.now_ms)
            for shard in self.topology.placed_shards
            if self._short(shard)
        }
        if since != before:
            self.layout = replace(self.layout, short_since=since)

    def pass_turns(self, version: int) -> None:
        """Where results are delivered at most once: another has the turn when there is doubt about the one who has."""
        doubtful, layout = self.unwell() | self.suspected(), self.layout
        turns: dict[ShardId, Turn] = {}
        for shard in self.topology.taking_turns():
            held = layout.turns.get(shard)
            turn = next_turn(held, layout.working(shard), layout.full(shard), doubtful, version)
            if turn is not None:
                turns[shard] = turn
            if held is not None and turn != held and turn is not None:
                where = layout.placement[turn.replica]
                self.sentences.append(f"{turn.replica} on {where} delivers the results of {shard} from here on")
        if turns != layout.turns:
            self.layout = replace(layout, turns=turns)

    def follow_pause(self) -> None:
        before, wished = self.layout.pause, self.situation.pause
        if before != wished:
            self.sentences.append(told(before, wished, self.situation.now_ms))
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
                rebuilt = self.topology.strategy(shard.part).ha is Ha.UPSTREAM
                hopeless = self._restored_elsewhere(shard) | (set() if rebuilt else self._wiped())
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

    def _explain(self, dropped: list[ReplicaId], gone: set[ReplicaId], kept: set[ReplicaId]) -> str:
        placement = self.layout.placement
        wiped = self._wiped()
        causes = [f"{node} lost" for node in sorted({placement[r] for r in dropped if r in gone})]
        causes += [f"{node} has lost its disk" for node in sorted({placement[r] for r in dropped if r in wiped})]
        causes += [f"{replica} stopped" for replica in dropped if replica not in gone | wiped]
        sentence = f"{', '.join(causes)}; no longer waiting for {', '.join(str(replica) for replica in dropped)}"
        if kept:
            last = ", ".join(str(replica) for replica in sorted(kept))
            sentence += f"; still counting {last}, as nothing else is left of the shard"
        return sentence

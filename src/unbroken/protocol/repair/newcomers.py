"""The replicas that a node is building, and the ones it helps others to build."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.protocol.events import FetchFailed, PinAsked, StateArrived
from unbroken.protocol.instructions import (
    AbandonFetch,
    DropReplica,
    FetchState,
    Instruction,
    PinState,
    RefusePin,
    Report,
    ReportCaughtUp,
    Send,
)
from unbroken.protocol.messages import Claim, Claimed
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.repair.catchup import CatchUp, Phase, Promise
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, generation_of
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.replicas import ReplicaNotBegun, ReplicaReplaced, StateNotFetched
from unbroken.protocol.values.recovery import StoredReplica

PIN_PATIENCE_MS = 10_000.0
"""How long a newcomer waits for a donor to come as far as it needs; usually that is a pulse away."""


class Beginnings(Protocol):
    """Other ways for a replica to begin than with the state of a full one."""

    def numbered(self, part: str) -> bool: ...

    def begun(self, replica: ReplicaId) -> tuple[CatchUp | None, list[Instruction]]: ...

    def anew(self, join: CatchUp, now_ms: float) -> list[Instruction] | None: ...


@dataclass
class Newcomers:
    """What a node does for redundancy to come back.

    Invariant: a catch-up is under way exactly for the replicas that the layout lets join here.
    """

    around: Surroundings
    roster: Roster
    outboxes: Outboxes
    subscriptions: Subscriptions
    hosting: Hosting
    beginnings: Beginnings
    joins: dict[ReplicaId, CatchUp] = field(default_factory=dict)
    asked: list[tuple[PinAsked, float]] = field(default_factory=list)
    copies: set[ReplicaId] = field(default_factory=set)

    # --- building a replica here ----------------------------------------------------------------------

    def begin(self, replica: ReplicaId, state: StoredReplica | None, now_ms: float) -> list[Instruction]:
        """A replica is to join here; with a state it had come so far before this process started."""
        join = CatchUp(replica, tuple(self.around.topology.inputs(replica.shard)), now_ms)
        self.joins[replica] = join
        if state is None:
            return self.ask_for_claims(join)
        if replica.shard == INGRESS and self.around.me not in self.around.sync.members:
            # The leader may have forgotten the learner that this node was: the copy is worth nothing without it.
            return [DropReplica(replica)]
        join.resume(state.committed, now_ms)
        return [*self.hosting.host(replica, state), *self.ask_for_claims(join)]

    def begin_with_copy(self, join: CatchUp, now_ms: float) -> list[Instruction]:
        """A replica whose state was held here goes to work; its producers have long promised."""
        self.joins[join.replica] = join
        self.copies.add(join.replica)
        join.since_ms = now_ms
        return self.ask_for_claims(join)

    def claimed(self, sender: NodeId, message: Claimed) -> list[Instruction]:
        join = self.joins.get(message.replica)
        if join is not None:
            join.claimed(message.stream, sender, Promise(message.base, message.last, message.rebuilt))
        return []

    def link_up(self, node: NodeId) -> list[Instruction]:
        """A producer may have come into sight."""
        return [step for join in self.joins.values() for step in self.ask_for_claims(join, {node})]

    def fetch_failed(self, event: FetchFailed, now_ms: float) -> list[Instruction]:
        join = self.joins.get(event.replica)
        if join is None or join.phase is not Phase.FETCHING:
            return []
        anew = join.anew
        join.failed(now_ms)
        if anew:
            return [Report(ReplicaNotBegun(event.replica, event.reason))]
        return [Report(StateNotFetched(event.replica, event.donor, event.reason))]

    def state_arrived(self, event: StateArrived, now_ms: float) -> list[Instruction]:
        join = self.joins.get(event.replica)
        if join is None or join.phase is not Phase.FETCHING:
            # The layout has changed its mind meanwhile.
            return [] if event.replica in self.roster.hosted() else [DropReplica(event.replica)]
        self.copies.discard(event.replica)
        join.arrived(event.state.committed, event.size, now_ms)
        self.around.traffic["state"] += event.size
        # Others that join here may read what it produces.
        return [*self.hosting.host(event.replica, event.state), *self.link_up(self.around.me)]

    def _copy_again(self, now_ms: float) -> list[Instruction]:
        """The copy of the ingress log is of no use: its leader is gone, or the members went on without this node."""
        sources = self.roster.seat.sources
        join = None if self.roster.seat.replica is None else self.joins.get(self.roster.seat.replica)
        if join is None or sources is None or not (sources.log.refused or sources.log.expelled):
            return []
        self.hosting.unhost(join.replica)
        join.phase = Phase.FETCHING
        join.failed(now_ms)
        return [DropReplica(join.replica)]

    def layout_changed(self, now_ms: float) -> list[Instruction]:
        """Let go of what the layout does not place here, begin with what it lets join."""
        layout, placed = self.around.layout, set(self.around.placed_here())
        out: list[Instruction] = []
        for replica in sorted({*self.roster.hosted(), *self.joins} - placed):
            if replica in self.joins and self.joins.pop(replica).phase is Phase.FETCHING:
                out.append(AbandonFetch(replica))
            if replica in self.roster.hosted():
                out.append(Report(ReplicaReplaced(replica, self.around.me)))
            self.hosting.unhost(replica)
            out.append(DropReplica(replica))
        for replica in sorted(placed - layout.held - set(self.roster.hosted()) - set(self.joins)):
            if replica in layout.joining:
                copy, steps = self.beginnings.begun(replica)
                begun = self.begin(replica, None, now_ms) if copy is None else self.begin_with_copy(copy, now_ms)
                out += [*steps, *begun]
            else:
                out.append(self.hosting.absent(replica))
        for replica in [replica for replica in self.joins if replica not in layout.joining]:
            out += self._promoted(self.joins.pop(replica))
        return [*out, *(step for join in self.joins.values() for step in self.ask_for_claims(join))]

    def _promoted(self, join: CatchUp) -> list[Instruction]:
        """The layout takes a replica for redundancy; one that has lost its state since it said so has to say that."""
        if join.replica in self.roster.hosted():
            return []
        abandon = [AbandonFetch(join.replica)] if join.phase is Phase.FETCHING else []
        return [*abandon, self.hosting.absent(join.replica)]

    def tick(self, now_ms: float) -> list[Instruction]:
        out = self._copy_again(now_ms)
        for replica, join in self.joins.items():
            begun = self.beginnings.anew(join, now_ms)
            if begun is not None:
                out += begun
                continue
            shard, donors = self._donors(replica)
            found = join.next_donor(self.producers(join), donors, now_ms)
            if found is not None:
                out.append(FetchState(replica, found[0], shard, *self.wanted(join)))
            elif join.phase is Phase.CATCHING_UP and self.keeps_up(join):
                out.append(ReportCaughtUp(replica, join.finish(now_ms)))
        waiting, self.asked = self.asked, []
        return [*out, *(step for event, until_ms in waiting for step in self._pin_when_ready(event, until_ms, now_ms))]

    def busy(self) -> bool:
        """Whether there is something that any event may move on."""
        return bool(self.joins or self.asked)

    def wake_times_ms(self) -> list[float]:
        retries = [due for join in self.joins.values() if (due := join.next_retry_ms()) is not None]
        return [*retries, *(until_ms for _, until_ms in self.asked)]

    def check(self) -> None:
        for replica, join in self.joins.items():
            join.check()
            at_work = join.phase in (Phase.CATCHING_UP, Phase.CAUGHT_UP)
            assert (replica in self.roster.hosted()) == at_work, f"{replica} is {join.phase.value}"

    # --- helping others -------------------------------------------------------------------------------

    def pin_asked(self, event: PinAsked, now_ms: float) -> list[Instruction]:
        return self._pin_when_ready(event, now_ms + PIN_PATIENCE_MS, now_ms)

    def _pin_when_ready(self, event: PinAsked, until_ms: float, now_ms: float) -> list[Instruction]:
        """Another node builds a replica of a shard that is at home here: keep the present state for it."""
        replica = next((r for r in self.roster.hosted() if r.shard == event.shard), None)
        join = None if replica is None else self.joins.get(replica)
        if replica is None or join is not None or self.hosting.diverged(replica):
            return [RefusePin(event.ticket, f"{self.around.me} has no full replica of {event.shard}")]
        if replica.shard == INGRESS:
            return self._pin_ingress(replica, event)
        boxes = self.outboxes.of(replica)
        here = self.roster.replicas[replica]
        # A version may be committed before the node has heard of its units.
        version = min([here.committed, *(box.last for box in boxes)])
        if version < max(event.least, here.whole) or not self._has_taken(here, version, event.needs):
            if now_ms >= until_ms:
                return [RefusePin(event.ticket, f"{replica} is at version {version}, which is too early")]
            self.asked.append((event, until_ms))
            return []
        if any(number <= version for box in boxes for number in box.damaged):
            return [RefusePin(event.ticket, f"a unit that {replica} has produced is damaged on {self.around.me}")]
        units = tuple((box.stream, min(box.base, version), min(box.last, version)) for box in boxes)
        return [PinState(event.ticket, replica, version, units)]

    def _has_taken(self, replica: SegmentReplica, version: int, needs: Sequence[tuple[StreamId, int]]) -> bool:
        """Whether a version contains what is not kept any more."""
        at_hand = not needs or version == replica.committed
        return at_hand and all(replica.inboxes[stream].consumed >= unit for stream, unit in needs)

    def wanted(self, join: CatchUp) -> tuple[int, tuple[tuple[StreamId, int], ...]]:
        """What a state must contain to be of use: a version, or where that says nothing, units of the inputs."""
        parts = {join.replica.shard.part, *(stream.producer.part for stream in join.inputs)}
        return (join.least, ()) if all(self.beginnings.numbered(part) for part in parts) else (0, join.needs)

    def _pin_ingress(self, replica: ReplicaId, event: PinAsked) -> list[Instruction]:
        sources, layout = self.roster.seat.sources, self.around.layout
        assert sources is not None
        out: list[Instruction] = []
        admission = None
        # One that the layout here does not let join would not be waited for once it is a member.
        if layout.replica_on(event.node, INGRESS) in layout.joining:
            if event.node in self.around.sync.members:
                # It has no log any more, even if it is still the leader by the documents.
                out += sources.given_up(event.node)
            admission, steps = sources.learn(event.node)
            out += steps
        if admission is None:
            reason = f"{self.around.me} cannot take {event.node} into the ingress at this moment"
            return [*out, RefusePin(event.ticket, reason)]
        units = tuple((box.stream, box.base, box.last) for box in self.outboxes.of(replica))
        return [*out, PinState(event.ticket, replica, admission.index, units, admission)]

    # --- details --------------------------------------------------------------------------------------

    def producers(self, join: CatchUp) -> dict[StreamId, list[NodeId]]:
        """Who can be reached of those that have to promise."""
        return {stream: self.subscriptions.reachable(stream) for stream in join.inputs}

    def _donors(self, replica: ReplicaId) -> tuple[ShardId, list[NodeId | None]]:
        """The shard whose state is wanted, and who can give it, in order of preference.

        The first replica with the code that comes begins with the state of a predecessor, which may be on this node.
        """
        layout, around, shard = self.around.layout, self.around, replica.shard
        if replica in self.copies:
            return shard, [around.me]
        if shard == INGRESS:
            # If this node still leads by the documents, the other members learn from its question that it cannot.
            donors = around.sync.members if around.sync.leader == around.me else {around.sync.leader}
            return shard, [*sorted((donors & around.links) - {around.me})]
        full = layout.full_nodes_of(shard)
        earlier = around.topology.predecessor(shard)
        if not full and earlier is not None and layout.generation < generation_of(shard.part):
            return earlier, [donor for donor in layout.full_nodes_of(earlier) if donor in around.links]
        if not full:
            return shard, [None]
        return shard, [donor for donor in full if donor in around.links and donor != around.me]

    def ask_for_claims(self, join: CatchUp, nodes: Collection[NodeId] | None = None) -> list[Instruction]:
        """Ask for the promises that are still missing, perhaps only of these nodes."""
        return [
            Send(node, Claim(stream, join.replica, self.around.layout.version))
            for stream, node in join.claims(self.producers(join))
            if nodes is None or node in nodes
        ]

    def keeps_up(self, join: CatchUp) -> bool:
        if join.replica.shard == INGRESS:
            return self.roster.seat.sources is not None and self.roster.seat.sources.log.member
        replica = self.roster.replicas[join.replica]
        available = {stream: inbox.available for stream, inbox in replica.inboxes.items()}
        keepers = {stream: self.subscriptions.keepers(stream) for stream in join.inputs}
        if not replica.asked or replica.stopped is not None or not join.provided(keepers, available):
            return False
        comes = self.around.layout.generation < generation_of(join.replica.shard.part)
        taken = {stream: inbox.consumed for stream, inbox in replica.inboxes.items()}
        return join.within(self.around.settings.catch_up_lag, replica.committed, taken, available, tried=comes)

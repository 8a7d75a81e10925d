"""Passive standby: copies of a replica's state that nodes hold, brought up to date every few units."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from unbroken.protocol.events import FetchFailed, StateArrived
from unbroken.protocol.instructions import (
    AbandonFetch,
    DropReplica,
    FetchState,
    Instruction,
    Report,
    ReportCaughtUp,
    Send,
)
from unbroken.protocol.messages import Ack, Claimed
from unbroken.protocol.plausibility import Plausibility
from unbroken.protocol.policies.passive_standby.messages import Offer, check_offer
from unbroken.protocol.policy import MessageCheck, MessageHandler, Policy
from unbroken.protocol.repair.catchup import CatchUp, Phase, Promise
from unbroken.protocol.repair.newcomers import Newcomers
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.notices.replicas import CopyHeld, CopyOutdated
from unbroken.protocol.values.recovery import StoredReplica


@dataclass
class Copy:
    """One held replica: the state that is here, if any, and what the primary has offered since."""

    join: CatchUp
    state: StoredReplica | None = None
    offered: int = 0

    @property
    def version(self) -> int:
        return -1 if self.state is None else self.state.committed


@dataclass
class PassiveStandby(Policy):
    """The held replicas of a node, and the offers of the replicas at work here.

    A copy acknowledges its version like a replica that has processed so far, so producers keep what follows it. To
    bring it up to date is the same transfer as for a newcomer; files that are there already are not sent again.

    Invariant: a copy that has been acknowledged is whole, and never older than what was acknowledged.
    """

    around: Surroundings
    roster: Roster
    newcomers: Newcomers
    copies: dict[ReplicaId, Copy] = field(default_factory=dict)
    offers: dict[ReplicaId, int] = field(default_factory=dict)

    # --- holding --------------------------------------------------------------------------------------

    def messages(self) -> Mapping[type[Any], MessageHandler]:
        return {Offer: lambda _sender, message, _now_ms: self.offered(message)}

    def checks(self, names: Plausibility) -> Mapping[type[Any], MessageCheck]:
        return {Offer: partial(check_offer, names)}

    def takes_up(self, replica: ReplicaId, state: StoredReplica | None, now_ms: float) -> list[Instruction] | None:
        return self.begin(replica, state, now_ms) if replica in self.around.layout.held else None

    def held(self) -> Mapping[ReplicaId, int]:
        return {replica: copy.version for replica, copy in self.copies.items()}

    def joining(self, replica: ReplicaId) -> CatchUp | None:
        copy = self.copies.get(replica)
        return None if copy is None else copy.join

    def begin(self, replica: ReplicaId, state: StoredReplica | None, now_ms: float) -> list[Instruction]:
        join = CatchUp(replica, tuple(self.around.topology.inputs(replica.shard)), now_ms)
        self.copies[replica] = Copy(join, state)
        return [*self._acks(replica, self.around.links), *self.newcomers.ask_for_claims(join)]

    def begun(self, replica: ReplicaId) -> tuple[CatchUp | None, list[Instruction]]:
        """The replica goes to work, or is not held any more: how far it had come, and how a transfer is ended."""
        copy = self.copies.pop(replica, None)
        if copy is None:
            return None, []
        fetching = copy.join.phase is Phase.FETCHING
        if fetching:
            copy.join.phase = Phase.CLAIMING
        return copy.join if copy.state is not None else None, [AbandonFetch(replica)] if fetching else []

    def claimed(self, sender: NodeId, message: Claimed) -> bool:
        copy = self.copies.get(message.replica)
        if copy is not None:
            copy.join.claimed(message.stream, sender, Promise(message.base, message.last))
        return copy is not None

    def offered(self, message: Offer) -> list[Instruction]:
        """A primary has come further; which of the shard's copies is here does not matter to it."""
        for replica, copy in self.copies.items():
            if replica.shard == message.replica.shard:
                copy.offered = max(copy.offered, message.version)
        return []

    def state_arrived(self, event: StateArrived, now_ms: float) -> list[Instruction] | None:
        copy = self.copies.get(event.replica)
        if copy is None:
            return None
        if copy.join.phase is not Phase.FETCHING:
            return []
        copy.state = event.state
        copy.join.phase = Phase.CLAIMING
        self.around.traffic["state"] += event.size
        out = self._acks(event.replica, self.around.links)
        if event.replica in self.around.layout.joining:
            took_s = (now_ms - copy.join.since_ms) / 1000
            held = CopyHeld(event.replica, event.donor, event.size, event.state.committed, took_s)
            out.append(ReportCaughtUp(event.replica, held))
        return out

    def fetch_failed(self, event: FetchFailed, now_ms: float) -> list[Instruction] | None:
        copy = self.copies.get(event.replica)
        if copy is None:
            return None
        if copy.join.phase is Phase.FETCHING:
            copy.join.failed(now_ms)
        return [Report(CopyOutdated(event.replica, event.donor, event.reason))]

    def layout_changed(self, placed: Collection[ReplicaId], now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for replica in [replica for replica in self.copies if replica not in placed]:
            out += [*self.begun(replica)[1], DropReplica(replica)]
        for replica in sorted((set(placed) & self.around.layout.held) - set(self.copies)):
            out += self.begin(replica, None, now_ms)
        return [*out, *(step for copy in self.copies.values() for step in self.newcomers.ask_for_claims(copy.join))]

    def link_up(self, node: NodeId) -> list[Instruction]:
        return [step for copy in self.copies.values() for step in self.newcomers.ask_for_claims(copy.join, {node})]

    def tick(self, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for replica, copy in self.copies.items():
            if copy.state is not None and copy.offered <= copy.version:
                continue
            donors = [node for node in self.around.layout.full_nodes_of(replica.shard) if node in self.around.links]
            found = copy.join.next_donor(self.newcomers.producers(copy.join), donors, now_ms)
            if found is not None:
                least, needs = self.newcomers.wanted(copy.join)
                newer = max(least, copy.version, copy.offered)
                out.append(FetchState(replica, found[0], replica.shard, newer, needs, held=True))
        return out

    def wake_times_ms(self) -> list[float]:
        return [due for copy in self.copies.values() if (due := copy.join.next_retry_ms()) is not None]

    def briefing(self, to: NodeId) -> list[Instruction]:
        """How far the copies here are, and how far the replicas at work here are for the copies elsewhere."""
        out = [step for replica in self.copies for step in self._acks(replica, {to})]
        for replica, version in self.offers.items():
            if to in self._holders(replica):
                out.append(Send(to, Offer(replica, version)))
        return out

    # --- being copied ---------------------------------------------------------------------------------

    def committed(self, replica: SegmentReplica) -> list[Instruction]:
        """A replica at work has committed: offer that to those that hold copies, every few units."""
        name = replica.replica
        strategy = self.around.topology.strategy(name.shard.part)
        due = self.offers.get(name, 0) + strategy.every
        if not strategy.holding or name not in self.around.layout.full(name.shard) or replica.committed < due:
            return []
        self.offers = {r: version for r, version in self.offers.items() if r in self.roster.replicas}
        self.offers[name] = replica.committed
        return [Send(node, Offer(name, replica.committed)) for node in self._holders(name)]

    # --- details --------------------------------------------------------------------------------------

    def _holders(self, replica: ReplicaId) -> list[NodeId]:
        layout = self.around.layout
        return sorted(layout.placement[held] for held in layout.holding(replica.shard))

    def _acks(self, replica: ReplicaId, nodes: Collection[NodeId]) -> list[Instruction]:
        copy = self.copies[replica]
        return [
            Send(node, Ack(stream, str(replica), copy.state.reach(stream).unit))
            for stream in copy.join.inputs
            if copy.state is not None and copy.version > 0
            for node in sorted(self.around.producers(stream) & set(nodes))
        ]

    def check(self) -> None:
        for replica, copy in self.copies.items():
            copy.join.check()
            assert replica in self.around.layout.held, f"{replica} is held here and not in the layout"

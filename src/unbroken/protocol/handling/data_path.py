"""The way of units through a node: into inboxes, through queries, into outboxes and sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unbroken.protocol.agenda import Errand
from unbroken.protocol.events import (
    GateAsked,
    OutboxDamaged,
    OwedNoted,
    Produced,
    ReplicaStopped,
    SinkDelivered,
    SinkRefused,
    UnitArrived,
    UnitDamaged,
)
from unbroken.protocol.instructions import AnswerGate, DropInbox, Instruction, Report, StoreUnit
from unbroken.protocol.output.digest_exchange import DigestExchange
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.policy import EventHandler
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.repair.damaged_units import DamagedUnits
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.replica.inbox import Arrival
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.notices.replicas import CopyDiffers, UnitRefetched
from unbroken.protocol.values.notices.sinks import SinkStopped, UnitSetAside

COUNTERS = {arrival: f"units_{arrival.value}" for arrival in Arrival}


@dataclass
class DataPath:
    """Takes units that arrive, answers queries, and passes on what they produce.

    Invariant: a unit is sent, delivered or released to Spark only after the instruction that stores it.
    """

    around: Surroundings
    roster: Roster
    outboxes: Outboxes
    sinks: Sinks
    generation_switch: GenerationSwitch
    digest_exchange: DigestExchange
    subscriptions: Subscriptions
    reports: Reports
    hosting: Hosting
    damaged_units: DamagedUnits
    policies: Policies
    at_work: Errand

    def events(self) -> dict[type[Any], EventHandler]:
        return {
            UnitArrived: self.unit_arrived,
            UnitDamaged: self.unit_damaged,
            OutboxDamaged: self.damaged_units.damaged,
            OwedNoted: lambda event, _now_ms: self.outboxes.noted(event),
            GateAsked: self.gate_asked,
            Produced: self.produced,
            SinkDelivered: self.sink_delivered,
            SinkRefused: self.sink_refused,
        }

    def unit_arrived(self, event: UnitArrived, now_ms: float) -> list[Instruction]:
        header = event.header
        if not header.stable:
            return self.policies.unstable(event, now_ms)
        if not self.damaged_units.under_way:
            return self._keep_unit(event, now_ms)
        repaired = self.damaged_units.arrived(event)
        box = self.outboxes.boxes.get(header.stream)
        if event.sender == self.around.me and box is not None and header.number in box.damaged:
            return repaired  # it was on its way when it was found to be damaged
        return [*repaired, *self._keep_unit(event, now_ms)]

    def _keep_unit(self, event: UnitArrived, now_ms: float) -> list[Instruction]:
        header = event.header
        replica = next((r for r in self.roster.replicas.values() if header.stream in r.inboxes), None)
        if replica is None or replica.stopped is not None or not replica.feeds[header.stream].takes(event.sender):
            return []
        arrival = replica.arrive(header)
        self.around.counters[COUNTERS[arrival]] += 1
        primary = replica.replica == self.around.layout.eldest(replica.replica.shard)
        self.around.traffic["data" if primary and arrival is Arrival.ACCEPTED else "redundancy"] += event.size
        if arrival is Arrival.ACCEPTED:
            out: list[Instruction] = [StoreUnit(replica.replica, header)]
            out += self.policies.came(replica, header, now_ms)
            return [*out, *replica.answers(now_ms)]
        if arrival is Arrival.DIVERGENT:
            return [Report(CopyDiffers(header.stream, header.number, event.sender))]
        return []

    def unit_damaged(self, event: UnitDamaged, now_ms: float) -> list[Instruction]:
        """Get a unit once more: its producers keep it until it is part of the replica's state."""
        replica = self.roster.replicas.get(event.replica)
        if replica is None or event.stream not in replica.inboxes:
            return self.hosting.stopped(ReplicaStopped(event.replica, event.reason), now_ms)
        if not replica.inboxes[event.stream].lose(event.number):
            return []
        notice = UnitRefetched(event.replica, event.stream, event.number, event.reason)
        out: list[Instruction] = [Report(notice), DropInbox(event.replica, event.stream, (event.number,))]
        return [*out, *self.subscriptions.refetch(replica, event.stream)]

    def gate_asked(self, event: GateAsked, now_ms: float) -> list[Instruction]:
        replica = self.roster.replicas.get(event.replica) or self.policies.find(event.replica)
        if replica is None:
            # Not hosted any more; its query is being ended and must not wait for that.
            return [AnswerGate(event.ticket, event.start)]
        out: list[Instruction] = []
        if event.start > replica.committed and event.replica not in self.roster.replicas:
            out += replica.commit(event.start, event.cut)
        elif event.start > replica.committed:
            dropped = self.policies.committing(replica, event)
            out += replica.commit(event.start, event.cut) if dropped is None else dropped
            out += [*self.reports.committed(replica), *self.policies.committed(replica)]
        replica.ask(event)
        out += replica.answers(now_ms)
        if replica.waiting:
            self.at_work.no_later(event.deadline_ms)
        return out

    def produced(self, event: Produced, now_ms: float) -> list[Instruction]:
        replica = self.roster.replicas.get(event.replica)
        if replica is None and event.replica != self.roster.seat.replica:
            return self.policies.produced(event, now_ms)
        if replica is not None:
            if replica.stopped is not None:
                return []
            self.policies.processed(replica, event)
            replica.produced = max(replica.produced, event.number)
            replica.pulse = max([replica.pulse, *(header.pulse for header in event.headers)])
            if any(header.final for header in event.headers):
                replica.final = event.number
        out: list[Instruction] = []
        for header in event.headers:
            added, steps = self.outboxes.produced(event.replica, header, self.around.layout)
            out += steps
            if added:
                self.sinks.ready(header.stream, header.number, now_ms)
            elif not self.outboxes.wanted(header):
                added = self.generation_switch.passed_over(header)
                if self.sinks.passed_over(header.stream, header.number):
                    out += self.reports.delivered(header.stream)
            if added:
                note, sends = self.digest_exchange.share(event.replica, header, self.around.layout)
                out += [*sends, *self.hosting.compare(note)]
        if replica is not None:
            out += self.reports.progress(replica)
        return out

    def sink_delivered(self, event: SinkDelivered, now_ms: float) -> list[Instruction]:
        if self.policies.sink_took(event.stream):
            return []
        return self.reports.sink_took(event.stream, event.number)

    def sink_refused(self, event: SinkRefused, now_ms: float) -> list[Instruction]:
        """The flow continues without a unit; without the sink, if that is to stop."""
        known = event.stream in self.sinks.stopped
        if event.stops:
            self.sinks.stop(event.stream, event.number)
        kind = SinkStopped if event.stops else UnitSetAside
        self.around.counters["units_set_aside"] += not known
        told: list[Instruction] = [] if known else [Report(kind(event.stream, event.number, event.reason))]
        return [*told, *self.sink_delivered(SinkDelivered(event.stream, event.number), now_ms)]

"""The documents that a node works by: the layout with its topology, and the in-sync set of the ingress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unbroken.protocol.combinations import require_policies
from unbroken.protocol.events import InSyncChanged, LayoutChanged
from unbroken.protocol.ingress.seat import Advance
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.placement.ring import Ring
from unbroken.protocol.policy import EventHandler
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.repair.newcomers import Newcomers
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.layout import Topology


@dataclass
class DocumentHandling:
    """Takes later documents and lets every part know; earlier ones change nothing.

    Invariant: a replica that the layout does not place here is not hosted here.
    """

    around: Surroundings
    roster: Roster
    advance: Advance
    outboxes: Outboxes
    sinks: Sinks
    generation_switch: GenerationSwitch
    subscriptions: Subscriptions
    reports: Reports
    newcomers: Newcomers
    ring: Ring
    policies: Policies

    def events(self) -> dict[type[Any], EventHandler]:
        return {InSyncChanged: self.in_sync_changed, LayoutChanged: self.layout_changed}

    def in_sync_changed(self, event: InSyncChanged, _now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        if event.sync.version > self.around.sync.version:
            came = event.sync.members - self.around.sync.members
            self.around.sync = event.sync
            for node in sorted(came & self.around.links):
                out += self.reports.tell(node)
            if self.around.sync.leader in self.around.links - came:
                out += self.reports.pass_on(self.around.sync.leader)
            out += self.subscriptions.update_all()
        return [*out, *([] if self.roster.seat.sources is None else self.roster.seat.sources.in_sync(event.sync))]

    def layout_changed(self, event: LayoutChanged, now_ms: float) -> list[Instruction]:
        if event.layout.version <= self.around.layout.version:
            return []
        before, self.around.layout = self.around.layout, event.layout
        out = [] if event.topology is None else self._topology_changed(event.topology)
        may_count = self.around.may_count
        self.around.serving = {replica for replica in self.around.serving if may_count(replica)}
        self.advance.keep(may_count)
        out += self.policies.layout_changed(set(self.around.placed_here()), now_ms)
        out += [*self.newcomers.layout_changed(now_ms), *self.outboxes.layout_changed(self.around.layout)]
        out += self.ring.placed(self.around.layout)
        self.sinks.rank(self.around.layout)
        for replica in self.roster.replicas.values():
            replica.placed_by(self.around.layout)
        # Who has just been placed may have been greeted before anybody here knew what it is.
        came = {node for replica, node in self.around.layout.placement.items() if replica not in before.placement}
        for node in sorted(came & self.around.links):
            out += self.reports.tell(node)
        out += self.subscriptions.update_all()
        return [
            *out,
            *(step for replica in self.roster.replicas.values() for step in self.subscriptions.lacking(replica)),
        ]

    def _topology_changed(self, topology: Topology) -> list[Instruction]:
        require_policies(topology)
        self.around.topology = topology
        self.generation_switch.topology_changed(topology)
        for stream, delivery in self.sinks.deliveries.items():
            self.generation_switch.delivered(stream, delivery.delivered)
        return self.outboxes.topology_changed(topology)

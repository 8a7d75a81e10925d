"""The simulated store: the documents that nodes and the controller share, with compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.sim_programs import Programs
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.instructions import GiveUp, ReportCaughtUp, ReportSwitched, StopReplica
from unbroken.protocol.placement.controller import Decision, Situation, next_layout
from unbroken.protocol.placement.upgrade import next_generation
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout

Write = ProposeInSync | StopReplica | GiveUp | ReportCaughtUp | ReportSwitched
"""What a node writes into the store."""


@dataclass
class Store:
    """Members with their disks, the layout, the in-sync set, and what nodes and users have reported.

    The layout and the in-sync set are two documents, and each of them may only be changed by somebody who has seen
    the other one: a layout gives up an ingress replica because the set has another member, and a set gives up a
    member because the layout still has a place for the one who goes on.
    """

    programs: Programs
    layout: Layout
    sync: InSync
    transfers: int = 2
    restorable: bool = False
    present: dict[NodeId, str] = field(default_factory=dict)
    stopped: dict[ReplicaId, str] = field(default_factory=dict)
    caught_up: set[ReplicaId] = field(default_factory=set)
    draining: set[NodeId] = field(default_factory=set)
    suspected: set[NodeId] = field(default_factory=set)
    renewed: set[ReplicaId] = field(default_factory=set)
    switched: set[ShardId] = field(default_factory=set)
    wished: int | None = None
    refused: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    turned: dict[ShardId, int] = field(default_factory=dict)
    _worked_out: tuple[tuple[Layout, Situation], Decision | None] | None = None

    def situation(self, now_ms: float) -> Situation:
        return Situation(
            now_ms=int(now_ms),
            present=dict(self.present),
            stopped=dict(self.stopped),
            caught_up=frozenset(self.caught_up),
            in_sync=self.sync.members,
            draining=frozenset(self.draining),
            renewed=frozenset(self.renewed),
            restorable=self.restorable,
            wished=self.wished,
            switched=frozenset(self.switched),
            suspected=frozenset(self.suspected),
        )

    def decision(self, now_ms: float) -> Decision | None:
        """What the controller would publish at this moment; asked at every step, worked out when something changes."""
        known = (self.layout, self.situation(0))
        if self._worked_out is None or self._worked_out[0] != known:
            topology, situation = self.programs.topology(self.layout.generations), self.situation(now_ms)
            decision = next_generation(topology, situation, self.layout)
            decision = decision or next_layout(topology, situation, self.layout, self.transfers)
            self._worked_out = (known, decision)
        return self._worked_out[1]

    def publish(self, decision: Decision) -> None:
        before, after = self.layout, decision.layout
        after.check()
        assert after.version == before.version + 1
        assert all(after.next_index[shard] >= index for shard, index in before.next_index.items())
        reused = {
            r for r in after.placement if r not in before.placement and r.index < before.next_index.get(r.shard, 0)
        }
        assert not reused, f"{reused} are used a second time"
        assert Layout.from_json(after.to_json()) == after
        self.layout = after
        self.turned |= {shard: turn.since for shard, turn in after.turns.items()}
        self.sentences += decision.sentences
        self.stopped = {replica: why for replica, why in self.stopped.items() if replica in after.placement}
        self.renewed &= set(after.placement)
        self.caught_up &= after.joining
        if len(after.generations) == 1:
            self.switched.clear()
        if decision.refused is not None:
            self.refused.append(decision.refused)
            self.wished = None

    def write(self, step: Write, ingress: ReplicaId | None) -> bool:
        """Apply what a node with this ingress replica has written; whether the in-sync set has changed."""
        match step:
            case ProposeInSync():
                return self._decide(step, ingress)
            case ReportCaughtUp(replica):
                self.caught_up |= {replica} & set(self.layout.joining)
            case ReportSwitched(shard):
                self.switched.add(shard)
            case StopReplica(replica, reason) | GiveUp(replica, reason):
                if replica in self.layout.placement:
                    self.stopped.setdefault(replica, reason)
        return False

    def _decide(self, step: ProposeInSync, ingress: ReplicaId | None) -> bool:
        if step.replaces != self.sync.version or ingress not in self.layout.placement:
            return False
        assert step.proposal.version == self.sync.version + 1
        assert step.proposal.term > self.sync.term
        assert step.proposal.members
        self.sync = step.proposal
        return True

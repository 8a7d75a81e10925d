"""The simulated store: the documents that nodes and the controller share, with compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.controller import Decision, Situation, next_layout
from unbroken.protocol.ids import NodeId, ReplicaId
from unbroken.protocol.ingress import InSync, ProposeInSync
from unbroken.protocol.instructions import GiveUp, ReportCaughtUp, StopReplica
from unbroken.protocol.layout import Layout, Topology

Write = ProposeInSync | StopReplica | GiveUp | ReportCaughtUp
"""What a node writes into the store."""


@dataclass
class Store:
    """Members with their disks, the layout, the in-sync set, and what nodes and users have reported.

    The layout and the in-sync set are two documents, and each of them may only be changed by somebody who has seen
    the other one: a layout gives up an ingress replica because the set has another member, and a set gives up a
    member because the layout still has a place for the one who goes on.
    """

    topology: Topology
    layout: Layout
    sync: InSync
    transfers: int = 2
    restorable: bool = False
    present: dict[NodeId, str] = field(default_factory=dict)
    stopped: set[ReplicaId] = field(default_factory=set)
    caught_up: set[ReplicaId] = field(default_factory=set)
    draining: set[NodeId] = field(default_factory=set)
    renewed: set[ReplicaId] = field(default_factory=set)
    sentences: list[str] = field(default_factory=list)
    _worked_out: tuple[tuple[Layout, Situation], Decision | None] | None = None

    def situation(self, now_ms: float) -> Situation:
        return Situation(
            now_ms=int(now_ms),
            present=dict(self.present),
            stopped=frozenset(self.stopped),
            caught_up=frozenset(self.caught_up),
            in_sync=self.sync.members,
            draining=frozenset(self.draining),
            renewed=frozenset(self.renewed),
            restorable=self.restorable,
        )

    def decision(self, now_ms: float) -> Decision | None:
        """What the controller would publish at this moment; asked at every step, worked out when something changes."""
        known = (self.layout, self.situation(0))
        if self._worked_out is None or self._worked_out[0] != known:
            self._worked_out = (known, next_layout(self.topology, self.situation(now_ms), self.layout, self.transfers))
        return self._worked_out[1]

    def publish(self, decision: Decision) -> None:
        before, after = self.layout, decision.layout
        after.check()
        assert after.version == before.version + 1
        assert all(after.next_index[shard] >= index for shard, index in before.next_index.items())
        reused = {r for r in after.placement if r not in before.placement and r.index < before.next_index[r.shard]}
        assert not reused, f"{reused} are used a second time"
        assert Layout.from_json(after.to_json()) == after
        self.layout = after
        self.sentences += decision.sentences
        self.stopped &= set(after.placement)
        self.renewed &= set(after.placement)
        self.caught_up &= after.joining

    def write(self, step: Write, ingress: ReplicaId | None) -> bool:
        """Apply what a node with this ingress replica has written; whether the in-sync set has changed."""
        match step:
            case ProposeInSync():
                return self._decide(step, ingress)
            case ReportCaughtUp(replica):
                self.caught_up |= {replica} & set(self.layout.joining)
            case StopReplica(replica) | GiveUp(replica):
                self.stopped |= {replica} & set(self.layout.placement)
        return False

    def _decide(self, step: ProposeInSync, ingress: ReplicaId | None) -> bool:
        if step.replaces != self.sync.version or ingress not in self.layout.placement:
            return False
        assert step.proposal.version == self.sync.version + 1
        assert step.proposal.term > self.sync.term
        assert step.proposal.members
        self.sync = step.proposal
        return True

"""A simulated ZooKeeper: sessions that time out, watches that come late, documents that are compared and set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unbroken.coordination.documents import LAYOUT
from unbroken.errors import require
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.placement.controller import Decision
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.protocol.values.notices.ingress import InSyncProposed
from unbroken.protocol.values.notices.placement import ControllerReplaced
from unbroken.protocol.values.notices.upgrades import UpgradeRefused
from unbroken.protocol.values.pause import Pause
from unbroken_lab.sim.kernel import Kernel
from unbroken_lab.sim.links import Network
from unbroken_lab.sim.programs import ProgramModels

ZOOKEEPER = "zookeeper"
"""Its name in the network: ways to and from it can be blocked like any other."""


@dataclass(frozen=True)
class StoreModel:
    """How ZooKeeper behaves, and the controller. Times are in milliseconds.

    A controller that is not ``patient`` stops counting a node as soon as its session has ended.
    """

    latency_ms: float = 1.0
    watch_ms: float = 3.0
    session_ms: float = 4_000.0
    retry_ms: float = 200.0
    control_ms: float = 500.0
    return_grace_ms: float = 20_000.0
    transfers: int = 2
    patient: bool = True


@dataclass(eq=False)
class Session:
    """What a process is known by; ``lost_ms`` is since when nothing is heard of it."""

    number: int
    node: NodeId
    lost_ms: float | None = None
    expired: bool = False


@dataclass(frozen=True)
class Member:
    disk: str
    session: Session


@dataclass(frozen=True)
class Suspicion:
    reason: str
    session: Session


@dataclass
class ZooKeeper:
    """The documents of a flow and the sessions of its nodes.

    The layout and the in-sync set are two documents, and each of them is only changed by somebody who has seen the
    other one. ``notify`` is called when a document, the members or the line of candidates have changed. ``doubted`` are
    nodes that the controller takes for unreachable, whatever it sees; ``proposals`` and ``stopping`` are on their way.
    ``wished`` is the generation of the code that the flow is to go over to, ``refused`` are those that were not taken.
    ``audit`` is called before a layout is replaced, and what it returns afterwards.

    Invariants: versions go up by one; a name of a replica is never used a second time; what a session has left
    vanishes with it.
    """

    kernel: Kernel
    network: Network
    model: StoreModel
    programs: ProgramModels
    layout: Layout
    sync: InSync
    notify: Callable[[str], None]
    up: bool = True
    members: dict[NodeId, Member] = field(default_factory=dict)
    suspicions: dict[tuple[NodeId, NodeId], Suspicion] = field(default_factory=dict)
    stopped: dict[ReplicaId, str] = field(default_factory=dict)
    caught_up: dict[ReplicaId, None] = field(default_factory=dict)
    draining: dict[NodeId, None] = field(default_factory=dict)
    renewed: dict[ReplicaId, None] = field(default_factory=dict)
    pause: Pause | None = None
    wished: int | None = None
    switched: dict[ShardId, None] = field(default_factory=dict)
    refused: list[UpgradeRefused] = field(default_factory=list)
    doubted: set[NodeId] = field(default_factory=set)
    proposals: list[ProposeInSync] = field(default_factory=list)
    stopping: dict[ReplicaId, None] = field(default_factory=dict)
    line: list[Session] = field(default_factory=list)
    logs: dict[ShardId, Any] = field(default_factory=dict)
    history: list[Reported] = field(default_factory=list)
    turned: dict[ShardId, int] = field(default_factory=dict)
    restorable: bool = False
    audit: Callable[[], Callable[[], None]] | None = None
    _sessions: int = 0
    _lost: dict[int, Session] = field(default_factory=dict)

    def reaches(self, node: NodeId) -> bool:
        """Whether a node and ZooKeeper can talk at this moment, as far as it is not up to the node."""
        return self.up and self.network.reaches(node, ZOOKEEPER) and self.network.reaches(ZOOKEEPER, node)

    # --- sessions -------------------------------------------------------------------------------------

    def begin_session(self, node: NodeId) -> Session:
        self._sessions += 1
        session = Session(self._sessions, node)
        self.line.append(session)
        self.notify("line")
        return session

    def register(self, session: Session, disk: str) -> bool:
        """Make a node a member; False while an earlier session has its name."""
        found = self.members.get(session.node)
        if found is not None and found.session is not session and not found.session.expired:
            return False
        self.members[session.node] = Member(disk, session)
        self.notify("members")
        return True

    def silent(self, session: Session) -> None:
        """Nothing is heard of a session from here on; its last word was up to a third of the time-out ago."""
        if session.expired or session.lost_ms is not None:
            return
        session.lost_ms = self.kernel.now_ms
        self._lost[session.number] = session
        self._await_expiry(session)

    def heard(self, session: Session) -> None:
        """A session is heard of again."""
        session.lost_ms = None
        self._lost.pop(session.number, None)

    def go_down(self) -> None:
        self.up = False

    def come_up(self) -> None:
        """After an absence everybody is given the whole time-out to come back."""
        self.up = True
        for session in self._lost.values():
            session.lost_ms = self.kernel.now_ms
            self._await_expiry(session)

    def expire(self, session: Session) -> None:
        """A session ends, and what it has left vanishes."""
        session.expired = True
        self._lost.pop(session.number, None)
        self.members = {name: found for name, found in self.members.items() if found.session is not session}
        self.suspicions = {key: found for key, found in self.suspicions.items() if found.session is not session}
        self.line = [found for found in self.line if found is not session]
        self.kernel.note(f"session of {session.node} ends")
        self.notify("members")
        self.notify("line")

    def _await_expiry(self, session: Session) -> None:
        early = self.kernel.random("sessions").random() / 3
        wait = self.model.session_ms * (1 - early)
        self.kernel.after(wait, self._maybe_expire, (session, session.lost_ms))

    def _maybe_expire(self, waited: tuple[Session, float | None]) -> None:
        session, since = waited
        if self.up and not session.expired and since is not None and session.lost_ms == since:
            self.expire(session)

    # --- documents ------------------------------------------------------------------------------------

    def publish(self, decision: Decision, replaces: int, sync_version: int) -> bool:
        """Replace the layout, unless it or the in-sync set it was decided by has changed since."""
        before, after = self.layout, decision.layout
        if before.version != replaces or self.sync.version != sync_version:
            return False
        after.check()
        require(after.version == before.version + 1, f"layout {after.version} follows {before.version}")
        reused = [
            r for r in after.placement if r not in before.placement and r.index < before.next_index.get(r.shard, 0)
        ]
        require(not reused, f"{reused} are used a second time")
        kept = all(after.next_index[shard] >= index for shard, index in before.next_index.items())
        require(kept, f"indices of {after} go back")
        require(LAYOUT.decode(LAYOUT.encode(after)) == after, f"{after} is not what is read of it")
        look = None if self.audit is None else self.audit()
        self.layout = after
        self.turned |= {shard: turn.since for shard, turn in after.turns.items()}
        self.stopped = {replica: why for replica, why in self.stopped.items() if replica in after.placement}
        self.stopping = {replica: None for replica in self.stopping if replica in after.placement}
        self.renewed = {replica: None for replica in self.renewed if replica in after.placement}
        self.caught_up = {replica: None for replica in self.caught_up if replica in after.joining}
        if len(after.generations) == 1:
            self.switched.clear()
        if decision.refused is not None:
            self.refused.append(decision.refused)
            self.wished = None
        if look is not None:
            look()
        for notice in decision.notices:
            self.report(notice)
        self.kernel.note(f"layout {after.version}")
        self.notify("layout")
        return True

    def propose(self, step: ProposeInSync, ingress: ReplicaId) -> None:
        """Replace the in-sync set, unless it has changed or the layout has given the proposer up."""
        if step.replaces != self.sync.version or ingress not in self.layout.placement:
            return
        proposal = step.proposal
        require(proposal.version == self.sync.version + 1, f"{proposal} follows {self.sync}")
        require(proposal.term > self.sync.term and bool(proposal.members), f"{proposal} follows {self.sync}")
        self.sync = proposal
        self.proposals = [one for one in self.proposals if one.replaces == proposal.version]
        self.report(InSyncProposed(proposal.leader, tuple(sorted(proposal.members))))
        self.kernel.note(f"in sync {proposal.version}")
        self.notify("sync")

    def stop_replica(self, replica: ReplicaId, reason: str) -> None:
        if replica in self.layout.placement:
            self.stopped.setdefault(replica, reason)
            self.notify("reports")

    def note_caught_up(self, replica: ReplicaId) -> None:
        if replica in self.layout.joining:
            self.caught_up[replica] = None
            self.notify("reports")

    def note_switched(self, shard: ShardId) -> None:
        self.switched[shard] = None
        self.notify("reports")

    def write_suspicions(self, session: Session, suspected: Mapping[NodeId, str]) -> None:
        """Make the documents of a node say what it suspects."""
        others = {key: found for key, found in self.suspicions.items() if key[1] != session.node}
        mine = {(suspect, session.node): Suspicion(why, session) for suspect, why in suspected.items()}
        if not session.expired:
            self.suspicions = {**others, **mine}
            self.notify("suspicions")

    def leave_office(self, removed: list[Session]) -> None:
        """Candidates that do not answer make room for the next in line."""
        for session in removed:
            self.report(ControllerReplaced(session.node))
        self.line = [session for session in self.line if session not in removed]
        self.notify("line")

    def report(self, notice: Notice, by: NodeId | None = None) -> None:
        """Add to the history what a node reports, or the controller."""
        controller = self.line[0].node if self.line else "controller"
        self.history.append(Reported(int(self.kernel.now_ms), by or controller, notice))


def first_documents(layout: Layout, ingress: list[NodeId]) -> tuple[Layout, InSync]:
    """The documents that a flow begins with."""
    return replace(layout), InSync(1, ingress[0], frozenset(ingress), 0)

"""The controller: while a node is elected, it publishes the layout that follows from how things are."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError, NotEmptyError

from unbroken.coordination.documents import (
    FLOW,
    LAYOUT,
    UPGRADE,
    InSyncDocument,
    Member,
    UpgradeDocument,
    flow_document,
    read_in_sync_document,
    read_members,
    read_names,
    read_pause,
    read_stopped,
    read_suspicions,
    read_wish,
    root_of,
)
from unbroken.coordination.history import History
from unbroken.node.membership.failovers import Failovers
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.absence import Absence
from unbroken.protocol.placement.backoff import Avoidance
from unbroken.protocol.placement.controller import Decision, Situation, first_layout, next_layout
from unbroken.protocol.placement.upgrade import next_generation
from unbroken.protocol.registry import offered
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.protocol.values.notices.placement import FirstLayoutRefused, LayoutForeign
from unbroken.protocol.values.run import RunIdentity, is_foreign

log = logging.getLogger(__name__)


def _of_shards() -> list[str]:
    """The documents that policies have, one for each shard."""
    kinds: list[tuple[str, ...]] = offered("unbroken.node.policies", "SHARD_DOCUMENTS")
    return [kind for each in kinds for kind in each]


@dataclass(frozen=True)
class ControlSettings:
    """What the controller has to know of a flow's settings."""

    nodes: int
    transfers: int
    return_grace_s: float
    restorable: bool = False


@dataclass(frozen=True)
class _Publication:
    """A decision, the entries of the history that are published with it, and what it was decided by.

    The first layout of a flow is decided by no other one.
    """

    decision: Decision
    entries: tuple[Reported, ...]
    before: Layout | None = None
    situation: Situation | None = None


@dataclass
class Controller:
    """Decides by what the documents in ZooKeeper say.

    A layout and the notices of the decision are one change in ZooKeeper; ``noted`` is called with each of these
    afterwards, once. ``report`` is for a notice that belongs to no change.

    It keeps nothing that a successor would need: only how long it has missed whom and where a shard has just failed,
    which a successor finds out again. ``run`` is the run that the disk of this node belongs to; before the first layout
    of a flow, ``superseded`` says which runs a new one may take the sinks of.
    """

    client: KazooClient
    flow: str
    me: NodeId
    programs: Programs
    settings: ControlSettings
    history: History
    report: Callable[[Notice], None]
    noted: Callable[[Reported], None]
    linked: Callable[[], Collection[NodeId]]
    connected: Callable[[], Collection[NodeId]]
    superseded: Callable[[], frozenset[str]] = frozenset
    run: str = ""
    avoidance: Avoidance = field(default_factory=Avoidance)
    absence: Absence = field(init=False)
    failovers: Failovers = field(init=False)
    _told: Notice | None = field(default=None, init=False)
    _unanswered: _Publication | None = field(default=None, init=False)
    """Sent to ZooKeeper, which may have taken it: the answer was lost."""

    def __post_init__(self) -> None:
        self.absence = Absence(self.me, self.settings.return_grace_s)
        self.failovers = Failovers(self.me)

    def take_office(self) -> None:
        self.absence.forget()
        self._told = None

    def decide(self) -> None:
        """Look at everything and publish what follows, if anything does."""
        members = read_members(self.client, self.flow)
        path = f"{root_of(self.flow)}/layout"
        try:
            data, stat = self.client.get(path)
        except NoNodeError:
            self._begin(members)
            return
        current = LAYOUT.decode(data)
        self._settle(current)
        if is_foreign(self.run, current.run):
            self._refuse(LayoutForeign(self.me, self.run, current.run))
            return
        own = {name: member for name, member in members.items() if member.run in ("", current.run)}
        situation, situation_version = self._situation(current, own)
        topology = self.programs.shape(current.generations)
        decision = next_generation(topology, situation, current)
        decision = decision or next_layout(topology, situation, current, self.settings.transfers)
        if decision is None:
            return
        self._publish(self._publication(decision, current, situation), stat.version, situation_version)

    def _publication(
        self, decision: Decision, before: Layout | None = None, situation: Situation | None = None
    ) -> _Publication:
        return _Publication(decision, tuple(map(self.history.entry, decision.notices)), before, situation)

    def _publish(self, publication: _Publication, replaces: int, sync_version: int | None) -> None:
        """Replace the layout, unless it or the in-sync set it was decided by has changed since.

        An ingress that goes on with one member must not find that member dropped at the same moment.
        """
        root, decision = root_of(self.flow), publication.decision
        together = self.client.transaction()
        if sync_version is not None:
            together.check(f"{root}/in-sync", sync_version)
        together.set_data(f"{root}/layout", LAYOUT.encode(decision.layout), version=replaces)
        if decision.refused is not None and self.client.exists(f"{root}/upgrade") is not None:
            together.set_data(f"{root}/upgrade", UPGRADE.encode(UpgradeDocument(refused=decision.refused)))
        self._commit(together, publication)

    def _commit(self, together: TransactionRequest, publication: _Publication) -> list[Exception]:
        """Have ZooKeeper make the change; why it refuses it, nothing if it does not."""
        self.history.add(together, publication.entries)
        self._unanswered = publication
        answers = together.commit()
        self._unanswered = None
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        if not failures:
            self._conclude(publication)
        return failures

    def _settle(self, current: Layout) -> None:
        """See whether the change was made whose answer was lost."""
        publication, self._unanswered = self._unanswered, None
        if publication is not None and publication.decision.layout == current:
            self._conclude(publication)

    def _conclude(self, publication: _Publication) -> None:
        """A change has been made: let this node know of it, and do what follows."""
        before, after, situation = publication.before, publication.decision.layout, publication.situation
        for entry in publication.entries:
            self.noted(entry)
        if before is not None and situation is not None:
            self._note_failures(before, after, situation)
            self.failovers.decided(before, after, situation)
            self._tidy(after)
        self.history.trim()

    def _begin(self, members: dict[NodeId, Member]) -> None:
        """Publish the first layout and all that goes with it at once: half of it would never be completed."""
        ready = {name: member.disk for name, member in members.items() if not member.standby}
        runs = {name: member.run for name, member in members.items()} | {self.me: self.run}
        topology = self.programs.topology
        run = uuid.uuid4().hex
        decision = first_layout(topology, self.settings.nodes, ready, runs, run)
        if isinstance(decision, FirstLayoutRefused):
            self._refuse(decision)
            return
        if decision is None:
            return
        ingress = decision.layout.nodes_of(INGRESS)
        first = InSync(1, next(iter(ingress)), frozenset(ingress), 0)
        root = root_of(self.flow)
        together = self.client.transaction()
        together.create(f"{root}/topology", FLOW.encode(flow_document(topology, RunIdentity(run, self.superseded()))))
        together.create(f"{root}/in-sync", InSyncDocument(first, run).to_bytes())
        together.create(f"{root}/layout", LAYOUT.encode(decision.layout))
        failures = self._commit(together, self._publication(decision))
        if failures:
            log.warning("the first layout was not written: %s", ", ".join(type(f).__name__ for f in failures))

    def _refuse(self, reason: Notice) -> None:
        """Report once why nothing is published."""
        if self._told != reason:
            self._told = reason
            self.report(reason)

    def _situation(self, layout: Layout, here: dict[NodeId, Member]) -> tuple[Situation, int | None]:
        """How things are, and the version of the in-sync set that this was found with."""
        now = time.monotonic()
        found = read_in_sync_document(self.client, self.flow)
        members = frozenset() if found is None else found.sync.members
        for node in set(layout.full_nodes_of(INGRESS)) - members if members else ():
            self.avoidance.doubted((INGRESS, node), now)
        disks = {name: member.disk for name, member in here.items()}
        situation = Situation(
            now_ms=int(time.time() * 1000),
            present=self.absence.present(layout, disks, self.linked(), now),
            given_up=self.absence.given_up(now),
            stopped=read_stopped(self.client, self.flow),
            caught_up=self._replicas("caught-up"),
            in_sync=members,
            draining=frozenset(read_names(self.client, self.flow, "draining")),
            renewed=self._replicas("renewed"),
            avoid=self.avoidance.places(now),
            restorable=self.settings.restorable,
            wished=read_wish(self.client, self.flow),
            switched={ShardId.parse(name) for name in read_names(self.client, self.flow, "switched")},
            suspected=self.absence.suspects(disks, self._suspicions(), self.connected()),
            pause=read_pause(self.client, self.flow),
        )
        return situation, None if found is None else found.stored_version

    def _suspicions(self) -> dict[NodeId, set[NodeId]]:
        """Who is suspected by whom."""
        out: dict[NodeId, set[NodeId]] = {}
        for found in read_suspicions(self.client, self.flow):
            out.setdefault(found.suspect, set()).add(found.by)
        return out

    def _replicas(self, part: str) -> set[ReplicaId]:
        return {ReplicaId.parse(name) for name in read_names(self.client, self.flow, part)}

    def _note_failures(self, before: Layout, after: Layout, situation: Situation) -> None:
        """Where a replica stopped, the shard is tried again later and later."""
        for replica in set(situation.stopped) & set(before.placement) - set(after.placement):
            self.avoidance.failed((replica.shard, before.placement[replica]), time.monotonic())

    def _tidy(self, layout: Layout) -> None:
        """Remove documents about replicas that are no more or have arrived."""
        for part in ("stopped", "caught-up", "renewed"):
            for replica in self._replicas(part):
                if replica not in layout.placement or (part == "caught-up" and replica not in layout.joining):
                    self._remove(f"{part}/{replica}")
        if len(layout.generations) > 1:
            return
        for name in read_names(self.client, self.flow, "switched"):
            self._remove(f"switched/{name}")
        shards = {str(shard) for shard in self.programs.shape(layout.generations).placed_shards}
        for part in _of_shards():
            for name in read_names(self.client, self.flow, part):
                if name not in shards:
                    self._remove(f"{part}/{name}")

    def _remove(self, name: str) -> None:
        """Remove a document and what is below it; what somebody adds at this moment is removed another time."""
        try:
            self.client.delete(f"{root_of(self.flow)}/{name}", recursive=True)
        except (NoNodeError, NotEmptyError):
            return

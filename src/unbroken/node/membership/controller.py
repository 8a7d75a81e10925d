"""The controller: while a node is elected, it publishes the layout that follows from how things are."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from unbroken.coordination.documents import (
    InSyncDocument,
    Member,
    layout_bytes,
    layout_from,
    read_in_sync_document,
    read_members,
    read_names,
    read_pause,
    read_stopped,
    read_suspicions,
    read_wish,
    refusal_bytes,
    root_of,
    topology_bytes,
)
from unbroken.node.membership.failovers import Failovers
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.absence import Absence
from unbroken.protocol.placement.backoff import Avoidance
from unbroken.protocol.placement.controller import Decision, NoLayout, Situation, first_layout, next_layout
from unbroken.protocol.placement.upgrade import next_generation
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.run import Run, foreign_layout

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControlSettings:
    """What the controller has to know of a flow's settings."""

    nodes: int
    transfers: int
    return_grace_s: float
    restorable: bool = False


@dataclass
class Controller:
    """Decides by what the documents in ZooKeeper say.

    It keeps nothing that a successor would need: only how long it has missed whom and where a shard has just failed,
    which a successor finds out again. ``run`` is the run that the disk of this node belongs to; before the first layout
    of a flow, ``superseded`` says which runs a new one may take the sinks of.
    """

    client: KazooClient
    flow: str
    me: NodeId
    programs: Programs
    settings: ControlSettings
    report: Callable[[str], None]
    linked: Callable[[], Collection[NodeId]]
    connected: Callable[[], Collection[NodeId]]
    superseded: Callable[[], frozenset[str]] = frozenset
    run: str = ""
    avoidance: Avoidance = field(default_factory=Avoidance)
    absence: Absence = field(init=False)
    failovers: Failovers = field(init=False)
    _told: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.absence = Absence(self.me, self.settings.return_grace_s)
        self.failovers = Failovers(self.me)

    def take_office(self) -> None:
        self.absence.forget()
        self._told = ""

    def decide(self) -> None:
        """Look at everything and publish what follows, if anything does."""
        members = read_members(self.client, self.flow)
        path = f"{root_of(self.flow)}/layout"
        try:
            data, stat = self.client.get(path)
        except NoNodeError:
            self._begin(members)
            return
        current = layout_from(data)
        refused = foreign_layout(self.me, self.run, current.run)
        if refused is not None:
            self._refuse(refused)
            return
        own = {name: member for name, member in members.items() if member.run in ("", current.run)}
        situation, situation_version = self._situation(current, own)
        topology = self.programs.shape(current.generations)
        decision = next_generation(topology, situation, current)
        decision = decision or next_layout(topology, situation, current, self.settings.transfers)
        if decision is None:
            return
        if not self._publish(decision, stat.version, situation_version):
            return
        self._note_failures(current, decision.layout, situation)
        self.failovers.decided(current, decision.layout, situation)
        self._tidy(decision.layout)
        self._tell(decision)

    def _publish(self, decision: Decision, replaces: int, sync_version: int | None) -> bool:
        """Replace the layout, unless it or the in-sync set it was decided by has changed since.

        An ingress that goes on with one member must not find that member dropped at the same moment.
        """
        root = root_of(self.flow)
        together = self.client.transaction()
        if sync_version is not None:
            together.check(f"{root}/in-sync", sync_version)
        together.set_data(f"{root}/layout", layout_bytes(decision.layout), version=replaces)
        if decision.refused is not None and self.client.exists(f"{root}/upgrade") is not None:
            together.set_data(f"{root}/upgrade", refusal_bytes(decision.refused))
        return not any(isinstance(answer, Exception) for answer in together.commit())

    def _begin(self, members: dict[NodeId, Member]) -> None:
        """Publish the first layout and all that goes with it at once: half of it would never be completed."""
        ready = {name: member.disk for name, member in members.items() if not member.standby}
        runs = {name: member.run for name, member in members.items()} | {self.me: self.run}
        topology = self.programs.topology
        run = uuid.uuid4().hex
        decision = first_layout(topology, self.settings.nodes, ready, runs, run)
        if isinstance(decision, NoLayout):
            self._refuse(decision.reason)
            return
        if decision is None:
            return
        ingress = decision.layout.nodes_of(INGRESS)
        first = InSync(1, next(iter(ingress)), frozenset(ingress), 0)
        root = root_of(self.flow)
        together = self.client.transaction()
        together.create(f"{root}/topology", topology_bytes(topology, Run(run, self.superseded())))
        together.create(f"{root}/in-sync", InSyncDocument(first, run).to_bytes())
        together.create(f"{root}/layout", layout_bytes(decision.layout))
        failures = [answer for answer in together.commit() if isinstance(answer, Exception)]
        if failures:
            log.warning("the first layout was not written: %s", ", ".join(type(f).__name__ for f in failures))
            return
        self._tell(decision)

    def _refuse(self, reason: str) -> None:
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
        for name in read_names(self.client, self.flow, "orders"):
            if name not in shards:
                self._remove(f"orders/{name}")

    def _remove(self, name: str) -> None:
        """Remove a document and what is below it; what somebody adds at this moment is removed another time."""
        try:
            self.client.delete(f"{root_of(self.flow)}/{name}", recursive=True)
        except (NoNodeError, NotEmptyError):
            return

    def _tell(self, decision: Decision) -> None:
        for sentence in decision.sentences:
            self.report(sentence)

"""The controller: while a node is elected, it publishes the layout that follows from how things are."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from unbroken.cluster.documents import (
    Member,
    in_sync_bytes,
    layout_bytes,
    layout_from,
    read_in_sync,
    read_members,
    read_names,
    root_of,
    topology_bytes,
)
from unbroken.protocol.avoidance import Avoidance
from unbroken.protocol.controller import Decision, Situation, first_layout, next_layout
from unbroken.protocol.ids import NodeId, ReplicaId
from unbroken.protocol.ingress import InSync
from unbroken.protocol.layout import INGRESS, Layout, Topology

log = logging.getLogger(__name__)

ABSENCE_S = 1.0
"""How long the controller must miss a node before it stops counting it. When all sessions end at once (the machine
slept) the others are back within half a second, and nothing waits for this decision."""


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
    which a successor finds out again.
    """

    client: KazooClient
    flow: str
    me: NodeId
    topology: Topology
    settings: ControlSettings
    report: Callable[[str], None]
    linked: Callable[[], Collection[NodeId]]
    avoidance: Avoidance = field(default_factory=Avoidance)
    missed_since: dict[NodeId, float] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)

    def take_office(self) -> None:
        self.missed_since.clear()

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
        situation, situation_version = self._situation(current, members)
        decision = next_layout(self.topology, situation, current, self.settings.transfers)
        if decision is None:
            return
        if not self._publish(decision.layout, stat.version, situation_version):
            return
        self._note_failures(current, decision.layout, situation)
        self._tidy(decision.layout)
        self._tell(decision)

    def _publish(self, layout: Layout, replaces: int, sync_version: int | None) -> bool:
        """Replace the layout, unless it or the in-sync set it was decided by has changed since.

        An ingress that goes on with one member must not find that member dropped at the same moment.
        """
        root = root_of(self.flow)
        together = self.client.transaction()
        if sync_version is not None:
            together.check(f"{root}/in-sync", sync_version)
        together.set_data(f"{root}/layout", layout_bytes(layout), version=replaces)
        return not any(isinstance(answer, Exception) for answer in together.commit())

    def _begin(self, members: dict[NodeId, Member]) -> None:
        """Publish the first layout and all that goes with it at once: half of it would never be completed."""
        ready = {name: member.disk for name, member in members.items() if not member.standby}
        decision = first_layout(self.topology, self.settings.nodes, ready)
        if decision is None:
            return
        ingress = decision.layout.nodes_of(INGRESS)
        first = InSync(1, next(iter(ingress)), frozenset(ingress), 0)
        root = root_of(self.flow)
        together = self.client.transaction()
        together.create(f"{root}/topology", topology_bytes(self.topology, uuid.uuid4().hex))
        together.create(f"{root}/in-sync", in_sync_bytes(first))
        together.create(f"{root}/layout", layout_bytes(decision.layout))
        failures = [answer for answer in together.commit() if isinstance(answer, Exception)]
        if failures:
            log.warning("the first layout was not written: %s", ", ".join(type(f).__name__ for f in failures))
            return
        self._tell(decision)

    def _situation(self, layout: Layout, here: dict[NodeId, Member]) -> tuple[Situation, int | None]:
        """How things are, and the version of the in-sync set that this was found with."""
        now = time.monotonic()
        sync = read_in_sync(self.client, self.flow)
        members = frozenset() if sync is None else sync.members
        for node in set(layout.full_nodes_of(INGRESS)) - members if members else ():
            self.avoidance.doubted((INGRESS, node), now)
        situation = Situation(
            now_ms=int(time.time() * 1000),
            present=self._present(layout, here, now),
            stopped=self._replicas("stopped"),
            caught_up=self._replicas("caught-up"),
            in_sync=members,
            draining=frozenset(read_names(self.client, self.flow, "draining")),
            renewed=self._replicas("renewed"),
            avoid=self.avoidance.places(now),
            restorable=self.settings.restorable,
        )
        return situation, None if sync is None else sync.version

    def _replicas(self, part: str) -> set[ReplicaId]:
        return {ReplicaId.parse(name) for name in read_names(self.client, self.flow, part)}

    def _present(self, layout: Layout, members: dict[NodeId, Member], now: float) -> dict[NodeId, str]:
        """The nodes that count as present: those that are, this one, and those not missed for long."""
        present = {name: member.disk for name, member in members.items()}
        missed = set(layout.nodes) - set(members) - {self.me}
        self.missed_since = {node: self.missed_since.get(node, now) for node in missed}
        known = set(self.linked())
        for node, since in self.missed_since.items():
            # A node that this one was never linked to is probably on its way, as when the whole flow is started again.
            # That it had an entry proves nothing: what a killed process has left vanishes with its session.
            patience = ABSENCE_S if node in known else self.settings.return_grace_s
            if now - since < patience:
                present[node] = layout.nodes[node]
        if self.me in layout.nodes:
            present.setdefault(self.me, layout.nodes[self.me])
        return present

    def _note_failures(self, before: Layout, after: Layout, situation: Situation) -> None:
        """Where a replica stopped, the shard is tried again later and later."""
        for replica in set(situation.stopped) & set(before.placement) - set(after.placement):
            self.avoidance.failed((replica.shard, before.placement[replica]), time.monotonic())

    def _tidy(self, layout: Layout) -> None:
        """Remove documents about replicas that are no more or have arrived."""
        for part in ("stopped", "caught-up", "renewed"):
            for replica in self._replicas(part):
                if replica not in layout.placement or (part == "caught-up" and replica not in layout.joining):
                    try:
                        self.client.delete(f"{root_of(self.flow)}/{part}/{replica}")
                    except NoNodeError:
                        continue

    def _tell(self, decision: Decision) -> None:
        for sentence in decision.sentences:
            self.report(sentence)

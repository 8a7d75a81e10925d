"""A simulated node's dealings with ZooKeeper: its session, what it writes, what it is told, and the controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.protocol.events import InSyncChanged, LayoutChanged
from unbroken.protocol.ingress.log import ProposeInSync
from unbroken.protocol.placement.absence import Absence, out_of_office
from unbroken.protocol.placement.backoff import Avoidance
from unbroken.protocol.placement.controller import Decision, Situation, next_layout
from unbroken.protocol.placement.upgrade import next_generation
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken_lab.sim.zookeeper import Session, ZooKeeper

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess

HELD_BACK_MS = 1_000.0
"""How long a node that is probably cut off lets the others decide about the ingress first, like the real one."""

Job = Callable[[], None]


class StoreClient:
    """One process and its session.

    What it writes is done one after the other and tried again until it is done, so it may be done twice. What it is
    told is the document as it is when it is read, so it may miss versions, and never sees an older one after a newer.
    """

    def __init__(self, process: NodeProcess, zookeeper: ZooKeeper) -> None:
        self.process = process
        self.zookeeper = zookeeper
        self.session: Session | None = None
        self.suspected: dict[NodeId, str] = {}
        self.controller = Controller(self)
        self._jobs: deque[Job] = deque()
        self._told: deque[LayoutChanged] = deque()
        self._busy = False
        self._retrying = False

    @property
    def reachable(self) -> bool:
        return self.process.alive and not self.process.frozen and self.zookeeper.reaches(self.process.name)

    # --- the session ----------------------------------------------------------------------------------

    def join(self, begin: Job) -> None:
        """Become a member, as soon as an earlier session of this name has ended; then ``begin``."""
        store, process = self.zookeeper, self.process
        if not process.alive:
            return
        if self.reachable:
            if self.session is None or self.session.expired:
                self.session = store.begin_session(process.name)
            if store.register(self.session, process.disk.identity):
                begin()
                return
        store.kernel.after(store.model.retry_ms, lambda _: self.join(begin))

    def touch(self) -> None:
        """Whether ZooKeeper can be reached may have changed."""
        session, store = self.session, self.zookeeper
        if session is None:
            return
        if not self.reachable:
            store.silent(session)
            return
        if session.expired:
            if not self.process.begun:
                return  # it still waits for its name
            self.session = store.begin_session(self.process.name)
            store.register(self.session, self.process.disk.identity)
            self._write_suspicions()
        else:
            store.heard(session)
        self.look("layout")
        self.look("sync")
        for policy in self.process.policies:
            policy.back_in_reach()
        self._pump()
        self.controller.wake()

    # --- what it is told ------------------------------------------------------------------------------

    def look(self, document: str) -> None:
        """A document may have changed; it is read a moment later."""
        model = self.zookeeper.model
        kernel = self.zookeeper.kernel
        delay = 2 * model.latency_ms + kernel.random("watches").random() * model.watch_ms
        kernel.after(delay, self._read, document)

    def _read(self, document: str) -> None:
        if not self.reachable or self.process.protocol is None:
            return  # it is read again when the node is back
        store, protocol = self.zookeeper, self.process.protocol
        if document == "layout" and store.layout.version > self.process.told_layout:
            self.process.told_layout = store.layout.version
            self.process.world.related(self.process.name, store.layout)
            before = self.process.generations
            self._told.append(LayoutChanged(store.layout, self.process.use(store.layout)))
            if before == store.layout.generations and len(self._told) == 1:
                self._tell(None)
            else:
                # What a node is told of the generations matters to its queries before its loop hears of it.
                self.process.later(0.0, self._tell)
        elif document == "sync" and store.sync.version > protocol.sync.version:
            self.process.post(InSyncChanged(store.sync))

    def _tell(self, _: object) -> None:
        self.process.post(self._told.popleft())

    # --- what it writes -------------------------------------------------------------------------------

    def propose(self, step: ProposeInSync, ingress: ReplicaId) -> None:
        def change() -> None:
            self.zookeeper.propose(step, ingress)

        def tell(_: object = None) -> None:
            if self.process.alive:
                self.process.post(InSyncChanged(self.zookeeper.sync))

        protocol = self.process.protocol
        self.zookeeper.proposals.append(step)
        missed = frozenset() if protocol is None else protocol.sync.members - step.proposal.members
        wait = HELD_BACK_MS if missed and self._cut_off(missed) else 0.0
        self.zookeeper.kernel.after(wait, lambda _: self.submit(change, tell))

    def _cut_off(self, missed: Collection[NodeId]) -> bool:
        """Whether it is probably this node that is cut off, and not those whom it misses."""
        network, me = self.process.network, self.process.name
        others = [name for name in self.zookeeper.members if name not in missed and name != me]
        return 2 * sum(network.hears(me, name) for name in others) < len(others)

    def replica_stopped(self, replica: ReplicaId, reason: str) -> None:
        self.zookeeper.stopping[replica] = None
        self.submit(lambda: self.zookeeper.stop_replica(replica, reason))

    def caught_up(self, replica: ReplicaId) -> None:
        self.submit(lambda: self.zookeeper.note_caught_up(replica))

    def switched(self, shard: ShardId) -> None:
        self.submit(lambda: self.zookeeper.note_switched(shard))

    def suspects(self, node: NodeId, reason: str) -> None:
        require(node not in self.suspected, f"{self.process.name} suspects {node} twice")
        self.suspected[node] = reason
        self._write_suspicions()

    def trusts(self, node: NodeId) -> None:
        require(node in self.suspected, f"{self.process.name} trusts {node} that it does not suspect")
        del self.suspected[node]
        self._write_suspicions()

    def _write_suspicions(self) -> None:
        def write() -> None:
            if self.session is not None:
                self.zookeeper.write_suspicions(self.session, self.suspected)

        self.submit(write)

    def submit(self, change: Job, then: Job | None = None) -> None:
        """Do something in ZooKeeper, after all that was submitted before, and ``then`` something here."""

        def job() -> None:
            change()
            if then is not None:
                self.zookeeper.kernel.after(self.zookeeper.model.latency_ms, lambda _: then())

        self._jobs.append(job)
        self._pump()

    def _pump(self, _: object = None) -> None:
        self._retrying = False
        if self._busy or not self._jobs or not self.process.alive:
            return
        kernel, model = self.zookeeper.kernel, self.zookeeper.model
        if self.reachable:
            self._busy = True
            kernel.after(model.latency_ms, self._arrive, self._jobs[0])
        else:
            self._again()

    def _again(self) -> None:
        if not self._retrying:
            self._retrying = True
            self.zookeeper.kernel.after(self.zookeeper.model.retry_ms, self._pump)

    def _arrive(self, job: Job) -> None:
        """A change reaches ZooKeeper; it does even if its process has ended since."""
        store, name = self.zookeeper, self.process.name
        arrived = store.up and store.network.reaches(name, "zookeeper")
        if arrived:
            job()
        store.kernel.after(store.model.latency_ms, self._answered, arrived)

    def _answered(self, arrived: bool) -> None:
        """The process hears that it was done; without an answer it does it again, also if what it has written got lost
        on the way while ZooKeeper was out of reach for a moment."""
        self._busy = False
        if arrived and self.reachable:
            self._jobs.popleft()
            self._pump()
        elif self.process.alive:
            self._again()


class Controller:
    """Decides while its node stands first in line, by what the documents say; the decisions are the real ones.

    It keeps nothing that a successor would need.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._absence: Absence | None = None
        self._avoidance = Avoidance()
        self._beat = 0
        self._soon = False
        self._found: tuple[object, Decision | None] | None = None

    @property
    def in_office(self) -> bool:
        line = self._client.zookeeper.line
        return bool(line) and line[0] is self._client.session

    def wake(self) -> None:
        """Something may have to be decided."""
        if not self.in_office:
            self._absence = None
        elif not self._soon:
            self._soon = True
            model = self._client.zookeeper.model
            kernel = self._client.zookeeper.kernel
            kernel.after(2 * model.latency_ms + kernel.random("control").random() * model.watch_ms, self._turn)

    def _turn(self, beat: int | None) -> None:
        """Decide, and again after a while; only the latest beat goes on, or there would be more and more of them."""
        if beat is None:
            self._soon = False
            self._beat += 1
        elif beat != self._beat:
            return
        client = self._client
        if not client.process.alive or not self.in_office:
            self._absence = None
            return
        if client.reachable:
            self._decide()
        client.zookeeper.kernel.after(client.zookeeper.model.control_ms, self._turn, self._beat)

    def _decide(self) -> None:
        client, store = self._client, self._client.zookeeper
        layout, sync_version = store.layout, store.sync.version
        situation = self._situation(layout)
        known = (layout.version, sync_version, replace(situation, now_ms=0))
        if self._found is not None and self._found == (known, None):
            return
        topology = store.programs.topology(layout.generations)
        decision = next_generation(topology, situation, layout)
        decision = decision or next_layout(topology, situation, layout, store.model.transfers)
        self._found = (known, decision)
        if decision is not None:
            made, process = decision, client.process

            def publish(_: object) -> None:
                if store.up and store.network.reaches(process.name, "zookeeper"):
                    self._publish(layout, made, sync_version, situation)

            store.kernel.after(store.model.latency_ms, publish)

    def _publish(self, before: Layout, decision: Decision, sync_version: int, situation: Situation) -> None:
        store = self._client.zookeeper
        self._found = None
        if not store.publish(decision, before.version, sync_version):
            return
        now_s = store.kernel.now_ms / 1000
        for replica in sorted(set(situation.stopped) & set(before.placement) - set(decision.layout.placement)):
            self._avoidance.failed((replica.shard, before.placement[replica]), now_s)

    def _situation(self, layout: Layout) -> Situation:
        client, store = self._client, self._client.zookeeper
        me, network = client.process.name, client.process.network
        now_s, patient = store.kernel.now_ms / 1000, store.model.patient
        if self._absence is None:
            self._absence = Absence(me, store.model.return_grace_ms / 1000)
        for node in sorted(set(layout.full_nodes_of(INGRESS)) - store.sync.members):
            self._avoidance.doubted((INGRESS, node), now_s)
        disks = {name: member.disk for name, member in store.members.items()}
        suspicions: dict[NodeId, set[NodeId]] = {}
        for suspect, by in store.suspicions:
            suspicions.setdefault(suspect, set()).add(by)
        suspected = self._absence.suspects(disks, suspicions, network.connected(me)) if suspicions else frozenset()
        return Situation(
            now_ms=int(store.kernel.now_ms),
            present=self._absence.present(layout, disks, network.known.get(me, {}), now_s) if patient else disks,
            given_up=self._absence.given_up(now_s) if patient else frozenset(),
            stopped=dict(store.stopped),
            caught_up=list(store.caught_up),
            in_sync=store.sync.members,
            draining=frozenset(store.draining),
            renewed=list(store.renewed),
            avoid=self._avoidance.places(now_s),
            suspected=suspected | store.doubted,
            restorable=store.restorable,
            wished=store.wished,
            switched=list(store.switched),
            pause=store.pause,
        )


def depose(zookeeper: ZooKeeper, clients: dict[NodeId, StoreClient]) -> None:
    """Remove those who stand first in line and do not answer, if the next one cannot reach them either."""
    line = zookeeper.line
    suspected = {suspect for suspect, _ in zookeeper.suspicions}
    for place in range(1, len(line)):
        if line[place - 1].node not in suspected:
            return
        client = clients.get(line[place].node)
        if client is None or client.session is not line[place] or not client.reachable:
            continue
        connected = client.process.network.connected(client.process.name)
        removed = out_of_office([session.node for session in line], line[place].node, suspected, connected)
        if removed:
            zookeeper.leave_office(line[:place])
            return

"""The effects of the simulated cluster: what instructions do, and the invariants that are asserted as they are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from protocol.model_parts import Exchange, FakeSpark, Sink, digest_of
from protocol.sim_disk import Disk, ReplicaDisk
from protocol.sim_orders import Follower, Requests, SimOrders
from protocol.sim_programs import Lane, Programs, generation_asked, lane_of
from protocol.sim_sinks import OnceSink
from protocol.sim_store import Store, Write
from unbroken.protocol.events import Event, LinkUp, Started, Tick
from unbroken.protocol.ingress.log import Entry, InSync, ProposeInSync
from unbroken.protocol.instructions import (
    AbandonFetch,
    AnswerGate,
    BeginReplica,
    CommitEntry,
    Deliver,
    DropInbox,
    DropOutbox,
    DropReplica,
    EndNode,
    FetchState,
    FollowOrders,
    GiveUp,
    Instruction,
    Lead,
    NoteOwed,
    PersistEntry,
    PinState,
    PollSources,
    Publish,
    RefuseGate,
    RefusePin,
    RepairUnit,
    Report,
    ReportCaughtUp,
    ReportSwitched,
    Send,
    SendUnit,
    StartReplica,
    StopReplica,
    StoreUnit,
    Suspect,
    Trust,
)
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology, chained_placement
from unbroken.protocol.values.units import UnitHeader

SETTINGS = ProtocolSettings(
    pulse_min_ms=20,
    pulse_max_ms=200,
    pulse_start_ms=40,
    hedge_ms=15,
    patience_ms=60,
    grace_ms=50,
    ring_period_ms=0,
    warm_units=0,
    standing_ms=0,
)
"""The ring is off: no decision here depends on it, and its pings would make most of the steps of a schedule."""


@dataclass
class Transfer:
    """A replica's state on its way to a newcomer: asked for, perhaps waiting for a donor (which may begin anew
    meanwhile), pinned (with what was pinned), copied, or failed."""

    replica: ReplicaId
    donor: NodeId | None
    shard: ShardId
    least: int = 0
    needs: tuple[tuple[StreamId, int], ...] = ()
    stage: str = "asked"
    ticket: int = 0
    pinned: ReplicaDisk | None = None
    process: SimNode | None = None
    abandoned: bool = False
    held: bool = False


@dataclass
class SimNode:
    """A node's process: its protocol object and the effects around it. The disk outlives it.

    ``generations`` are those that its queries and sources write units for, which may be ahead of its protocol object.
    ``writing`` are entries of the ingress log that are not on disk yet; a kill loses them.
    """

    protocol: NodeProtocol
    disk: Disk
    generations: tuple[int, ...] = (1,)
    sparks: dict[ReplicaId, FakeSpark] = field(default_factory=dict)
    jobs: deque[PollSources | CommitEntry] = field(default_factory=deque)
    writing: deque[PersistEntry] = field(default_factory=deque)
    pushed: list[bytes] = field(default_factory=list)
    cut: int = 0
    deliveries: dict[StreamId, tuple[ReplicaId, UnitHeader]] = field(default_factory=dict)
    lingering: set[StreamId] = field(default_factory=set)
    documents: deque[InSync | Layout] = field(default_factory=deque)
    writes: deque[tuple[Write, ReplicaId | None]] = field(default_factory=deque)
    transfers: list[Transfer] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    suspected: set[NodeId] = field(default_factory=set)
    requests: Requests = field(default_factory=deque)
    following: dict[ShardId, Follower] = field(default_factory=dict)
    dropped: dict[tuple[ReplicaId, StreamId], int] = field(default_factory=dict)
    frozen: bool = False
    blind: bool = False

    @property
    def me(self) -> NodeId:
        return self.protocol.me


LOOK_EVERY = 3
"""Events after which it is looked whether a tick finds anything that should have been done at once."""


class ClusterEffects:
    """Nodes, links, a sink and a store. Events go into a node and its instructions are carried out at once.

    The invariants of a node are asserted after every so many events, that it has left nothing undone, and that nodes
    refuse nothing that they tell each other, unless there is ``nonsense`` about.
    """

    check_every = 1
    nonsense = False

    def __init__(
        self,
        topology: Topology,
        nodes: int,
        pulses: int,
        settings: ProtocolSettings = SETTINGS,
        standbys: int = 0,
        transfers: int = 2,
        placement: Mapping[ReplicaId, NodeId] | None = None,
    ) -> None:
        names = [f"n{i}" for i in range(nodes)]
        self.pulses = pulses
        self.hasty = False
        self.settings = settings
        self.now = 0.0
        self.sink = OnceSink() if topology.at_most_once else Sink()
        self.interrupted: dict[ShardId, int] = {}
        self.refused: set[tuple[Lane, int]] = set()
        self.serial = count(1)
        self.changed_at = 0
        self.handled = 0
        self.nodes: dict[NodeId, SimNode] = {}
        self.disks = {name: Disk(f"{name}-disk") for name in [*names, *(f"s{i}" for i in range(standbys))]}
        layout = chained_placement(topology, {name: self.disks[name].identity for name in names})
        if placement is not None:
            layout = replace(layout, placement=dict(placement))
        members = layout.nodes_of(INGRESS)
        sync = InSync(1, next(iter(members)), frozenset(members), 0)
        self.programs = Programs.of(topology)
        self.store = Store(self.programs, layout, sync, transfers)
        for replica, node in layout.placement.items():
            self.disks[node].replicas[replica] = ReplicaDisk()
        self.exchanges: dict[tuple[NodeId, NodeId], Exchange] = {}
        self.stale: list[Exchange] = []
        self.orphans: deque[tuple[Write, ReplicaId | None]] = deque()
        self.snapshots: dict[ShardId, ReplicaDisk] = {}
        self.saving: set[int] = set()
        self.units: dict[tuple[StreamId, int, int], tuple[int, int, int]] = {}
        self.entries: dict[int, Entry] = {}
        self.finals: dict[ShardId, int] = {}
        self.logs = {shard: SimOrders(shard) for part in topology.led for shard in topology.shards(part)}
        self.late: deque[tuple[NodeId, object, Lead | Publish]] = deque()
        for name in self.disks:
            self.boot(name)

    @property
    def topology(self) -> Topology:
        """The flow as the store's layout has it."""
        return self.programs.topology(self.store.layout.generations)

    # --- processes and links --------------------------------------------------------------------------

    def boot(self, name: NodeId) -> None:
        """Start a node on what its disk holds of the replicas that the store's layout places there."""
        disk, layout = self.disks[name], self.store.layout
        placed = layout.hosted(name) if layout.nodes.get(name) == disk.identity else []
        disk.replicas = {replica: held for replica, held in disk.replicas.items() if replica in placed}
        recovered = {replica: held.recover(replica) for replica, held in disk.replicas.items()}
        for replica, held in disk.replicas.items():
            begun = held.newest()
            self.interrupted[replica.shard] = max(begun, self.interrupted.get(replica.shard, 0))
        protocol = NodeProtocol(name, self.topology, layout, self.store.sync, recovered, self.settings, disk.identity)
        self.nodes[name] = SimNode(protocol, disk, layout.generations)
        self.store.present[name] = disk.identity
        self.handle(name, Started())
        self.connect(name, name)

    def connect(self, client: NodeId, server: NodeId) -> None:
        self.exchanges[client, server] = Exchange(client, server)
        self.handle(client, LinkUp(server))

    # --- carrying out ---------------------------------------------------------------------------------

    def handle(self, name: NodeId, event: Event, payload: int | None = None) -> None:
        node = self.nodes[name]
        for step in node.protocol.handle(event, self.now):
            self._carry_out(node, step, payload)
        known = node.protocol.validation.reported
        assert self.nonsense or not known, f"{name} refuses what nodes tell each other: {known}, {event}"
        self.handled += 1
        if self.handled % LOOK_EVERY == 0 and not node.protocol.forking.watches:
            left = node.protocol.handle(Tick(), self.now)
            assert not left, f"{name} has left undone after {event}: {left}"
        if self.handled % self.check_every == 0:
            node.protocol.check()
        wake = node.protocol.next_wake_ms()
        assert wake is None or wake > self.now, f"{name} wants to wake at {wake}, it is {self.now}: {event}"

    def _carry_out(self, node: SimNode, step: Instruction, payload: int | None) -> None:
        match step:
            case Send(to, message):
                if (link := self.exchanges.get((node.me, to))) is not None and link.alive:
                    link.messages.append(message)
            case SendUnit(to, replica, header):
                if (link := self.exchanges.get((to, node.me))) is not None and link.alive:
                    link.units.append((replica, header))
            case StoreUnit(replica, header, kept_as):
                assert payload is not None
                inbox, number = node.disk.replicas[replica].inbox, kept_as or header.number
                assert (header.stream, number) not in inbox, "a unit was accepted twice"
                inbox[header.stream, number] = (header, payload)
            case RepairUnit(replica, header):
                assert payload is not None
                node.disk.replicas[replica].outbox[header.stream, header.number] = (header, payload)
            case EndNode(sentence):
                raise AssertionError(sentence)
            case DropInbox(replica, stream, numbers):
                for number in numbers:
                    del node.disk.replicas[replica].inbox[stream, number]
            case DropOutbox(replica, stream, numbers):
                self._drop_outbox(node, replica, stream, numbers)
            case AnswerGate(ticket, offset, cut):
                for spark in node.sparks.values():
                    if spark.ticket == ticket:
                        spark.answer(offset, cut, node.generations)
            case RefuseGate(ticket, reason):
                asked = [spark for spark in node.sparks.values() if spark.ticket == ticket]
                assert not asked, f"{node.me} refuses a question of its own query: {reason}"
            case Deliver(replica, header):
                assert header.stream not in node.deliveries, f"{node.me}: two deliveries of {header.stream} at once"
                assert (header.stream, header.number) in node.disk.replicas[replica].outbox
                node.deliveries[header.stream] = (replica, header)
            case Report(sentence):
                node.reports.append(sentence)
            case Suspect(suspect):
                assert suspect not in node.suspected, f"{node.me} suspects {suspect} twice"
                node.suspected.add(suspect)
            case Trust(suspect):
                node.suspected.remove(suspect)
            case PollSources() | PersistEntry() | CommitEntry():
                self._run_ingress(node, step)
            case BeginReplica(replica, base, valid, notes):
                owed = {note.stream: (note.owed, note.rebuilt) for note in notes}
                node.disk.replicas[replica] = ReplicaDisk(committed=base, states={base: 0}, valid=valid, owed=owed)
            case NoteOwed(replica, stream, through, rebuilt):
                node.disk.replicas[replica].owed[stream] = (through, rebuilt)
            case FollowOrders(shard, after):
                node.following[shard] = Follower(after)
            case Lead() | Publish():
                node.requests.append(step)
            case StartReplica() | StopReplica() | DropReplica():
                self._run_replica(node, step)
            case FetchState() | AbandonFetch() | PinState() | RefusePin():
                self._transfer(node, step)
            case ProposeInSync() | ReportCaughtUp() | ReportSwitched() | GiveUp():
                node.writes.append((step, node.protocol.ingress))

    def _run_ingress(self, node: SimNode, step: PollSources | PersistEntry | CommitEntry) -> None:
        replica = node.protocol.ingress
        assert replica is not None, f"{node.me} is no ingress but is told to {step}"
        disk = node.disk.replicas[replica]
        if isinstance(step, PersistEntry):
            node.writing.append(step)
            return
        if isinstance(step, PollSources):
            assert not any(isinstance(job, PollSources) for job in node.jobs), f"{node.me} polls twice"
        else:
            entry = step.entry
            assert disk.log[entry.index] == entry, f"{node.me} commits what is not on its disk"
            known = self.entries.setdefault(entry.index, entry)
            assert known == entry, f"{node.me} commits another entry {entry.index}: {entry}, not {known}"
            earlier = [e for e in self.entries.values() if e.pulse and e.index < entry.index]
            if entry.pulse and earlier:
                before = max(earlier, key=lambda e: e.index)
                assert generation_asked(before) <= generation_asked(entry), "the generation went back"
        node.jobs.append(step)

    def _run_replica(self, node: SimNode, step: StartReplica | StopReplica | DropReplica) -> None:
        replica = step.replica
        if isinstance(step, StartReplica):
            disk = node.disk.replicas[replica]
            if replica.shard == INGRESS:
                node.jobs.clear()
                node.writing.clear()
                node.pushed, node.cut = [], disk.base_pulse
            else:
                node.sparks[replica] = FakeSpark(replica, instances_of(node.protocol.topology, replica.shard), disk)
        elif isinstance(step, StopReplica):
            if replica in node.sparks:
                node.sparks[replica].fail()
            node.writes.append((step, node.protocol.ingress))
        else:
            node.sparks.pop(replica, None)
            node.following.pop(replica.shard, None)
            node.disk.replicas.pop(replica, None)
            node.deliveries = {stream: found for stream, found in node.deliveries.items() if found[0] != replica}
            node.lingering &= set(node.deliveries)
            if replica.shard == INGRESS:
                node.jobs.clear()
                node.writing.clear()

    def _transfer(self, node: SimNode, step: FetchState | AbandonFetch | PinState | RefusePin) -> None:
        match step:
            case FetchState(replica, donor, shard) if donor == node.me and shard == replica.shard:
                copy = node.disk.replicas[replica]
                node.transfers.append(Transfer(replica, donor, shard, stage="copied", pinned=copy))
            case FetchState(replica, donor, shard, least, needs, held):
                assert donor is not None or replica.shard in self.snapshots, f"there is no snapshot of {replica.shard}"
                assert all(t.replica != replica or t.abandoned for t in node.transfers), f"{replica} is fetched twice"
                node.transfers.append(Transfer(replica, donor, shard, least, needs, held=held))
            case AbandonFetch(replica):
                for transfer in node.transfers:
                    if transfer.replica == replica:
                        transfer.abandoned = True
                # A copy that is complete may just be about to be reported.
                node.transfers = [t for t in node.transfers if not t.abandoned or (t.stage == "copied" and not t.held)]
            case PinState(ticket, replica) if ticket in self.saving:
                self.saving.discard(ticket)
                self.snapshots[replica.shard] = node.disk.replicas[replica].pin(step)
            case PinState(ticket, replica):
                asker, pinned = self._asker(ticket), node.disk.replicas[replica].pin(step)
                if asker is None:
                    return
                assert pinned.committed >= asker.least, f"{replica} is pinned too early for {asker}"
                if asker.shard != asker.replica.shard:
                    pinned = pinned.begin_from(next(self.serial))
                asker.stage, asker.pinned = "pinned", pinned
            case RefusePin(ticket):
                if (refused := self._asker(ticket)) is not None:
                    refused.stage = "failed"

    def _asker(self, ticket: int) -> Transfer | None:
        """Who has asked; nobody, if it gave up while the donor was not ready."""
        return next((t for node in self.nodes.values() for t in node.transfers if t.ticket == ticket), None)

    def _drop_outbox(self, node: SimNode, owner: ReplicaId, stream: StreamId, numbers: tuple[int, ...]) -> None:
        """Loss-free: nobody who counts may still need what is dropped. What is written and dropped a second time, as
        another stream still needs that pulse, was not promised to those who have come to count since."""
        disk = node.disk.replicas[owner]
        headers = [disk.outbox.pop((stream, number))[0] for number in numbers]
        last = max(numbers, default=0)
        again = last <= node.dropped.get((owner, stream), 0)
        node.dropped[owner, stream] = max(last, node.dropped.get((owner, stream), 0))
        if stream.consumer.part in self.programs.known[1].topology.sinks:
            due = max((h.number for h in headers if self.programs.counts(stream, h.generation)), default=0)
            self.sink.done_with(lane_of(stream), due)
            assert self.sink.through(lane_of(stream)) >= due, f"unit {due} of {stream} dropped undelivered"
        elif not again:
            for consumer in node.protocol.layout.counted(stream.consumer):
                held = self.disk_of(consumer)
                again = held is not None and last <= held.valid and (stream, last) in held.inbox
                assert held is None or again or held.taken(stream) >= last, (
                    f"unit {last} of {stream} dropped before {consumer} committed it"
                )
        if owner.shard == INGRESS:
            bases = [box.base for box in node.protocol.outboxes.of(owner)]
            disk.trim_log(min([node.cut, *bases]))

    def disk_of(self, replica: ReplicaId) -> ReplicaDisk | None:
        """The directory of a replica, wherever it is, up or not."""
        return next((d.replicas[replica] for d in self.disks.values() if replica in d.replicas), None)

    def live_sparks(self, shard: ShardId) -> Iterator[tuple[ReplicaId, FakeSpark]]:
        for node in self.nodes.values():
            for replica, spark in node.sparks.items():
                if replica.shard == shard:
                    yield replica, spark

    def write_unit(
        self,
        disk: ReplicaDisk,
        stream: StreamId,
        number: int,
        content: int,
        final: bool,
        generation: int,
        layout: int,
        faithful: bool = True,
        pulse: int | None = None,
        cut_ms: int | None = None,
        fold: int = 0,
    ) -> UnitHeader:
        """Agreement, determinism, stability: the same unit has the same content wherever it is produced, except by
        code that has begun again with another copy of its predecessor's state."""
        done = number if pulse is None else pulse
        cut = done if cut_ms is None else cut_ms
        if faithful:
            known = self.units.setdefault((stream, number, disk.copy), (content, cut, fold))
            assert known == (content, cut, fold), f"unit {number} of {stream} is produced with another content"
        elif (stream, number) in disk.outbox:
            return disk.outbox[stream, number][0]  # what is there is right
        digest = digest_of(content)
        if final:
            self.finals[stream.producer] = number
        header = UnitHeader(stream, number, done, cut, digest, 1, True, final, generation, layout, fold=fold)
        disk.outbox[stream, number] = (header, content)
        return header


def instances_of(topology: Topology, shard: ShardId) -> tuple[str, ...]:
    """A query has one source instance per part it reads."""
    return tuple(dict.fromkeys(stream.producer.part for stream in topology.inputs(shard)))

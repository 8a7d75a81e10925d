"""A node: one process, one Spark session, several replicas, one loop.

The loop takes an event, hands it to the protocol object and carries out the instructions it returns. All
other threads only post events or do one thing they were told (deliver to a sink, read the sources, send).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unbroken.connectors.dead_letters import DeadLetters, Retention, remove_old_runs
from unbroken.connectors.push.http import PushOutcome
from unbroken.connectors.push.source import PushBatch
from unbroken.coordination.documents import DISK, DiskDocument, FlowDocument, Member
from unbroken.data.staging import StagedUnit, Staging, unlink
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.settings import Settings
from unbroken.node import policies
from unbroken.node.effects import EffectParts, NodeEffects
from unbroken.node.event_queue import PATIENCE_S, EventQueue
from unbroken.node.fair_queue import Sender
from unbroken.node.flight_service import FlightService
from unbroken.node.gate import GateClient, QueryGate
from unbroken.node.in_sync_proposals import InSyncProposals
from unbroken.node.ingress.service import IngressService
from unbroken.node.inquiries import Inquiry, ProtocolView, QueueEntry
from unbroken.node.journal import JOURNALS, Journal
from unbroken.node.links import Links
from unbroken.node.loop import Loop
from unbroken.node.membership.documents_copy import CoordinationCopy
from unbroken.node.membership.session import Coordination
from unbroken.node.peers import Peers
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.hosting import ReplicaHost
from unbroken.node.replicas.ingress import open_ingress
from unbroken.node.replicas.node_host import NodeHost
from unbroken.node.replicas.outlets import SinkOutlets
from unbroken.node.replicas.pin_requests import PinRequests
from unbroken.node.replicas.programs import Programs
from unbroken.node.replicas.queries import Queries
from unbroken.node.replicas.snapshots import Snapshots
from unbroken.node.replicas.spark_engine import SparkEngine
from unbroken.node.replicas.state_copies import StateCopies
from unbroken.node.replicas.state_pins import StatePins, most_pins
from unbroken.node.replicas.transfers import Transfers
from unbroken.node.replicas.warmup import WarmUp
from unbroken.node.reports.hung_calls import hung_call
from unbroken.node.reports.protocol_status import protocol_status
from unbroken.node.reports.status import node_status
from unbroken.node.sink_threads import SinkWorkers
from unbroken.node.unit_files import UnitFiles, UnitRows
from unbroken.node.unit_reader import UnitReader
from unbroken.node.workers import ThreadWorker
from unbroken.observe.notices import text_of
from unbroken.observe.status.node import NodeStatus
from unbroken.observe.tracing.tracing import Tracing
from unbroken.protocol.events import (
    Event,
    InSyncChanged,
    LayoutChanged,
    LinkUp,
    Produced,
    Received,
    Started,
    Tick,
    UnitArrived,
)
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.journal import Beginning
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice, Reported, Severity
from unbroken.protocol.values.notices.ingress import IngressDiskFailed
from unbroken.protocol.values.notices.placement import LayoutForeign, LayoutMissing
from unbroken.protocol.values.notices.processes import EventUnhandled, LoopStalled, ThreadFailed
from unbroken.protocol.values.run import is_foreign, older_layout
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.secret import masked
from unbroken.spark.runner import QueryRunner, QuerySurroundings
from unbroken.transport.server import NodeServer

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 0.2
"""The loop looks at queries and links at least this often."""

HERE = Sender("node", "node")
"""The threads of this node. They are few, and each waits for what becomes of its last event."""

ASKED = Sender("asked", "asked")
"""Questions that come over the network and are answered by the loop."""

END_S = 5.0
"""How long the removal of files may take when a node ends; the next process removes what is left."""

STATUS_WAIT_S = 1.0
"""How long a status waits for the loop; whoever asks waits for two seconds."""

T = TypeVar("T")

STORY_LIMIT = 500
"""Notices a node remembers for its status."""

LOG_LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}


class Node:
    """The shell around :class:`NodeProtocol`: threads, sockets, files and Spark."""

    def __init__(
        self,
        name: NodeId,
        flow: Dataflow,
        programs: Programs,
        dirs: ReplicaDirs,
        token: str,
        host: str,
        port: int,
        events: EventQueue[QueueEntry] | None = None,
    ) -> None:
        self.name = name
        self.flow = flow
        self.programs = programs
        self.settings: Settings = flow.settings
        self.dirs = dirs
        self.store = dirs.store
        self._removals = ThreadWorker("remove-units")
        self._notes = ThreadWorker("replica-notes")
        self.staging = Staging(dirs.staging, self.store, lambda path: self._removals.submit(partial(unlink, path)))
        self.token = token
        self.protocol: NodeProtocol | None = None
        self.coordination: Coordination | None = None
        self.members: dict[NodeId, Member] = {}
        self.story: deque[Reported] = deque(maxlen=STORY_LIMIT)
        self.letters = self._letters_of(flow.name)
        self.snapshots: Snapshots | None = None
        self.tracing: Tracing | None = None
        self.warm_up: WarmUp | None = None
        self.spark: SparkEngine | None = None
        self.failure: str | None = None
        self.metrics = ""
        """Where this node's metrics are read, as host:port; nowhere if it is empty."""
        self._events: EventQueue[QueueEntry] = EventQueue() if events is None else events
        self._stopping = threading.Event()
        self.copy = CoordinationCopy(dirs)
        self.run = dirs.run()
        """The run that this node's disk belongs to."""
        self.unadopted = False
        """Whether ZooKeeper has lost the documents of that run."""
        self._foreign: str | None = None
        self._first_layout: Layout | None = None
        self._first_sync: InSync | None = None
        self._loop: Loop[UnitRows] | None = None
        self.view: ProtocolView | None = None
        """What threads other than the loop know of the protocol object; None before the node has its place."""
        self._known: NodeStatus | None = None
        self.journal: Journal | None = None
        """The journal of this node's events; None before the node has its place."""
        # The parts, each with what it needs of those before it.
        self.gate = GateClient(self.ask, self.settings.gate_wait, _clock_ms)
        self.links = Links(name, self.settings, token, self.staging, self)
        self._pins = StatePins(name, dirs, most_pins(programs.topology, self.settings.transfers), self._pin_log)
        self.copies = StateCopies(
            name, dirs, self.settings, token, self._address_of, self._restore_snapshot, self._await_leave
        )
        self.transfers = Transfers(self._pins, self.copies, self._notes, self.ask, self.post)
        self.pin_requests = PinRequests(name, self.transfers, self._pins.pins)
        units = UnitReader(name, self.store, self)
        self.service = FlightService(
            self,
            Peers(name, flow.name, self._is_member, self.tell, self._events),
            units,
            self.pin_requests,
            QueryGate(self.gate, lambda: self.queries, self._made_up).ask,
        )
        self.server = NodeServer(host, port, token, self.service, self.settings.heartbeat / 1000)
        sinks = SinkWorkers(self.post, units.read_outbox, lambda: self.letters, self.settings.refusals, self.tell)
        self.outlets = SinkOutlets(sinks, flow, programs, dirs.root, lambda: self.run)
        ground = NodeHost(
            name,
            dirs,
            self.outlets,
            topology_of=programs.use,
            open_ingress=lambda replica: open_ingress(self, replica, flow, programs, dirs, self.letters),
            dropped=self._dropped,
            tell=self.tell,
            coordination=lambda: self.coordination,
        )
        self.hosting: ReplicaHost[IngressService] = ReplicaHost(ground)
        self.policies = policies.build(self)

    # --- life -----------------------------------------------------------------------------------------

    def open_letters(self, run: str) -> None:
        """Rows that this node sets aside go to the place of this run from now on."""
        remove_old_runs(self.dirs.dead_letters, self.flow.name, run, self.settings.dead_letter_age / 1000)
        self.letters = self._letters_of(f"{self.flow.name}-{run}")

    def _letters_of(self, place: str) -> DeadLetters:
        retention = Retention(self.settings.dead_letter_bytes, self.settings.dead_letter_age / 1000)
        return DeadLetters(self.dirs.dead_letters / place, retention, self.tell)

    def await_layout(self, deadline_s: float) -> tuple[Layout, InSync] | None:
        """Wait for the controller's first layout; None if the node was told to stop meanwhile.

        A node whose disk belongs to a run waits for a layout of that run as long as it takes: an operator has to act.
        """
        deadline = time.monotonic() + deadline_s
        while not self._stopping.is_set():
            if self._foreign is not None:
                raise UnbrokenError(self._foreign)
            if self._first_layout is not None and self._first_sync is not None:
                return self._first_layout, self._first_sync
            if time.monotonic() > deadline and not self.run.id:
                present = ", ".join(self.members) or "none"
                raise UnbrokenError(
                    f"no layout after {deadline_s:.0f} s: {len(self.members)} nodes are here ({present}), "
                    f"{self.settings.nodes} are wanted. Start the missing ones with `unbroken node`."
                )
            self._stopping.wait(0.05)
        return None

    def begin(self, layout: Layout, sync: InSync) -> None:
        """Take the layout's place with what this disk holds, and link to the other nodes."""
        self._events.belong()
        disk = self.dirs.identity()
        recovered = self.hosting.recover(layout, disk)
        self.staging.open()
        self._removals.start()
        self._notes.start()
        if self.coordination is not None:
            self.coordination.belong(self.run.id)
        tuned = self.settings.protocol()
        topology = self.programs.use(layout)
        beginning = Beginning(self.name, topology, layout, sync, recovered, tuned, disk)
        self.protocol = beginning.protocol()
        self.journal = Journal(beginning, self.protocol)
        self._loop = Loop(self.protocol, self._effects(self.protocol), _clock_ms, self.journal)
        # Before anything that has come in already: whoever asks for units is answered by replicas that are at work.
        self._handle(Started(), None)
        self._handle(LinkUp(self.name), None)
        self.links.connect(self.members)

    def loop(self) -> None:
        """Handle events until told to stop."""
        assert self._loop is not None
        self._events.belong()
        checked = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            event, rows = self._events.get(self._loop.wait_ms(LONGEST_WAIT_S * 1000) / 1000) or (Tick(), None)
            if isinstance(event, Inquiry):
                event.put_to(self._loop.protocol)
            else:
                self._handle(event, rows)
            if now - checked > LONGEST_WAIT_S:
                checked = now
                self.links.look()
                self._pins.look()

    def post(self, event: Event, rows: UnitRows = None) -> None:
        """Give the loop an event, from any thread of this node; what the loop gives itself comes before all others."""
        taken = self._events.put_own((event, rows)) or self._events.put((event, rows), HERE)
        if not taken and not self.stopping:
            self.fail(LoopStalled(self.name, PATIENCE_S))

    def post_from(self, sender: Sender, event: Event) -> None:
        """Give the loop an event of a sender with a line of its own; never waits, see ``room_of``."""
        self._events.force((event, None), sender)

    def room_of(self, sender: Sender, timeout_s: float) -> bool:
        """Wait until the loop can take more of a sender; False if it cannot in time."""
        return self._events.room(sender, timeout_s)

    def post_link(self, peer: NodeId, event: Event) -> None:
        """Give the loop a change of a link to a peer; never waits."""
        self._events.force((event, None), _to(peer))

    def post_unit(self, peer: NodeId, event: UnitArrived, staged: StagedUnit) -> bool:
        """Give the loop a unit; False if it cannot take in time what comes from this peer.

        What waits is bounded by its bytes: those on the disk that no replica has yet.
        """
        return self._events.put((event, staged), _to(peer), staged.size)

    def ask(self, event: Event) -> None:
        """Give the loop a question that came over the network."""
        if not self._events.put((event, None), ASKED):
            raise UnbrokenError(f"{self.name} cannot answer: too many questions wait. Ask again later.")

    def inquire(
        self, question: Callable[[NodeProtocol], T], sender: Sender = HERE, wait_s: float = PATIENCE_S
    ) -> T | None:
        """Have the loop work something out of the protocol object, from any thread; None before there is one.

        The answer must not hold parts of the object. UnbrokenError if it does not come in time, or the node ends.
        """
        protocol = self.protocol
        if protocol is None:
            return None
        if self._events.own:
            return question(protocol)
        inquiry = Inquiry(question)
        if not self._events.put((inquiry, None), sender):
            raise UnbrokenError(f"{self.name} cannot answer: too many questions wait. Ask again later.")
        return inquiry.wait(wait_s, self._stopping)

    def tell(self, notice: Notice) -> None:
        """Log a notice, show it in the status, and put it into the flow's history; secrets in it are masked."""
        notice = notice.with_texts(masked)
        self.note(Reported(int(time.time() * 1000), self.name, notice))
        if self.coordination is not None:
            self.coordination.report(notice)

    def note(self, reported: Reported) -> None:
        """Log a notice and show it in the status; the flow's history has it, or gets it otherwise."""
        log.log(LOG_LEVELS[reported.notice.severity], "%s", text_of(reported.notice))
        self.story.append(reported)

    def stop(self) -> None:
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Wait for the order to stop; False if it did not come in time."""
        return self._stopping.wait(timeout_s)

    @property
    def ingress(self) -> IngressService | None:
        return self.hosting.ingress

    @property
    def queries(self) -> Queries | None:
        return self.hosting.queries

    @property
    def runners(self) -> Mapping[ReplicaId, QueryRunner]:
        """The queries that have been started here."""
        return {} if self.spark is None else self.spark.runners

    @property
    def zookeeper(self) -> KazooClient | None:
        return None if self.coordination is None else self.coordination.client

    def run_on(self, session: SparkSession) -> tuple[SparkEngine, Queries]:
        """Have the queries of this node's replicas run on a session, by an engine which the caller opens."""
        around = QuerySurroundings(
            session=session,
            store=self.store,
            gate=self.server.address,
            token=self.token,
            checkpoint=self.dirs.checkpoint,
            base=self.dirs.base,
            cut_header=self.cut_header,
            produced=self.produced,
            consumers=self.programs.consumers,
        )
        engine = self.spark = SparkEngine(self, self.post, self.programs, around)
        queries = self.hosting.queries = Queries(engine, engine.report, time.monotonic)
        return engine, queries

    def fail(self, notice: Notice) -> None:
        """Something that the whole node depends on is gone: say so and end; a supervisor starts the node again."""
        self.failure = masked(text_of(notice))
        self.tell(notice)
        self.stop()

    def thread_failed(self, thread: str, reason: str) -> None:
        """A thread that this node needs has ended; without it the node would do only a part of its work."""
        if not self.stopping:
            self.fail(ThreadFailed(self.name, thread, reason))

    def cannot_keep(self, error: OSError) -> None:
        """The disk does not take what a part of the ingress has to keep."""
        self.fail(IngressDiskFailed(self.name, str(error)))

    def close(self) -> None:
        """End everything this node started."""
        self._stopping.set()
        self.gate.close()
        parts = [
            self.transfers.close,
            self._pins.close,
            self.hosting.close,
            *(policy.close for policy in self.policies),
            self.links.close,
        ]
        parts += [] if self.coordination is None else [self.coordination.close]
        parts += [] if self.tracing is None else [self.tracing.close]
        parts += [self.server.close, partial(self._notes.close, END_S), partial(self._removals.close, END_S)]
        for close in parts:
            try:
                close()
            except Exception:
                # Whatever else is open must not stay open: the others would wait for this node.
                log.exception("a part of %s did not end cleanly", self.name)

    # --- coordination callbacks -----------------------------------------------------------------------

    def on_members(self, members: dict[NodeId, Member]) -> None:
        self.members = members
        if self.protocol is not None:
            self.links.connect(members)

    def on_layout(self, layout: Layout) -> None:
        if is_foreign(self.run.id, layout.run):
            refused = LayoutForeign(self.name, self.run.id, layout.run)
            if self._foreign is None and self.protocol is not None:
                # What runs here continues: it needs no ZooKeeper for that, and only this disk may have its state.
                self.tell(refused)
            self._foreign = text_of(refused)
            return
        known = self.copy.layout
        if self.protocol is None and known is not None and self.run.id == known.run:
            self._foreign = older_layout(self.name, self.flow.name, known.version, layout.version)
            if self._foreign is not None:
                return
        topology = self.programs.use(layout)
        for program in self.programs.running:
            if program.generation > 1:
                self.copy.keep_program(program)
        self.copy.keep_layout(layout)
        self.unadopted = False
        self._first_layout = self._first_layout or layout
        self.post(LayoutChanged(layout, topology))

    def disk_document(self) -> bytes:
        """What this disk holds, for `unbroken adopt`; called when the layout of its run is missing in ZooKeeper."""
        running = self.protocol is not None
        if not self.unadopted:
            self.unadopted = True
            self.tell(LayoutMissing(self.name, self.run.id, running))
        lost = tuple(sorted(part for policy in self.policies for part in policy.kept_in_zookeeper()))
        return DISK.encode(DiskDocument(self.copy.report(self.name, running, lost), self.copy.flow))

    def belong(self, document: FlowDocument) -> None:
        """Take a place in the run of ``document``: the disk belongs to it from here on.

        Raises
        ------
        UnbrokenError
            If the disk belongs to another run; nothing is changed then.
        """
        self.dirs.belong(document.run)
        self.run = document.run
        self.copy.keep_flow(document)

    def on_in_sync(self, sync: InSync) -> None:
        self.copy.keep_in_sync(sync)
        self._first_sync = self._first_sync or sync
        self.post(InSyncChanged(sync))

    # --- for queries, copies of state, pushes and reports ---------------------------------------------

    def _restore_snapshot(self, replica: ReplicaId, target: Path) -> int:
        if self.snapshots is None:
            raise UnbrokenError(f"there are no snapshots; {replica.shard} cannot be restored")
        return self.snapshots.restore(replica, target)

    def _await_leave(self, replica: ReplicaId, timeout_s: float) -> bool:
        return self.hosting.await_leave(replica, timeout_s)

    def submit_push(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        """Log pushed rows; refused while this node is no ingress."""
        if self.ingress is None:
            return PushOutcome("not-leader", None, f"{self.name} is not part of the ingress")
        return self.ingress.submit(batch, timeout_s)

    def status(self) -> NodeStatus:
        """The status of this node. A loop that is busy does not hold it up: its last word is used, with its time."""

        def question(protocol: NodeProtocol) -> NodeStatus:
            return protocol_status(protocol, self.flow.name, _clock_ms(), time.time() * 1000)

        with contextlib.suppress(UnbrokenError):
            self._known = self.inquire(question, ASKED, STATUS_WAIT_S)
        progress = {} if self.spark is None else self.spark.progress()
        return node_status(self, self._known, progress)

    def silence_s(self) -> float | None:
        """For how long the loop has not turned; None before it begins."""
        return None if self._loop is None else max(0.0, (_clock_ms() - self._loop.turned_ms) / 1000)

    def hung(self) -> str | None:
        """Which thread has not come back from a call for so long that only a restart helps; it answers at once."""
        return hung_call(self.ingress, self.outlets.busy_s())

    def cut_header(self, replica: ReplicaId, number: int, noted: BatchCut) -> UnitHeader:
        """What a micro-batch that the gate has released takes over from its input; Spark may have ``noted`` its cut."""

        def question(protocol: NodeProtocol) -> UnitHeader | None:
            state = protocol.find(replica)
            return None if state is None else state.cut_header(number, noted)

        header = self.inquire(question)
        if header is None:
            raise UnbrokenError(f"{replica}: the input of micro-batch {number} is not here")
        return header

    def produced(
        self, replica: ReplicaId, number: int, headers: tuple[UnitHeader, ...], watermark_ms: float = 0.0
    ) -> None:
        self.post(Produced(replica, number, headers, watermark_ms))

    # --- what the parts ask for -----------------------------------------------------------------------

    def _address_of(self, node: NodeId) -> str | None:
        member = self.members.get(node)
        return None if member is None else member.address

    def _is_member(self, name: str) -> bool:
        # A member that has left ZooKeeper may still be well.
        return name in self.members or name in self.links.known

    def _made_up(self, replica: ReplicaId, start: int) -> int | None:
        return None if self.warm_up is None else self.warm_up.answer(replica, start)

    def _pin_log(self, target: Path) -> None:
        if self.ingress is not None:
            self.ingress.pin(target)

    def _dropped(self, replica: ReplicaId) -> None:
        for policy in self.policies:
            policy.dropped(replica)

    def _effects(self, protocol: NodeProtocol) -> NodeEffects:
        parts = EffectParts(
            self.name,
            self.post,
            self.tell,
            self.fail,
            self.links.send,
            self.server.send_unit,
            UnitFiles(self.store, self.staging, self._notes, self.post, self.cannot_keep),
            self.gate,
            self.outlets,
            self.hosting,
            self.transfers,
            InSyncProposals(self.name, self.tell, self.links.cut_off, self.coordination),
            self.policies,
        )
        return NodeEffects(parts, protocol)

    # --- the loop's steps -----------------------------------------------------------------------------

    def _handle(self, event: Event, rows: UnitRows) -> None:
        assert self._loop is not None
        began_ns = 0 if self.tracing is None else time.time_ns()
        try:
            steps = self._loop.decide(event)
        except Exception as error:
            # The protocol has let it pass, and its state may be half changed: nothing may be built on that.
            reason = f"{_subject(event)}: {type(error).__name__}: {error}"
            self.tell(EventUnhandled(self.name, _subject(event), f"{type(error).__name__}: {error}"))
            if self.journal is not None:
                self.journal.write(self.dirs.root / JOURNALS, f"it cannot handle {reason}")
            raise
        self.view = ProtocolView.of(self._loop.protocol, self.view)
        if self.journal is not None:
            self.journal.look(self.dirs.root / JOURNALS, steps)
        self._loop.carry_out(steps, rows)
        if isinstance(rows, StagedUnit):
            self.staging.settle(rows)
        if self.tracing is not None:
            self.tracing.seen(began_ns, event, steps)


def _clock_ms() -> float:
    return time.monotonic() * 1000


def _subject(event: Event) -> str:
    """What an event is and whom it came from."""
    match event:
        case Received(sender, message):
            return f"{type(message).__name__} from {sender}"
        case UnitArrived(header, sender):
            return f"unit {header.number} of {header.stream} from {sender}"
    return type(event).__name__


def _to(peer: NodeId) -> Sender:
    """The link to a peer, over which its units arrive; its messages come over another one."""
    return Sender(f"to {peer}", peer)

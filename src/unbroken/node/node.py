"""A node: one process, one Spark session, several replicas, one loop.

The loop takes an event, hands it to the protocol object and carries out the instructions it returns. All
other threads only post events or do one thing they were told (deliver to a sink, read the sources, send).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pyarrow as pa

from unbroken.connectors.dead_letters import DeadLetters, Retention, remove_old_runs
from unbroken.connectors.push.http import PushOutcome
from unbroken.connectors.push.source import PushBatch
from unbroken.coordination.documents import Member, disk_bytes
from unbroken.data.checksum import Damaged
from unbroken.data.unit_store import open_unit
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.settings import Settings
from unbroken.node.event_queue import PATIENCE_S, EventQueue
from unbroken.node.ingress.service import IngressService
from unbroken.node.links import Links
from unbroken.node.membership.documents_copy import CoordinationCopy
from unbroken.node.membership.order_logs import Orders, kept_in_kafka
from unbroken.node.membership.session import Coordination
from unbroken.node.peers import LinkInbox, Peers
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.forks import Forks
from unbroken.node.replicas.hosting import Hosting
from unbroken.node.replicas.programs import Programs
from unbroken.node.replicas.queries import Queries
from unbroken.node.replicas.snapshots import Snapshots
from unbroken.node.replicas.transfers import Transfers
from unbroken.node.replicas.warmup import WarmUp
from unbroken.observe.tracing.tracing import Tracing
from unbroken.protocol.events import (
    Event,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkUp,
    OutboxDamaged,
    Produced,
    Received,
    ReplicaStopped,
    Started,
    Tick,
    UnitArrived,
    UnitDamaged,
)
from unbroken.protocol.fair_queue import Sender
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.ingress.skip import Wish
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
    FeedFork,
    FetchState,
    FollowOrders,
    ForkReplica,
    GiveUp,
    Instruction,
    Lead,
    NoteOwed,
    PauseReplica,
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
    UndoReplica,
)
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.replica.cuts import Cut
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.run import WAYS, Run, foreign_layout, older_layout
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.secret import masked
from unbroken.spark.offsets import cut_from, offset_of
from unbroken.spark.runner import CutInfo, QueryRunner
from unbroken.transport.server import NodeServer

log = logging.getLogger(__name__)

HUNG_S = 900.0
"""How long a call to a source or a sink may take before a restart of the node is worth its price. Systems that are
unavailable make calls fail within seconds or minutes; one that never comes back holds a thread for good."""

LONGEST_WAIT_S = 0.2
"""The loop looks at queries and links at least this often."""

HELD_BACK_S = 1.0
"""How long a node that is probably cut off lets the others decide about the ingress first. The two ends of a link miss
each other within a heartbeat and a look at the links, and a decision is one write to ZooKeeper."""

HERE = Sender("node", "node")
"""The threads of this node. They are few, and each waits for what becomes of its last event."""

ASKED = Sender("asked", "asked")
"""Questions that come over the network and are answered by the loop."""

ORDERS = Sender("orders", "orders")
"""The order logs: their threads and the loop itself tell in one order how a log goes on."""

GATE_GRACE_S = 10.0
"""How long beyond the gate's own wait a question may take before it is answered with "no data yet"."""

STORY_LIMIT = 500
"""Sentences a node remembers for its status."""


class Node:
    """The shell around :class:`NodeProtocol`: threads, sockets, files and Spark."""

    def __init__(
        self, name: NodeId, flow: Dataflow, programs: Programs, dirs: ReplicaDirs, token: str, host: str, port: int
    ) -> None:
        self.name = name
        self.flow = flow
        self.programs = programs
        self.settings: Settings = flow.settings
        self.dirs = dirs
        self.store = dirs.store
        self.token = token
        self.protocol: NodeProtocol | None = None
        self.coordination: Coordination | None = None
        self.members: dict[NodeId, Member] = {}
        self.story: deque[tuple[int, str]] = deque(maxlen=STORY_LIMIT)
        self.server = NodeServer(host, port, token, self, self.settings.heartbeat / 1000)
        self.transfers = Transfers(self)
        self.links = Links(self)
        self.hosting = Hosting(self)
        self.orders = Orders(self)
        self.forks = Forks(self)
        self.failure: str | None = None
        self.metrics = ""
        """Where this node's metrics are read, as host:port; nowhere if it is empty."""
        self.letters = self._letters_of(flow.name)
        self.snapshots: Snapshots | None = None
        self.tracing: Tracing | None = None
        self.warm_up: WarmUp | None = None
        self._events: EventQueue[tuple[Event, Any]] = EventQueue()
        self._peers = Peers(self, self._events)
        self._lock = threading.Lock()
        self._gates: dict[int, Future[dict[str, Any]]] = {}
        self._tickets = itertools.count(1)
        self._stopping = threading.Event()
        self.copy = CoordinationCopy(dirs)
        self.run = dirs.run()
        """The run that this node's disk belongs to."""
        self.unadopted = False
        """Whether ZooKeeper has lost the documents of that run."""
        self._foreign: str | None = None
        self._first_layout: Layout | None = None
        self._first_sync: InSync | None = None
        self._carry: dict[type[Any], Callable[[Any, Any], None]] = {
            Send: self._send,
            SendUnit: self._send_unit,
            StoreUnit: self._store_unit,
            RepairUnit: self._repair_unit,
            DropInbox: self._drop_inbox,
            DropOutbox: self._drop_outbox,
            FollowOrders: lambda step, _: self.orders.follow(step),
            Lead: lambda step, _: self.orders.lead(step),
            Publish: lambda step, _: self.orders.publish(step),
            NoteOwed: lambda step, _: self.store.note_owed(step),
            AnswerGate: self._answer_gate,
            RefuseGate: self._refuse_gate,
            Deliver: lambda step, _: self.hosting.deliver(step),
            PollSources: lambda step, _: self._require_ingress().poll(step),
            PersistEntry: lambda step, _: self._require_ingress().persist(step),
            CommitEntry: lambda step, _: self._require_ingress().commit(step.entry),
            ProposeInSync: lambda step, _: self._propose(step),
            BeginReplica: lambda step, _: self.hosting.begin_anew(step),
            StartReplica: lambda step, _: self.hosting.start(step.replica),
            StopReplica: lambda step, _: self.hosting.stop(step),
            ForkReplica: lambda step, _: self.forks.fork(step),
            FeedFork: lambda step, _: self.forks.feed(step),
            PauseReplica: lambda step, _: self.forks.pause(step),
            UndoReplica: lambda step, _: self.forks.undo(step),
            DropReplica: lambda step, _: self.hosting.drop(step.replica),
            FetchState: lambda step, _: self.transfers.fetch(step),
            AbandonFetch: lambda step, _: self.transfers.abandon(step.replica),
            PinState: lambda step, _: self.transfers.pin(step),
            RefusePin: lambda step, _: self.transfers.refuse(step),
            ReportCaughtUp: lambda step, _: self.hosting.caught_up(step),
            ReportSwitched: lambda step, _: self.hosting.switched(step),
            GiveUp: lambda step, _: self.hosting.give_up(step),
            Suspect: lambda step, _: self.hosting.suspect(step),
            Trust: lambda step, _: self.hosting.trust(step),
            EndNode: lambda step, _: self.fail(step.sentence),
            Report: lambda step, _: self.tell(step.sentence),
        }

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
        if self.coordination is not None:
            self.coordination.belong(self.run.id)
        tuned = self.settings.protocol()
        topology = self.programs.use(layout)
        self.protocol = NodeProtocol(self.name, topology, layout, sync, recovered, tuned, disk)
        # Before anything that has come in already: whoever asks for units is answered by replicas that are at work.
        self._handle(self.protocol, Started(), None)
        self._handle(self.protocol, LinkUp(self.name), None)
        self.links.connect(self.members)

    def loop(self) -> None:
        """Handle events until told to stop."""
        protocol = self.protocol
        assert protocol is not None
        self._events.belong()
        checked = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            wake = protocol.next_wake_ms()
            wait = LONGEST_WAIT_S if wake is None else min(LONGEST_WAIT_S, max(0.0, wake / 1000 - now))
            event, payload = self._events.get(wait) or (Tick(), None)
            self._handle(protocol, event, payload)
            if now - checked > LONGEST_WAIT_S:
                checked = now
                self.links.look()
                self.transfers.look()

    def post(self, event: Event, payload: Any = None) -> None:
        """Give the loop an event, from any thread of this node; what the loop gives itself comes before all others."""
        taken = self._events.put_own((event, payload)) or self._events.put((event, payload), HERE)
        if not taken and not self.stopping:
            self.fail(f"the loop of {self.name} has taken no event for {PATIENCE_S:.0f} s; the node ends")

    def post_order(self, event: Event) -> None:
        """Give the loop what an order log reports; never waits, see ``room_for_orders``."""
        self._events.force((event, None), ORDERS)

    def room_for_orders(self, timeout_s: float) -> bool:
        """Wait until the loop can take more of the order logs; False if it cannot in time."""
        return self._events.room(ORDERS, timeout_s)

    def post_link(self, peer: NodeId, event: Event) -> None:
        """Give the loop a change of a link to a peer; never waits."""
        self._events.force((event, None), _to(peer))

    def post_unit(self, peer: NodeId, event: UnitArrived, data: pa.Buffer) -> bool:
        """Give the loop a unit; False if it cannot take in time what comes from this peer."""
        return self._events.put((event, data), _to(peer), len(data))

    def ask(self, event: Event) -> None:
        """Give the loop a question that came over the network."""
        if not self._events.put((event, None), ASKED):
            raise UnbrokenError(f"{self.name} cannot answer: too many questions wait. Ask again later.")

    def tell(self, sentence: str) -> None:
        """Log a sentence, show it in the status, and put it into the flow's history; secrets in it are masked."""
        sentence = masked(sentence)
        log.warning("%s", sentence)
        self.story.append((int(time.time() * 1000), sentence))
        if self.coordination is not None:
            self.coordination.report(sentence)

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
        return {} if self.queries is None else self.queries.runners

    def hosts(self, replica: ReplicaId) -> bool:
        return self._hosted(replica) is not None

    def _hosted(self, replica: ReplicaId) -> SegmentReplica | None:
        """What the protocol knows of a replica here, or of a fork of one."""
        if self.protocol is None:
            return None
        return self.protocol.replicas.get(replica) or self.protocol.forking.find(replica)

    def fail(self, sentence: str) -> None:
        """Something that the whole node depends on is gone: say so and end; a supervisor starts the node again."""
        self.failure = sentence
        self.tell(sentence)
        self.stop()

    def thread_failed(self, thread: str, reason: str) -> None:
        """A thread that this node needs has ended; without it the node would do only a part of its work."""
        if not self.stopping:
            self.fail(f"thread {thread} of {self.name} has failed ({reason}); the node ends, others go on")

    def cannot_keep(self, error: OSError) -> None:
        """The disk does not take what a part of the ingress has to keep."""
        self.fail(f"the ingress on {self.name} cannot write to its disk ({error}); the node ends, others go on")

    def close(self) -> None:
        """End everything this node started."""
        self._stopping.set()
        for future in list(self._gates.values()):
            future.cancel()
        parts = [self.transfers.close, self.hosting.close, self.orders.close, self.links.close]
        parts += [] if self.coordination is None else [self.coordination.close]
        parts += [] if self.tracing is None else [self.tracing.close]
        for close in [*parts, self.server.close]:
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
        refused = foreign_layout(self.name, self.run.id, layout.run)
        if refused is not None:
            if self._foreign is None and self.protocol is not None:
                # What runs here continues: it needs no ZooKeeper for that, and only this disk may have its state.
                self.tell(refused)
            self._foreign = refused
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
            how = "continues without it" if running else "waits for it"
            self.tell(f"ZooKeeper has no layout of run {self.run.id}, and {self.name} {how}. {WAYS}.")
        lost = () if kept_in_kafka(self.settings.order_log) else tuple(sorted(self.programs.topology.led))
        return disk_bytes(self.copy.report(self.name, running, lost), self.copy.topology)

    def belong(self, run: Run, topology: dict[str, Any]) -> None:
        """Take a place in ``run``, whose document is ``topology``: the disk belongs to it from here on.

        Raises
        ------
        UnbrokenError
            If the disk belongs to another run; nothing is changed then.
        """
        self.dirs.belong(run)
        self.run = run
        self.copy.keep_topology(topology)

    def on_in_sync(self, sync: InSync) -> None:
        self.copy.keep_in_sync(sync)
        self._first_sync = self._first_sync or sync
        self.post(InSyncChanged(sync))

    # --- service for the Flight server ----------------------------------------------------------------

    def linked(self, peer: str) -> LinkInbox:
        """A peer links to this node; UnbrokenError if it may not under this name."""
        return self._peers.linked(peer)

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        try:
            return self.store.read(self.store.outbox_path(replica, header.stream, header.number))
        except Damaged as error:
            self.post(OutboxDamaged(replica, header.stream, header.number, error.finding))
            raise

    def _verify_outbox(self, stream: StreamId, number: int) -> None:
        """Report a unit that is damaged in an outbox here, too: it may share its bytes with one in an inbox."""
        with self._lock:
            owner = None if self.protocol is None else self.protocol.outboxes.owners.get(stream)
        if owner is None:
            return
        try:
            self.store.read(self.store.outbox_path(owner, stream, number))
        except FileNotFoundError:
            pass  # every consumer that counts has it
        except Damaged as error:
            self.post(OutboxDamaged(owner, stream, number, error.finding))

    def pin(self, shard: str, newcomer: str, least: int, needs: dict[str, int]) -> dict[str, Any]:
        return self.transfers.asked_for(shard, newcomer, least, needs)

    def restore_snapshot(self, replica: ReplicaId, target: Path) -> int:
        """Bring the last snapshot of a replica's shard to ``target``; its size."""
        if self.snapshots is None:
            raise UnbrokenError(f"there are no snapshots; {replica.shard} cannot be restored")
        return self.snapshots.restore(replica, target)

    def read_pin(self, question: dict[str, Any]) -> Any:
        return self.transfers.pins.stream(question)

    def release_pin(self, pin: str) -> bool:
        return self.transfers.pins.release(pin)

    def read_inbox(self, replica: str, stream: str, number: int) -> pa.Table:
        owner, source = ReplicaId.parse(replica), StreamId.parse(stream)
        if not self.store.receives(owner, source):
            raise UnbrokenError(f"no replica on {self.name} reads {stream}: {replica}. Ask the node that hosts it.")
        path = self.store.inbox_path(owner, source, number)
        try:
            return open_unit(self.store.read(path), path)
        except Damaged as error:
            # First, so that it is not taken from there once more.
            self._verify_outbox(source, number)
            self.post(UnitDamaged(owner, source, number, str(error)))
            raise

    def ask_gate(self, replica: str, instance: str, start: dict[str, Any]) -> dict[str, Any]:
        number = int(start["cut"])
        if self.warm_up is not None and (made_up := self.warm_up.answer(replica, number)) is not None:
            return offset_of(made_up, {})
        if self.queries is not None:
            self.queries.asked(ReplicaId.parse(replica))
        ticket = next(self._tickets)
        future: Future[dict[str, Any]] = Future()
        self._gates[ticket] = future
        deadline_ms = time.monotonic() * 1000 + self.settings.gate_wait
        try:
            self.ask(GateAsked(ReplicaId.parse(replica), instance, number, ticket, deadline_ms, cut_from(start)))
            answer = future.result(timeout=self.settings.gate_wait / 1000 + GATE_GRACE_S)
            # Spark takes an offset that is written in another way for data.
            return start if answer["cut"] == number else answer
        except (FutureTimeoutError, TimeoutError):
            # Answering "no data" on our own could split a round between two instances: fail the query instead.
            raise UnbrokenError(f"the gate of {replica} did not answer in time") from None
        finally:
            self._gates.pop(ticket, None)

    def request_stop(self) -> None:
        self.stop()

    def wish(self, kind: str, source: str, pulse: int, hold: int) -> str | None:
        """An operator wishes to hold, release or skip rows of a source; why not, None if that is on its way."""
        wish = Wish.from_bytes(Wish(kind, source, pulse, hold).to_bytes())  # type: ignore[arg-type]
        if wish is None or source not in self.flow.sources:
            return f"there is no source {source!r}, or nothing like {kind!r} to be done with it"
        return f"{self.name} is not part of the ingress" if self.ingress is None else self.ingress.ask(wish)

    def submit_push(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        """Log pushed rows; refused while this node is no ingress."""
        if self.ingress is None:
            return PushOutcome("not-leader", None, f"{self.name} is not part of the ingress")
        return self.ingress.submit(batch, timeout_s)

    def status(self) -> dict[str, Any]:
        from unbroken.node.status import node_status

        # Asked of Spark before the lock is taken: the loop must not wait for Spark.
        progress = {} if self.queries is None else self.queries.progress()
        with self._lock:
            return node_status(self, progress)

    def silence_s(self) -> float | None:
        """For how long the loop has not turned; None before it begins."""
        return None if self.protocol is None else max(0.0, time.monotonic() - self.protocol.seen_ms / 1000)

    def hung(self) -> str | None:
        """Which thread has not come back from a call for so long that only a restart helps; it answers at once."""
        ingress = self.ingress
        ages: dict[str, float] = {f"sink {stream}": age for stream, age in self.hosting.sink_busy_s().items()}
        if ingress is not None:
            stuck = ingress.feeder.stuck()
            ages |= {f"source {name}": age_s for name, age_s in ingress.feeder.asking_s().items()}
            ages |= {f"source {name}": one.seconds for name, one in stuck.items() if one.hangs}
            ages["ingress"] = ingress.busy_s
            ages["ingress log"] = ingress.log_busy_s
        what, age_s = max(ages.items(), key=lambda item: item[1], default=("", 0.0))
        return None if age_s < HUNG_S else f"its thread for {what} has not come back from a call for {age_s:.0f} s"

    def cut_info(self, replica: ReplicaId, number: int, noted: Cut) -> CutInfo:
        """Pulse and cut time of a micro-batch that the gate has released; Spark may have ``noted`` its cut."""
        with self._lock:
            state = self._hosted(replica)
            header = None if state is None else state.cut_header(number, noted)
        if header is None:
            raise UnbrokenError(f"{replica}: the input of micro-batch {number} is not here")
        facts = (header.pulse, header.cut_ms, header.final, header.generation, header.layout)
        return CutInfo(*facts, header.stable, header.since, header.fold)

    def produced(
        self, replica: ReplicaId, number: int, headers: tuple[UnitHeader, ...], watermark_ms: float = 0.0
    ) -> None:
        self.post(Produced(replica, number, headers, watermark_ms))

    # --- carrying out ---------------------------------------------------------------------------------

    def _handle(self, protocol: NodeProtocol, event: Event, payload: Any) -> None:
        began_ns = 0 if self.tracing is None else time.time_ns()
        try:
            with self._lock:
                steps = protocol.handle(event, time.monotonic() * 1000)
        except Exception as error:
            # The protocol has let it pass, and its state may be half changed: nothing may be built on that.
            self.tell(f"{self.name} ends, as it cannot handle {_subject(event)}: {type(error).__name__}: {error}")
            raise
        for step in steps:
            self._carry_out(step, payload)
        if self.tracing is not None:
            self.tracing.seen(began_ns, event, steps)

    def _carry_out(self, step: Instruction, payload: Any) -> None:
        self._carry[type(step)](step, payload)

    def _send(self, step: Send, _payload: Any) -> None:
        if step.to == self.name:
            self.post(Received(self.name, step.message))
        else:
            self.links.send(step.to, step.message)

    def _send_unit(self, step: SendUnit, _payload: Any) -> None:
        if step.to == self.name:
            self.post(UnitArrived(step.header, self.name), step.replica)
        else:
            self.server.send_unit(step.to, step.replica, step.header)

    def _store_unit(self, step: StoreUnit, payload: pa.Buffer | ReplicaId) -> None:
        """Keep a unit that has arrived: its rows, or the replica here that has produced it."""
        header = step.header
        number = header.number if step.number is None else step.number
        path = self.store.inbox_path(step.replica, header.stream, number)
        try:
            if isinstance(payload, ReplicaId):
                self.store.link(self.store.outbox_path(payload, header.stream, header.number), path)
            else:
                self.store.write(path, payload)
        except OSError as error:
            # A unit that is gone (the layout no longer counts this replica) or a full disk: this replica cannot go
            # on, the others can.
            reason = f"unit {header.number} of {header.stream} cannot be kept: {error}"
            self.post(ReplicaStopped(step.replica, reason))

    def _repair_unit(self, step: RepairUnit, payload: pa.Buffer) -> None:
        """Replace a damaged file; whoever has a link to it keeps what is damaged, and finds that out."""
        header = step.header
        try:
            self.store.write(self.store.outbox_path(step.replica, header.stream, header.number), payload)
        except OSError as error:
            if self.ingress is not None and step.replica == self.ingress.replica:
                self.cannot_keep(error)
            else:
                reason = f"unit {header.number} of {header.stream} cannot be kept: {error}"
                self.post(ReplicaStopped(step.replica, reason))

    def _drop_inbox(self, step: DropInbox, _payload: Any) -> None:
        for number in step.numbers:
            self.store.drop(self.store.inbox_path(step.replica, step.stream, number))

    def _drop_outbox(self, step: DropOutbox, _payload: Any) -> None:
        for number in step.numbers:
            self.store.drop(self.store.outbox_path(step.replica, step.stream, number))
        if self.ingress is not None and step.replica == self.ingress.replica:
            assert self.protocol is not None
            units: dict[str, int] = {}
            for box in self.protocol.outboxes.of(step.replica):
                source = box.stream.producer.part
                units[source] = min(box.base, units.get(source, box.base))
            self.ingress.trim(units)

    def _answer_gate(self, step: AnswerGate, _payload: Any) -> None:
        future = self._gates.get(step.ticket)
        if future is not None and not future.done():
            future.set_result(offset_of(step.offset, step.cut))

    def _refuse_gate(self, step: RefuseGate, _payload: Any) -> None:
        future = self._gates.get(step.ticket)
        if future is not None and not future.done():
            future.set_exception(UnbrokenError(f"the gate refuses the question: {step.reason}"))

    def _propose(self, step: ProposeInSync) -> None:
        assert self.protocol is not None
        members = step.proposal.members
        if members != self.protocol.sync.members:
            self.tell(f"{self.name} asks for an ingress of {', '.join(sorted(members))}")
        coordination, replica = self.coordination, self.protocol.ingress
        if coordination is None or replica is None:
            return
        missed = self.protocol.sync.members - members
        if missed and self.links.cut_off(missed):
            # The others have each other, and the pulses of a leader that none of them hears are of no use: they go
            # first. If they do not, this node does.
            held = threading.Timer(HELD_BACK_S, coordination.propose, (step, replica))
            held.daemon = True
            held.start()
        else:
            coordination.propose(step, replica)

    def _require_ingress(self) -> IngressService:
        assert self.ingress is not None
        return self.ingress


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

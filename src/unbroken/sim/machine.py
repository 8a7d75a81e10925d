"""A simulated machine: a disk that survives, a clock that is wrong, and the process of a node with its protocol object.

The process is the shell around :class:`NodeProtocol`, like ``cluster/node.py`` around the real one: one queue of
events, one handler after the other, every instruction carried out in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unbroken.errors import broken, require
from unbroken.protocol.events import (
    Event,
    LinkUp,
    QueryFailed,
    Received,
    SinkDelivered,
    SinkFailed,
    Started,
    Tick,
    UnitArrived,
)
from unbroken.protocol.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.ingress import ProposeInSync
from unbroken.protocol.instructions import (
    AbandonFetch,
    AnswerGate,
    BeginReplica,
    CommitEntry,
    Deliver,
    DropInbox,
    DropOutbox,
    DropReplica,
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
    RefusePin,
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
from unbroken.protocol.layout import INGRESS, Layout
from unbroken.protocol.node import NodeProtocol
from unbroken.sim.buckets import BucketIngress
from unbroken.sim.content import Content, Folded, is_fork
from unbroken.sim.coordination import StoreClient
from unbroken.sim.disk import Disk, ReplicaDisk
from unbroken.sim.orders import Orders
from unbroken.sim.queries import Query
from unbroken.sim.sources import Ingress

if TYPE_CHECKING:
    from unbroken.sim.world import World

MOST_AT_ONCE = 100_000
"""Events that one node may handle without time passing: more means that it goes round in circles."""


@dataclass
class Machine:
    """What outlives the process of a node. Its clocks run ``drift`` times as fast as they should and began anywhere;
    ``slowness`` is how many times longer its queries take."""

    name: NodeId
    disk: Disk
    drift: float = 1.0
    began_ms: float = 0.0
    skew_ms: float = 0.0
    slowness: float = 1.0
    process: NodeProcess | None = None
    lost: bool = False


class NodeProcess:
    """A node's process: its protocol object and the effects around it."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.name = machine.name
        self.disk = machine.disk
        self.network = world.network
        self.alive = True
        self.frozen = False
        self.begun = False
        self.protocol: NodeProtocol | None = None
        self.told_layout = 0
        self.random = world.kernel.random(f"node {machine.name}")
        self.client = StoreClient(self, world.zookeeper)
        self.orders = Orders(self)
        self.queries: dict[ReplicaId, Query] = {}
        self.running = 0
        self.cold = False
        self.fuse: int | None = None
        self.ingress: Ingress | None = None
        self.deliveries: dict[StreamId, Deliver] = {}
        self.dropped: dict[tuple[ReplicaId, StreamId], int] = {}
        self._asked: dict[int, Query] = {}
        self._queue: deque[tuple[Event, Any]] = deque()
        self._handling = False
        self._stalled: list[tuple[Callable[[Any], None], Any]] = []
        self._wake_ms = float("inf")
        self._asked_ms = 0.0
        self._seen_ms = 0.0
        self._carry: dict[type[Any], Callable[[Any, Any], None]] = self._effects()

    # --- life -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the layout's place with what the disk holds, and link to the other nodes."""
        store, world = self.world.zookeeper, self.world
        layout, sync = store.layout, store.sync
        placed = layout.hosted(self.name) if layout.nodes.get(self.name) == self.disk.identity else []
        for replica in [replica for replica in self.disk.replicas if replica not in placed]:
            self.drop_replica_dir(replica)
        recovered = {replica: held.recover(replica) for replica, held in self.disk.replicas.items()}
        world.noted_interruption(self.disk)
        self.told_layout = layout.version
        self.protocol = NodeProtocol(
            self.name, world.topology, layout, sync, recovered, world.settings, self.disk.identity
        )
        self.begun = True
        self._queue.appendleft((LinkUp(self.name), None))
        self._queue.appendleft((Started(), None))
        world.joined(self)
        self.drain()
        if world.settings.snapshots and self.alive:
            world.snapshots.begin(self)

    def end(self, *, silently: bool) -> None:
        """kill -9, or the power goes (``silently``): only the disk is left."""
        self.alive = False
        for query in self.queries.values():
            query.stop()
        self.network.ended(self.name, silently=silently)
        self.client.touch()

    def freeze(self) -> None:
        self.frozen = True
        self.network.froze(self.name)
        self.client.touch()

    def thaw(self) -> None:
        """Go on: first what has come meanwhile, then what should have been done."""
        self.frozen = False
        self.client.touch()
        self._queue.append((TICK, None))
        self.drain()
        stalled, self._stalled = self._stalled, []
        for action, argument in stalled:
            if self.alive:
                action(argument)
        self.network.thawed(self.name)

    def clock_ms(self) -> float:
        """What the protocol is told the time is: never back, and nobody else's time."""
        now = self.machine.began_ms + self.world.kernel.now_ms * self.machine.drift
        self._seen_ms = max(now, self._seen_ms)
        return self._seen_ms

    def wall_ms(self) -> float:
        return self.world.kernel.now_ms * self.machine.drift + self.machine.skew_ms

    def later(self, delay_ms: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Do something after a while, unless the process has ended; a frozen one does it when it goes on."""
        self.world.kernel.after(delay_ms, self._due, (action, argument))

    def _due(self, what: tuple[Callable[[Any], None], Any]) -> None:
        if self.frozen:
            self._stalled.append(what)
        elif self.alive:
            what[0](what[1])

    # --- the loop -------------------------------------------------------------------------------------

    def post(self, event: Event, payload: Any = None) -> None:
        self._queue.append((event, payload))
        if not self._handling and not self.frozen and self.begun:
            self.drain()

    def drain(self) -> None:
        """Handle everything that waits."""
        if self._handling or self.frozen or not self.begun or not self.alive:
            return
        protocol, queue, world = self.protocol, self._queue, self.world
        assert protocol is not None
        self._handling = True
        handled = 0
        try:
            while queue:
                event, payload = queue.popleft()
                handled += 1
                world.handled(self.name, event)
                steps = protocol.handle(event, self.clock_ms())
                if self.fuse is not None:
                    steps = self._burn(self.fuse, steps)
                for step in steps:
                    if world.story is not None:
                        world.story.step(world.kernel.now_ms, self.name, step)
                    self._carry[type(step)](step, payload)
                if self.fuse == 0:
                    self._tear(event)
                    return
                if world.check_every and not world.count % world.check_every:
                    protocol.check()
                if handled >= MOST_AT_ONCE:
                    broken(f"{self.name} goes round in circles: {event}")
        finally:
            self._handling = False
        self._plan_wake(protocol)

    def _burn(self, fuse: int, steps: list[Instruction]) -> list[Instruction]:
        """What is carried out of an event's instructions: all, or those before the place at which the fuse is burnt.

        It is as long as so many places between two instructions of one event, so the process never ends where one event
        is done and the next is not begun: a kill at any moment does that.
        """
        places = len(steps) - 1
        if places < fuse:
            self.fuse = fuse - max(places, 0)
            return steps
        self.fuse = 0
        return steps[:fuse]

    def _tear(self, event: Event) -> None:
        """The process is killed with a part of an event's instructions carried out."""
        self.world.counts["torn"] += 1
        self.world.kernel.note("torn", self.name)
        if self.world.story is not None:
            self.world.story.sentence(self.world.kernel.now_ms, f"{self.name} is killed within {type(event).__name__}")
        self._queue.clear()
        self.end(silently=False)

    def _plan_wake(self, protocol: NodeProtocol) -> None:
        wake = protocol.next_wake_ms()
        if wake is None or (wake == self._asked_ms and self._wake_ms > self.world.kernel.now_ms):
            return
        self._asked_ms = wake
        if wake <= self._seen_ms:
            broken(f"{self.name} wants to wake at {wake}, it is {self._seen_ms}")
        at = (wake - self.machine.began_ms) / self.machine.drift
        now = self.world.kernel.now_ms
        if self._wake_ms <= now or at < self._wake_ms - 1e-9:
            self._wake_ms = max(at, now)
            self.world.kernel.at(self._wake_ms, self._wake, wake)

    def _wake(self, wake: float) -> None:
        if not self.alive or self.world.kernel.now_ms < self._wake_ms - 1e-9:
            return
        self._wake_ms, self._asked_ms = float("inf"), 0.0
        if not self.frozen:
            # The clock is rounded in both directions: what was asked for has come.
            self._seen_ms = max(self._seen_ms, wake)
            self._queue.append((TICK, None))
            self.drain()

    # --- carrying out ---------------------------------------------------------------------------------

    def _effects(self) -> dict[type[Any], Callable[[Any, Any], None]]:
        client, transfers = self.client, self.world.transfers
        return {
            Send: self._send,
            SendUnit: self._send_unit,
            StoreUnit: self._store_unit,
            DropInbox: self._drop_inbox,
            DropOutbox: self._drop_outbox,
            AnswerGate: self._answer_gate,
            Deliver: self._deliver,
            PollSources: lambda step, _: self._reader().poll(step),
            PersistEntry: lambda step, _: self._reader().persist(step.entry),
            CommitEntry: lambda step, _: self._reader().commit(step),
            ProposeInSync: lambda step, _: client.propose(step, self._reader().replica),
            BeginReplica: lambda step, _: self._begin_anew(step),
            NoteOwed: lambda step, _: self._note_owed(step),
            FollowOrders: lambda step, _: self.orders.follow(step),
            Lead: lambda step, _: self.orders.ask(step),
            Publish: lambda step, _: self.orders.ask(step),
            StartReplica: lambda step, _: self._start(step.replica),
            StopReplica: lambda step, _: self._stop(step),
            DropReplica: lambda step, _: self._drop(step.replica),
            ForkReplica: lambda step, _: self._fork(step),
            FeedFork: lambda step, _: self._feed(step),
            PauseReplica: lambda step, _: self._end_query(step.replica),
            UndoReplica: lambda step, _: self._undo(step),
            FetchState: lambda step, _: transfers.fetch(self, step),
            AbandonFetch: lambda step, _: transfers.abandon(self, step),
            PinState: lambda step, _: transfers.pin(self, step),
            RefusePin: lambda step, _: transfers.refuse(step),
            ReportCaughtUp: lambda step, _: self._caught_up(step),
            ReportSwitched: lambda step, _: None,
            GiveUp: lambda step, _: client.replica_stopped(step.replica, step.reason),
            Suspect: lambda step, _: client.suspects(step.node, step.reason),
            Trust: lambda step, _: client.trusts(step.node),
            Report: lambda step, _: self.world.tell(self.name, step.sentence),
        }

    def _send(self, step: Send, _: Any) -> None:
        if step.to == self.name:
            self._queue.append((Received(self.name, step.message), None))
        else:
            self.network.send(self.name, step.to, step.message)

    def _send_unit(self, step: SendUnit, _: Any) -> None:
        header = step.header
        found = self.disk.replicas[step.replica].outbox[header.stream, header.number]
        if step.to == self.name:
            self._queue.append((UnitArrived(header, self.name, 0), found[1]))
        else:
            self.network.send_unit(self.name, step.to, header, found[1])

    def _store_unit(self, step: StoreUnit, payload: Content) -> None:
        header = step.header
        key = (header.stream, header.number if step.number is None else step.number)
        inbox = self.disk.replicas[step.replica].inbox
        if key in inbox:
            broken(f"unit {key[1]} of {key[0]} is accepted twice by {step.replica}")
        if payload.tentative == header.stable:
            broken(f"{step.replica} takes unit {key[1]} of {key[0]} for another kind")
        inbox[key] = (header, payload)

    def _drop_inbox(self, step: DropInbox, _: Any) -> None:
        inbox = self.disk.replicas[step.replica].inbox
        for number in step.numbers:
            del inbox[step.stream, number]

    def _drop_outbox(self, step: DropOutbox, _: Any) -> None:
        disk = self.disk.replicas[step.replica]
        for number in step.numbers:
            del disk.outbox[step.stream, number]
        if is_fork(step.replica):
            return
        if self.world.topology.is_sink(step.stream.consumer):
            self.world.sink.done_with(step.stream, max(step.numbers, default=0))
        elif self.world.check_every:
            self.world.check_dropped(self, step)
        if step.replica.shard == INGRESS and self.ingress is not None and self.protocol is not None:
            self.ingress.trim({box.stream: box.base for box in self.protocol.outboxes.of(step.replica)})

    def next_ticket(self, query: Query) -> int:
        ticket = self.world.next_serial()
        self._asked[ticket] = query
        return ticket

    def _answer_gate(self, step: AnswerGate, _: Any) -> None:
        query = self._asked.pop(step.ticket, None)
        if query is not None and query.ticket == step.ticket:
            query.answer(step.offset, step.cut)

    def _reader(self) -> Ingress:
        if self.ingress is None:
            broken(f"{self.name} is no ingress and is told to act as one")
        return self.ingress

    # --- sinks ----------------------------------------------------------------------------------------

    def _deliver(self, step: Deliver, _: Any) -> None:
        stream = step.header.stream
        if stream in self.deliveries:
            broken(f"{self.name}: two deliveries of {stream} at once")
        self.deliveries[stream] = step
        self.later(self.world.costs.sink_ms / 2, self._write_sink, step)

    def _write_sink(self, step: Deliver) -> None:
        """Write to the sink; that the node hears of it is another matter."""
        stream, costs = step.header.stream, self.world.costs
        if self.deliveries.get(stream) is not step:
            return
        if not self.world.sinks_up:
            if step.once:
                del self.deliveries[stream]
                self.world.refused.add((stream, step.header.number))
                self.post(SinkFailed(stream, step.header.number, "it is away"))
            else:
                self.later(100.0, self._write_sink, step)
            return
        disk = self.disk.replicas.get(step.replica)
        found = None if disk is None else disk.outbox.get((stream, step.header.number))
        if found is not None:
            self.world.delivered(step.header, found[1])
        self.later(costs.sink_ms / 2, self._sink_done, step)

    def _sink_done(self, step: Deliver) -> None:
        stream = step.header.stream
        if self.deliveries.get(stream) is step:
            del self.deliveries[stream]
            self.post(SinkDelivered(stream, step.header.number))

    # --- replicas -------------------------------------------------------------------------------------

    def put_replica(self, replica: ReplicaId, held: ReplicaDisk) -> None:
        self.disk.replicas[replica] = held
        self.world.where[replica] = held

    def drop_replica_dir(self, replica: ReplicaId) -> None:
        held = self.disk.replicas.pop(replica, None)
        if held is not None and self.world.where.get(replica) is held:
            del self.world.where[replica]

    def _begin_anew(self, step: BeginReplica) -> None:
        held = ReplicaDisk(committed=step.base, states={step.base: Folded()}, valid=step.valid)
        self.put_replica(step.replica, held)

    def _note_owed(self, step: NoteOwed) -> None:
        self.disk.replicas[step.replica].owed[step.stream] = (step.owed, step.valid)

    def _start(self, replica: ReplicaId) -> None:
        held = self.disk.replicas[replica]
        if replica.shard == INGRESS:
            if self.ingress is not None:
                self.ingress.close()
            kind = BucketIngress if self.world.topology.bucketed else Ingress
            self.ingress = kind(self, replica, held)
            return
        self._end_query(replica)
        start_ms = self.world.costs.of(replica.shard.part, self.cold).query_ms * self.machine.slowness
        self.queries[replica] = Query(self, replica, held, start_ms)

    def _end_query(self, replica: ReplicaId) -> None:
        query = self.queries.pop(replica, None)
        if query is not None:
            query.stop()

    def _stop(self, step: StopReplica) -> None:
        self.world.tell(self.name, f"{step.replica} stops: {step.reason}")
        query = self.queries.get(step.replica)
        if query is not None:
            query.stop()
        self.client.replica_stopped(step.replica, step.reason)

    def _drop(self, replica: ReplicaId) -> None:
        self._end_query(replica)
        self.drop_replica_dir(replica)
        if is_fork(replica):
            return
        self.orders.forget(replica.shard)
        self.deliveries = {s: step for s, step in self.deliveries.items() if step.replica != replica}
        if replica.shard == INGRESS and self.ingress is not None:
            self.ingress.close()
            self.ingress = None

    def _caught_up(self, step: ReportCaughtUp) -> None:
        self.world.tell(self.name, step.sentence)
        self.client.caught_up(step.replica)

    def fail_query(self, replica: ReplicaId, reason: str) -> None:
        """A query ends by itself."""
        query = self.queries.get(replica)
        if query is not None and not query.stopped:
            query.stop()
            self.post(QueryFailed(replica, reason))

    def layout_seen(self, layout: Layout) -> None:
        self.world.related(self.name, layout)

    # --- forks ----------------------------------------------------------------------------------------

    def _fork(self, step: ForkReplica) -> None:
        held = self.disk.replicas[step.replica]
        require(step.fork not in self.disk.replicas, f"{step.fork} is there already")
        copy = ReplicaDisk(committed=step.version, states={step.version: held.states[step.version]})
        if step.version in held.cuts:
            copy.cuts[step.version] = held.cuts[step.version]
        self.disk.replicas[step.fork] = copy
        self.world.counts["forks"] += 1
        self.queries[step.fork] = Query(self, step.fork, copy, self.world.costs.fork_ms * self.machine.slowness)

    def _feed(self, step: FeedFork) -> None:
        unit = self.disk.replicas[step.replica].inbox[step.stream, step.number]
        self.disk.replicas[step.fork].inbox[step.stream.home, step.as_number] = unit

    def _undo(self, step: UndoReplica) -> None:
        held = self.disk.replicas[step.replica]
        require(step.replica not in self.queries, f"{step.replica} is set back while its query runs")
        require(held.committed == step.valid, f"{step.replica} is at {held.committed}, not {step.valid}")
        for stream in self.world.topology.inputs(step.replica.shard):
            missing = [n for n in range(step.base + 1, step.valid + 1) if (stream, n) not in held.inbox]
            require(not missing, f"unit {missing[:1]} of {stream} is missing where {step.replica} is set back")
        self.world.counts["undone"] += 1
        held.committed, held.states, held.cuts = step.base, {step.base: Folded()}, {}
        held.valid = max(step.valid, held.valid)


TICK = Tick()

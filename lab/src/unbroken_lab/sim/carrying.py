"""What a simulated node does with the instructions of its protocol: one function for each kind of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unbroken.errors import broken
from unbroken.protocol.events import Received, SinkDelivered, SinkFailed, UnitArrived
from unbroken.protocol.ingress.log import ProposeInSync
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
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken_lab.sim.content import Content, is_fork
from unbroken_lab.sim.queries import Query

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class Carrying:
    """Carries instructions out: ``table`` has the function for each kind, which takes one and the event's payload."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._world = process.world
        self._disk = process.disk
        self._asked: dict[int, Query] = {}
        self._deliveries: dict[StreamId, Deliver] = {}
        self.dropped: dict[tuple[ReplicaId, StreamId], int] = {}
        self.table: dict[type[Any], Callable[[Any, Any], None]] = self._functions()

    def _functions(self) -> dict[type[Any], Callable[[Any, Any], None]]:
        process, world = self._process, self._process.world
        client, hosting, orders, transfers = process.client, process.hosting, process.orders, world.transfers
        return {
            Send: self._send,
            SendUnit: self._send_unit,
            StoreUnit: self._store_unit,
            RepairUnit: self._repair_unit,
            DropInbox: self._drop_inbox,
            DropOutbox: self._drop_outbox,
            AnswerGate: self._answer_gate,
            RefuseGate: self._refuse_gate,
            Deliver: self._deliver,
            PollSources: lambda step, _: hosting.reader().poll(step),
            PersistEntry: lambda step, _: hosting.reader().persist(step),
            CommitEntry: lambda step, _: hosting.reader().commit(step),
            ProposeInSync: lambda step, _: client.propose(step, hosting.reader().replica),
            BeginReplica: lambda step, _: hosting.begin_anew(step),
            NoteOwed: lambda step, _: hosting.note_owed(step),
            FollowOrders: lambda step, _: orders.follow(step),
            Lead: lambda step, _: orders.ask(step),
            Publish: lambda step, _: orders.ask(step),
            StartReplica: lambda step, _: hosting.start(step.replica),
            StopReplica: lambda step, _: hosting.stop(step),
            DropReplica: lambda step, _: hosting.drop(step.replica),
            ForkReplica: lambda step, _: hosting.fork(step),
            FeedFork: lambda step, _: hosting.feed(step),
            PauseReplica: lambda step, _: hosting.end_query(step.replica),
            UndoReplica: lambda step, _: hosting.undo(step),
            FetchState: lambda step, _: transfers.fetch(process, step),
            AbandonFetch: lambda step, _: transfers.abandon(process, step),
            PinState: lambda step, _: transfers.pin(process, step),
            RefusePin: lambda step, _: transfers.refuse(step),
            ReportCaughtUp: lambda step, _: hosting.caught_up(step),
            ReportSwitched: lambda step, _: None,
            GiveUp: lambda step, _: client.replica_stopped(step.replica, step.reason),
            Suspect: lambda step, _: client.suspects(step.node, step.reason),
            Trust: lambda step, _: client.trusts(step.node),
            EndNode: lambda step, _: broken(f"{process.name} ends: {step.sentence}"),
            Report: lambda step, _: world.tell(process.name, step.sentence),
        }

    def _send(self, step: Send, _: Any) -> None:
        if step.to == self._process.name:
            self._process.queue(Received(self._process.name, step.message))
        else:
            self._process.network.send(self._process.name, step.to, step.message)

    def _send_unit(self, step: SendUnit, _: Any) -> None:
        header = step.header
        found = self._disk.replicas[step.replica].outbox[header.stream, header.number]
        if step.to == self._process.name:
            self._process.queue(UnitArrived(header, self._process.name, 0), found[1])
        else:
            self._process.network.send_unit(self._process.name, step.to, header, found[1])

    def _store_unit(self, step: StoreUnit, payload: Content) -> None:
        header = step.header
        key = (header.stream, header.number if step.number is None else step.number)
        inbox = self._disk.replicas[step.replica].inbox
        if key in inbox:
            broken(f"unit {key[1]} of {key[0]} is accepted twice by {step.replica}")
        if payload.tentative == header.stable:
            broken(f"{step.replica} takes unit {key[1]} of {key[0]} for another kind")
        inbox[key] = (header, payload)

    def _repair_unit(self, step: RepairUnit, payload: Content) -> None:
        self._disk.replicas[step.replica].outbox[step.header.stream, step.header.number] = (step.header, payload)

    def _drop_inbox(self, step: DropInbox, _: Any) -> None:
        inbox = self._disk.replicas[step.replica].inbox
        for number in step.numbers:
            del inbox[step.stream, number]

    def _drop_outbox(self, step: DropOutbox, _: Any) -> None:
        disk = self._disk.replicas[step.replica]
        for number in step.numbers:
            del disk.outbox[step.stream, number]
        if is_fork(step.replica):
            return
        if self._world.topology.is_sink(step.stream.consumer):
            self._world.sink.done_with(step.stream, max(step.numbers, default=0))
        elif self._world.check_every:
            self._world.check_dropped(self._process, step)
        ingress, protocol = self._process.hosting.ingress, self._process.protocol
        if step.replica.shard == INGRESS and ingress is not None and protocol is not None:
            ingress.trim({box.stream: box.base for box in protocol.outboxes.of(step.replica)})

    def next_ticket(self, query: Query) -> int:
        ticket = self._world.next_serial()
        self._asked[ticket] = query
        return ticket

    def _answer_gate(self, step: AnswerGate, _: Any) -> None:
        query = self._asked.pop(step.ticket, None)
        if query is not None and query.ticket == step.ticket:
            query.answer(step.offset, step.cut)

    def _refuse_gate(self, step: RefuseGate, _: Any) -> None:
        if self._asked.pop(step.ticket, None) is not None:
            broken(f"{self._process.name} refuses a question of its own query: {step.reason}")

    # --- sinks ----------------------------------------------------------------------------------------

    def _deliver(self, step: Deliver, _: Any) -> None:
        stream = step.header.stream
        if stream in self._deliveries:
            broken(f"{self._process.name}: two deliveries of {stream} at once")
        self._deliveries[stream] = step
        self._process.later(self._world.costs.sink_ms / 2, self._write_sink, step)

    def _write_sink(self, step: Deliver) -> None:
        """Write to the sink; that the node hears of it is another matter."""
        stream, costs = step.header.stream, self._world.costs
        if self._deliveries.get(stream) is not step:
            return
        if not self._world.sinks_up:
            if step.once:
                del self._deliveries[stream]
                self._world.refused.add((stream, step.header.number))
                self._process.post(SinkFailed(stream, step.header.number, "it is away"))
            else:
                self._process.later(100.0, self._write_sink, step)
            return
        disk = self._disk.replicas.get(step.replica)
        found = None if disk is None else disk.outbox.get((stream, step.header.number))
        if found is not None:
            self._world.delivered(step.header, found[1])
        self._process.later(costs.sink_ms / 2, self._sink_done, step)

    def _sink_done(self, step: Deliver) -> None:
        stream = step.header.stream
        if self._deliveries.get(stream) is step:
            del self._deliveries[stream]
            self._process.post(SinkDelivered(stream, step.header.number))

    def forget_deliveries(self, replica: ReplicaId) -> None:
        """A replica that is removed delivers nothing any more."""
        self._deliveries = {s: step for s, step in self._deliveries.items() if step.replica != replica}

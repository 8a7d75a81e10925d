"""What a simulated node does with the instructions of its protocol."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unbroken.errors import broken
from unbroken.observe.notices import text_of
from unbroken.protocol.effects import Effects
from unbroken.protocol.events import (
    OutboxDamaged,
    OwedNoted,
    Received,
    ReplicaStopped,
    SinkDelivered,
    SinkFailed,
    UnitArrived,
)
from unbroken.protocol.ingress.log import ProposeInSync
from unbroken.protocol.instructions import (
    AbandonFetch,
    AnswerGate,
    CommitEntry,
    Deliver,
    DropInbox,
    DropOutbox,
    DropReplica,
    EndNode,
    FetchState,
    GiveUp,
    NoteOwed,
    PersistEntry,
    PinState,
    PollSources,
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
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content, is_fork
from unbroken_lab.sim.programs import lane_of
from unbroken_lab.sim.queries import Query
from unbroken_lab.sim.sources import Ingress

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedEffects(Effects[Content | None]):
    """Carries instructions out in virtual time."""

    def __init__(self, process: NodeProcess) -> None:
        super().__init__(process.policies)
        self._process = process
        self._world = process.world
        self._disk = process.disk
        self._asked: dict[int, Query] = {}
        self._deliveries: dict[StreamId, Deliver] = {}
        self.dropped: dict[tuple[ReplicaId, StreamId], int] = {}

    def send(self, step: Send) -> None:
        if step.to == self._process.name:
            self._process.queue(Received(self._process.name, step.message))
        else:
            self._process.network.send(self._process.name, step.to, step.message)

    def send_unit(self, step: SendUnit) -> None:
        header = step.header
        if self._damaged(step.replica, header):
            return
        found = self._disk.replicas[step.replica].outbox[header.stream, header.number]
        if step.to == self._process.name:
            self._process.queue(UnitArrived(header, self._process.name, 0), found[1])
        else:
            self._process.network.send_unit(self._process.name, step.to, header, found[1])

    def store_unit(self, step: StoreUnit, rows: Content | None) -> None:
        assert rows is not None
        header = step.header
        key = (header.stream, header.number if step.number is None else step.number)
        inbox = self._disk.replicas[step.replica].inbox
        try:
            self._disk.check_room()
        except OSError as error:
            self._process.queue(ReplicaStopped(step.replica, f"unit {key[1]} of {key[0]} cannot be kept: {error}"))
            return
        if key in inbox:
            broken(f"unit {key[1]} of {key[0]} is accepted twice by {step.replica}", key[0], step.replica, unit=key[1])
        if rows.tentative == header.stable:
            broken(
                f"{step.replica} takes unit {key[1]} of {key[0]} for another kind", key[0], step.replica, unit=key[1]
            )
        inbox[key] = (header, rows)

    def repair_unit(self, step: RepairUnit, rows: Content | None) -> None:
        assert rows is not None
        held, key = self._disk.replicas[step.replica], (step.header.stream, step.header.number)
        held.outbox[key] = (step.header, rows)
        held.damaged.discard(key)
        self._world.counts["repaired"] += 1

    def _damaged(self, replica: ReplicaId, header: UnitHeader) -> bool:
        """Whether a unit that is to be read is damaged, which the protocol is told then."""
        held = self._disk.replicas.get(replica)
        if held is None or (header.stream, header.number) not in held.damaged:
            return False
        self._process.queue(OutboxDamaged(replica, header.stream, header.number, "damaged file"))
        return True

    def drop_inbox(self, step: DropInbox) -> None:
        inbox = self._disk.replicas[step.replica].inbox
        for number in step.numbers:
            del inbox[step.stream, number]

    def drop_outbox(self, step: DropOutbox) -> None:
        disk = self._disk.replicas[step.replica]
        headers = [disk.outbox.pop((step.stream, number))[0] for number in step.numbers]
        disk.damaged.difference_update((step.stream, number) for number in step.numbers)
        if is_fork(step.replica):
            return
        if self._world.topology.is_sink(step.stream.consumer):
            counts = self._world.programs.counts
            due = max((h.number for h in headers if counts(step.stream, h.generation)), default=0)
            self._world.sink.done_with(lane_of(step.stream), due)
        elif self._world.check_every:
            self._world.check_dropped(self._process, step)
        ingress, protocol = self._process.hosting.ingress, self._process.protocol
        if step.replica.shard == INGRESS and ingress is not None and protocol is not None:
            ingress.trim({box.stream: box.base for box in protocol.outboxes.of(step.replica)})

    def next_ticket(self, query: Query) -> int:
        ticket = self._world.next_serial()
        self._asked[ticket] = query
        return ticket

    def answer_gate(self, step: AnswerGate) -> None:
        query = self._asked.pop(step.ticket, None)
        if query is not None and query.ticket == step.ticket:
            query.answer(step.offset, step.cut)

    def refuse_gate(self, step: RefuseGate) -> None:
        if self._asked.pop(step.ticket, None) is not None:
            broken(f"{self._process.name} refuses a question of its own query: {step.reason}")

    # --- sinks ----------------------------------------------------------------------------------------

    def deliver(self, step: Deliver) -> None:
        stream = step.header.stream
        if stream in self._deliveries:
            broken(f"{self._process.name}: two deliveries of {stream} at once", stream)
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
        if self._damaged(step.replica, step.header):
            self._process.drain()
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

    # --- what the parts of a node do ----------------------------------------------------------------------

    def poll_sources(self, step: PollSources) -> None:
        self._ingress().poll(step)

    def persist_entry(self, step: PersistEntry) -> None:
        self._ingress().persist(step)

    def commit_entry(self, step: CommitEntry) -> None:
        self._ingress().commit(step)

    def propose_in_sync(self, step: ProposeInSync) -> None:
        self._process.client.propose(step, self._ingress().replica)

    def _ingress(self) -> Ingress:
        ingress = self._process.hosting.ingress
        if ingress is None:
            broken(f"{self._process.name} is no ingress and is told to act as one")
        return ingress

    def note_owed(self, step: NoteOwed) -> None:
        self._process.notes.submit(partial(self._note_owed, step))

    def _note_owed(self, step: NoteOwed) -> None:
        try:
            if self._process.dirs.note_owed(step):
                self._process.post(OwedNoted(step.replica, step.stream, step.owed))
        except OSError as error:
            self._process.post(ReplicaStopped(step.replica, f"a note on {step.stream} cannot be kept: {error}"))

    def start_replica(self, step: StartReplica) -> None:
        self._process.hosting.start(step.replica)

    def stop_replica(self, step: StopReplica) -> None:
        self._process.hosting.stop(step)

    def drop_replica(self, step: DropReplica) -> None:
        self._process.hosting.drop(step.replica)

    def fetch_state(self, step: FetchState) -> None:
        self._process.transfers.fetch(step)

    def abandon_fetch(self, step: AbandonFetch) -> None:
        self._process.transfers.abandon(step.replica)

    def pin_state(self, step: PinState) -> None:
        self._process.transfers.pin(step)

    def refuse_pin(self, step: RefusePin) -> None:
        self._process.transfers.refuse(step)

    def report_caught_up(self, step: ReportCaughtUp) -> None:
        self._process.hosting.caught_up(step)

    def report_switched(self, step: ReportSwitched) -> None:
        self._process.hosting.switched(step)

    def give_up(self, step: GiveUp) -> None:
        self._process.hosting.give_up(step)

    def suspect(self, step: Suspect) -> None:
        self._process.hosting.suspect(step)

    def trust(self, step: Trust) -> None:
        self._process.hosting.trust(step)

    def end_node(self, step: EndNode) -> None:
        if not self._world.counts["fault damaged-unit"]:
            broken(f"{self._process.name} ends: {text_of(step.notice)}")
        self._process.fail()

    def report(self, step: Report) -> None:
        self._world.tell(self._process.name, step.notice)

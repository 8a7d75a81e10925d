"""A node's part in the protocol: one object, events in, instructions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unbroken.protocol.delivery import HedgedDelivery
from unbroken.protocol.divergence import DigestBook, Divergence
from unbroken.protocol.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.inbox import Arrival
from unbroken.protocol.ingress import Append, AppendAck, IngressLog, InSync
from unbroken.protocol.layout import INGRESS, Layout, Topology
from unbroken.protocol.messages import (
    Ack,
    Deliver,
    Delivered,
    DigestNote,
    DropInbox,
    DropOutbox,
    Event,
    GateAsked,
    Instruction,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    LinkUp,
    Produced,
    Progress,
    PushArrived,
    Received,
    ReplicaStopped,
    Report,
    Send,
    SendUnit,
    SinkDelivered,
    SourcesPolled,
    StopReplica,
    StoreUnit,
    Subscribe,
    SubscriberGone,
    Tick,
    UnitArrived,
)
from unbroken.protocol.outbox import Outbox
from unbroken.protocol.pulse import AdaptivePulse
from unbroken.protocol.replica import SegmentReplica
from unbroken.protocol.sources import SourceSide
from unbroken.protocol.units import UnitHeader


@dataclass(frozen=True)
class ProtocolSettings:
    """What can be tuned in the protocol; the user's settings are translated into these."""

    pulse_min_ms: float = 250
    pulse_max_ms: float = 10_000
    pulse_start_ms: float = 500
    in_flight_slack: int = 0
    hedge_ms: float = 100
    client_retain: int = 2_000
    grace_ms: float = 200


SINK_BACKLOG = 64
"""Units that may wait for a sink before the replica counts as behind and the pulse is held: a sink that is away
for a moment costs nothing, one that is down for long must not fill the disk."""


@dataclass
class NodeProtocol:
    """Everything one node decides.

    ``handle`` is the only entry. It never blocks and has no effect outside the object; the shell around it
    carries out the instructions in order.

    Invariants: those of the parts (``check`` asserts all of them), and
    - a unit is sent, delivered or released to Spark only after the instruction that stores it;
    - a replica that diverged produces, sends and delivers nothing more; one that stopped for another reason
      produces nothing more, but what it had produced is as good as its siblings' and is still handed on.
    """

    me: NodeId
    topology: Topology
    layout: Layout
    sync: InSync
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    links: set[NodeId] = field(default_factory=set)
    outboxes: dict[StreamId, Outbox] = field(default_factory=dict)
    replicas: dict[ReplicaId, SegmentReplica] = field(default_factory=dict)
    deliveries: dict[StreamId, HedgedDelivery] = field(default_factory=dict)
    books: dict[ShardId, DigestBook] = field(default_factory=dict)
    progress: dict[ReplicaId, int] = field(default_factory=dict)
    routes: dict[tuple[StreamId, str], NodeId] = field(default_factory=dict)
    divergences: list[Divergence] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    sources: SourceSide | None = None

    def __post_init__(self) -> None:
        for replica in self.layout.hosted(self.me):
            self._host(replica)
        self._handlers: dict[type[Any], Callable[[Any, float], list[Instruction]]] = {
            Received: self._received,
            LinkUp: self._link_up,
            LinkLost: self._link_lost,
            SubscriberGone: self._subscriber_gone,
            UnitArrived: self._unit_arrived,
            GateAsked: self._gate_asked,
            Produced: self._produced,
            SinkDelivered: self._sink_delivered,
            SourcesPolled: self._sources_polled,
            PushArrived: self._push_arrived,
            InSyncChanged: self._in_sync_changed,
            LayoutChanged: self._layout_changed,
            ReplicaStopped: self._replica_stopped,
            Tick: self._tick,
        }

    def handle(self, event: Event, now_ms: float) -> list[Instruction]:
        """Take one event and say what to do."""
        return [*self._handlers[type(event)](event, now_ms), *self._tick(Tick(), now_ms)]

    def next_wake_ms(self) -> float | None:
        """When a ``Tick`` is worth handling even if nothing happens."""
        times: list[float] = [] if self.sources is None else self.sources.wake_times_ms()
        times += [t for d in self.deliveries.values() if (t := d.next_due_ms()) is not None]
        times += [t for r in self.replicas.values() if (t := r.next_deadline_ms()) is not None]
        return min(times, default=None)

    def in_flight(self) -> int:
        """Pulses cut but not yet processed by the fastest counted replica of every shard."""
        newest = 0 if self.sources is None else self.sources.log.last_pulse
        slowest = newest
        for part in self.topology.segments:
            for shard in self.topology.shards(part):
                done = [self.progress.get(replica, 0) for replica in self.layout.counted(shard)]
                slowest = min(slowest, max(done, default=0))
        return newest - slowest

    def check(self) -> None:
        self.layout.check()
        for outbox in self.outboxes.values():
            outbox.check()
        for replica in self.replicas.values():
            replica.check()
        for delivery in self.deliveries.values():
            delivery.check()
        for book in self.books.values():
            book.check()
        if self.sources is not None:
            self.sources.check()

    # --- set-up ---------------------------------------------------------------------------------------

    def _host(self, replica: ReplicaId) -> None:
        if replica.shard == INGRESS:
            self.sources = self._open_sources()
            self.books[INGRESS] = DigestBook()
            shards = [ShardId(source, 0) for source in self.topology.sources]
        else:
            self.replicas[replica] = SegmentReplica(replica, tuple(self.topology.inputs(replica.shard)))
            self.books[replica.shard] = DigestBook()
            shards = [replica.shard]
        for shard in shards:
            for stream in self.topology.outputs(shard):
                self._open_outbox(stream, replica)

    def _open_sources(self) -> SourceSide:
        tuned = self.settings
        bound = len(self.topology.segments) + tuned.in_flight_slack
        pulse = AdaptivePulse(tuned.pulse_min_ms, tuned.pulse_max_ms, bound, tuned.pulse_start_ms)
        return SourceSide(self.me, IngressLog(self.me, self.sync), pulse, tuned.grace_ms)

    def _open_outbox(self, stream: StreamId, replica: ReplicaId) -> None:
        sink = stream.consumer.part
        if sink in self.topology.client_sinks:
            self.outboxes[stream] = Outbox(stream, frozenset(), retain=self.settings.client_retain)
        elif sink in self.topology.sinks:
            self.outboxes[stream] = Outbox(stream, frozenset({ReplicaId(stream.consumer, replica.index)}))
            self.deliveries[stream] = HedgedDelivery(replica.index, self.settings.hedge_ms)
        else:
            self.outboxes[stream] = Outbox(stream, self.layout.counted(stream.consumer))

    # --- links ----------------------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, _now_ms: float) -> list[Instruction]:
        self.links.add(event.node)
        out: list[Instruction] = []
        for replica in self.replicas.values():
            for stream, inbox in replica.inboxes.items():
                if event.node in self._producer_nodes(stream):
                    out.append(Send(event.node, Subscribe(stream, str(replica.replica), inbox.available)))
                    if replica.committed:
                        out.append(Send(event.node, Ack(stream, str(replica.replica), replica.committed)))
            out.append(Send(event.node, Progress(replica.replica, self.progress.get(replica.replica, 0))))
        for stream, delivery in self.deliveries.items():
            if delivery.delivered and event.node in self._producer_nodes(stream):
                out.append(Send(event.node, Delivered(stream, delivery.delivered)))
        out += self._repeat_digests(event.node)
        if self.sources is not None:
            out += self.sources.connected(event.node)
        return out

    def _link_lost(self, event: LinkLost, now_ms: float) -> list[Instruction]:
        self.links.discard(event.node)
        if self.sources is not None:
            self.sources.link_lost(event.node, now_ms)
        return []

    def _repeat_digests(self, node: NodeId) -> list[Instruction]:
        """Notes may have been lost with an earlier link, and a divergence must not be passed over."""
        return [
            Send(node, DigestNote(replica, *note))
            for replica in self.layout.hosted(self.me)
            if node != self.me and node in self.layout.nodes_of(replica.shard)
            for note in self.books[replica.shard].reported_by(replica)
        ]

    def _subscriber_gone(self, event: SubscriberGone, _now_ms: float) -> list[Instruction]:
        gone = [key for key, node in self.routes.items() if node == event.node]
        for stream, subscriber in gone:
            del self.routes[stream, subscriber]
            self.outboxes[stream].unsubscribe(subscriber)
        return []

    def _producer_nodes(self, stream: StreamId) -> set[NodeId]:
        """Where a stream comes from. The in-sync set has the last word on who cuts the sources, so a member that
        only the layout has given up is still listened to."""
        shard = self.topology.host_shard(stream.producer)
        return set(self.layout.nodes_of(shard)) | (self.sync.members if shard == INGRESS else set())

    # --- messages -------------------------------------------------------------------------------------

    def _received(self, event: Received, now_ms: float) -> list[Instruction]:
        message = event.message
        match message:
            case Subscribe():
                return self._subscribe(event.sender, message)
            case Ack():
                return self._ack(message)
            case DigestNote():
                return self._compare(message)
            case Delivered():
                return self._mark_delivered(message.stream, message.through)
            case Progress():
                self.progress[message.replica] = max(self.progress.get(message.replica, 0), message.pulse)
                return []
            case Append() | AppendAck():
                return [] if self.sources is None else self.sources.received(event.sender, message)

    def _subscribe(self, sender: NodeId, message: Subscribe) -> list[Instruction]:
        outbox = self.outboxes.get(message.stream)
        if outbox is None:
            return [Report(f"{sender} asked for {message.stream}, which is not produced on {self.me}")]
        self.routes[message.stream, message.subscriber] = sender
        complete = outbox.subscribe(message.subscriber, message.after)
        sends = self._sends(outbox)
        if complete:
            return sends
        wanted = f"{message.subscriber} asked for {message.stream} after unit {message.after}"
        return [Report(f"{wanted}, but units up to {outbox.base} are dropped"), *sends]

    def _ack(self, message: Ack) -> list[Instruction]:
        outbox = self.outboxes.get(message.stream)
        if outbox is None:
            return []
        outbox.ack(message.subscriber, message.through)
        return [*self._trim(outbox), *self._sends(outbox)]

    def _sends(self, outbox: Outbox) -> list[Instruction]:
        return [
            SendUnit(self.routes[outbox.stream, subscriber], outbox.headers[number])
            for subscriber, number in outbox.sends()
        ]

    @staticmethod
    def _trim(outbox: Outbox) -> list[Instruction]:
        dropped = outbox.trim()
        return [DropOutbox(outbox.stream, tuple(dropped))] if dropped else []

    # --- data path ------------------------------------------------------------------------------------

    def _unit_arrived(self, event: UnitArrived, now_ms: float) -> list[Instruction]:
        header = event.header
        replica = next((r for r in self.replicas.values() if header.stream in r.inboxes), None)
        if replica is None or replica.stopped is not None:
            return []
        arrival = replica.arrive(header)
        self.counters[f"units_{arrival.value}"] += 1
        if arrival is Arrival.ACCEPTED:
            return [StoreUnit(header), *replica.answers(now_ms)]
        if arrival is Arrival.DIVERGENT:
            return [Report(f"unit {header.number} of {header.stream} from {event.sender} differs from the copy kept")]
        return []

    def _gate_asked(self, event: GateAsked, now_ms: float) -> list[Instruction]:
        replica = self.replicas[event.replica]
        out: list[Instruction] = []
        if event.start > replica.committed:
            drops: list[DropInbox] = replica.commit(event.start)
            out += drops
            for stream in replica.inputs:
                ack = Ack(stream, str(replica.replica), replica.committed)
                out += [Send(node, ack) for node in sorted(self._producer_nodes(stream))]
        replica.ask(event)
        return [*out, *replica.answers(now_ms)]

    def _produced(self, event: Produced, now_ms: float) -> list[Instruction]:
        replica = self.replicas.get(event.replica)
        if replica is not None:
            if replica.stopped is not None:
                return []
            replica.produced = max(replica.produced, event.number)
        out: list[Instruction] = []
        for header in event.headers:
            outbox = self.outboxes[header.stream]
            if not outbox.add(header):
                continue
            delivery = self.deliveries.get(header.stream)
            if delivery is not None:
                delivery.unit_ready(header.number, now_ms)
            out += self._sends(outbox)
            out += self._trim(outbox)
            out += self._share_digest(event.replica, header)
        if replica is not None:
            out += self._report_progress(replica)
        return out

    def _share_digest(self, replica: ReplicaId, header: UnitHeader) -> list[Instruction]:
        note = DigestNote(replica, header.stream, header.number, header.digest)
        siblings = [node for node in self.layout.nodes_of(replica.shard) if node != self.me]
        return [*(Send(node, note) for node in siblings), *self._compare(note)]

    def _report_progress(self, replica: SegmentReplica) -> list[Instruction]:
        """Tell the ingress how far a replica is; one whose sink does not take its units is not far."""
        pulse = replica.produced
        for stream in self.topology.outputs(replica.replica.shard):
            if stream in self.deliveries:
                pulse = min(pulse, self.deliveries[stream].delivered + SINK_BACKLOG)
        if pulse <= self.progress.get(replica.replica, 0):
            return []
        self.progress[replica.replica] = pulse
        message = Progress(replica.replica, pulse)
        return [Send(node, message) for node in sorted(self.sync.members) if node != self.me]

    # --- sinks ----------------------------------------------------------------------------------------

    def _sink_delivered(self, event: SinkDelivered, now_ms: float) -> list[Instruction]:
        delivery = self.deliveries.get(event.stream)
        if delivery is not None:
            delivery.finish(event.number)
        out = self._mark_delivered(event.stream, event.number)
        note = Delivered(event.stream, event.number)
        siblings = sorted(self._producer_nodes(event.stream) - {self.me})
        return [*out, *(Send(node, note) for node in siblings)]

    def _mark_delivered(self, stream: StreamId, through: int) -> list[Instruction]:
        delivery, outbox = self.deliveries.get(stream), self.outboxes.get(stream)
        if delivery is None or outbox is None:
            return []
        delivery.mark_delivered(through)
        for consumer in outbox.counted:
            outbox.ack(str(consumer), delivery.done_with)
        out = self._trim(outbox)
        for replica in self.replicas.values():
            if replica.replica.shard == stream.producer:
                out += self._report_progress(replica)
        return out

    # --- divergence -----------------------------------------------------------------------------------

    def _compare(self, note: DigestNote) -> list[Instruction]:
        book = self.books.get(note.replica.shard)
        found = None if book is None else book.note(note.replica, note.stream, note.number, note.digest)
        if found is None:
            return []
        self.divergences.append(found)
        out: list[Instruction] = [Report(str(found))]
        if found.stopped in self.replicas:
            self._silence(found.stopped, str(found))
            out.append(StopReplica(found.stopped, str(found)))
        return out

    def _replica_stopped(self, event: ReplicaStopped, _now_ms: float) -> list[Instruction]:
        state = self.replicas.get(event.replica)
        if state is None or state.stopped is not None:
            return []
        state.stopped = event.reason
        return [Report(f"{event.replica} stopped on {self.me}: {event.reason}")]

    def _silence(self, replica: ReplicaId, reason: str) -> None:
        """Nothing of a divergent replica goes out any more; what it has sent is judged by the others' digests."""
        state = self.replicas[replica]
        state.stopped = state.stopped or reason
        for stream in self.topology.outputs(replica.shard):
            self.deliveries.pop(stream, None)
            self.outboxes[stream].muted = True

    # --- ingress --------------------------------------------------------------------------------------

    def _sources_polled(self, event: SourcesPolled, _now_ms: float) -> list[Instruction]:
        return [] if self.sources is None else self.sources.polled(event)

    def _push_arrived(self, event: PushArrived, _now_ms: float) -> list[Instruction]:
        return [] if self.sources is None else self.sources.pushed(event)

    def _in_sync_changed(self, event: InSyncChanged, _now_ms: float) -> list[Instruction]:
        if event.sync.version > self.sync.version:
            self.sync = event.sync
        return [] if self.sources is None else self.sources.in_sync(event.sync)

    # --- layout and time ------------------------------------------------------------------------------

    def _layout_changed(self, event: LayoutChanged, _now_ms: float) -> list[Instruction]:
        if event.layout.version <= self.layout.version:
            return []
        self.layout = event.layout
        out: list[Instruction] = []
        for stream, outbox in self.outboxes.items():
            if stream.consumer.part in self.topology.segments:
                outbox.count(self.layout.counted(stream.consumer))
                out += self._trim(outbox)
        return [*out, *self._forget_lost()]

    def _forget_lost(self) -> list[Instruction]:
        """Nobody waits for what the layout has given up: no delivery hedges for it, no entry waits for its disk."""
        for stream, delivery in self.deliveries.items():
            counted = sorted(self.layout.counted(stream.producer))
            mine = next((r for r in counted if self.layout.placement[r] == self.me), None)
            if mine is not None:
                delivery.rank = counted.index(mine)
        out: list[Instruction] = []
        if self.sources is not None:
            # A member that died before any link to it stood is known to be lost by the layout alone.
            for node in sorted(self.sync.members - set(self.layout.nodes_of(INGRESS)) - {self.me}):
                out += self.sources.given_up(node)
        return out

    def _tick(self, _event: Tick, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for replica in self.replicas.values():
            out += replica.answers(now_ms)
        for stream, delivery in self.deliveries.items():
            number = delivery.next_delivery(now_ms)
            if number is not None:
                out.append(Deliver(self.outboxes[stream].headers[number]))
        if self.sources is not None:
            out += self.sources.tick(now_ms, self.in_flight())
        return out

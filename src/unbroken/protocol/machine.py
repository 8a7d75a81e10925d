"""A node's part in the protocol: one object, events in, instructions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unbroken.protocol.calm import Calm
from unbroken.protocol.events import (
    EntriesPersisted,
    Event,
    FetchFailed,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    LinkUp,
    OutboxDamaged,
    PinAsked,
    Produced,
    PushArrived,
    QueryFailed,
    Received,
    ReplicaStopped,
    SinkDelivered,
    SinkFailed,
    SinkRefused,
    SnapshotTaken,
    SourcesPolled,
    Started,
    StateArrived,
    SubscriberGone,
    Tick,
    UnitArrived,
    UnitDamaged,
)
from unbroken.protocol.ingress.backpressure import Pace
from unbroken.protocol.ingress.log import Append, AppendAck, Held, InSync, JoinLog, JoinRefused, Recall
from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.instructions import (
    AnswerGate,
    DropInbox,
    Instruction,
    Report,
    Send,
    StartReplica,
    StoreUnit,
)
from unbroken.protocol.leader.leadership import Leading
from unbroken.protocol.leader.orders import LeaderKnown, Ordered, OrderRefused, OrdersLost
from unbroken.protocol.messages import (
    Ack,
    AskUnit,
    Claim,
    Claimed,
    Delivered,
    DigestNote,
    Health,
    LacksUnit,
    Missing,
    Offer,
    Ping,
    Pong,
    Progress,
    Record,
    Serving,
    Subscribe,
    Unsubscribe,
)
from unbroken.protocol.output.digest_exchange import Comparison
from unbroken.protocol.output.generation_switch import Handover
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import SinkSide
from unbroken.protocol.placement.ring import Ring
from unbroken.protocol.repair.active_standby import Standby
from unbroken.protocol.repair.damaged_units import Repairs
from unbroken.protocol.repair.newcomers import Joining
from unbroken.protocol.repair.passive_standby import Holding
from unbroken.protocol.repair.upstream_backup import UpstreamBackup
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.replica.inbox import Arrival
from unbroken.protocol.replica.recovery import ReplicaState
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.reports import Standing
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.replica.tuple_records import Records
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.tentative.forks import Forking
from unbroken.protocol.validation import Validation
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, generation_of
from unbroken.protocol.values.layout import INGRESS, Layout, Topology

NEVER_MS = float("inf")

COUNTERS = {arrival: f"units_{arrival.value}" for arrival in Arrival}


@dataclass
class NodeProtocol:
    """Everything one node decides.

    ``handle`` is the only entry. It never blocks and has no effect outside the object; the shell around it
    carries out the instructions in order. ``recovered`` holds what the node's disk has of the replicas that the
    layout places here; one that begins with nothing has the empty state.

    Invariants: those of the parts (``check`` asserts all of them), and
    - a unit is sent, delivered or released to Spark only after the instruction that stores it;
    - a replica that the layout does not place here is not hosted here;
    - nothing that comes over the network touches any part before ``validation`` has let it pass.
    """

    me: NodeId
    topology: Topology
    layout: Layout
    sync: InSync
    recovered: Mapping[ReplicaId, ReplicaState]
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    disk: str = ""
    links: set[NodeId] = field(default_factory=set)
    serving: set[ReplicaId] = field(default_factory=set)
    replicas: dict[ReplicaId, SegmentReplica] = field(default_factory=dict)
    progress: dict[ReplicaId, int] = field(default_factory=dict)
    ahead: dict[ReplicaId, int] = field(default_factory=dict)
    moved: dict[ReplicaId, float] = field(default_factory=dict)
    seen_ms: float = 0.0
    snapshots: dict[ShardId, int] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    traffic: Counter[str] = field(default_factory=Counter)
    sources: SourceSide | None = None
    ingress: ReplicaId | None = None
    lives: int = 0

    def __post_init__(self) -> None:
        tuned = self.settings
        limits = (tuned.client_retain, tuned.claim_units, tuned.claim_bytes)
        self.outboxes = Outboxes(self.topology, *limits, snapshots=tuned.snapshots)
        self.handover = Handover(self.topology, self.outboxes)
        self.sinks = SinkSide(self.me, self.outboxes, self.handover, tuned.hedge_ms)
        self.comparison = Comparison(self.me)
        self.subscriptions = Subscriptions(self)
        self.hosting = Hosting(self)
        self.standing = Standing(self)
        self.joining = Joining(self)
        self.holding = Holding(self)
        self.standby = Standby(self)
        self.upstream = UpstreamBackup(self)
        self.records = Records(self)
        self.leading = Leading(self)
        self.forking = Forking(self)
        self.repairs = Repairs(self)
        self.pace = Pace(self)
        self.calm = Calm(self)
        self.validation = Validation(self)
        self._wake_ms: float | None = None
        self.ring = Ring(self.me, tuned.ring_period_ms, tuned.ring_misses)
        self.ring.placed(self.layout)
        self._handlers: dict[type[Any], Callable[[Any, float], list[Instruction]]] = {
            Started: lambda _event, now_ms: self.hosting.start(now_ms),
            Received: self._received,
            LinkUp: self._link_up,
            LinkLost: self._link_lost,
            SubscriberGone: self._subscriber_gone,
            UnitArrived: self._unit_arrived,
            UnitDamaged: self._unit_damaged,
            OutboxDamaged: self.repairs.damaged,
            GateAsked: self._gate_asked,
            Produced: self._produced,
            SinkDelivered: self._sink_delivered,
            SinkFailed: self._sink_failed,
            SinkRefused: self._sink_refused,
            SourcesPolled: self._sources_polled,
            PushArrived: self._push_arrived,
            EntriesPersisted: self._entries_persisted,
            InSyncChanged: self._in_sync_changed,
            LayoutChanged: self._layout_changed,
            ReplicaStopped: self.hosting.stopped,
            QueryFailed: self.hosting.query_failed,
            PinAsked: self.joining.pin_asked,
            StateArrived: self._state_arrived,
            FetchFailed: self._fetch_failed,
            SnapshotTaken: self.standing.snapshot_taken,
            Ordered: self.leading.ordered,
            LeaderKnown: self.leading.leader_known,
            OrderRefused: self.leading.refused,
            OrdersLost: self.leading.lost,
            Tick: lambda _event, _now_ms: [],
        }

    def handle(self, event: Event, now_ms: float) -> list[Instruction]:
        """Take one event and say what to do. What came over the network and makes no sense is refused; then nothing has
        changed but that it is counted."""
        self.seen_ms = now_ms
        refused = self.validation.refusal(event)
        if refused is None:
            steps = self._handlers[type(event)](event, now_ms)
        else:
            steps = self.validation.refuse(event, refused)
        wake_ms = self._wake_ms
        if wake_ms is not None and now_ms < wake_ms:
            if refused is not None:
                return steps
            if self.calm.after(event, steps):
                if (
                    isinstance(event, GateAsked)
                    and event.deadline_ms < wake_ms
                    and self.replicas[event.replica].waiting
                ):
                    self._wake_ms = event.deadline_ms
                return steps
        self._wake_ms = None
        return [*steps, *self._tick(now_ms)]

    def next_wake_ms(self) -> float | None:
        """When a ``Tick`` is worth handling even if nothing happens; that may turn out to have been too early."""
        if self._wake_ms is None:
            self._wake_ms = min(self._wake_times_ms(), default=NEVER_MS)
        return None if self._wake_ms == NEVER_MS else self._wake_ms

    def _wake_times_ms(self) -> list[float]:
        times: list[float] = [] if self.sources is None else self.sources.wake_times_ms()
        times += [*self.pace.wake_times_ms(), *self.sinks.wake_times_ms()]
        for replica in self.replicas.values():
            times += replica.wake_times_ms()
        times += [*self.joining.wake_times_ms(), *self.holding.wake_times_ms()]
        times += self.repairs.wake_times_ms()
        times += [*self.ring.wake_times_ms(), *self.leading.wake_times_ms(), *self.forking.wake_times_ms()]
        return times

    def hosted(self) -> list[ReplicaId]:
        """The replicas at work here."""
        return sorted([*self.replicas, *([] if self.ingress is None else [self.ingress])])

    def check(self) -> None:
        self.layout.check()
        self.outboxes.check()
        self.sinks.check()
        self.comparison.check()
        self.joining.check()
        self.holding.check()
        self.standby.check()
        self.upstream.check()
        self.ring.check()
        self.leading.check()
        self.forking.check()
        self.repairs.check()
        for replica in self.replicas.values():
            replica.check()
        if self.sources is not None:
            self.sources.check()

    # --- links ----------------------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now_ms: float) -> list[Instruction]:
        self.links.add(event.node)
        self.ring.link_up(event.node)
        out = self.standing.greet(event.node)
        if event.node != self.me:
            out += [Send(event.node, Serving(replica)) for replica in self.hosted()]
        if self.sources is not None:
            out += self.sources.connected(event.node)
        return [*out, *self.joining.link_up(event.node), *self.holding.link_up(event.node)]

    def _link_lost(self, event: LinkLost, now_ms: float) -> list[Instruction]:
        self.links.discard(event.node)
        self.serving -= {r for r in self.serving if self.layout.placement.get(r) == event.node}
        if self.sources is not None:
            self.sources.link_lost(event.node, now_ms)
        self.forking.link_lost(event.node)
        return [*self.ring.link_lost(event.node), *self.subscriptions.update_all()]

    def _subscriber_gone(self, event: SubscriberGone, _now_ms: float) -> list[Instruction]:
        self.outboxes.subscriber_gone(event.node)
        self.forking.showing.gone(event.node)
        return []

    # --- messages -------------------------------------------------------------------------------------

    def _received(self, event: Received, now_ms: float) -> list[Instruction]:
        message = event.message
        match message:
            case Subscribe():
                out = self.outboxes.subscribe(event.sender, message)
                return [*out, *self.forking.subscribed(event.sender, message)]
            case Unsubscribe():
                self.outboxes.unsubscribe(message)
                self.forking.showing.unsubscribe(message.stream, message.subscriber)
                return []
            case Missing():
                return self.subscriptions.missing(event.sender, message)
            case AskUnit():
                return self.repairs.asked(event.sender, message)
            case LacksUnit():
                self.repairs.lacks(event.sender, message)
                return []
            case Ack():
                return self.outboxes.ack(message)
            case Claim():
                return self.outboxes.claim(event.sender, message, self.layout)
            case Claimed():
                held = self.holding.claimed(event.sender, message)
                return [] if held else self.joining.claimed(event.sender, message)
            case Offer():
                self.holding.offered(message)
                return []
            case Record():
                self.records.received(message)
                return []
            case Serving():
                return self._sees_serving(event.sender, message.replica)
            case DigestNote():
                # Code that was given up while it came may have begun with another state than what is in its place.
                first = generation_of(message.replica.shard.part) == 1
                return self.hosting.compare(message) if first or self._may_count(message.replica) else []
            case Delivered():
                return self.standing.mark_delivered(message.stream, message.through, message.stopped)
            case Progress():
                return self._hears_progress(event.sender, message, now_ms)
            case Health():
                self.forking.heard(message)
                return []
            case Ping():
                return [Send(event.sender, Pong(message.number))]
            case Pong():
                return self.ring.answered(event.sender, message.number)
            case Append() | AppendAck() | JoinLog() | JoinRefused() | Recall() | Held():
                return [] if self.sources is None else self.sources.received(event.sender, message)

    def _hears_progress(self, sender: NodeId, message: Progress, now_ms: float) -> list[Instruction]:
        """How far a replica is. Whoever cuts the sources hears it from another member of the ingress as well: it may be
        out of reach of the replica, and must not wait for it for ever."""
        replica, host = message.replica, self.layout.placement.get(message.replica)
        if message.pulse > self.progress.get(replica, 0):
            self.progress[replica] = message.pulse
            self.moved[replica] = now_ms
        if sender == host or host not in self.links:
            self.goes_ahead(replica, message.ahead)  # this one may go back, and what comes first hand is newer
        passes_on = sender == host and self.sources is not None and self.sync.leader not in (self.me, sender)
        return [Send(self.sync.leader, message)] if passes_on else []

    def goes_ahead(self, replica: ReplicaId, pulse: int) -> None:
        """The pulse up to which a replica has what it can have of its input; 0 if it lacks nothing."""
        if pulse:
            self.ahead[replica] = pulse
        else:
            self.ahead.pop(replica, None)

    def _sees_serving(self, sender: NodeId, replica: ReplicaId) -> list[Instruction]:
        self.serving.add(replica)
        return [*self.standing.greet(sender), *self.joining.link_up(sender), *self.holding.link_up(sender)]

    # --- data path ------------------------------------------------------------------------------------

    def _unit_arrived(self, event: UnitArrived, now_ms: float) -> list[Instruction]:
        header = event.header
        if not header.stable:
            return self.forking.arrived(event, now_ms)
        if not self.repairs.under_way:
            return self._keep_unit(event, now_ms)
        repaired = self.repairs.arrived(event)
        box = self.outboxes.boxes.get(header.stream)
        if event.sender == self.me and box is not None and header.number in box.damaged:
            return repaired  # it was on its way when it was found to be damaged
        return [*repaired, *self._keep_unit(event, now_ms)]

    def _keep_unit(self, event: UnitArrived, now_ms: float) -> list[Instruction]:
        header = event.header
        replica = next((r for r in self.replicas.values() if header.stream in r.inboxes), None)
        if replica is None or replica.stopped is not None or not replica.feeds[header.stream].takes(event.sender):
            return []
        arrival = replica.arrive(header)
        self.counters[COUNTERS[arrival]] += 1
        primary = replica.replica == self.layout.eldest(replica.replica.shard)
        self.traffic["data" if primary and arrival is Arrival.ACCEPTED else "redundancy"] += event.size
        if arrival is Arrival.ACCEPTED:
            self.leading.came(replica, header.stream, now_ms)
            out: list[Instruction] = [StoreUnit(replica.replica, header)]
            out += self.forking.came(replica, header.stream, header.pulse, now_ms)
            return [*out, *replica.answers(now_ms)]
        if arrival is Arrival.DIVERGENT:
            return [Report(f"unit {header.number} of {header.stream} from {event.sender} differs from the copy kept")]
        return []

    def _unit_damaged(self, event: UnitDamaged, now_ms: float) -> list[Instruction]:
        """Get a unit once more: its producers keep it until it is part of the replica's state."""
        replica = self.replicas.get(event.replica)
        if replica is None or event.stream not in replica.inboxes:
            return self.hosting.stopped(ReplicaStopped(event.replica, event.reason), now_ms)
        if not replica.inboxes[event.stream].lose(event.number):
            return []
        unit = f"unit {event.number} of {event.stream}"
        sentence = f"{event.replica} refetches {unit} from its producers: {event.reason}"
        out: list[Instruction] = [Report(sentence), DropInbox(event.replica, event.stream, (event.number,))]
        return [*out, *self.subscriptions.refetch(replica, event.stream)]

    def _gate_asked(self, event: GateAsked, now_ms: float) -> list[Instruction]:
        replica = self.replicas.get(event.replica) or self.forking.find(event.replica)
        if replica is None:
            # Not hosted any more; its query is being ended and must not wait for that.
            return [AnswerGate(event.ticket, event.start)]
        out: list[Instruction] = []
        if event.start > replica.committed and event.replica not in self.replicas:
            out += replica.commit(event.start, event.cut)
        elif event.start > replica.committed:
            out += self.forking.reconciling.commit(replica, event)
            out += [*self.standing.committed(replica), *self.holding.committed(replica)]
            out += self.records.committed(replica)
        replica.ask(event)
        return [*out, *replica.answers(now_ms)]

    def _produced(self, event: Produced, now_ms: float) -> list[Instruction]:
        replica = self.replicas.get(event.replica)
        if replica is None and event.replica != self.ingress:
            return self.forking.produced(event, now_ms)
        if replica is not None:
            if replica.stopped is not None:
                return []
            self.forking.reconciling.processed(event)
            if event.replica in self.upstream.causes:
                self.upstream.produced(event, self._time_of(event) if replica.alone(event.number) else None)
            replica.produced = max(replica.produced, event.number)
            replica.pulse = max([replica.pulse, *(header.pulse for header in event.headers)])
            if any(header.final for header in event.headers):
                replica.final = event.number
        out: list[Instruction] = []
        for header in event.headers:
            added, steps = self.outboxes.produced(event.replica, header, self.layout)
            out += steps
            if added:
                self.sinks.ready(header.stream, header.number, now_ms)
            elif not self.outboxes.wanted(header):
                added = self.handover.passed_over(header)
                if self.sinks.passed_over(header.stream, header.number):
                    out += self.standing.delivered(header.stream)
            if added:
                note, sends = self.comparison.share(event.replica, header, self.layout)
                out += [*sends, *self.hosting.compare(note)]
        if replica is not None:
            out += self.standing.progress(replica)
        return out

    # --- sinks ----------------------------------------------------------------------------------------

    def _sink_delivered(self, event: SinkDelivered, now_ms: float) -> list[Instruction]:
        if event.stream.home != event.stream:
            self.forking.showing.delivered(event.stream)
            return []
        out = self.sinks.finished(event.stream, event.number)
        return [*out, *self.standing.progress_of(event.stream), *self.standing.delivered(event.stream)]

    def _sink_failed(self, event: SinkFailed, now_ms: float) -> list[Instruction]:
        self.counters["units_given_up"] += 1
        unit = f"unit {event.number} of {event.stream}"
        sentence = f"{unit} is given up, as its sink failed with it and may have it: at-most-once ({event.reason})"
        return [Report(sentence), *self._sink_delivered(SinkDelivered(event.stream, event.number), now_ms)]

    def _sink_refused(self, event: SinkRefused, now_ms: float) -> list[Instruction]:
        """The flow continues without a unit; without the sink, if that is to stop."""
        unit = f"unit {event.number} of {event.stream}"
        known = event.stream in self.sinks.stopped
        if event.stops:
            self.sinks.stop(event.stream, event.number)
            sentence = f"sink {event.stream.consumer.part} stops, as it refuses {unit}: {event.reason}"
        else:
            sentence = f"{unit} is set aside, as its sink refuses it; its rows are dead letters: {event.reason}"
        self.counters["units_set_aside"] += not known
        told: list[Instruction] = [] if known else [Report(sentence)]
        return [*told, *self._sink_delivered(SinkDelivered(event.stream, event.number), now_ms)]

    def _give_up(self) -> list[Instruction]:
        """Units that may have been delivered, by whoever had the turn before, are done with."""
        out: list[Instruction] = []
        for stream in list(self.sinks.deliveries) if self.topology.at_most_once else ():
            count, steps = self.sinks.give_up(stream)
            out += steps
            if count:
                self.counters["units_given_up"] += count
                out += [*self.standing.progress_of(stream), *self.standing.delivered(stream)]
        return out

    # --- ingress --------------------------------------------------------------------------------------

    def _sources_polled(self, event: SourcesPolled, _now_ms: float) -> list[Instruction]:
        return [] if self.sources is None else self.sources.polled(event)

    def _push_arrived(self, event: PushArrived, _now_ms: float) -> list[Instruction]:
        return [] if self.sources is None else self.sources.pushed(event)

    def _entries_persisted(self, event: EntriesPersisted, _now_ms: float) -> list[Instruction]:
        return [] if self.sources is None else self.sources.persisted(event)

    def _in_sync_changed(self, event: InSyncChanged, _now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        if event.sync.version > self.sync.version:
            came = event.sync.members - self.sync.members
            self.sync = event.sync
            for node in sorted(came & self.links):
                out += self.standing.tell(node)
            if self.sync.leader in self.links - came:
                out += self.standing.pass_on(self.sync.leader)
            out += self.subscriptions.update_all()
        return [*out, *([] if self.sources is None else self.sources.in_sync(event.sync))]

    # --- state ----------------------------------------------------------------------------------------

    def _state_arrived(self, event: StateArrived, now_ms: float) -> list[Instruction]:
        out = self.holding.arrived(event, now_ms)
        return self.joining.state_arrived(event, now_ms) if out is None else out

    def _fetch_failed(self, event: FetchFailed, now_ms: float) -> list[Instruction]:
        out = self.holding.failed(event, now_ms)
        return self.joining.fetch_failed(event, now_ms) if out is None else out

    def _time_of(self, event: Produced) -> float:
        """By what the state of a segment forgets: its watermark, or the time of the cut."""
        if self.topology.strategy(event.replica.shard.part).timed:
            return event.watermark_ms
        return max((header.cut_ms for header in event.headers), default=0.0)

    # --- layout and time ------------------------------------------------------------------------------

    def _layout_changed(self, event: LayoutChanged, now_ms: float) -> list[Instruction]:
        if event.layout.version <= self.layout.version:
            return []
        before, self.layout = self.layout, event.layout
        out = [] if event.topology is None else self._topology_changed(event.topology)
        self.serving = {replica for replica in self.serving if self._may_count(replica)}
        self.progress = {replica: n for replica, n in self.progress.items() if self._may_count(replica)}
        self.ahead = {replica: n for replica, n in self.ahead.items() if self._may_count(replica)}
        self.moved = {replica: ms for replica, ms in self.moved.items() if self._may_count(replica)}
        self.forking.reconciling.layout_changed(self._may_count)
        out += [*self.joining.layout_changed(now_ms), *self.outboxes.layout_changed(self.layout)]
        out += self.ring.placed(self.layout)
        self.sinks.rank(self.layout)
        self.records.layout_changed()
        self.upstream.layout_changed()
        for replica in self.replicas.values():
            replica.placed_by(self.layout)
        # Who has just been placed may have been greeted before anybody here knew what it is.
        came = {node for replica, node in self.layout.placement.items() if replica not in before.placement}
        for node in sorted(came & self.links):
            out += self.standing.tell(node)
        out += self.subscriptions.update_all()
        return [*out, *(step for replica in self.replicas.values() for step in self.subscriptions.lacking(replica))]

    def _topology_changed(self, topology: Topology) -> list[Instruction]:
        self.topology = topology
        self.handover.topology_changed(topology)
        for stream, delivery in self.sinks.deliveries.items():
            self.handover.delivered(stream, delivery.delivered)
        return self.outboxes.topology_changed(topology)

    def _may_count(self, replica: ReplicaId) -> bool:
        """Whether the layout counts a replica, or a later one may: others can be ahead of this node."""
        return replica in self.layout.placement or replica.index >= self.layout.next_index.get(replica.shard, 0)

    def _tick(self, now_ms: float) -> list[Instruction]:
        """Look at everything that may be due, or possible since something has changed."""
        out: list[Instruction] = []
        for replica in self.replicas.values():
            out += replica.answers(now_ms)
            if replica.restart_due(now_ms):
                out.append(StartReplica(replica.replica))
            out += self.subscriptions.turn(replica, now_ms)
        out += [*self.standby.tick(), *self._give_up(), *self.sinks.tick(now_ms), *self.handover.tick()]
        out += [*self.upstream.acks(), *self.repairs.tick(now_ms)]
        out += [*self.ring.tick(now_ms, self.links), *self.leading.tick(now_ms), *self.forking.tick(now_ms)]
        out += [*self.joining.tick(now_ms), *self.holding.tick(now_ms)]
        if self.sources is not None:
            # Last: a replica that has just begun here may be all that a pulse has waited for.
            out += self.sources.placed(set(self.layout.nodes_of(INGRESS)), self.links)
            out += self.pace.tick(self.sources, now_ms)
        return out

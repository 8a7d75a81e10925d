"""A node's part in the protocol: one object, events in, instructions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from unbroken.protocol.agenda import NEVER_MS, Agenda, Stage
from unbroken.protocol.combinations import require_policies
from unbroken.protocol.events import (
    EntriesPersisted,
    Event,
    FetchFailed,
    GateAsked,
    OwedNoted,
    PinAsked,
    Produced,
    PushArrived,
    QueryFailed,
    Received,
    ReplicaStopped,
    SinkDelivered,
    SnapshotTaken,
    SourcesPolled,
    Started,
    StateArrived,
    Tick,
    UnitArrived,
)
from unbroken.protocol.handling.conversation import Conversation
from unbroken.protocol.handling.data_path import DataPath
from unbroken.protocol.handling.documents import DocumentHandling
from unbroken.protocol.ingress.backpressure import Backpressure
from unbroken.protocol.ingress.log import Append, AppendAck, InSync
from unbroken.protocol.ingress.seat import Advance, Seat
from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.instructions import (
    Instruction,
    StartReplica,
)
from unbroken.protocol.kernel import Kernel
from unbroken.protocol.messages import (
    Ack,
    Delivered,
    DigestNote,
    Ping,
    Pong,
    Progress,
)
from unbroken.protocol.output.digest_exchange import DigestExchange
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.placement.ring import Ring
from unbroken.protocol.policy import EventHandler
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.registry import POLICIES, package
from unbroken.protocol.repair.damaged_units import DamagedUnits
from unbroken.protocol.repair.newcomers import Newcomers
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.validation import Validation
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.recovery import StoredReplica

QUIET = frozenset(
    {
        UnitArrived,
        GateAsked,
        Produced,
        SinkDelivered,
        SourcesPolled,
        PushArrived,
        EntriesPersisted,
        OwedNoted,
        Tick,
    }
)
QUIET_MESSAGES = frozenset({Ack, DigestNote, Ping, Pong, Progress, Delivered, Append, AppendAck})
"""What happens all the time. Parts that it concerns mark themselves; everything else may concern every part."""


class NodeProtocol:
    """Everything one node decides.

    ``handle`` is the only entry. It never blocks and has no effect outside the object; the shell around it
    carries out the instructions in order. ``recovered`` holds what the node's disk has of the replicas that the
    layout places here; one that begins with nothing has the empty state.

    The parts know what they are given and nothing else; none of them knows the machine. What goes beyond active
    replication with pulses is decided by ``policies``, which the machine asks and does not know by name.

    Invariants: those of the parts (``check`` asserts all of them), and
    - nothing that comes over the network touches any part before ``validation`` has let it pass;
    - what is due after an event is done with that event (``Agenda``).
    """

    def __init__(
        self,
        me: NodeId,
        topology: Topology,
        layout: Layout,
        sync: InSync,
        recovered: Mapping[ReplicaId, StoredReplica],
        settings: ProtocolSettings | None = None,
        disk: str = "",
    ) -> None:
        tuned = settings or ProtocolSettings()
        require_policies(topology)
        self.policies = Policies()
        self.around = Surroundings(me, topology, layout, sync, tuned, disk)
        self.agenda = Agenda()
        self.advance = Advance()
        self.roster = Roster(Seat())
        limits = (tuned.client_retain, tuned.claim_units, tuned.claim_bytes)
        self.outboxes = Outboxes(topology, *limits, snapshots=tuned.snapshots, terms=self.policies)
        self.generation_switch = GenerationSwitch(topology, self.outboxes)
        self.sinks = Sinks(me, self.outboxes, self.generation_switch, tuned.hedge_ms, self.policies)
        self.digest_exchange = DigestExchange(me)
        self.subscriptions = Subscriptions(self.around, self.roster, self.policies)
        output = (self.outboxes, self.sinks, self.generation_switch, self.digest_exchange, self.subscriptions)
        self.reports = Reports(self.around, self.roster, self.advance, *output, self.policies)
        self.hosting = Hosting(self.around, self.roster, self.advance, *output, self.reports, self.policies, recovered)
        self.newcomers = Newcomers(
            self.around, self.roster, self.outboxes, self.subscriptions, self.hosting, self.policies
        )
        self.damaged_units = DamagedUnits(self.around, self.outboxes, self.hosting)
        self.backpressure = Backpressure(self.around, self.roster.seat, self.advance, self.outboxes, self.policies)
        self.ring = Ring(me, tuned.ring_period_ms, tuned.ring_misses)
        self.ring.placed(layout)
        self._set_agenda()
        kernel = Kernel(
            self.around,
            self.roster,
            self.advance,
            self.outboxes,
            self.sinks,
            self.generation_switch,
            self.reports,
            self.hosting,
            self.newcomers,
            self.agenda,
            self.policies,
        )
        for name in POLICIES:
            self.policies.add(name, package(name).build(kernel))
        self.validation = Validation(self.around, self.roster, self.outboxes, self.newcomers, self.policies)
        self._handlers = self._event_handlers()

    def _set_agenda(self) -> None:
        add = self.agenda.add
        self._at_work = add(Stage.REPLICAS, self._look_after_replicas, self._replica_times, self._takes_turns)
        self._deliveries = add(Stage.SINKS, self.sinks.tick, self.sinks.wake_times_ms)
        add(Stage.SINKS, self.generation_switch.tick, busy=self.generation_switch.busy)
        under_way = self.damaged_units.under_way
        add(Stage.NODES, self.damaged_units.tick, self.damaged_units.wake_times_ms, lambda: bool(under_way))
        add(Stage.NODES, lambda now_ms: self.ring.tick(now_ms, self.around.links), self.ring.wake_times_ms)
        add(Stage.NEWCOMERS, self.newcomers.tick, self.newcomers.wake_times_ms, self.newcomers.busy)
        self._sources = add(Stage.SOURCES, self._look_after_sources, self._source_times, self._eased)
        self.sinks.on_change(self._deliveries.mark)
        self.generation_switch.on_change(self._deliveries.mark)
        self.outboxes.on_open(self._deliveries.mark)
        self.advance.on_change(self._progressed)
        self.hosting.on_divergence(self.agenda.mark_all)

    def _event_handlers(self) -> dict[type[Any], EventHandler]:
        around, roster, reports, policies = self.around, self.roster, self.reports, self.policies
        output = (self.outboxes, self.sinks, self.generation_switch)
        data_path = DataPath(
            around,
            roster,
            *output,
            self.digest_exchange,
            self.subscriptions,
            reports,
            self.hosting,
            self.damaged_units,
            policies,
            self._at_work,
        )
        documents = DocumentHandling(
            around, roster, self.advance, *output, self.subscriptions, reports, self.newcomers, self.ring, policies
        )
        conversation = Conversation(
            around,
            roster,
            self.advance,
            self.outboxes,
            self.subscriptions,
            reports,
            self.hosting,
            self.newcomers,
            self.damaged_units,
            self.ring,
            policies,
            self._sources,
        )
        kernel: dict[type[Any], EventHandler] = {
            Started: self._start,
            SourcesPolled: self._sources_polled,
            PushArrived: self._push_arrived,
            EntriesPersisted: self._entries_persisted,
            ReplicaStopped: self.hosting.stopped,
            QueryFailed: self.hosting.query_failed,
            PinAsked: self.newcomers.pin_asked,
            StateArrived: self._state_arrived,
            FetchFailed: self._fetch_failed,
            SnapshotTaken: reports.snapshot_taken,
            Tick: lambda _event, _now_ms: [],
        }
        kernel |= data_path.events() | documents.events() | conversation.events()
        for policy in self.policies:
            kernel.update(policy.events())
        return kernel

    # --- what others look at --------------------------------------------------------------------------

    @property
    def me(self) -> NodeId:
        return self.around.me

    @property
    def topology(self) -> Topology:
        return self.around.topology

    @property
    def layout(self) -> Layout:
        return self.around.layout

    @property
    def sync(self) -> InSync:
        return self.around.sync

    @property
    def settings(self) -> ProtocolSettings:
        return self.around.settings

    @property
    def links(self) -> set[NodeId]:
        return self.around.links

    @property
    def seen_ms(self) -> float:
        return self.around.seen_ms

    @property
    def counters(self) -> Counter[str]:
        return self.around.counters

    @property
    def traffic(self) -> Counter[str]:
        return self.around.traffic

    @property
    def replicas(self) -> dict[ReplicaId, SegmentReplica]:
        return self.roster.replicas

    @property
    def sources(self) -> SourceSide | None:
        return self.roster.seat.sources

    @property
    def ingress(self) -> ReplicaId | None:
        return self.roster.seat.replica

    def find(self, replica: ReplicaId) -> SegmentReplica | None:
        """What runs here under this name, whether it is a replica of the layout or not."""
        return self.roster.replicas.get(replica) or self.policies.find(replica)

    def handle(self, event: Event, now_ms: float) -> list[Instruction]:
        """Take one event and say what to do. What came over the network and makes no sense is refused; then nothing has
        changed but that it is counted."""
        self.around.seen_ms = now_ms
        refused = self.validation.refusal(event)
        if refused is None:
            kind = type(event.message) if isinstance(event, Received) else type(event)
            if kind not in QUIET and kind not in QUIET_MESSAGES:
                self.agenda.mark_all()
            steps = self._handlers[type(event)](event, now_ms)
        else:
            steps = self.validation.refuse(event, refused)
        return [*steps, *self.agenda.run(now_ms)]

    def next_wake_ms(self) -> float | None:
        """When a ``Tick`` is worth handling even if nothing happens; that may turn out to have been too early."""
        wake_ms = self.agenda.next_ms()
        return None if wake_ms == NEVER_MS else wake_ms

    def hosted(self) -> list[ReplicaId]:
        """The replicas at work here."""
        return self.roster.hosted()

    def check(self) -> None:
        self.around.layout.check()
        self.outboxes.check()
        self.sinks.check()
        self.generation_switch.check()
        self.digest_exchange.check()
        self.newcomers.check()
        self.ring.check()
        self.damaged_units.check()
        self.roster.check()
        self.subscriptions.check()
        self.policies.check()

    def _start(self, _event: Started, now_ms: float) -> list[Instruction]:
        return self.start(now_ms)

    def start(self, now_ms: float) -> list[Instruction]:
        """Take up what the layout places here, with what the disk has of it."""
        out: list[Instruction] = []
        for replica in self.around.placed_here():
            state = self.hosting.recovered.get(replica)
            taken = self.policies.takes_up(replica, state, now_ms)
            if taken is not None:
                out += taken
            elif replica in self.layout.joining:
                out += self.newcomers.begin(replica, state, now_ms)
            elif state is None:
                out.append(self.hosting.absent(replica))
            else:
                out += self.hosting.host(replica, state)
        return out

    # --- ingress --------------------------------------------------------------------------------------

    def _sources_polled(self, event: SourcesPolled, _now_ms: float) -> list[Instruction]:
        self._sources.mark()
        return [] if self.sources is None else self.sources.polled(event)

    def _push_arrived(self, event: PushArrived, _now_ms: float) -> list[Instruction]:
        return [] if self.sources is None else self.sources.pushed(event)

    def _entries_persisted(self, event: EntriesPersisted, _now_ms: float) -> list[Instruction]:
        self._sources.mark()
        return [] if self.sources is None else self.sources.persisted(event)

    # --- state ----------------------------------------------------------------------------------------

    def _state_arrived(self, event: StateArrived, now_ms: float) -> list[Instruction]:
        out = self.policies.state_arrived(event, now_ms)
        return self.newcomers.state_arrived(event, now_ms) if out is None else out

    def _fetch_failed(self, event: FetchFailed, now_ms: float) -> list[Instruction]:
        out = self.policies.fetch_failed(event, now_ms)
        return self.newcomers.fetch_failed(event, now_ms) if out is None else out

    # --- what is due ----------------------------------------------------------------------------------

    def _look_after_replicas(self, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for replica in self.replicas.values():
            out += replica.answers(now_ms)
            if replica.restart_due(now_ms):
                out.append(StartReplica(replica.replica))
            out += self.subscriptions.turn(replica, now_ms)
        return out

    def _replica_times(self) -> list[float]:
        return [time for replica in self.replicas.values() for time in replica.wake_times_ms()]

    def _takes_turns(self) -> bool:
        """Whether replicas turn from one producer to another by what every event may change."""
        return self.settings.single_delivery

    def _look_after_sources(self, now_ms: float) -> list[Instruction]:
        if self.sources is None:
            return []
        placed = self.sources.placed(set(self.layout.nodes_of(INGRESS)), self.links)
        return [*placed, *self.backpressure.tick(self.sources, now_ms)]

    def _progressed(self) -> None:
        """A replica has come further: a pulse that is held may be cut."""
        if self.sources is not None and self.sources.pulse.held:
            self._sources.mark()

    def _eased(self) -> bool:
        """Whether pulses come less often for one that catches up: when that is over, the next may be due at once."""
        return self.sources is not None and self.sources.pulse.eased_ms is not None

    def _source_times(self) -> list[float]:
        return [] if self.sources is None else [*self.sources.wake_times_ms(), *self.backpressure.wake_times_ms()]

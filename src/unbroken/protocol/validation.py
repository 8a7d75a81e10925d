"""The boundary of a node: what comes over the network is compared with what the node knows before it touches any state.

Peers hold the flow's token, so they are no strangers; but one of them may be buggy or older, and a message that decodes
may still be nonsense. What no node would send at any time is refused. A plausible lie, such as an acknowledgement of a
unit that the sender's replica has not stored, cannot be told from the truth and is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unbroken.protocol.events import Event, GateAsked, PinAsked, Received, UnitArrived
from unbroken.protocol.ingress.log import Append, AppendAck, Held, IngressLog, JoinLog, JoinRefused, Recall
from unbroken.protocol.instructions import Instruction, RefuseGate, RefusePin, Report
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
    Progress,
    Record,
    Serving,
    Subscribe,
    Unsubscribe,
)
from unbroken.protocol.output.outbox import SNAPSHOT
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.replica.cuts import Cut
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, generation_of, home_of, segment_of
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.units import Digest

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

MOST_NUMBER = 2**48
"""No counter gets here: a thousand units per second would take nine thousand years."""

FAR = 10_000_000
"""Units or entries by which a peer may be ahead of what this node knows: days of pulses, and far more entries than are
kept for a member or a learner that is behind."""

TERMS_AHEAD = 1_000
"""Terms of the ingress that a member may have missed. A term takes a write to the store, and a member that misses a few
is no member any more."""

VERSIONS_AHEAD = 1_000_000
"""Layouts that a node may have missed; each takes a decision of the controller."""

INDEXES_AHEAD = 10_000
"""Replicas of one shard that may have been placed since the layout that this node knows."""

GENERATIONS_AHEAD = 1_000
"""Generations of the code that may have been declared since the layout that this node knows."""

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a cut time after it is none, and Spark could not take it as a timestamp."""

LONGEST_NAME = 200
MOST_LEVELS = 100
"""Segments in a row of which an acknowledgement may report: each level is a call deep."""

MOST_FLOATS = 10_000
"""Floating-point columns of a unit."""

MOST_REPORTS = 100
"""Kinds of nonsense that are reported, each once for a peer; all are counted."""

LONGEST_REASON = 200


class Implausible(Exception):
    """What a peer says cannot be true."""


class Stale(Implausible):
    """What a peer says is about something that is gone, of which it may not have heard yet."""


@dataclass
class Validation:
    """Tells what a node cannot have been sent in earnest.

    Every check depends on what this node knows for sure: which replica is where never changes as long as the replica
    exists, shards and streams follow from the code of a generation, numbers only grow. A peer may know more, as layouts
    and code reach nodes at different times, so what may be true of a later layout passes.

    Invariants: a check changes nothing, and raises nothing but what makes a refusal. ``reported`` is bounded.
    """

    node: NodeProtocol
    reported: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._events: dict[type[Any], Callable[[Any], None]] = {
            Received: self._received,
            UnitArrived: self._unit,
            GateAsked: self._question,
            PinAsked: self._pin,
        }
        self._messages: dict[type[Any], Callable[[NodeId, Any], None]] = {
            Subscribe: self._subscribe,
            Unsubscribe: lambda sender, message: self._reader(sender, message.stream, message.subscriber),
            Missing: self._missing,
            Ack: self._ack,
            AskUnit: self._copy_of_unit,
            LacksUnit: self._copy_of_unit,
            Claim: self._claim,
            Claimed: self._claimed,
            Offer: self._offer,
            Record: self._record,
            Serving: lambda sender, message: self._own(sender, message.replica),
            DigestNote: self._digest_note,
            Delivered: self._delivered,
            Progress: self._progress,
            Health: self._health,
            Append: self._append,
            AppendAck: self._append_ack,
            Recall: lambda _sender, message: self._term(message.term),
            Held: self._held,
            JoinLog: self._join_log,
            JoinRefused: lambda _sender, message: _name(message.session),
        }

    def refusal(self, event: Event) -> Implausible | None:
        """Why an event that came over the network is not to be handled; None if it is."""
        check = self._events.get(type(event))
        if check is None:
            return None
        try:
            check(event)
        except Implausible as reason:
            return reason
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            return Implausible(f"it cannot be understood ({type(error).__name__}: {error})")
        return None

    def refuse(self, event: Event, reason: Implausible) -> list[Instruction]:
        """Count a refusal, report it once for each peer and kind, and answer whoever waits for an answer."""
        self.node.counters["messages_refused"] += 1
        why = str(reason)[:LONGEST_REASON]
        out: list[Instruction] = []
        match event:
            case Received(sender, message):
                who, kind = sender, type(message).__name__
            case UnitArrived(_, sender):
                who, kind = sender, "unit"
            case GateAsked(replica, _, _, ticket):
                who, kind = f"a query of {str(replica)[:LONGEST_NAME]}", "question"
                out.append(RefuseGate(ticket, why))
            case PinAsked(_, newcomer, ticket):
                who, kind = newcomer[:LONGEST_NAME], "request for state"
                out.append(RefusePin(ticket, why))
            case _:
                raise reason
        new = (who, kind) not in self.reported and len(self.reported) < MOST_REPORTS
        if new and not isinstance(reason, Stale):
            self.reported.add((who, kind))
            out.append(Report(f"{self.node.me} refuses a message of {who} that makes no sense ({kind}): {why}"))
        return out

    # --- names ----------------------------------------------------------------------------------------

    def _shard(self, shard: ShardId) -> None:
        """A shard exists, or may exist in code that this node has not heard of yet."""
        topology, part = self.node.topology, shard.part
        if shard == INGRESS:
            return
        if part in topology.segments or part in topology.sources or part in topology.sinks:
            if not 0 <= shard.index < topology.segments.get(part, 1):
                raise Implausible(f"{part} has no shard {shard.index}")
            return
        generation, newest = generation_of(part), self.node.layout.generations[-1]
        if newest < generation <= newest + GENERATIONS_AHEAD and 0 <= shard.index <= FAR:
            return
        if segment_of(part) in {segment_of(known) for known in topology.segments} and 0 < generation <= newest:
            raise Stale(f"{part} is not part of the flow any more")
        raise Implausible(f"there is no {shard} in the flow")

    def _stream(self, stream: StreamId) -> None:
        if self.node.topology.has(stream):
            return
        self._shard(stream.producer)
        self._shard(stream.consumer)
        newest = self.node.layout.generations[-1]
        if max(generation_of(stream.producer.part), generation_of(stream.consumer.part)) <= newest:
            raise Implausible(f"there is no {stream} in the flow")

    def _replica(self, replica: ReplicaId) -> None:
        """A replica exists, has existed, or may exist in a later layout."""
        if replica in self.node.layout.placement:
            return
        shard = replica.shard
        self._shard(shard)
        if shard != INGRESS and shard.part in (*self.node.topology.sources, *self.node.topology.sinks):
            raise Implausible(f"{shard.part} has no replicas")
        if not 0 <= replica.index < self.node.layout.next_index.get(shard, 0) + INDEXES_AHEAD:
            raise Implausible(f"there is no {replica}")

    def _own(self, sender: NodeId, replica: ReplicaId) -> None:
        """A node speaks for a replica of its own."""
        host = self.node.layout.placement.get(replica)
        if host == sender:
            return
        if host is not None:
            raise Implausible(f"{replica} is on {host}")
        self._replica(replica)

    def _reader(self, sender: NodeId, stream: StreamId, subscriber: str, snapshots: bool = False) -> None:
        """A node speaks for a replica of its own that reads a stream, or a client for itself."""
        self._stream(stream)
        if subscriber == sender:
            return
        box = self.node.outboxes.boxes.get(stream)
        replica = None if box is None else box.names.get(subscriber)
        if replica is None:
            _name(subscriber)
            replica = ReplicaId.parse(subscriber)
            if replica.shard != stream.consumer:
                raise Implausible(f"{replica} does not read {stream}")
        if replica.index == SNAPSHOT and snapshots and self.node.settings.snapshots:
            return
        self._own(sender, replica)

    # --- streams --------------------------------------------------------------------------------------

    def _received(self, event: Received) -> None:
        check = self._messages.get(type(event.message))
        if check is not None and event.sender != self.node.me:
            check(event.sender, event.message)

    def _subscribe(self, sender: NodeId, message: Subscribe) -> None:
        self._reader(sender, message.stream, message.subscriber)
        self._produced(message.stream, message.after)
        _counter(message.heard + 1)

    def _ack(self, sender: NodeId, message: Ack) -> None:
        self._reader(sender, message.stream, message.subscriber, snapshots=True)
        self._produced(message.stream, message.through)
        if not 0 <= message.level <= MOST_LEVELS:
            raise Implausible(f"there is no level {message.level}")
        _rebuilt(message.rebuilt)

    def _copy_of_unit(self, _sender: NodeId, message: AskUnit | LacksUnit) -> None:
        self._stream(message.stream)
        self._produced(message.stream, message.number - 1)

    def _produced(self, stream: StreamId, number: int) -> None:
        """A unit exists, or a sibling that is ahead of the replica here may have produced it."""
        _counter(number)
        box = self.node.outboxes.boxes.get(stream)
        if box is not None and number > box.last + FAR:
            raise Implausible(f"unit {number} of {stream} is far beyond {box.last}")

    def _missing(self, _sender: NodeId, message: Missing) -> None:
        self._stream(message.stream)
        _name(message.subscriber)
        replica = ReplicaId.parse(message.subscriber)
        if replica.shard != message.stream.consumer:
            raise Implausible(f"{replica} does not read {message.stream}")
        _counter(message.base)
        here = self.node.replicas.get(replica)
        if here is None:
            return
        inbox = here.inboxes.get(message.stream)
        if inbox is None:
            raise Stale(f"{replica} does not read {message.stream} yet")
        if message.base > inbox.available + FAR:
            raise Implausible(f"unit {message.base} of {message.stream} is far beyond {inbox.available}")

    def _digest_note(self, sender: NodeId, message: DigestNote) -> None:
        self._own(sender, message.replica)
        self._stream(message.stream)
        if self.node.topology.host_shard(message.stream.producer) != message.replica.shard:
            raise Implausible(f"{message.replica} does not produce {message.stream}")
        self._produced(message.stream, message.number)
        _digest(message.digest)

    def _delivered(self, _sender: NodeId, message: Delivered) -> None:
        self._stream(message.stream)
        self._produced(message.stream, message.through)
        if not 0 <= message.stopped <= message.through:
            raise Implausible(f"its sink stops at {message.stopped} and has {message.through}")

    def _unit(self, event: UnitArrived) -> None:
        header, topology, layout = event.header, self.node.topology, self.node.layout
        if header.stable:
            self._stream(header.stream)
            if header.pulse != header.number and header.stream.producer.part not in topology.led:
                raise Implausible(f"unit {header.number} of {header.stream} completes pulse {header.pulse}")
        elif topology.has(header.stream) or header.stream.home == header.stream:
            raise Implausible(f"a tentative unit is in {header.stream}, which has stable ones")
        else:
            self._stream(header.stream.home)
            if header.since >= header.pulse:
                raise Implausible(f"it covers pulses from {header.since} to {header.pulse}")
        for number in (header.number - 1, header.pulse, header.size, header.since, header.fold):
            _counter(number)
        if not 0 <= header.cut_ms <= LATEST_MS:
            raise Implausible(f"it was cut at {header.cut_ms} ms")
        if not 1 <= header.generation <= layout.generations[-1] + GENERATIONS_AHEAD:
            raise Implausible(f"there is no generation {header.generation} of the code")
        self._version(header.layout)
        _digest(header.digest)

    # --- replicas -------------------------------------------------------------------------------------

    def _claim(self, sender: NodeId, message: Claim) -> None:
        self._stream(message.stream)
        if message.replica.shard != message.stream.consumer:
            raise Implausible(f"{message.replica} does not read {message.stream}")
        self._own(sender, message.replica)
        self._version(message.version)

    def _claimed(self, sender: NodeId, message: Claimed) -> None:
        node, stream = self.node, message.stream
        self._stream(stream)
        if message.replica.shard != stream.consumer:
            raise Implausible(f"{message.replica} does not read {stream}")
        self._replica(message.replica)
        _counter(message.base)
        _counter(message.last)
        if message.rebuilt is not None:
            _rebuilt(message.rebuilt)
        copy = node.holding.copies.get(message.replica)
        join = node.joining.joins.get(message.replica) if copy is None else copy.join
        if join is not None and (stream not in join.inputs or sender not in node.subscriptions.producers(stream)):
            raise Stale(f"{sender} is not asked to keep {stream} any more")

    def _offer(self, sender: NodeId, message: Offer) -> None:
        self._own(sender, message.replica)
        _counter(message.version)

    def _record(self, sender: NodeId, message: Record) -> None:
        self._own(sender, message.replica)
        _counter(message.purged)
        _counter(message.pending)
        _rebuilt(message.rebuilt)

    def _progress(self, _sender: NodeId, message: Progress) -> None:
        """Of any replica: members of the ingress pass on what they hear."""
        self._replica(message.replica)
        _counter(message.pulse)
        _counter(message.ahead)

    def _health(self, sender: NodeId, message: Health) -> None:
        self._own(sender, message.replica)
        _counter(message.tentative)

    def _version(self, version: int) -> None:
        if not 0 <= version <= self.node.layout.version + VERSIONS_AHEAD:
            raise Implausible(f"there is no layout {version}")

    # --- the ingress log ------------------------------------------------------------------------------

    @property
    def _log(self) -> IngressLog | None:
        return None if self.node.sources is None else self.node.sources.log

    def _term(self, term: int) -> None:
        known = self.node.sync.term if self._log is None else max(self._log.sync.term, self.node.sync.term)
        if not 0 <= term <= known + TERMS_AHEAD:
            raise Implausible(f"term {term} of the ingress is not to come after {known}")

    def _index(self, index: int) -> None:
        _counter(index)
        if self._log is not None and index > self._log.last + FAR:
            raise Implausible(f"entry {index} of the ingress log is far beyond {self._log.last}")

    def _append(self, _sender: NodeId, message: Append) -> None:
        self._term(message.term)
        self._index(message.committed)
        entry = message.entry
        if entry is None:
            return
        self._index(entry.index - 1)
        _counter(entry.pulse)
        if not 0 <= entry.term <= message.term:
            raise Implausible(f"a leader of term {message.term} has an entry of term {entry.term}")

    def _append_ack(self, _sender: NodeId, message: AppendAck) -> None:
        log = self._log
        self._term(message.term)
        _counter(message.index)
        if log is not None and log.leading and message.term == log.sync.term and message.index > log.last:
            raise Implausible(f"entry {message.index} is acknowledged, the log ends with {log.last}")

    def _held(self, sender: NodeId, message: Held) -> None:
        self._term(message.term)
        _counter(message.tip.term)
        self._index(message.tip.index)
        if not 0 <= message.committed <= message.tip.index:
            raise Implausible(f"entry {message.committed} is committed in a log that ends with {message.tip.index}")
        log = self._log
        if log is not None and message.term == log.sync.term and sender not in log.sync.members:
            raise Implausible(f"{sender} is no member of the ingress")

    def _join_log(self, _sender: NodeId, message: JoinLog) -> None:
        _name(message.session)
        for number in (message.index, message.tip.term, message.tip.index):
            _counter(number)

    # --- questions ------------------------------------------------------------------------------------

    def _question(self, event: GateAsked) -> None:
        """A query asks for what follows the last micro-batch that it has committed. It has committed none but those
        that it was given, or, with its first question, one that was planned before it began."""
        node = self.node
        _counter(event.start)
        _name(event.instance)
        replica = node.replicas.get(event.replica) or node.forking.find(event.replica)
        if replica is None:
            self._ended_query(event.replica)
            return
        if event.start < replica.committed:
            raise Implausible(f"micro-batch {event.start} ends before {replica.committed}, which is committed")
        if event.start == replica.committed or event.start in replica.released:
            return
        if replica.gate.start is not None:
            raise Implausible(f"micro-batch {event.start} was given to no query")
        self._planned(replica, event.start, event.cut)

    def _planned(self, replica: SegmentReplica, number: int, cut: Cut) -> None:
        """A micro-batch that was planned before its query began takes what is here."""
        if not cut and not replica.plain:
            raise Implausible(f"micro-batch {number} has no cut")
        if cut and cut.keys() != replica.inboxes.keys():
            raise Implausible(f"the cut of micro-batch {number} is not one of {replica.replica}")
        for stream, inbox in replica.inboxes.items():
            unit = cut[stream].unit if cut else number
            if not inbox.consumed <= unit <= inbox.available:
                raise Implausible(f"unit {unit} of {stream} is not here")

    def _ended_query(self, replica: ReplicaId) -> None:
        """A query that is being ended may ask for a replica that was here, or for a fork of one."""
        home = ShardId(home_of(replica.shard.part), replica.shard.index)
        try:
            self._replica(ReplicaId(home, 0 if home != replica.shard else replica.index))
        except Stale:
            return

    def _pin(self, event: PinAsked) -> None:
        self._shard(event.shard)
        _name(event.node)
        _counter(event.least)
        here = next((r for name, r in self.node.replicas.items() if name.shard == event.shard), None)
        for stream, unit in event.needs:
            _counter(unit)
            if here is not None and stream not in here.inboxes:
                raise Implausible(f"{event.shard} does not read {stream}")


def _counter(value: int) -> None:
    if not 0 <= value <= MOST_NUMBER:
        raise Implausible(f"no number of a flow is {value}")


def _name(text: str) -> None:
    if len(text) > LONGEST_NAME:
        raise Implausible(f"a name has {len(text)} characters")


def _digest(digest: Digest) -> None:
    _counter(digest.rows)
    if not -(2**64) < digest.exact < 2**64 or len(digest.floats) > MOST_FLOATS:
        raise Implausible("a digest is too long")


def _rebuilt(rebuilt: Rebuilt, levels: int = MOST_LEVELS) -> None:
    if levels == 0:
        raise Implausible(f"it reports of more than {MOST_LEVELS} levels")
    _counter(rebuilt.valid)
    for _, known in rebuilt.consumers:
        _rebuilt(known, levels - 1)

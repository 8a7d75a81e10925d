"""The boundary of a node: what comes over the network is compared with what the node knows before it touches any state.

Peers hold the flow's token, so they are no strangers; but one of them may be buggy or older, and a message that decodes
may still be nonsense. What no node would send at any time is refused. A plausible lie, such as an acknowledgement of a
unit that the sender's replica has not stored, cannot be told from the truth and is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    LacksUnit,
    Missing,
    Progress,
    Serving,
    Subscribe,
    Unsubscribe,
)
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.plausibility import (
    FAR,
    GENERATIONS_AHEAD,
    LONGEST_NAME,
    MOST_LEVELS,
    Implausible,
    Plausibility,
    Stale,
    check_counter,
    check_digest,
    check_name,
    check_rebuilt,
)
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.repair.newcomers import Newcomers
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, home_of
from unbroken.protocol.values.notices.processes import MessageRefused

TERMS_AHEAD = 1_000
"""Terms of the ingress that a member may have missed. A term takes a write to the store, and a member that misses a few
is no member any more."""

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a cut time after it is none, and Spark could not take it as a timestamp."""

MOST_REPORTS = 100
"""Kinds of nonsense that are reported, each once for a peer; all are counted."""

LONGEST_REASON = 200


@dataclass
class Validation:
    """Tells what a node cannot have been sent in earnest; what a policy is sent, the policy checks.

    Invariants: a check changes nothing, and raises nothing but what makes a refusal. ``reported`` is bounded.
    """

    around: Surroundings
    roster: Roster
    outboxes: Outboxes
    newcomers: Newcomers
    policies: Policies
    reported: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = Plausibility(self.around, self.outboxes)
        self._events: dict[type[Any], Callable[[Any], None]] = {
            Received: self._received,
            UnitArrived: self._unit,
            GateAsked: self._question,
            PinAsked: self._pin,
        }
        self._messages: dict[type[Any], Callable[[NodeId, Any], None]] = {
            Subscribe: self._subscribe,
            Unsubscribe: lambda sender, message: self.names.reader(sender, message.stream, message.subscriber),
            Missing: self._missing,
            Ack: self._ack,
            AskUnit: self._copy_of_unit,
            LacksUnit: self._copy_of_unit,
            Claim: self._claim,
            Claimed: self._claimed,
            Serving: lambda sender, message: self.names.own(sender, message.replica),
            DigestNote: self._digest_note,
            Delivered: self._delivered,
            Progress: self._progress,
            Append: self._append,
            AppendAck: self._append_ack,
            Recall: lambda _sender, message: self._term(message.term),
            Held: self._held,
            JoinLog: self._join_log,
            JoinRefused: lambda _sender, message: check_name(message.session),
        }
        for policy in self.policies:
            self._messages.update(policy.checks(self.names))

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
        self.around.counters["messages_refused"] += 1
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
            out.append(Report(MessageRefused(self.around.me, who, kind, why)))
        return out

    # --- streams --------------------------------------------------------------------------------------

    def _received(self, event: Received) -> None:
        check = self._messages.get(type(event.message))
        if check is not None and event.sender != self.around.me:
            check(event.sender, event.message)

    def _subscribe(self, sender: NodeId, message: Subscribe) -> None:
        self.names.reader(sender, message.stream, message.subscriber)
        self.names.produced(message.stream, message.after)
        check_counter(message.heard + 1)

    def _ack(self, sender: NodeId, message: Ack) -> None:
        self.names.reader(sender, message.stream, message.subscriber, snapshots=True)
        self.names.produced(message.stream, message.through)
        if not 0 <= message.level <= MOST_LEVELS:
            raise Implausible(f"there is no level {message.level}")
        check_rebuilt(message.rebuilt)

    def _copy_of_unit(self, _sender: NodeId, message: AskUnit | LacksUnit) -> None:
        self.names.stream(message.stream)
        self.names.produced(message.stream, message.number - 1)

    def _missing(self, _sender: NodeId, message: Missing) -> None:
        self.names.stream(message.stream)
        check_name(message.subscriber)
        replica = ReplicaId.parse(message.subscriber)
        if replica.shard != message.stream.consumer:
            raise Implausible(f"{replica} does not read {message.stream}")
        check_counter(message.base)
        here = self.roster.replicas.get(replica)
        if here is None:
            return
        inbox = here.inboxes.get(message.stream)
        if inbox is None:
            raise Stale(f"{replica} does not read {message.stream} yet")
        if message.base > inbox.available + FAR:
            raise Implausible(f"unit {message.base} of {message.stream} is far beyond {inbox.available}")

    def _digest_note(self, sender: NodeId, message: DigestNote) -> None:
        self.names.own(sender, message.replica)
        self.names.stream(message.stream)
        if self.around.topology.host_shard(message.stream.producer) != message.replica.shard:
            raise Implausible(f"{message.replica} does not produce {message.stream}")
        self.names.produced(message.stream, message.number)
        check_digest(message.digest)

    def _delivered(self, _sender: NodeId, message: Delivered) -> None:
        self.names.stream(message.stream)
        self.names.produced(message.stream, message.through)
        if not 0 <= message.stopped <= message.through:
            raise Implausible(f"its sink stops at {message.stopped} and has {message.through}")

    def _unit(self, event: UnitArrived) -> None:
        header = event.header
        if not header.stable:
            self.policies.check_unstable(header, self.names)
        else:
            self.names.stream(header.stream)
            if header.pulse != header.number and self.policies.numbered(header.stream.producer.part):
                raise Implausible(f"unit {header.number} of {header.stream} completes pulse {header.pulse}")
        for number in (header.number - 1, header.pulse, header.size, header.since, header.fold):
            check_counter(number)
        if not 0 <= header.cut_ms <= LATEST_MS:
            raise Implausible(f"it was cut at {header.cut_ms} ms")
        if not 1 <= header.generation <= self.around.layout.generations[-1] + GENERATIONS_AHEAD:
            raise Implausible(f"there is no generation {header.generation} of the code")
        self.names.version(header.layout)
        check_digest(header.digest)

    # --- replicas -------------------------------------------------------------------------------------

    def _claim(self, sender: NodeId, message: Claim) -> None:
        self.names.stream(message.stream)
        if message.replica.shard != message.stream.consumer:
            raise Implausible(f"{message.replica} does not read {message.stream}")
        self.names.own(sender, message.replica)
        self.names.version(message.version)

    def _claimed(self, sender: NodeId, message: Claimed) -> None:
        stream = message.stream
        self.names.stream(stream)
        if message.replica.shard != stream.consumer:
            raise Implausible(f"{message.replica} does not read {stream}")
        self.names.replica(message.replica)
        check_counter(message.base)
        check_counter(message.last)
        if message.rebuilt is not None:
            check_rebuilt(message.rebuilt)
        join = self.policies.joining(message.replica) or self.newcomers.joins.get(message.replica)
        if join is not None and (stream not in join.inputs or sender not in self.around.producers(stream)):
            raise Stale(f"{sender} is not asked to keep {stream} any more")

    def _progress(self, _sender: NodeId, message: Progress) -> None:
        """Of any replica: members of the ingress pass on what they hear."""
        self.names.replica(message.replica)
        check_counter(message.pulse)
        check_counter(message.ahead)

    # --- the ingress log ------------------------------------------------------------------------------

    @property
    def _log(self) -> IngressLog | None:
        return None if self.roster.seat.sources is None else self.roster.seat.sources.log

    def _term(self, term: int) -> None:
        known = self.around.sync.term if self._log is None else max(self._log.sync.term, self.around.sync.term)
        if not 0 <= term <= known + TERMS_AHEAD:
            raise Implausible(f"term {term} of the ingress is not to come after {known}")

    def _index(self, index: int) -> None:
        check_counter(index)
        if self._log is not None and index > self._log.last + FAR:
            raise Implausible(f"entry {index} of the ingress log is far beyond {self._log.last}")

    def _append(self, _sender: NodeId, message: Append) -> None:
        self._term(message.term)
        self._index(message.committed)
        entry = message.entry
        if entry is None:
            return
        self._index(entry.index - 1)
        check_counter(entry.pulse)
        if not 0 <= entry.term <= message.term:
            raise Implausible(f"a leader of term {message.term} has an entry of term {entry.term}")

    def _append_ack(self, _sender: NodeId, message: AppendAck) -> None:
        log = self._log
        self._term(message.term)
        check_counter(message.index)
        if log is not None and log.leading and message.term == log.sync.term and message.index > log.last:
            raise Implausible(f"entry {message.index} is acknowledged, the log ends with {log.last}")

    def _held(self, sender: NodeId, message: Held) -> None:
        self._term(message.term)
        check_counter(message.tip.term)
        self._index(message.tip.index)
        if not 0 <= message.committed <= message.tip.index:
            raise Implausible(f"entry {message.committed} is committed in a log that ends with {message.tip.index}")
        log = self._log
        if log is not None and message.term == log.sync.term and sender not in log.sync.members:
            raise Implausible(f"{sender} is no member of the ingress")

    def _join_log(self, _sender: NodeId, message: JoinLog) -> None:
        check_name(message.session)
        for number in (message.index, message.tip.term, message.tip.index):
            check_counter(number)

    # --- questions ------------------------------------------------------------------------------------

    def _question(self, event: GateAsked) -> None:
        """A query asks for what follows the last micro-batch that it has committed. It has committed none but those
        that it was given, or, with its first question, one that was planned before it began."""
        check_counter(event.start)
        check_name(event.instance)
        replica = self.roster.replicas.get(event.replica) or self.policies.find(event.replica)
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

    def _planned(self, replica: SegmentReplica, number: int, cut: BatchCut) -> None:
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
        """A query that is being ended may ask for a replica that was here, or for one that stood in for it."""
        home = ShardId(home_of(replica.shard.part), replica.shard.index)
        try:
            self.names.replica(ReplicaId(home, 0 if home != replica.shard else replica.index))
        except Stale:
            return

    def _pin(self, event: PinAsked) -> None:
        self.names.shard(event.shard)
        check_name(event.node)
        check_counter(event.least)
        here = next((r for name, r in self.roster.replicas.items() if name.shard == event.shard), None)
        for stream, unit in event.needs:
            check_counter(unit)
            if here is not None and stream not in here.inboxes:
                raise Implausible(f"{event.shard} does not read {stream}")

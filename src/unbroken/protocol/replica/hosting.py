"""The replicas at work on a node: how they begin, how they stop, how they are let go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.protocol.events import QueryFailed, ReplicaStopped
from unbroken.protocol.ingress.log import IngressLog
from unbroken.protocol.ingress.pulse import AdaptivePulse
from unbroken.protocol.ingress.seat import Advance
from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.instructions import Instruction, Report, Send, StartReplica, StopReplica
from unbroken.protocol.messages import DigestNote, Serving
from unbroken.protocol.output.digest_exchange import DigestExchange
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.replica.cuts import TOGETHER, Ordering, PulseCuts
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.replica.replica import ALONE, SegmentReplica
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.replicas import ReplicaHalted
from unbroken.protocol.values.recovery import StoredReplica, StoredUnits
from unbroken.protocol.values.units import UnitHeader


class Companions(Protocol):
    """What has to know of replicas that come and go, and what decides how one is ordered."""

    def ordering(self, replica: ReplicaId, inboxes: Mapping[StreamId, Inbox]) -> Ordering | None: ...

    def separate(self) -> bool: ...

    def hosted(self, replica: ReplicaId) -> list[Instruction]: ...

    def stored(self, replica: ReplicaId, headers: Iterable[UnitHeader]) -> None: ...

    def unhosted(self, replica: ReplicaId) -> None: ...

    def query_ended(self, event: QueryFailed, now_ms: float) -> list[Instruction] | None: ...


@dataclass
class Hosting:
    """Begins and ends a node's work as a replica.

    Invariants: a replica that diverged produces, sends and delivers nothing more; one that stopped for another reason
    produces nothing more, but what it had produced is as good as its siblings' and is still handed on.
    """

    around: Surroundings
    roster: Roster
    advance: Advance
    outboxes: Outboxes
    sinks: Sinks
    generation_switch: GenerationSwitch
    digest_exchange: DigestExchange
    subscriptions: Subscriptions
    reports: Reports
    companions: Companions
    recovered: Mapping[ReplicaId, StoredReplica] = field(default_factory=dict)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    # --- beginning and letting go ---------------------------------------------------------------------

    def absent(self, replica: ReplicaId) -> StopReplica:
        """A replica that counts as redundancy, and whose state is not here."""
        return StopReplica(replica, f"its state is not on the disk of {self.around.me}")

    def host(self, replica: ReplicaId, state: StoredReplica) -> list[Instruction]:
        """Begin to work as ``replica`` from ``state``, and let everybody know."""
        around, replicas, seat = self.around, self.roster.replicas, self.roster.seat
        if replica.shard == INGRESS:
            seat.replica, seat.sources = replica, self._open_sources(state)
            shards = [ShardId(source, 0) for source in around.topology.sources]
        else:
            feeds = self.subscriptions.feeds(replica)
            alone = self._alone() if around.topology.strategy(replica.shard.part).foldable else None
            replicas[replica] = SegmentReplica.recovered(
                replica, feeds, state, alone, lambda inboxes: self._ordering(replica, inboxes)
            )
            replicas[replica].placed_by(around.layout)
            shards = [replica.shard]
        around.serving.add(replica)
        self.digest_exchange.open(replica.shard)
        stored: list[UnitHeader] = []
        for stream in [stream for shard in shards for stream in around.topology.outputs(shard)]:
            begun = state.log.units.get(stream.producer.part, max(state.committed, state.valid))
            units = state.outboxes.get(stream, StoredUnits(begun))
            self.outboxes.open(stream, replica, around.layout, units)
            stored += units.headers
            sink = stream.consumer.part
            if sink in around.topology.sinks:
                self.generation_switch.open(stream)
            if sink in around.topology.sinks and sink not in around.topology.client_sinks:
                self.sinks.open(stream, replica, around.layout, self._tried(replica, state, units))
        out: list[Instruction] = [StartReplica(replica)]
        for stream in [box.stream for box in self.outboxes.of(replica)]:
            # Replicas ask again when they are told of this one; clients are told by nobody.
            early = self.outboxes.take_early(stream)
            if stream.consumer.part in around.topology.client_sinks:
                out += [step for question in early for step in self.outboxes.subscribe(*question)]
        if seat.sources is not None and replica == seat.replica:
            out += seat.sources.begin()
        out += self.companions.hosted(replica)
        self.companions.stored(replica, stored)
        if replica in replicas:
            self.advance.reached[replica] = max(replicas[replica].pulse, self.advance.reached.get(replica, 0))
            out += self.reports.report(replicas[replica], around.links)
        # Others here may read what the replica produces, and have come further than its outboxes know.
        out += self.reports.greet(around.me)
        return [*out, *(Send(to, Serving(replica)) for to in sorted(around.links - {around.me}))]

    def _alone(self) -> int:
        """How many units there are at most in the micro-batches that have to be as they were the first time."""
        return ALONE * TOGETHER if self.companions.separate() else ALONE

    def _ordering(self, replica: ReplicaId, inboxes: Mapping[StreamId, Inbox]) -> Ordering:
        return self.companions.ordering(replica, inboxes) or PulseCuts(inboxes)

    def _tried(self, replica: ReplicaId, state: StoredReplica, stored: StoredUnits) -> int:
        """The last unit that an earlier process on this disk may have handed to a sink.

        It may have dropped it, too, before it committed the micro-batch; then the input of that is still here.
        """
        if replica not in self.recovered:
            return 0
        running = state.committed + 1
        ran = any(header.number == running for headers in state.inboxes.values() for header in headers)
        return max(stored.base + len(stored.headers), running if ran else 0)

    def unhost(self, replica: ReplicaId) -> None:
        """Stop working as ``replica``."""
        self.outboxes.close(replica)
        self.companions.unhosted(replica)
        self.generation_switch.close(replica)
        self.sinks.close(replica)
        self.digest_exchange.close(replica.shard)
        self.around.serving.discard(replica)
        self.advance.forget(replica)
        self.roster.replicas.pop(replica, None)
        if replica == self.roster.seat.replica:
            self.roster.seat.leave()

    def _open_sources(self, state: StoredReplica) -> SourceSide:
        around, tuned, held, seat = self.around, self.around.settings, state.log, self.roster.seat
        bound = len(around.topology.segments) + tuned.in_flight_slack
        pulse = AdaptivePulse(tuned.pulse_min_ms, tuned.pulse_max_ms, bound, tuned.pulse_start_ms)
        log_state = (held.committed, held.entries, held.pulse, held.finished)
        if held.admission is None:
            log = IngressLog.recovered(around.me, around.sync, *log_state)
        else:
            log = IngressLog.learner(around.me, around.sync, held.admission, *log_state)
        seat.lives += 1
        log.life = seat.lives
        return SourceSide(around.me, log, pulse, tuned.grace_ms, led=log.leading)

    def on_divergence(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when a replica is silenced, which may concern every part."""
        self.listeners.append(listener)

    # --- stopping -------------------------------------------------------------------------------------

    def compare(self, note: DigestNote) -> list[Instruction]:
        """Compare what a replica of a shard at home here has produced; a divergent one is stopped."""
        found = self.digest_exchange.compare(note)
        if found is None:
            return []
        out: list[Instruction] = [Report(found.notice())]
        if found.stopped in self.roster.replicas:
            reason = f"it diverged from {found.kept} at unit {found.number} of {found.stream}"
            self._silence(found.stopped, reason)
            out.append(StopReplica(found.stopped, reason))
        return out

    def stopped(self, event: ReplicaStopped, now_ms: float) -> list[Instruction]:
        ended = self.companions.query_ended(QueryFailed(event.replica, event.reason), now_ms)
        if ended is not None:
            return ended
        state = self.roster.replicas.get(event.replica)
        if state is None or state.stopped is not None:
            return []
        state.stopped = event.reason
        notice = ReplicaHalted(event.replica, self.around.me, event.reason)
        return [Report(notice), StopReplica(event.replica, event.reason)]

    def query_failed(self, event: QueryFailed, now_ms: float) -> list[Instruction]:
        ended = self.companions.query_ended(event, now_ms)
        if ended is not None:
            return ended
        replica = self.roster.replicas.get(event.replica)
        if replica is None or replica.stopped is not None:
            return []
        out: list[Instruction] = [*replica.forget_questions()]
        if replica.resting or replica.query_failed(now_ms):
            return out
        return [*out, *self.stopped(ReplicaStopped(event.replica, event.reason), now_ms)]

    def diverged(self, replica: ReplicaId) -> bool:
        return any(box.muted for box in self.outboxes.of(replica))

    def _silence(self, replica: ReplicaId, reason: str) -> None:
        """Nothing of a divergent replica goes out any more; what it has sent is judged by the others' digests."""
        state = self.roster.replicas[replica]
        state.stopped = state.stopped or reason
        self.sinks.close(replica)
        for box in self.outboxes.of(replica):
            box.muted = True
        for listener in self.listeners:
            listener()

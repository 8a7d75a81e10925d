"""Going on without input that is missing: the forks of a node's replicas, and their tentative results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from unbroken.protocol.events import Produced, QueryFailed, UnitArrived
from unbroken.protocol.ingress.pause import Rest, rest_of
from unbroken.protocol.ingress.seat import Advance
from unbroken.protocol.instructions import DropInbox, DropOutbox, DropReplica, Instruction, Report, Send, StoreUnit
from unbroken.protocol.messages import Subscribe, Unsubscribe
from unbroken.protocol.output.outbox import FAILURE_WINDOW
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.plausibility import Plausibility
from unbroken.protocol.policies.fork.audience import Audience
from unbroken.protocol.policies.fork.fork import Fork
from unbroken.protocol.policies.fork.instructions import ForkReplica
from unbroken.protocol.policies.fork.messages import Health, check_health
from unbroken.protocol.policies.fork.missing_input import InputWatch
from unbroken.protocol.policies.fork.reconciliation import Reconciliation
from unbroken.protocol.policies.fork.units import Results, TentativeInbox, beyond, check_tentative
from unbroken.protocol.policy import MessageCheck, MessageHandler, Policy
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.consistency import Consistency, InputHandling, Outlook
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, fork_of
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.replicas import ForkFailed, InputComplete, InputMissing, InputReturned
from unbroken.protocol.values.units import UnitHeader


@dataclass
class Forks(Policy):
    """Watches the replicas that are to go on without missing input, and makes, feeds and drops their forks.

    Invariants: a replica has at most one fork, and a fork only while it lacks input or has tentative results to
    replace. Nothing of a fork ever gets into the state or the units of its replica.
    """

    around: Surroundings
    roster: Roster
    advance: Advance
    sinks: Sinks
    reports: Reports
    policies: Policies
    watches: dict[ReplicaId, InputWatch] = field(default_factory=dict)
    episodes: int = 0
    orphans: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.audience = Audience(self.around, self.sinks)
        self.reconciliation = Reconciliation(self.around, self.policies, self.watches)

    # --- replicas that come and go --------------------------------------------------------------------

    def messages(self) -> Mapping[type[Any], MessageHandler]:
        return {Health: lambda _sender, message, _now_ms: self.heard(message)}

    def checks(self, names: Plausibility) -> Mapping[type[Any], MessageCheck]:
        return {Health: partial(check_health, names)}

    def hosted(self, replica: ReplicaId) -> list[Instruction]:
        if replica in self.roster.replicas:
            self.open(self.roster.replicas[replica])
        return []

    def window(self, part: str) -> int:
        return FAILURE_WINDOW if part in self.around.topology.availability else 0

    def endured_ms(self) -> float:
        return min((how.patience_ms for how in self.around.topology.availability.values()), default=0.0)

    def open(self, replica: SegmentReplica) -> None:
        part = replica.replica.shard.part
        how = self.around.topology.availability.get(part)
        if how is not None:
            for inbox in replica.inboxes.values():
                inbox.limit = FAILURE_WINDOW
        else:
            how = self.policies.patience(part)
        if how is None:
            return
        inputs = {stream: TentativeInbox(stream, how.patience_ms / 2) for stream in replica.inputs}
        tuned = self.around.settings
        watch = InputWatch(replica, how, inputs, warm_up=(tuned.warm_units, tuned.warm_ms), began=replica.produced)
        watch.close = len(self.around.topology.segments) + 2
        watch.standing = how.patience_ms < tuned.standing_ms and how.during_failure is not InputHandling.SUSPEND
        self.watches[replica.replica] = watch
        watch.alternates = self.policies.rests(part)
        # What an earlier process has taken in waits at least since this one began.
        here = {header.pulse for inbox in replica.inboxes.values() for header in inbox.headers.values()}
        for pulse in sorted(here):
            watch.note(pulse - 1, pulse, self.around.seen_ms)

    def unhosted(self, replica: ReplicaId) -> None:
        """A replica is not at work here any more, and neither is its fork."""
        watch = self.watches.pop(replica, None)
        self.audience.close(replica.shard)
        if watch is not None:
            self.orphans += self._drop(watch)

    def find(self, fork: ReplicaId) -> Fork | None:
        return next((w.fork for w in self.watches.values() if w.fork is not None and w.fork.replica == fork), None)

    def wants(self, replica: ReplicaId, stream: StreamId) -> int:
        """From which pulse on a replica wants a tentative input, for a subscription; -1: not at all."""
        watch = self.watches.get(replica)
        if watch is None or watch.how.during_failure is InputHandling.SUSPEND:
            return -1
        return max(watch.inputs[stream].through, watch.replica.inboxes[stream].reach)

    # --- input ----------------------------------------------------------------------------------------

    def came(self, replica: SegmentReplica, header: UnitHeader, now_ms: float) -> list[Instruction]:
        """A stable unit has come."""
        watch = self.watches.get(replica.replica)
        if watch is None:
            return []
        watch.note(header.pulse - 1, header.pulse, now_ms)
        return [] if watch.fork is None else self._feed(watch, watch.fork, (header.stream,))

    def check_unstable(self, header: UnitHeader, names: Plausibility) -> bool:
        check_tentative(header, names)
        return True

    def unstable(self, event: UnitArrived, now_ms: float) -> list[Instruction]:
        """A tentative unit has come."""
        header, stream = event.header, event.header.stream.home
        watch = next((w for w in self.watches.values() if stream in w.inputs), None)
        if watch is None or watch.replica.stopped is not None or watch.how.during_failure is InputHandling.SUSPEND:
            return []
        if not watch.replica.feeds[stream].takes(event.sender):
            return []
        number = watch.inputs[stream].arrive(header, event.sender, watch.replica.inboxes[stream].reach, now_ms)
        if number is None:
            return []
        self.around.traffic["tentative"] += event.size
        watch.note(header.since, header.pulse, now_ms)
        out: list[Instruction] = [StoreUnit(watch.replica.replica, header, number)]
        return [*out, *([] if watch.fork is None else self._feed(watch, watch.fork, (stream,)))]

    def link_lost(self, node: NodeId) -> None:
        for watch in self.watches.values():
            for inbox in watch.inputs.values():
                inbox.lost(node)

    def _feed(self, watch: InputWatch, fork: Fork, streams: Iterable[StreamId]) -> list[Instruction]:
        """Give a fork what its replica has: stable units as far as they go, tentative ones beyond them.

        Pulses rise with numbers in both. So what it has is passed over: in a long failure that is nearly all of it.
        """
        out: list[Instruction] = []
        for stream in streams:
            stable = watch.replica.inboxes[stream]
            for number in beyond(range(stable.consumed + 1, stable.available + 1), stable.headers, fork.has(stream)):
                out += fork.feed(stream, stable.headers[number], (stream, number))
            tentative = watch.inputs[stream]
            for number in beyond(tentative.numbers, tentative.units, fork.has(stream)):
                header = tentative.units[number]
                out += fork.feed(stream, header, (header.stream, number))
        return [*out, *fork.answers(watch.seen_ms)]

    # --- the fork's query -----------------------------------------------------------------------------

    def produced(self, event: Produced, now_ms: float) -> list[Instruction]:
        watch = next((w for w in self.watches.values() if w.fork and w.fork.replica == event.replica), None)
        if watch is None or watch.fork is None:
            return []
        watch.fork.produced = max(watch.fork.produced, event.number)
        watch.failures = 0
        if event.headers:
            since, pulse = event.headers[0].since, event.headers[0].pulse
            watch.outbox.add(Results(event.headers, watch.came_ms(since, pulse, now_ms)))
        return []

    def query_ended(self, event: QueryFailed, now_ms: float) -> list[Instruction] | None:
        """A fork is not started again: its replica's state is the better one to begin with."""
        watch = next((w for w in self.watches.values() if w.fork and w.fork.replica == event.replica), None)
        if watch is None:
            return None
        watch.failures += 1
        watch.not_before_ms = now_ms + watch.how.patience_ms * min(watch.failures, 10)
        return [Report(ForkFailed(watch.replica.replica, event.reason)), *self._drop(watch)]

    # --- time -----------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> list[Instruction]:
        out, self.orphans = self.orphans, []
        still = bool(self.watches) and rest_of(self.around.layout, self.policies.separate()) is Rest.STILL
        for watch in self.watches.values():
            watch.forget()
            watch.rest(still, now_ms)
            watch.warned = watch.warned and self._warned(watch)
            watch.look(now_ms)
            out += self._stand(watch, now_ms)
            out += self._keep_fork(watch, now_ms)
            out += self._show(watch, now_ms)
            out += self._tell(watch)
        return [*out, *self.audience.tick(now_ms)]

    def _stand(self, watch: InputWatch, now_ms: float) -> list[Instruction]:
        state = watch.stand(now_ms)
        stopped = watch.replica.stopped is not None
        if stopped or state is watch.state or not self.reconciliation.may_turn(watch, state, now_ms):
            return []
        before, watch.state = watch.state, state
        out: list[Instruction] = [Report(self._notice(watch, before))]
        return [*out, *self.reconciliation.turned(watch, before)]

    def _notice(self, watch: InputWatch, before: Consistency) -> Notice:
        name = watch.replica.replica
        match watch.state:
            case Consistency.UP_FAILURE:
                lacking = tuple(sorted({stream.producer.part for stream in watch.replica.starving()}))
                return InputMissing(name, lacking, waits=watch.how.during_failure is InputHandling.SUSPEND)
            case Consistency.STABILIZATION:
                return InputReturned(name, watch.stable)
        return InputComplete(name, corrected=before is Consistency.STABILIZATION)

    def _keep_fork(self, watch: InputWatch, now_ms: float) -> list[Instruction]:
        fork = watch.fork
        if fork is None:
            return self._make(watch) if watch.wants_fork(now_ms) and self._counts(watch) else []
        if watch.replica.stopped is not None or not watch.needs_fork() or self.reconciliation.replaces_fork(watch):
            return self._drop(watch)
        fork.fork_cuts.held = watch.hold()
        fork.fork_cuts.known = self._known(watch)
        if watch.stalled and not fork.fork_cuts.missing:
            fork.fork_cuts.missing = frozenset(watch.replica.starving())
        waits = watch.waiting_since(fork.done)
        if waits is not None and now_ms >= waits + watch.how.patience_ms:
            fork.give_up_on()
        return [*fork.answers(now_ms)]

    def _counts(self, watch: InputWatch) -> bool:
        """A replica that is still being built has no results of its own to go on from."""
        return watch.replica.replica not in self.around.layout.joining

    def _make(self, watch: InputWatch) -> list[Instruction]:
        replica = watch.replica
        self.episodes += 1
        shard = replica.replica.shard
        name = ReplicaId(ShardId(fork_of(shard.part), shard.index), self.episodes)
        # One that is kept ready takes what its replica takes, as long as nothing is missing.
        watch.fork = Fork.of(name, replica, frozenset(replica.starving() if watch.stalled else ()))
        watch.fork.fork_cuts.known = self._known(watch)
        watch.outbox.restart()
        return [ForkReplica(replica.replica, name, replica.committed), *self._feed(watch, watch.fork, replica.inputs)]

    def _known(self, watch: InputWatch) -> int:
        """The pulse up to which results of a shard were given out, by whichever of its replicas."""
        given, name = self.reconciliation.given, watch.replica.replica
        others = [pulse for replica, pulse in given.items() if replica.shard == name.shard and replica != name]
        return max([watch.outbox.through, *others])

    def _drop(self, watch: InputWatch) -> list[Instruction]:
        fork, watch.fork = watch.fork, None
        if fork is None:
            return []
        watch.outbox.restart()
        # Another one to be kept ready can wait: there is a past to put right, or input that comes late.
        watch.stand_after_ms = watch.seen_ms + watch.how.patience_ms
        self.audience.forget(fork.replica)
        return [*fork.forget_questions(), DropReplica(fork.replica)]

    def _show(self, watch: InputWatch, now_ms: float) -> list[Instruction]:
        """Drop what stable results have overtaken, and give out what is due."""
        out: list[Instruction] = []
        if watch.fork is not None:
            for header in watch.outbox.overtaken(watch.stable):
                if not self.audience.withdraw(header):
                    out.append(DropOutbox(watch.fork.replica, header.stream, (header.number,)))
        for results in watch.due(now_ms):
            assert watch.fork is not None
            self.around.counters["tentative_units"] += len(results.headers)
            self.around.counters["tentative_rows"] += sum(header.digest.rows for header in results.headers)
            out += self.audience.show(watch.fork.replica, results.headers, now_ms)
        for inbox in watch.inputs.values():
            done = inbox.overtaken(watch.replica.committed)
            if done:
                fork_shard = ShardId(fork_of(inbox.stream.producer.part), inbox.stream.producer.index)
                stream = StreamId(fork_shard, inbox.stream.consumer)
                out.append(DropInbox(watch.replica.replica, stream, done))
        return out

    # --- telling --------------------------------------------------------------------------------------

    def _tell(self, watch: InputWatch) -> list[Instruction]:
        out: list[Instruction] = []
        replica = watch.replica.replica
        if (watch.state, watch.given) != watch.told:
            watch.told = (watch.state, watch.given)
            out += [Send(to, self._health(watch)) for to in sorted(self._concerned(replica))]
        if watch.ahead != watch.told_ahead:
            watch.told_ahead = watch.ahead
            self.advance.goes_ahead(replica, watch.ahead)
            out += self.reports.announce(replica)
        return out

    def briefing(self, to: NodeId) -> list[Instruction]:
        """The same to a node that may have missed it."""
        out: list[Instruction] = []
        for watch in self.watches.values():
            if to in self._concerned(watch.replica.replica):
                out.append(Send(to, self._health(watch)))
        return out

    def _health(self, watch: InputWatch) -> Health:
        return Health(watch.replica.replica, watch.state, watch.given)

    def _concerned(self, replica: ReplicaId) -> set[NodeId]:
        """The nodes with siblings of a replica, and with those that read its results."""
        around = self.around
        readers = {
            name
            for stream in around.topology.outputs(replica.shard)
            for name in around.layout.working_nodes_of(stream.consumer)
        }
        return (around.concerned(replica.shard) | readers) & around.links

    def outlook(self, replica: ReplicaId) -> Outlook | None:
        watch = self.watches.get(replica)
        if watch is None:
            return None
        fork = watch.fork
        ready = fork is None or (watch.standing and fork.clean)
        settled = watch.state is Consistency.STABLE and not watch.paused and ready
        name, pulse = (None, 0) if fork is None else (fork.replica, fork.done)
        return Outlook(watch.state, watch.blocked, watch.given, watch.stable, name, pulse, settled)

    def standing(self, replica: ReplicaId) -> Consistency | None:
        watch = self.watches.get(replica)
        return self.reconciliation.siblings.get(replica) if watch is None else watch.state

    def layout_changed(self, _placed: Collection[ReplicaId], _now_ms: float) -> list[Instruction]:
        self.reconciliation.layout_changed(self.around.may_count)
        return []

    def heard(self, message: Health) -> list[Instruction]:
        """How the results of a replica stand elsewhere: whoever reads them gets ready in time."""
        self.reconciliation.heard(message)
        for watch in self.watches.values():
            watch.warned = self._warned(watch)
        return []

    def _warned(self, watch: InputWatch) -> bool:
        return any(self._failing(shard) for shard in {stream.producer for stream in watch.inputs})

    def _failing(self, shard: ShardId) -> bool:
        """Whether no replica of a shard has all of its input."""
        known = self.reconciliation.siblings
        full = self.around.layout.full(shard)
        return bool(full) and all(known.get(replica) is Consistency.UP_FAILURE for replica in full)

    def subscribed(self, sender: NodeId, message: Subscribe) -> list[Instruction]:
        """Somebody reads a stream; what was given out and is not replaced is sent again."""
        self.audience.subscribe(sender, message)
        watch = next((w for w in self.watches.values() if w.replica.replica.shard == message.stream.producer), None)
        if watch is None or watch.fork is None:
            return []
        headers = [header for results in watch.outbox.given for header in results.headers]
        return self.audience.send(watch.fork.replica, headers)

    def unsubscribed(self, message: Unsubscribe) -> None:
        self.audience.unsubscribe(message.stream, message.subscriber)

    def subscriber_gone(self, node: NodeId) -> None:
        self.audience.gone(node)

    def sink_took(self, stream: StreamId) -> bool:
        if stream.home == stream:
            return False
        self.audience.delivered(stream)
        return True

    def wake_times_ms(self) -> list[float]:
        times = [time for watch in self.watches.values() for time in watch.wake_times_ms()]
        return [*times, *self.audience.wake_times_ms(), *self.reconciliation.wake_times_ms()]

    def check(self) -> None:
        for watch in self.watches.values():
            watch.check()

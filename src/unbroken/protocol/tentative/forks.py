"""Going on without input that is missing: the forks of a node's replicas, and their tentative results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unbroken.protocol.events import Produced, QueryFailed, UnitArrived
from unbroken.protocol.ingress.pause import Rest, rest_of
from unbroken.protocol.instructions import (
    DropInbox,
    DropOutbox,
    DropReplica,
    ForkReplica,
    Instruction,
    Report,
    Send,
    StoreUnit,
)
from unbroken.protocol.messages import Health, Progress, Subscribe
from unbroken.protocol.output.outbox import FAILURE_WINDOW
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.tentative.audience import Showing
from unbroken.protocol.tentative.fork import Fork
from unbroken.protocol.tentative.missing_input import Watch
from unbroken.protocol.tentative.reconciliation import Reconciling
from unbroken.protocol.tentative.units import Results, TentativeInbox, beyond
from unbroken.protocol.values.consistency import Availability, Consistency, Policy
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, fork_of

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

WAITS = Availability(10_000, during_failure=Policy.SUSPEND, during_stabilization=Policy.SUSPEND)
"""For replicas that wait for missing input however long, where sources go their own ways. They have to say so: what
they lack may not even have been asked for, as long as sources are held until all that was cut is processed. In ten
seconds any input comes that is only late."""


@dataclass
class Forking:
    """Watches the replicas that are to go on without missing input, and makes, feeds and drops their forks.

    Invariants: a replica has at most one fork, and a fork only while it lacks input or has tentative results to
    replace. Nothing of a fork ever gets into the state or the units of its replica.
    """

    node: NodeProtocol
    watches: dict[ReplicaId, Watch] = field(default_factory=dict)
    episodes: int = 0
    orphans: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.showing = Showing(self.node)
        self.reconciling = Reconciling(self.node, self.watches)

    # --- replicas that come and go --------------------------------------------------------------------

    def open(self, replica: SegmentReplica) -> None:
        how = self.node.topology.availability.get(replica.replica.shard.part)
        if how is not None:
            for inbox in replica.inboxes.values():
                inbox.limit = FAILURE_WINDOW
        elif self.node.topology.bucketed:
            how = WAITS
        else:
            return
        inputs = {stream: TentativeInbox(stream, how.patience_ms / 2) for stream in replica.inputs}
        tuned = self.node.settings
        watch = Watch(replica, how, inputs, warm_up=(tuned.warm_units, tuned.warm_ms), began=replica.produced)
        watch.close = len(self.node.topology.segments) + 2
        watch.standing = how.patience_ms < tuned.standing_ms and how.during_failure is not Policy.SUSPEND
        self.watches[replica.replica] = watch
        self.reconciling.open(watch)
        # What an earlier process has taken in waits at least since this one began.
        here = {header.pulse for inbox in replica.inboxes.values() for header in inbox.headers.values()}
        for pulse in sorted(here):
            watch.note(pulse - 1, pulse, self.node.seen_ms)

    def close(self, replica: ReplicaId) -> None:
        """A replica is not at work here any more, and neither is its fork."""
        watch = self.watches.pop(replica, None)
        self.showing.close(replica.shard)
        if watch is not None:
            self.orphans += self._drop(watch)
            self.reconciling.close(replica)

    def find(self, fork: ReplicaId) -> Fork | None:
        return next((w.fork for w in self.watches.values() if w.fork is not None and w.fork.replica == fork), None)

    def wants(self, replica: ReplicaId, stream: StreamId) -> int:
        """From which pulse on a replica wants a tentative input, for a subscription; -1: not at all."""
        watch = self.watches.get(replica)
        if watch is None or watch.how.during_failure is Policy.SUSPEND:
            return -1
        return max(watch.inputs[stream].through, watch.replica.inboxes[stream].reach)

    # --- input ----------------------------------------------------------------------------------------

    def came(self, replica: SegmentReplica, stream: StreamId, pulse: int, now_ms: float) -> list[Instruction]:
        """A stable unit has come."""
        watch = self.watches.get(replica.replica)
        if watch is None:
            return []
        watch.note(pulse - 1, pulse, now_ms)
        return [] if watch.fork is None else self._feed(watch, watch.fork, (stream,))

    def arrived(self, event: UnitArrived, now_ms: float) -> list[Instruction]:
        """A tentative unit has come."""
        header, stream = event.header, event.header.stream.home
        watch = next((w for w in self.watches.values() if stream in w.inputs), None)
        if watch is None or watch.replica.stopped is not None or watch.how.during_failure is Policy.SUSPEND:
            return []
        if not watch.replica.feeds[stream].takes(event.sender):
            return []
        number = watch.inputs[stream].arrive(header, event.sender, watch.replica.inboxes[stream].reach, now_ms)
        if number is None:
            return []
        self.node.traffic["tentative"] += event.size
        watch.note(header.since, header.pulse, now_ms)
        out: list[Instruction] = [StoreUnit(watch.replica.replica, header, number)]
        return [*out, *([] if watch.fork is None else self._feed(watch, watch.fork, (stream,)))]

    def link_lost(self, node: NodeId) -> None:
        for watch in self.watches.values():
            for inbox in watch.inputs.values():
                inbox.lost(node)

    def _feed(self, watch: Watch, fork: Fork, streams: Iterable[StreamId]) -> list[Instruction]:
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

    def query_failed(self, event: QueryFailed, now_ms: float) -> list[Instruction]:
        """A fork is not started again: its replica's state is the better one to begin with."""
        watch = next((w for w in self.watches.values() if w.fork and w.fork.replica == event.replica), None)
        if watch is None:
            return []
        watch.failures += 1
        watch.not_before_ms = now_ms + watch.how.patience_ms * min(watch.failures, 10)
        sentence = f"{watch.replica.replica} cannot go on without its missing input: {event.reason}"
        return [Report(sentence), *self._drop(watch)]

    # --- time -----------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> list[Instruction]:
        out, self.orphans = self.orphans, []
        still = bool(self.watches) and rest_of(self.node.topology, self.node.layout) is Rest.STILL
        for watch in self.watches.values():
            watch.forget()
            watch.rest(still, now_ms)
            watch.warned = watch.warned and self._warned(watch)
            watch.look(now_ms)
            out += self._stand(watch, now_ms)
            out += self._keep_fork(watch, now_ms)
            out += self._show(watch, now_ms)
            out += self._tell(watch)
        return [*out, *self.showing.tick(now_ms)]

    def _stand(self, watch: Watch, now_ms: float) -> list[Instruction]:
        state = watch.stand(now_ms)
        stopped = watch.replica.stopped is not None
        if stopped or state is watch.state or not self.reconciling.may_turn(watch, state, now_ms):
            return []
        before, watch.state = watch.state, state
        out: list[Instruction] = [Report(self._sentence(watch, before))]
        return [*out, *self.reconciling.turned(watch, before)]

    def _sentence(self, watch: Watch, before: Consistency) -> str:
        name = watch.replica.replica
        match watch.state:
            case Consistency.UP_FAILURE:
                lacking = ", ".join(sorted({s.producer.part for s in watch.replica.starving()}))
                what = "waits" if watch.how.during_failure is Policy.SUSPEND else "goes on without it, tentatively"
                return f"{name} lacks input of {lacking or 'its producers'} and {what}"
            case Consistency.STABILIZATION:
                return f"{name} has its missing input and puts results after unit {watch.stable} right"
        replaced = "all its tentative results are replaced" if before is Consistency.STABILIZATION else "in time"
        return f"{name} has all its input again; {replaced}"

    def _keep_fork(self, watch: Watch, now_ms: float) -> list[Instruction]:
        fork = watch.fork
        if fork is None:
            return self._make(watch) if watch.wants_fork(now_ms) and self._counts(watch) else []
        if watch.replica.stopped is not None or not watch.needs_fork() or self.reconciling.replaces_fork(watch):
            return self._drop(watch)
        fork.fork_cuts.held = watch.hold()
        fork.fork_cuts.known = self._known(watch)
        if watch.stalled and not fork.fork_cuts.missing:
            fork.fork_cuts.missing = frozenset(watch.replica.starving())
        waits = watch.waiting_since(fork.done)
        if waits is not None and now_ms >= waits + watch.how.patience_ms:
            fork.give_up_on()
        return [*fork.answers(now_ms)]

    def _counts(self, watch: Watch) -> bool:
        """A replica that is still being built has no results of its own to go on from."""
        return watch.replica.replica not in self.node.layout.joining

    def _make(self, watch: Watch) -> list[Instruction]:
        replica = watch.replica
        self.episodes += 1
        shard = replica.replica.shard
        name = ReplicaId(ShardId(fork_of(shard.part), shard.index), self.episodes)
        # One that is kept ready takes what its replica takes, as long as nothing is missing.
        watch.fork = Fork.of(name, replica, frozenset(replica.starving() if watch.stalled else ()))
        watch.fork.fork_cuts.known = self._known(watch)
        watch.outbox.restart()
        return [ForkReplica(replica.replica, name, replica.committed), *self._feed(watch, watch.fork, replica.inputs)]

    def _known(self, watch: Watch) -> int:
        """The pulse up to which results of a shard were given out, by whichever of its replicas."""
        given, name = self.reconciling.given, watch.replica.replica
        others = [pulse for replica, pulse in given.items() if replica.shard == name.shard and replica != name]
        return max([watch.outbox.through, *others])

    def _drop(self, watch: Watch) -> list[Instruction]:
        fork, watch.fork = watch.fork, None
        if fork is None:
            return []
        watch.outbox.restart()
        # Another one to be kept ready can wait: there is a past to put right, or input that comes late.
        watch.stand_after_ms = watch.seen_ms + watch.how.patience_ms
        self.showing.forget(fork.replica)
        return [*fork.forget_questions(), DropReplica(fork.replica)]

    def _show(self, watch: Watch, now_ms: float) -> list[Instruction]:
        """Drop what stable results have overtaken, and give out what is due."""
        out: list[Instruction] = []
        if watch.fork is not None:
            for header in watch.outbox.overtaken(watch.stable):
                if not self.showing.withdraw(header):
                    out.append(DropOutbox(watch.fork.replica, header.stream, (header.number,)))
        for results in watch.due(now_ms):
            assert watch.fork is not None
            self.node.counters["tentative_units"] += len(results.headers)
            self.node.counters["tentative_rows"] += sum(header.digest.rows for header in results.headers)
            out += self.showing.show(watch.fork.replica, results.headers, now_ms)
        for inbox in watch.inputs.values():
            done = inbox.overtaken(watch.replica.committed)
            if done:
                fork_shard = ShardId(fork_of(inbox.stream.producer.part), inbox.stream.producer.index)
                stream = StreamId(fork_shard, inbox.stream.consumer)
                out.append(DropInbox(watch.replica.replica, stream, done))
        return out

    # --- telling --------------------------------------------------------------------------------------

    def _tell(self, watch: Watch) -> list[Instruction]:
        out: list[Instruction] = []
        replica, node = watch.replica.replica, self.node
        if (watch.state, watch.given) != watch.told:
            watch.told = (watch.state, watch.given)
            out += [Send(to, self._health(watch)) for to in sorted(self._concerned(replica))]
        if watch.ahead != watch.told_ahead:
            watch.told_ahead = watch.ahead
            node.goes_ahead(replica, watch.ahead)
            message = Progress(replica, node.progress.get(replica, 0), watch.ahead)
            out += [Send(to, message) for to in sorted(node.sync.members) if to != node.me]
        return out

    def tell(self, to: NodeId) -> list[Instruction]:
        """The same to a node that may have missed it."""
        out: list[Instruction] = []
        for watch in self.watches.values():
            if to in self._concerned(watch.replica.replica):
                out.append(Send(to, self._health(watch)))
        return out

    def _health(self, watch: Watch) -> Health:
        return Health(watch.replica.replica, watch.state, watch.given)

    def _concerned(self, replica: ReplicaId) -> set[NodeId]:
        """The nodes with siblings of a replica, and with those that read its results."""
        node = self.node
        readers = {
            name
            for stream in node.topology.outputs(replica.shard)
            for name in node.layout.working_nodes_of(stream.consumer)
        }
        return (node.hosting.concerned(replica.shard) | readers) & node.links

    def heard(self, message: Health) -> None:
        """How the results of a replica stand elsewhere: whoever reads them gets ready in time."""
        self.reconciling.heard(message)
        for watch in self.watches.values():
            watch.warned = self._warned(watch)

    def _warned(self, watch: Watch) -> bool:
        return any(self._failing(shard) for shard in {stream.producer for stream in watch.inputs})

    def _failing(self, shard: ShardId) -> bool:
        """Whether no replica of a shard has all of its input."""
        known = self.reconciling.siblings
        full = self.node.layout.full(shard)
        return bool(full) and all(known.get(replica) is Consistency.UP_FAILURE for replica in full)

    def subscribed(self, sender: NodeId, message: Subscribe) -> list[Instruction]:
        """Somebody reads a stream; what was given out and is not replaced is sent again."""
        self.showing.subscribe(sender, message)
        watch = next((w for w in self.watches.values() if w.replica.replica.shard == message.stream.producer), None)
        if watch is None or watch.fork is None:
            return []
        headers = [header for results in watch.outbox.given for header in results.headers]
        return self.showing.send(watch.fork.replica, headers)

    def wake_times_ms(self) -> list[float]:
        times = [time for watch in self.watches.values() for time in watch.wake_times_ms()]
        return [*times, *self.showing.wake_times_ms(), *self.reconciling.wake_times_ms()]

    def check(self) -> None:
        for watch in self.watches.values():
            watch.check()

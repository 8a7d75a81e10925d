"""Getting back to the state without the failure, where a replica's own query rests while its fork runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unbroken.protocol.events import GateAsked, Produced
from unbroken.protocol.instructions import Instruction, PauseReplica, StartReplica
from unbroken.protocol.messages import Health
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.tentative.missing_input import Watch
from unbroken.protocol.tentative.undo_log import UndoLog
from unbroken.protocol.values.consistency import Consistency, Policy, Reconcile
from unbroken.protocol.values.ids import ReplicaId

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

TURN_MS = 500.0
"""How long a replica leaves the first step to each sibling before it. Only one of them puts its past right at a time,
as long as they hear each other; the others go on with what comes in."""


@dataclass
class Reconciling:
    """Rests and resumes the queries of replicas that are set back after a failure.

    Invariant: a replica rests only from the moment its fork is used until it is its turn to reconcile.
    """

    node: NodeProtocol
    watches: Mapping[ReplicaId, Watch]
    siblings: dict[ReplicaId, Consistency] = field(default_factory=dict)
    given: dict[ReplicaId, int] = field(default_factory=dict)
    logs: dict[ReplicaId, UndoLog] = field(default_factory=dict)

    def open(self, watch: Watch) -> None:
        if watch.how.reconcile is Reconcile.UNDO:
            self.logs[watch.replica.replica] = UndoLog.of(watch)

    def close(self, replica: ReplicaId) -> None:
        self.logs.pop(replica, None)

    def heard(self, message: Health) -> None:
        self.siblings[message.replica] = message.state
        self.given[message.replica] = message.tentative

    def layout_changed(self, may_count: Callable[[ReplicaId], bool]) -> None:
        """Replicas that are gone for good are forgotten."""
        self.siblings = {replica: state for replica, state in self.siblings.items() if may_count(replica)}
        self.given = {replica: pulse for replica, pulse in self.given.items() if may_count(replica)}

    def processed(self, event: Produced) -> None:
        """A replica has processed a unit: the time that was in force decides how long its input matters."""
        log = self.logs.get(event.replica)
        if log is None:
            return
        watch = self.watches[event.replica]
        cut_ms = max((header.cut_ms for header in event.headers), default=0)
        time_ms = event.watermark_ms if watch.how.timed else cut_ms
        log.processed(event.number, time_ms if watch.replica.alone(event.number) else None)

    def commit(self, replica: SegmentReplica, event: GateAsked) -> list[Instruction]:
        """A replica has committed micro-batches; what of their input can be let go."""
        log = self.logs.get(replica.replica)
        if log is None:
            return [*replica.commit(event.start, event.cut)]
        log.committing(replica, event.start)
        return log.committed(replica, replica.commit(event.start, event.cut))

    def may_turn(self, watch: Watch, state: Consistency, now_ms: float) -> bool:
        """Whether a replica may go over to a state at this moment."""
        if state is not Consistency.STABILIZATION or not watch.paused:
            watch.healed_ms = None
            return True
        if watch.healed_ms is None:
            watch.healed_ms = now_ms
        if watch.how.during_stabilization is Policy.SUSPEND:
            return True
        others = self._siblings(watch.replica.replica)
        if any(self.siblings.get(other) is Consistency.STABILIZATION for other in others):
            return False
        before = [other for other in others if other < watch.replica.replica and self._failing(other)]
        return now_ms >= watch.healed_ms + TURN_MS * len(before)

    def turned(self, watch: Watch, before: Consistency) -> list[Instruction]:
        """A replica has gone over from one state to another."""
        replica = watch.replica
        if not watch.alternates:
            return []
        if watch.state is Consistency.UP_FAILURE:
            if watch.how.during_failure is Policy.SUSPEND or watch.paused:
                return []
            watch.paused = replica.resting = True
            replica.restart_ms = None  # one that has just failed is started with the others
            return [*replica.forget_questions(), PauseReplica(replica.replica)]
        if not watch.paused:
            return []
        watch.paused = replica.resting = False
        log = self.logs.get(replica.replica)
        steps = [] if log is None else log.undo(watch)
        return [*replica.forget_questions(), *steps, StartReplica(replica.replica)]

    def replaces_fork(self, watch: Watch) -> bool:
        """Whether the query of the replica itself has taken the place of its fork."""
        return watch.alternates and watch.state is Consistency.STABILIZATION and not watch.paused

    def wake_times_ms(self) -> list[float]:
        waiting = [w for w in self.watches.values() if w.healed_ms is not None and w.paused]
        times = [w.healed_ms + TURN_MS * len(self._siblings(w.replica.replica)) for w in waiting if w.healed_ms]
        seen = max((w.seen_ms for w in waiting), default=0.0)
        return [time for time in times if time > seen]

    def _siblings(self, replica: ReplicaId) -> list[ReplicaId]:
        """The other replicas of a shard that can be heard."""
        node = self.node
        full = node.layout.full(replica.shard) - {replica}
        return sorted(other for other in full if node.layout.placement[other] in node.links)

    def _failing(self, other: ReplicaId) -> bool:
        return self.siblings.get(other) is Consistency.UP_FAILURE

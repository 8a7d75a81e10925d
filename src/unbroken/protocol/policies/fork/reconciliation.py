"""Getting back to the state without the failure, where a replica's own query rests while its fork runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from unbroken.protocol.instructions import Instruction, StartReplica
from unbroken.protocol.policies.fork.instructions import PauseReplica
from unbroken.protocol.policies.fork.messages import Health
from unbroken.protocol.policies.fork.missing_input import InputWatch
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.consistency import Consistency, InputHandling
from unbroken.protocol.values.ids import ReplicaId

TURN_MS = 500.0
"""How long a replica leaves the first step to each sibling before it. Only one of them puts its past right at a time,
as long as they hear each other; the others go on with what comes in."""


@dataclass
class Reconciliation:
    """Rests and resumes the queries of replicas that are set back after a failure.

    Invariant: a replica rests only from the moment its fork is used until it is its turn to reconcile.
    """

    around: Surroundings
    policies: Policies
    watches: Mapping[ReplicaId, InputWatch]
    siblings: dict[ReplicaId, Consistency] = field(default_factory=dict)
    given: dict[ReplicaId, int] = field(default_factory=dict)

    def heard(self, message: Health) -> None:
        self.siblings[message.replica] = message.state
        self.given[message.replica] = message.tentative

    def layout_changed(self, may_count: Callable[[ReplicaId], bool]) -> None:
        """Replicas that are gone for good are forgotten."""
        self.siblings = {replica: state for replica, state in self.siblings.items() if may_count(replica)}
        self.given = {replica: pulse for replica, pulse in self.given.items() if may_count(replica)}

    def may_turn(self, watch: InputWatch, state: Consistency, now_ms: float) -> bool:
        """Whether a replica may go over to a state at this moment."""
        if state is not Consistency.STABILIZATION or not watch.paused:
            watch.healed_ms = None
            return True
        if watch.healed_ms is None:
            watch.healed_ms = now_ms
        if watch.how.during_stabilization is InputHandling.SUSPEND:
            return True
        others = self._siblings(watch.replica.replica)
        if any(self.siblings.get(other) is Consistency.STABILIZATION for other in others):
            return False
        before = [other for other in others if other < watch.replica.replica and self._failing(other)]
        return now_ms >= watch.healed_ms + TURN_MS * len(before)

    def turned(self, watch: InputWatch, before: Consistency) -> list[Instruction]:
        """A replica has gone over from one state to another."""
        replica = watch.replica
        if not watch.alternates:
            return []
        if watch.state is Consistency.UP_FAILURE:
            if watch.how.during_failure is InputHandling.SUSPEND or watch.paused:
                return []
            watch.paused = replica.resting = True
            replica.restart_ms = None  # one that has just failed is started with the others
            return [*replica.forget_questions(), PauseReplica(replica.replica)]
        if not watch.paused:
            return []
        watch.paused = replica.resting = False
        steps = self.policies.set_back(replica)
        return [*replica.forget_questions(), *steps, StartReplica(replica.replica)]

    def replaces_fork(self, watch: InputWatch) -> bool:
        """Whether the query of the replica itself has taken the place of its fork."""
        return watch.alternates and watch.state is Consistency.STABILIZATION and not watch.paused

    def wake_times_ms(self) -> list[float]:
        waiting = [w for w in self.watches.values() if w.healed_ms is not None and w.paused]
        times = [w.healed_ms + TURN_MS * len(self._siblings(w.replica.replica)) for w in waiting if w.healed_ms]
        seen = max((w.seen_ms for w in waiting), default=0.0)
        return [time for time in times if time > seen]

    def _siblings(self, replica: ReplicaId) -> list[ReplicaId]:
        """The other replicas of a shard that can be heard."""
        layout = self.around.layout
        full = layout.full(replica.shard) - {replica}
        return sorted(other for other in full if layout.placement[other] in self.around.links)

    def _failing(self, other: ReplicaId) -> bool:
        return self.siblings.get(other) is Consistency.UP_FAILURE

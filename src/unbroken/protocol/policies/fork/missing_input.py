"""How long a replica's next micro-batch has waited for input, and how its results stand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from unbroken.errors import require
from unbroken.protocol.policies.fork.fork import Fork
from unbroken.protocol.policies.fork.units import Results, TentativeInbox, TentativeOutbox
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.consistency import Consistency, DelayBound, InputHandling
from unbroken.protocol.values.ids import StreamId

PREPARED = 1 / 3
EARLIEST = 1 / 20
"""Shares of the patience with missing input after which a fork is made at the latest, and at the earliest. It takes one
or two seconds until it has its first results, and those are to be there when the patience is over; until then nobody
sees them."""

UNUSUAL = 2.0
"""How many times longer than usual input has to be missing before a fork is worth making."""

FADING = 0.99
"""What remains of the longest usual wait with every unit."""

SELDOM = 1 / 2
"""Share of the patience for which a fork lets input wait while the past is put right."""

REFRESH = 32
"""Pulses by which a fork that is kept ready may be behind: taking these together costs one micro-batch, and so little
more is to be done when it is needed."""


@dataclass
class InputWatch:
    """One replica whose input may be missing for too long.

    ``came`` is when the first piece of a pulse came, in the order in which they did, for pulses that are not
    ``processed``; ``newest`` is the highest of them, and ``highs`` are those that were the highest when they came.
    Nothing is late before the replica is ``warm``: it has processed so many units, or has had so much time.
    ``usual_ms`` is how long input is missing when nothing is wrong; ``warned`` says that all replicas of a producer
    lack input themselves. With ``standing``, a fork is kept ready while nothing is missing. ``close`` is by how many
    pulses it may be behind when nothing is wrong. A fork that failed is not tried again before ``not_before_ms``. While
    ``paused``, the query of the replica itself rests. ``told`` is what others have heard of it. ``returns_from`` is the
    newest pulse there was when the sources of the flow rested, until the replica has made up for that. With
    ``alternates``, the replica's own query rests while its fork runs.

    Invariant: a replica is stable unless something tentative was, or could have been, given out that it has not
    replaced.
    """

    replica: SegmentReplica
    how: DelayBound
    inputs: dict[StreamId, TentativeInbox]
    state: Consistency = Consistency.STABLE
    warm_up: tuple[int, float] = (0, 0.0)
    standing: bool = False
    close: int = 0
    stand_after_ms: float = 0.0
    opened_ms: float | None = None
    began: int = 0
    warm: bool = False
    came: dict[int, float] = field(default_factory=dict)
    highs: list[int] = field(default_factory=list)
    newest: int = 0
    usual_ms: float = 0.0
    warned: bool = False
    processed: int = -1
    outbox: TentativeOutbox = field(default_factory=TentativeOutbox)
    fork: Fork | None = None
    episode: int = 0
    not_before_ms: float = 0.0
    paused: bool = False
    stalled: bool = False
    waits_since: float | None = None
    healed_ms: float | None = None
    seen_ms: float = 0.0
    failures: int = 0
    told: tuple[Consistency, int] = (Consistency.STABLE, 0)
    told_ahead: int = 0
    returns_from: int | None = None
    alternates: bool = False

    # --- what is known --------------------------------------------------------------------------------

    @property
    def stable(self) -> int:
        """The pulse up to which stable results are there."""
        return max(self.replica.pulse, self.replica.committed)

    @property
    def given(self) -> int:
        """The highest pulse of results that were given out and are not replaced; 0 if there are none."""
        return self.outbox.through if self.outbox.through > self.stable else 0

    @property
    def blocked(self) -> bool:
        """Whether the next micro-batch lacks input, of which some has come."""
        replica = self.replica
        if replica.final is not None or replica.cuts.next(replica.committed) is not None:
            return False
        return bool(self.came)

    @property
    def front(self) -> int:
        """The newest pulse of which anything is here and not processed; 0 if there is nothing."""
        return self.newest if self.came else 0

    @property
    def ahead(self) -> int:
        """The pulse up to which nobody has to wait for this replica, although it does; 0 if it does not wait.

        One that puts its past right is waited for when it is suspended, or nearly there: in a flow that is given as
        much as it can carry it would never be.
        """
        if self.state is Consistency.STABILIZATION and not self.paused:
            waited_for = self._policy is InputHandling.SUSPEND or self.front <= self.stable + self.close
            return 0 if waited_for else self.front
        waits = self.state is not Consistency.STABLE or self.stalled
        return self.front if waits else 0

    @property
    def _policy(self) -> InputHandling:
        stabilizing = self.state is Consistency.STABILIZATION
        return self.how.during_stabilization if stabilizing else self.how.during_failure

    @property
    def uncertain(self) -> bool:
        """Whether anything tentative has come that a stable unit has not replaced yet."""
        return any(inbox.units for inbox in self.inputs.values())

    @property
    def prepared_ms(self) -> float:
        """How long input has to be missing before a fork is made: sooner where it is seldom late."""
        patience = self.how.patience_ms
        return min(patience * PREPARED, max(patience * EARLIEST, self.usual_ms * UNUSUAL))

    def since_ms(self) -> float | None:
        """Since when input waits for other input that is missing."""
        return next(iter(self.came.values())) if self.blocked else None

    # --- what happens ---------------------------------------------------------------------------------

    def note(self, since: int, pulse: int, now_ms: float) -> None:
        """A unit that covers pulses after ``since`` up to ``pulse`` has come."""
        for number in range(max(since, pulse - FORGOTTEN) + 1, pulse + 1):
            if number > self.replica.committed:
                self.came.setdefault(number, now_ms)
                if not self.highs or number > self.highs[-1]:
                    self.highs.append(number)
                self.newest = max(self.newest, number)

    def forget(self) -> None:
        """What is processed does not wait."""
        if self.processed != self.replica.committed:
            self.processed = self.replica.committed
            self.came = {pulse: ms for pulse, ms in self.came.items() if pulse > self.processed}
            self.highs = self.highs[bisect_right(self.highs, self.processed) :]

    def rest(self, still: bool, now_ms: float) -> None:
        """While the flow is ``still`` what is missing cannot come, and for what waits for it no time passes.

        Afterwards there may be much to process that was not read meanwhile, and the next pulse is cut when that is
        done: until the replica has taken all there is, time passes only while it really lacks something.
        """
        if still:
            self.returns_from = self.newest
        elif self.returns_from is None:
            return
        elif self.replica.committed > self.returns_from and (self.blocked or not self.came):
            self.returns_from = None
        elif self.blocked:
            return
        self.came = dict.fromkeys(self.came, now_ms)

    def waiting_since(self, pulse: int) -> float | None:
        """When the first input of pulses after this one came.

        That is the first one that is higher, so none that came after a higher one than itself.
        """
        place = bisect_right(self.highs, pulse)
        return self.came[self.highs[place]] if place < len(self.highs) else None

    def came_ms(self, since: int, through: int, now_ms: float) -> float:
        """When the first input of these pulses came."""
        covered = range(since + 1, through + 1)
        # A micro-batch covers few of the pulses that wait in a long failure.
        pulses: Iterable[int] = covered if len(covered) < len(self.came) else self.came
        return min((self.came[pulse] for pulse in pulses if pulse in self.came and pulse in covered), default=now_ms)

    def look(self, now_ms: float) -> None:
        """Time has passed."""
        since = self.since_ms()
        self.seen_ms = now_ms
        if not self.warm:
            self.opened_ms = now_ms if self.opened_ms is None else self.opened_ms
            units, time_ms = self.warm_up
            self.warm = self.replica.produced >= self.began + units or now_ms >= self.opened_ms + time_ms
        if since is None and self.waits_since is not None and self.state is Consistency.STABLE:
            self.usual_ms = max(now_ms - self.waits_since, self.usual_ms * FADING)
        self.waits_since = since
        ready = self.how.patience_ms * PREPARED if self.fork is not None else self.prepared_ms
        self.stalled = self.warm and since is not None and now_ms >= since + ready

    def stand(self, now_ms: float) -> Consistency:
        """How the results stand at this moment."""
        since = self.since_ms()
        patience = self.how.patience_ms
        match self.state:
            case Consistency.STABLE:
                late = self.warm and since is not None and now_ms >= since + patience
                hasty = (
                    self.warm and self.blocked and self.uncertain and self.how.during_failure is InputHandling.PROCESS
                )
                return Consistency.UP_FAILURE if late or hasty else Consistency.STABLE
            case Consistency.UP_FAILURE if since is None:
                return Consistency.STABILIZATION if self.given or self.paused else Consistency.STABLE
            case Consistency.STABILIZATION:
                if since is not None and now_ms >= since + patience and not self.paused:
                    return Consistency.UP_FAILURE
                return Consistency.STABILIZATION if self.given or self.paused else Consistency.STABLE
        return self.state

    def wants_fork(self, now_ms: float) -> bool:
        """Whether a fork is to be made: one that has a state to begin with, and something to do."""
        replica = self.replica
        if self.fork is not None or now_ms < self.not_before_ms:
            return False
        if replica.stopped is not None or self._policy is InputHandling.SUSPEND:
            return False
        waits = self.paused or any(question.start == replica.committed for question in replica.waiting)
        stands = self.standing and self.state is Consistency.STABLE and now_ms >= self.stand_after_ms
        wanted = (self.blocked and (self.stalled or self.uncertain)) or self.warned or stands
        return waits and self.warm and wanted

    def needs_fork(self) -> bool:
        """Whether the fork that is there still has a purpose."""
        if self._policy is InputHandling.SUSPEND:
            return False
        stands = self.standing and self.fork is not None and self.fork.clean
        return self.blocked or self.warned or stands or self.state is not Consistency.STABLE

    def hold(self) -> bool:
        """Whether the fork should take nothing at this moment.

        While the past is put right it leaves the machine to its replica: it does nothing if that is in time itself, and
        otherwise takes new input together, seldom enough for the bound.
        """
        if self.state is Consistency.STABILIZATION and not self.paused:
            patience = self.how.patience_ms
            return not (self._aged(self.replica.committed, patience) and self._aged(self.done, patience * SELDOM))
        if self.state is not Consistency.STABLE or self.stalled or self.uncertain or self.fork is None:
            return False
        begins = self.fork.produced == self.fork.begun_at
        return not begins and self.stable < self.fork.done + REFRESH

    @property
    def done(self) -> int:
        """The pulse up to which the fork has taken input; that of the replica if there is none."""
        return self.replica.committed if self.fork is None else self.fork.done

    def _aged(self, pulse: int, age_ms: float) -> bool:
        """Whether input of pulses after this one waits for so long."""
        since = self.waiting_since(pulse)
        return since is not None and self.seen_ms >= since + age_ms

    def due(self, now_ms: float) -> list[Results]:
        """Results that are to be given out at this moment."""
        if self.state is Consistency.STABLE or self._policy is InputHandling.SUSPEND:
            return []
        before = now_ms if self._policy is InputHandling.PROCESS else now_ms - self.how.patience_ms
        return self.outbox.release(before)

    def wake_times_ms(self) -> list[float]:
        times: list[float] = []
        since, patience = self.since_ms(), self.how.patience_ms
        if self.standing and self.fork is None:
            times.append(self.stand_after_ms)
        if since is not None:
            times += [since + self.prepared_ms, since + patience * PREPARED, since + patience, self.not_before_ms]
            times += [] if self.warm or self.opened_ms is None else [self.opened_ms + self.warm_up[1]]
        if self.outbox.waiting and self._policy is InputHandling.DELAY:
            times.append(self.outbox.waiting[0].came_ms + patience)
        if self.fork is not None:
            times += self.fork.wake_times_ms()
            for pulse in {self.fork.done, self.replica.committed}:
                waits = self.waiting_since(pulse)
                times += [] if waits is None else [waits + patience, waits + patience * SELDOM]
        return [time for time in times if time > self.seen_ms]

    def check(self) -> None:
        self.outbox.check()
        tops = [*accumulate(self.came, max)]
        require(
            self.highs == sorted(set(tops)),
            f"{self.replica.replica}: it is not known what came first",
            self.replica.replica,
        )
        for inbox in self.inputs.values():
            inbox.check()
        if self.fork is not None:
            self.fork.check()


FORGOTTEN = 1_000
"""Pulses of one tentative unit of which it is noted when they came; it covers more only after a long silence."""

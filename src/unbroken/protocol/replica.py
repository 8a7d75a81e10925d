"""One replica of a segment's shard: inboxes in front, the gate, and the query that asks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.cuts import Gate, PulseCuts
from unbroken.protocol.events import GateAsked
from unbroken.protocol.feeds import Feed
from unbroken.protocol.ids import NodeId, ReplicaId, StreamId, generation_of
from unbroken.protocol.inbox import Arrival, Inbox
from unbroken.protocol.instructions import AnswerGate, DropInbox
from unbroken.protocol.layout import Layout
from unbroken.protocol.recovery import ReplicaState
from unbroken.protocol.units import UnitHeader

RESTARTS = 3
"""Times in a row a query is started again from its checkpoint before its replica counts as stopped. A micro-batch that
runs again finds its units written, so a restart is as safe as a pause."""

RESTART_PAUSE_MS = 200.0
"""Pause before the first restart; doubled for each further one."""

ALONE = 3
"""Units that are taken one by one before the first whose results count. What a state lets go, and what it takes for
late, depends on the watermarks that the two units before have left; so nothing is left of how earlier ones were taken.
"""


@dataclass
class SegmentReplica:
    """A replica's place in the flow.

    Spark asks for the offset after ``start`` only when the micro-batch that ended at ``start`` is committed,
    so the question itself says how far the replica's state reaches.

    Invariants
    ----------
    - Agreement: micro-batch b is released only when the ordering's cut of b is complete.
    - ``committed <= produced + 1``: a version may be committed before the node has heard of its units, but
      no version is skipped, except while a state is built again.
    """

    replica: ReplicaId
    feeds: Mapping[StreamId, Feed]
    committed: int = 0
    acknowledged: int = 0
    produced: int = 0
    stopped: str | None = None
    asked: bool = False
    failures: int = 0
    failed_at: int = 0
    restart_ms: float | None = None
    inboxes: dict[StreamId, Inbox] = field(default_factory=dict)
    holes: dict[tuple[StreamId, NodeId], int] = field(default_factory=dict)
    waiting: list[GateAsked] = field(default_factory=list)
    cuts: PulseCuts = field(init=False)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        for stream in self.feeds:
            self.inboxes.setdefault(stream, Inbox(stream, consumed=self.committed, available=self.committed))
        self.cuts = PulseCuts(self.inboxes)
        self.gate = Gate(self.cuts)

    @classmethod
    def recovered(
        cls, replica: ReplicaId, feeds: Mapping[StreamId, Feed], state: ReplicaState, foldable: bool = False
    ) -> SegmentReplica:
        """A replica that goes on from what its directory holds."""
        out = cls(replica, feeds, committed=state.committed, produced=state.committed)
        out.cuts.joined = state.valid - ALONE if foldable else 0
        for headers in state.inboxes.values():
            for header in headers:
                out.arrive(header)
        return out

    def placed_by(self, layout: Layout) -> None:
        """What the layout says of the generations: results of code that comes count only when it says so, those of all
        other code unless a generation follows that is not known here yet."""
        coming = generation_of(self.replica.shard.part) > layout.generation
        self.cuts.generation = layout.generation if coming else layout.generations[-1]

    @property
    def inputs(self) -> tuple[StreamId, ...]:
        return tuple(self.feeds)

    def arrive(self, header: UnitHeader) -> Arrival:
        arrival = self.inboxes[header.stream].arrive(header)
        if arrival is Arrival.ACCEPTED:
            self.feeds[header.stream].fed()
        return arrival

    def ask(self, question: GateAsked) -> None:
        self.asked = True
        self.waiting.append(question)

    def answers(self, now_ms: float) -> list[AnswerGate]:
        """Answer what can be answered; the rest keeps waiting until its deadline."""
        out: list[AnswerGate] = []
        still: list[GateAsked] = []
        for question in self.waiting:
            give_up = now_ms >= question.deadline_ms or self.stopped is not None
            answer = self.gate.ask(question.instance, question.start, give_up=give_up)
            if answer is None:
                still.append(question)
            else:
                out.append(AnswerGate(question.ticket, answer))
        self.waiting = still
        return out

    def commit(self, through: int) -> list[DropInbox]:
        """Micro-batches up to ``through`` are in the checkpoint: their input is not needed here any more."""
        if through <= self.committed:
            return []
        self.committed = through
        dropped = [(stream, inbox.consume(through)) for stream, inbox in self.inboxes.items()]
        return [DropInbox(self.replica, stream, tuple(numbers)) for stream, numbers in dropped if numbers]

    def alone(self, number: int) -> bool:
        """Whether a micro-batch that has just been produced was made of one unit of each input."""
        return number <= self.produced + 1

    def starving(self) -> list[StreamId]:
        """Streams that the next micro-batch lacks a unit of."""
        return [stream for stream, inbox in self.inboxes.items() if inbox.available <= self.committed]

    def query_failed(self, now_ms: float) -> bool:
        """The query ended by itself: True if it is to be started again, at ``restart_ms``."""
        if self.committed > self.failed_at:
            self.failures = 0
        self.failed_at = self.committed
        self.failures += 1
        if self.failures > RESTARTS:
            return False
        self.restart_ms = now_ms + RESTART_PAUSE_MS * 2 ** (self.failures - 1)
        return True

    def forget_questions(self) -> list[AnswerGate]:
        """The query that asked has ended: its questions must not be taken for part of its successor's rounds."""
        out = [AnswerGate(question.ticket, question.start) for question in self.waiting]
        self.waiting = []
        self.gate = Gate(self.cuts)
        return out

    def restart_due(self, now_ms: float) -> bool:
        if self.restart_ms is None or now_ms < self.restart_ms:
            return False
        self.restart_ms = None
        return True

    def wake_times_ms(self) -> list[float]:
        times = [question.deadline_ms for question in self.waiting]
        times += [turn for feed in self.feeds.values() if (turn := feed.next_turn_ms()) is not None]
        return [*times, *([] if self.restart_ms is None else [self.restart_ms])]

    def cut_header(self, number: int) -> UnitHeader | None:
        """A header of the cut's input units: the pulse and cut time that its output carries on."""
        found = [inbox.headers[number] for inbox in self.inboxes.values() if number in inbox.headers]
        return max(found, key=lambda header: header.cut_ms, default=None)

    def check(self) -> None:
        self.gate.check()
        for inbox in self.inboxes.values():
            inbox.check()
            require(inbox.consumed == self.committed, f"{self.replica}: inbox and checkpoint disagree")
        for feed in self.feeds.values():
            feed.check()
        newest = max(self.produced + 1, self.cuts.joined)
        require(self.committed <= newest, f"{self.replica}: committed what it never produced")

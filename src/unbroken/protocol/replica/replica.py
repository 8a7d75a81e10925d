"""One replica of a segment's shard: inboxes in front, the gate, and the query that asks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace

from unbroken.errors import broken, require
from unbroken.protocol.events import GateAsked
from unbroken.protocol.instructions import AnswerGate, DropInbox
from unbroken.protocol.replica.cuts import Gate, Ordering, PulseCuts, reach_of
from unbroken.protocol.replica.feeds import Feed
from unbroken.protocol.replica.inbox import Arrival, Inbox
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId, generation_of
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.protocol.values.units import Digest, UnitHeader

RESTARTS = 3
"""Times in a row a query is started again from its checkpoint before its replica counts as stopped. A micro-batch that
runs again finds its units written, so a restart is as safe as a pause."""

RESTART_PAUSE_MS = 200.0
"""Pause before the first restart; doubled for each further one."""

ALONE = 3
"""Micro-batches that are as they were the first time before the first whose results count. What a state lets go, and
what it takes for late, depends on the watermarks that the two before have left; so nothing is left of how earlier units
were taken."""


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
    - What is part of the committed state, and nothing else, is consumed in the inboxes.

    ``released`` are the cuts that Spark was given and has not committed. ``pulse`` is the last one that is complete in
    what was produced: the pulses that a flow has in flight are counted by it. ``final`` is the last unit that will ever
    be produced, once it has been. While ``resting``, its query is ended and will be started again. A state that is
    built again from recent input is ``whole`` from that version on; one before it is no state for anybody else.
    """

    replica: ReplicaId
    feeds: Mapping[StreamId, Feed]
    ordered_by: InitVar[Callable[[Mapping[StreamId, Inbox]], Ordering]] = PulseCuts
    committed: int = 0
    whole: int = 0
    acknowledged: int = 0
    produced: int = 0
    stopped: str | None = None
    asked: bool = False
    failures: int = 0
    failed_at: int = 0
    restart_ms: float | None = None
    resting: bool = False
    inboxes: dict[StreamId, Inbox] = field(default_factory=dict)
    holes: dict[tuple[StreamId, NodeId], int] = field(default_factory=dict)
    waiting: list[GateAsked] = field(default_factory=list)
    released: dict[int, BatchCut] = field(default_factory=dict)
    pulse: int = 0
    final: int | None = None
    cuts: Ordering = field(init=False)
    gate: Gate = field(init=False)

    def __post_init__(self, ordered_by: Callable[[Mapping[StreamId, Inbox]], Ordering]) -> None:
        for stream in self.feeds:
            taken = Inbox(stream, consumed=self.committed, available=self.committed, pulse=self.committed)
            self.inboxes.setdefault(stream, taken)
        self.cuts = ordered_by(self.inboxes)
        self.gate = Gate(self.cuts)

    @classmethod
    def recovered(
        cls,
        replica: ReplicaId,
        feeds: Mapping[StreamId, Feed],
        state: StoredReplica,
        alone: int | None = None,
        ordered_by: Callable[[Mapping[StreamId, Inbox]], Ordering] = PulseCuts,
    ) -> SegmentReplica:
        """A replica that goes on from what its directory holds.

        Where its state has yet to be built, the last ``alone`` units before the first whose results count are taken as
        they were the first time, and those before them as many together as there are. None: none of them is.
        """
        reaches = {stream: state.reach(stream) for stream in feeds}
        inboxes = {
            stream: Inbox(stream, reach.unit, reach.unit, pulse=reach.pulse, cut_ms=reach.cut_ms, ended=reach.final)
            for stream, reach in reaches.items()
        }
        out = cls(replica, feeds, ordered_by, committed=state.committed, produced=state.committed, inboxes=inboxes)
        out.whole = state.valid
        out.pulse = out.completed(reaches, state.committed)
        out.final = state.committed if all(reach.final for reach in state.taken.values()) and state.taken else None
        out.cuts.joined = 0 if alone is None else state.valid - alone
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
            if self.resting and not give_up:
                still.append(question)
                continue
            if self.resting:
                # Its query is to end. What has come since may not be a part of its round: another instance was told
                # that there is nothing.
                out.append(AnswerGate(question.ticket, question.start))
                continue
            answer = self.gate.ask(question.instance, question.start, give_up=give_up)
            if answer is None:
                still.append(question)
            else:
                out.append(AnswerGate(question.ticket, answer, self._release(answer)))
        self.waiting = still
        return out

    def _release(self, number: int) -> BatchCut:
        """The cut of a micro-batch for Spark to note, where its number alone does not tell it."""
        if number > self.committed and number not in self.released:
            cut = self.cuts.cut(number)
            assert cut is not None, f"{self.replica}: micro-batch {number} is released without a cut"
            self.released[number] = cut
        return {} if self.plain else self.reaches(number)

    @property
    def plain(self) -> bool:
        """Whether unit b of every input is what micro-batch b takes: all of them are numbered by pulses."""
        return self.cuts.numbered and all(feed.numbered for feed in self.feeds.values())

    def reaches(self, number: int) -> BatchCut:
        """How far inputs are taken by a micro-batch that is committed or released."""
        if number in self.released:
            return self.released[number]
        return {stream: reach_of(inbox, inbox.consumed) for stream, inbox in self.inboxes.items()}

    def completed(self, cut: BatchCut, number: int) -> int:
        """The pulse that the output of a micro-batch completes."""
        return self.cuts.completes(cut, number)

    def commit(self, through: int, noted: BatchCut | None = None) -> list[DropInbox]:
        """Micro-batches up to ``through`` are in the checkpoint: their input is not needed here any more.

        One that was planned before this process started is known by the cut that Spark has ``noted`` alone.
        """
        if through <= self.committed:
            return []
        cut = self.released.get(through) or noted
        if not cut and not self.plain:
            broken(f"{self.replica}: nobody knows the cut of micro-batch {through}", self.replica)
        self.committed = through
        self.released = {number: later for number, later in self.released.items() if number > through}
        out: list[DropInbox] = []
        for stream, inbox in self.inboxes.items():
            numbers = inbox.consume(cut[stream].unit if cut else through)
            if numbers:
                out.append(DropInbox(self.replica, stream, tuple(numbers)))
        self.cuts.forget(through)
        return out

    def rewind(self, base: int, kept: Mapping[StreamId, Mapping[int, UnitHeader]]) -> None:
        """Go back to before any input after unit ``base``, which is here again."""
        for stream, inbox in self.inboxes.items():
            again = Inbox(stream, base, base, pulse=base, limit=inbox.limit)
            for _, header in sorted({**kept[stream], **inbox.headers}.items()):
                if header.number > base:
                    again.arrive(header)
            self.inboxes[stream] = again
        self.whole = max(self.whole, self.committed)
        self.committed = base
        self.released = {}

    def alone(self, number: int) -> bool:
        """Whether a micro-batch that has just been produced was made of one unit of each input."""
        return number <= self.produced + 1

    def starving(self) -> list[StreamId]:
        """Streams that the next micro-batch lacks a unit of."""
        return self.cuts.lacking(self.committed + 1)

    def unfed(self) -> list[StreamId]:
        """Streams of which it waits for a unit."""
        return self.cuts.awaited(self.committed)

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
        self.released = {}
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

    def cut_header(self, number: int, noted: BatchCut | None = None) -> UnitHeader | None:
        """The newest header of the cut's input units, with the pulse that its output completes and whether it is the
        last: what that carries on."""
        cut = noted or self.released.get(number) or self.cuts.cut(number)
        if cut is None or number <= self.committed:
            return None
        units = [(self.inboxes[stream], reach.unit) for stream, reach in cut.items()]
        found = [inbox.headers[unit] for inbox, unit in units if unit in inbox.headers]
        stream, latest = max(cut.items(), key=lambda item: item[1].cut_ms)
        # A unit that completes several pulses leaves nothing for the later ones.
        nothing = UnitHeader(stream, number, number, latest.cut_ms, Digest(0, 0))
        newest = max(found, key=lambda header: header.cut_ms, default=nothing)
        ends = all(reach.final for reach in cut.values())
        folded = self.cuts.folds(self.committed, number)
        return replace(newest, pulse=self.completed(cut, number), final=ends, fold=number if folded else 0)

    def check(self) -> None:
        self.gate.check()
        for inbox in self.inboxes.values():
            inbox.check()
            require(
                not self.plain or inbox.consumed == self.committed,
                f"{self.replica}: inbox and checkpoint disagree",
                self.replica,
            )
        for feed in self.feeds.values():
            feed.check()
        newest = max(self.produced + 1, self.cuts.joined)
        require(self.committed <= newest, f"{self.replica}: committed what it never produced", self.replica)

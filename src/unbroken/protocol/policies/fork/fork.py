"""A fork: a second query on a copy of a replica's state, which goes on with the input that is there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unbroken.errors import require
from unbroken.protocol.instructions import DropInbox
from unbroken.protocol.output.outbox import FAILURE_WINDOW
from unbroken.protocol.policies.fork.cuts import ForkCuts
from unbroken.protocol.policies.fork.instructions import FeedFork
from unbroken.protocol.replica.cuts import Gate
from unbroken.protocol.replica.inbox import Arrival, Inbox
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.units import UnitHeader


@dataclass
class Fork(SegmentReplica):
    """What ``home`` would do without the input that is missing.

    Its inboxes hold stable units as far as they had come, and tentative ones beyond them, numbered as they are taken
    over. Each reaches beyond the one before: stable units of pulses that it has in a tentative form are left to
    ``home``.

    ``pulses`` are those that its micro-batches reach, since a cut does not tell it. As long as it is ``clean``, it has
    taken nothing but complete cuts of stable units, and its state is as good as that of ``home``.
    """

    home: ReplicaId = field(default_factory=lambda: ReplicaId.parse("?.0#0"))
    begun_at: int = 0
    pulses: dict[int, int] = field(default_factory=dict)
    clean: bool = True

    def __post_init__(self, ordered_by: object) -> None:
        """A fork has an ordering of its own."""
        self.fork_cuts = ForkCuts(self.inboxes, self.begun_at)
        self.cuts = self.fork_cuts
        self.gate = Gate(self.cuts)
        self.pulses[self.committed] = self.begun_at

    @classmethod
    def of(cls, replica: ReplicaId, home: SegmentReplica, missing: frozenset[StreamId]) -> Fork:
        """A fork of a replica that waits for its next micro-batch."""
        inboxes = {
            stream: Inbox(
                stream, inbox.consumed, inbox.consumed, pulse=inbox.pulse, cut_ms=inbox.cut_ms, limit=FAILURE_WINDOW
            )
            for stream, inbox in home.inboxes.items()
        }
        at = home.committed
        out = cls(
            replica, home.feeds, committed=at, produced=at, inboxes=inboxes, home=home.replica, begun_at=home.committed
        )
        out.cuts.generation = home.cuts.generation
        out.fork_cuts.missing = missing
        return out

    @property
    def plain(self) -> bool:
        return False

    @property
    def done(self) -> int:
        """The pulse up to which input is taken, or about to be."""
        return self.fork_cuts.done

    def has(self, stream: StreamId) -> int:
        """The pulse up to which nothing more is taken over of an input."""
        return max(self.inboxes[stream].reach, self.done)

    def feed(self, stream: StreamId, header: UnitHeader, kept_as: tuple[StreamId, int]) -> list[FeedFork]:
        """Take over a unit that ``home`` has, if it reaches beyond what is here."""
        inbox = self.inboxes[stream]
        if header.pulse <= self.has(stream):
            return []
        number = inbox.available + 1
        if inbox.arrive(replace(header, stream=stream, number=number)) is not Arrival.ACCEPTED:
            return []
        if stream in self.fork_cuts.missing and inbox.reach >= self.fork_cuts.reach():
            self.fork_cuts.missing -= {stream}
        return [FeedFork(self.home, *kept_as, self.replica, number)]

    def give_up_on(self) -> bool:
        """Stop waiting for the inputs that have nothing for the next pulse; False if none has anything."""
        lacking = frozenset(self.fork_cuts.lacking(self.committed + 1))
        if len(lacking) == len(self.inboxes):
            return False
        self.fork_cuts.missing |= lacking
        return True

    def completed(self, cut: BatchCut, number: int) -> int:
        return self.pulses[number]

    def _release(self, number: int) -> BatchCut:
        if number > self.committed and number not in self.released:
            self.pulses[number] = self.fork_cuts.target()
        out = super()._release(number)
        if number in self.released:
            self.fork_cuts.done = self.pulses[number]
            self.clean = self.clean and self._complete(self.released[number], self.pulses[number])
        return out

    def _complete(self, cut: BatchCut, pulse: int) -> bool:
        """Whether a cut takes all inputs to a pulse, with nothing tentative."""
        for stream, reach in cut.items():
            inbox = self.inboxes[stream]
            units = (inbox.headers[number] for number in range(inbox.consumed + 1, reach.unit + 1))
            if reach.pulse < pulse or any(not header.stable for header in units):
                return False
        return True

    def commit(self, through: int, noted: BatchCut | None = None) -> list[DropInbox]:
        out = super().commit(through, noted)
        self.pulses = {number: pulse for number, pulse in self.pulses.items() if number >= through}
        return out

    def cut_header(self, number: int, noted: BatchCut | None = None) -> UnitHeader | None:
        header = super().cut_header(number, noted)
        if header is None:
            return None
        return replace(header, stable=False, final=False, since=self.pulses.get(number - 1, self.begun_at))

    def wake_times_ms(self) -> list[float]:
        return [question.deadline_ms for question in self.waiting]

    def check(self) -> None:
        self.gate.check()
        for inbox in self.inboxes.values():
            inbox.check()
        require(self.done >= self.begun_at, f"{self.replica}: a fork went back", self.replica)

"""One replica of a segment's shard: inboxes in front, the gate, outboxes behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.cuts import Gate, PulseCuts
from unbroken.protocol.ids import ReplicaId, StreamId
from unbroken.protocol.inbox import Arrival, Inbox
from unbroken.protocol.messages import AnswerGate, DropInbox, GateAsked
from unbroken.protocol.units import UnitHeader


@dataclass
class SegmentReplica:
    """A replica's place in the flow.

    Spark asks for the offset after ``start`` only when the micro-batch that ended at ``start`` is committed,
    so the question itself says how far the replica's state reaches.

    Invariants
    ----------
    - Agreement: micro-batch b is released only when the ordering's cut of b is complete.
    - ``committed <= produced + 1``: a version may be committed before the node has heard of its units, but
      no version is skipped.
    """

    replica: ReplicaId
    inputs: tuple[StreamId, ...]
    committed: int = 0
    produced: int = 0
    stopped: str | None = None
    inboxes: dict[StreamId, Inbox] = field(default_factory=dict)
    waiting: list[GateAsked] = field(default_factory=list)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        for stream in self.inputs:
            self.inboxes.setdefault(stream, Inbox(stream, consumed=self.committed, available=self.committed))
        self.gate = Gate(PulseCuts(self.inboxes))

    def arrive(self, header: UnitHeader) -> Arrival:
        return self.inboxes[header.stream].arrive(header)

    def ask(self, question: GateAsked) -> None:
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
        return [DropInbox(stream, tuple(numbers)) for stream, numbers in dropped if numbers]

    def next_deadline_ms(self) -> float | None:
        return min((question.deadline_ms for question in self.waiting), default=None)

    def cut_header(self, number: int) -> UnitHeader | None:
        """A header of the cut's input units: the pulse and cut time that its output carries on."""
        found = [inbox.headers[number] for inbox in self.inboxes.values() if number in inbox.headers]
        return max(found, key=lambda header: header.cut_ms, default=None)

    def check(self) -> None:
        self.gate.check()
        for inbox in self.inboxes.values():
            inbox.check()
            require(inbox.consumed == self.committed, f"{self.replica}: inbox and checkpoint disagree")
        require(self.committed <= self.produced + 1, f"{self.replica}: committed what it never produced")

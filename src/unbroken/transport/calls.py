"""Calls to a node over Flight: a type for each question, and how it is written.

The type of a Flight action is the name of its question's codec. Tickets ask for contents and have one codec. Answers
to questions about status, journal and pins are bytes with codecs of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.flight as flight

from unbroken.codecs.codec import Codec
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId


@dataclass(frozen=True)
class GateQuestion:
    """A source ``instance`` of a replica's query asks how far the micro-batch after ``start`` goes.

    ``cut`` is how far the one that ends at ``start`` took each input, if its offset has that.
    """

    replica: ReplicaId
    instance: str
    start: int
    cut: BatchCut = field(default_factory=dict)


@dataclass(frozen=True)
class GateAnswer:
    """Where the next micro-batch ends; at the ``start`` of the question if there is none yet."""

    offset: int
    cut: BatchCut = field(default_factory=dict)


@dataclass(frozen=True)
class StatusQuestion:
    """How is the node?"""


@dataclass(frozen=True)
class JournalQuestion:
    """What has happened on the node?"""


@dataclass(frozen=True)
class StopQuestion:
    """The node is to stop."""


@dataclass(frozen=True)
class PinQuestion:
    """The ``newcomer`` wants to copy the state of ``shard`` at ``least`` or later, with all units after ``needs``."""

    shard: ShardId
    newcomer: NodeId
    least: int = 0
    needs: Mapping[StreamId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleaseQuestion:
    """A pin is no longer needed."""

    pin: str


@dataclass(frozen=True)
class SkipAnswer:
    """Why a `SkipRequest` is refused; None if it is on its way."""

    refusal: str | None


@dataclass(frozen=True)
class UnitTicket:
    """Asks for a unit in the inbox of a replica."""

    replica: ReplicaId
    stream: StreamId
    number: int


@dataclass(frozen=True)
class PinTicket:
    """Asks for the contents of pinned files, the first from ``offset`` on, in batches of at most ``chunk`` bytes."""

    pin: str
    paths: tuple[str, ...]
    offset: int
    chunk: int


Question = GateQuestion | StatusQuestion | JournalQuestion | StopQuestion | PinQuestion | ReleaseQuestion | SkipRequest

GATE_ANSWER = Codec(GateAnswer, "gate-answer")
SKIP_ANSWER = Codec(SkipAnswer, "skip-answer")
TICKET: Codec[UnitTicket | PinTicket] = Codec(UnitTicket | PinTicket, "ticket")

_CODECS: Mapping[type, Codec[Any]] = {
    GateQuestion: Codec(GateQuestion, "gate-question"),
    StatusQuestion: Codec(StatusQuestion, "status-question"),
    JournalQuestion: Codec(JournalQuestion, "journal-question"),
    StopQuestion: Codec(StopQuestion, "stop-question"),
    PinQuestion: Codec(PinQuestion, "pin-question"),
    ReleaseQuestion: Codec(ReleaseQuestion, "release-question"),
    SkipRequest: Codec(SkipRequest, "skip-question"),
}

QUESTIONS: Mapping[str, Codec[Question]] = {codec.name: codec for codec in _CODECS.values()}
"""The codecs of all questions by the type of the Flight action."""


def action_of(question: Question) -> flight.Action:
    codec = _CODECS[type(question)]
    return flight.Action(codec.name, codec.encode(question))


def name_of(question: Question) -> str:
    """The name of a question in errors."""
    return _CODECS[type(question)].name


def ticket_of(asked: UnitTicket | PinTicket) -> flight.Ticket:
    return flight.Ticket(TICKET.encode(asked))


def call(client: Any, question: Question, timeout_s: float) -> bytes:
    """The bytes of a node's answer.

    Raises
    ------
    pyarrow.flight.FlightError
        If the node does not answer in time, or refuses the question.
    """
    answers = list(client.do_action(action_of(question), flight.FlightCallOptions(timeout=timeout_s)))
    if len(answers) != 1:
        raise flight.FlightServerError(f"a node gave {len(answers)} answers to a {name_of(question)}")
    return bytes(answers[0].body.to_pybytes())

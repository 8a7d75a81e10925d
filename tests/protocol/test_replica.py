"""A replica's place in the flow: what it is released, what it has committed, what it forgets."""

from __future__ import annotations

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.messages import AnswerGate, DropInbox, GateAsked
from unbroken.protocol.replica import SegmentReplica
from unbroken.protocol.units import Digest, UnitHeader

SHARD = ShardId("j", 0)
LEFT, RIGHT = StreamId(ShardId("l", 0), SHARD), StreamId(ShardId("r", 0), SHARD)


def replica(committed: int = 0) -> SegmentReplica:
    return SegmentReplica(ReplicaId(SHARD, 0), (LEFT, RIGHT), committed=committed, produced=committed)


def arrive(state: SegmentReplica, number: int, cut_ms: int = 0) -> None:
    for stream in (LEFT, RIGHT):
        state.arrive(UnitHeader(stream, number, number, cut_ms, Digest(0, 0)))


def ask(state: SegmentReplica, start: int, ticket: int = 1, deadline_ms: float = 100) -> None:
    state.ask(GateAsked(state.replica, "l", start, ticket, deadline_ms))


def test_a_question_waits_for_the_cut() -> None:
    state = replica()
    ask(state, 0)
    assert state.answers(0) == [] and state.next_deadline_ms() == 100
    arrive(state, 1)
    assert state.answers(1) == [AnswerGate(1, 1)]
    assert state.next_deadline_ms() is None


def test_a_stopped_replica_releases_nothing_and_lets_nobody_wait() -> None:
    state = replica()
    state.stopped = "diverged"
    ask(state, 0)
    assert state.answers(0) == [AnswerGate(1, 0)]


def test_a_commit_forgets_the_input() -> None:
    state = replica()
    arrive(state, 1)
    arrive(state, 2)
    state.produced = 1
    assert state.commit(1) == [DropInbox(LEFT, (1,)), DropInbox(RIGHT, (1,))]
    assert state.commit(1) == []
    state.check()


def test_no_version_is_committed_without_its_input() -> None:
    with pytest.raises(InvariantViolation):
        replica().commit(1)


def test_no_version_is_skipped() -> None:
    state = replica()
    for number in (1, 2):
        arrive(state, number)
    state.commit(2)
    with pytest.raises(InvariantViolation):
        state.check()


def test_a_replica_starts_behind_its_checkpoint() -> None:
    state = replica(committed=7)
    arrive(state, 8, cut_ms=80)
    ask(state, 7)
    assert state.answers(0) == [AnswerGate(1, 8)]
    header = state.cut_header(8)
    assert header is not None and header.cut_ms == 80
    assert state.cut_header(7) is None
    state.check()

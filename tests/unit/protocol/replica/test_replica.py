"""A replica's place in the flow: what it is released, what it has committed, what it forgets."""

from __future__ import annotations

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.events import GateAsked
from unbroken.protocol.instructions import AnswerGate, DropInbox
from unbroken.protocol.replica.feeds import Feed
from unbroken.protocol.replica.replica import RESTART_PAUSE_MS, SegmentReplica
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.protocol.values.units import Digest, UnitHeader

SHARD = ShardId("j", 0)
LEFT, RIGHT = StreamId(ShardId("l", 0), SHARD), StreamId(ShardId("r", 0), SHARD)


def replica(committed: int = 0) -> SegmentReplica:
    feeds = {LEFT: Feed(False, 1_000), RIGHT: Feed(False, 1_000)}
    return SegmentReplica(ReplicaId(SHARD, 0), feeds, committed=committed, produced=committed)


def arrive(state: SegmentReplica, number: int, cut_ms: int = 0) -> None:
    for stream in (LEFT, RIGHT):
        state.arrive(UnitHeader(stream, number, number, cut_ms, Digest(0, 0)))


def ask(state: SegmentReplica, start: int, ticket: int = 1, deadline_ms: float = 100) -> None:
    state.ask(GateAsked(state.replica, "l", start, ticket, deadline_ms))


def test_a_question_waits_for_the_cut() -> None:
    state = replica()
    ask(state, 0)
    assert state.answers(0) == [] and state.wake_times_ms() == [100]
    arrive(state, 1)
    assert state.answers(1) == [AnswerGate(1, 1)]
    assert state.wake_times_ms() == []


def test_a_stopped_replica_releases_nothing_and_lets_nobody_wait() -> None:
    state = replica()
    state.stopped = "diverged"
    ask(state, 0)
    assert state.answers(0) == [AnswerGate(1, 0)]


def test_a_replica_that_rests_releases_nothing_that_has_come_since() -> None:
    """The other instance of its query was told that there is nothing when it began to rest."""
    state = replica()
    ask(state, 0, ticket=1)
    state.resting = True
    assert state.forget_questions() == [AnswerGate(1, 0)]
    state.ask(GateAsked(state.replica, "r", 0, 2, 100))
    arrive(state, 1)
    assert state.answers(99) == []
    assert state.answers(100) == [AnswerGate(2, 0)], "half a cut"


def test_a_commit_forgets_the_input() -> None:
    state = replica()
    arrive(state, 1)
    arrive(state, 2)
    state.produced = 1
    assert state.commit(1) == [DropInbox(state.replica, LEFT, (1,)), DropInbox(state.replica, RIGHT, (1,))]
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


def test_a_replica_goes_on_from_what_its_directory_holds() -> None:
    units = {stream: tuple(UnitHeader(stream, n, n, 0, Digest(0, 0)) for n in (6, 7)) for stream in (LEFT, RIGHT)}
    held = StoredReplica(committed=5, inboxes=units)
    state = SegmentReplica.recovered(ReplicaId(SHARD, 0), replica().feeds, held)
    assert [inbox.available for inbox in state.inboxes.values()] == [7, 7]
    ask(state, 5)
    assert state.answers(0) == [AnswerGate(1, 6)]
    state.check()


def test_a_query_is_started_again_a_few_times_unless_it_gets_further() -> None:
    state = replica()
    for pause in (1, 2, 4):
        assert state.query_failed(0)
        assert state.restart_ms == pause * RESTART_PAUSE_MS
        assert not state.restart_due(pause * RESTART_PAUSE_MS - 1) and state.restart_due(pause * RESTART_PAUSE_MS)
    assert not state.query_failed(0), "it fails at the same place again and again"
    arrive(state, 1)
    state.produced = 1
    state.commit(1)
    assert state.query_failed(0) and state.failures == 1


def test_the_questions_of_a_query_that_ended_do_not_split_the_rounds_of_the_next_one() -> None:
    state = replica()
    ask(state, 0, ticket=1, deadline_ms=100)
    assert state.forget_questions() == [AnswerGate(1, 0)]
    ask(state, 0, ticket=2, deadline_ms=50)
    assert state.answers(50) == [AnswerGate(2, 0)]
    arrive(state, 1)
    assert state.answers(100) == [], "the first question would have opened another round here"
    state.ask(GateAsked(state.replica, "r", 0, 3, 200))
    assert state.answers(100) == [AnswerGate(3, 0)], "the round is that of the second question"

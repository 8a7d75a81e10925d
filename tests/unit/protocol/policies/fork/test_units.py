"""Tentative units on their way in and out: each reaches beyond all before it, and none outlives the stable ones."""

from __future__ import annotations

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.policies.fork.units import KEPT_UNITS, Results, TentativeInbox, TentativeOutbox
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId.parse("join.0>last.0")
FORKED = StreamId.parse("join~.0>last.0")
PATIENCE_MS = 50.0


def unit(pulse: int, since: int | None = None, number: int = 1) -> UnitHeader:
    before = pulse - 1 if since is None else since
    return UnitHeader(FORKED, number, pulse, pulse, Digest(1, pulse), stable=False, since=before)


def results(pulse: int, came_ms: float) -> Results:
    return Results((unit(pulse, number=pulse),), came_ms)


# --- in -------------------------------------------------------------------------------------------------


def test_units_are_counted_as_they_are_taken() -> None:
    inbox = TentativeInbox(STREAM, PATIENCE_MS)
    assert inbox.arrive(unit(7), "n0", stable=5, now_ms=0.0) == 1
    assert inbox.arrive(unit(9, since=7), "n0", stable=5, now_ms=1.0) == 2
    assert inbox.through == 9
    inbox.check()


@pytest.mark.parametrize(("pulse", "stable"), [(7, 0), (6, 0), (9, 9), (9, 12)])
def test_a_unit_that_does_not_reach_further_is_not_taken(pulse: int, stable: int) -> None:
    inbox = TentativeInbox(STREAM, PATIENCE_MS)
    inbox.arrive(unit(7), "n0", stable=0, now_ms=0.0)
    assert inbox.arrive(unit(pulse), "n0", stable, now_ms=1.0) is None


def test_one_sender_is_listened_to_as_long_as_it_is_heard() -> None:
    inbox = TentativeInbox(STREAM, PATIENCE_MS)
    inbox.arrive(unit(7), "n0", stable=0, now_ms=0.0)
    assert inbox.arrive(unit(8), "n1", stable=0, now_ms=PATIENCE_MS - 1) is None
    assert inbox.arrive(unit(7), "n0", stable=0, now_ms=PATIENCE_MS - 1) is None, "it has nothing more, and is heard"
    assert inbox.arrive(unit(8), "n1", stable=0, now_ms=PATIENCE_MS + 1) is None
    assert inbox.arrive(unit(8), "n1", stable=0, now_ms=2 * PATIENCE_MS) == 2
    assert inbox.sender == "n1"


def test_a_sender_that_is_lost_is_replaced_at_once() -> None:
    inbox = TentativeInbox(STREAM, PATIENCE_MS)
    inbox.arrive(unit(7), "n0", stable=0, now_ms=0.0)
    inbox.lost("n1")
    assert inbox.arrive(unit(8), "n1", stable=0, now_ms=1.0) is None
    inbox.lost("n0")
    assert inbox.arrive(unit(8), "n1", stable=0, now_ms=1.0) == 2


def test_what_stable_units_have_replaced_is_forgotten() -> None:
    inbox = TentativeInbox(STREAM, PATIENCE_MS)
    for pulse in (7, 8, 9):
        inbox.arrive(unit(pulse), "n0", stable=5, now_ms=0.0)
    assert inbox.overtaken(8) == (1, 2)
    assert inbox.overtaken(8) == ()
    assert list(inbox.units) == [3] and inbox.through == 9
    inbox.check()


def test_units_of_another_stream_are_refused() -> None:
    with pytest.raises(InvariantViolation):
        TentativeInbox(StreamId.parse("other.0>last.0"), PATIENCE_MS).arrive(unit(7), "n0", 0, 0.0)


# --- out ------------------------------------------------------------------------------------------------


def test_results_are_given_out_in_order_when_their_input_is_old_enough() -> None:
    outbox = TentativeOutbox()
    for pulse, came_ms in ((3, 10.0), (4, 30.0), (5, 20.0)):
        outbox.add(results(pulse, came_ms))
    assert [r.pulse for r in outbox.release(9.0)] == []
    assert [r.pulse for r in outbox.release(25.0)] == [3]
    assert [r.pulse for r in outbox.release(30.0)] == [4, 5]
    assert outbox.through == 5
    outbox.check()


def test_what_is_overtaken_is_not_given_out_any_more() -> None:
    outbox = TentativeOutbox()
    for pulse in range(1, 6):
        outbox.add(results(pulse, float(pulse)))
    outbox.release(3.0)
    assert sorted(header.pulse for header in outbox.overtaken(4)) == [1, 2, 3, 4]
    assert [r.pulse for r in outbox.release(9.0)] == [5]
    outbox.check()


def test_the_oldest_of_too_many_are_let_go() -> None:
    outbox = TentativeOutbox()
    for pulse in range(1, KEPT_UNITS + 3):
        outbox.add(results(pulse, 0.0))
    outbox.release(0.0)
    assert [header.pulse for header in outbox.overtaken(0)] == [1, 2]
    assert len(outbox.given) == KEPT_UNITS


def test_another_fork_begins_with_nothing_and_with_what_was_given() -> None:
    outbox = TentativeOutbox()
    outbox.add(results(4, 0.0))
    outbox.release(0.0)
    outbox.restart()
    assert not outbox.given and not outbox.waiting
    assert outbox.through == 4, "it is still to be replaced"

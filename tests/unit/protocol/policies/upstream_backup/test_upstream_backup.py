"""cause(): from an output unit to the first input unit that still matters, and the levels of acknowledgements."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.protocol.output.outbox import ABSENT_CLIENTS, Outbox
from unbroken.protocol.replica.causes import Causes
from unbroken.protocol.replica.replica import ALONE
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.sim.content import DELAY_MS, Window, mix

SHARD, SINK = ShardId("s0", 0), ShardId("s1", 0)
STREAM = StreamId(SHARD, SINK)
STEP_MS = 2 * DELAY_MS // 3


def row_time(number: int) -> int:
    """Event times go up, and not in order."""
    chance = mix("time", number)
    return STEP_MS * number + chance % (4 * STEP_MS) + (7 * STEP_MS if chance % 6 == 0 else 0)


def causes(horizon_ms: float, timed: bool, times: list[float]) -> Causes:
    out = Causes(Strategy(Ha.UPSTREAM, horizon_ms=horizon_ms, timed=timed))
    for number, time_ms in enumerate(times, start=1):
        out.note(number, time_ms)
        out.check()
    return out


def test_without_state_results_depend_on_their_unit_alone() -> None:
    assert causes(0, True, []).before(17) == 17


def test_units_that_were_taken_together_matter_until_the_last_result_is_safe() -> None:
    found = causes(0, True, [])
    found.folded = {15: 10, 20: 17}
    assert [found.before(n) for n in (9, 10, 14, 15, 16, 17, 20)] == [9, 9, 9, 15, 16, 16, 20]
    found.forget(15)
    assert found.folded == {20: 17}
    found.folded = {15: 1}
    assert found.before(14) == 0, "after a restart nobody knows where they began"
    assert found.before(15) == 15


@pytest.mark.parametrize(
    ("through", "before"),
    [
        (1, 0),  # the watermark has not moved yet
        (4, 1),  # at 300 - 200 = 100 what unit 1 brought (up to 100) is forgotten
        (5, 2),
        (6, 2),  # the watermark stands still, and nothing more is forgotten
    ],
)
def test_what_the_watermark_has_passed_by_the_horizon_does_not_matter(through: int, before: int) -> None:
    assert causes(200, True, [0, 100, 200, 300, 400, 400]).before(through) == before


def test_by_the_time_of_cuts() -> None:
    found = causes(20, False, [10, 20, 30, 40])
    assert [found.before(n) for n in (2, 3, 4)] == [0, 1, 2]


def test_what_has_no_mark_is_taken_to_matter() -> None:
    found = causes(200, True, [0, 100, 200, 300, 400])
    found.forget(4)
    assert found.before(2) == 0 and found.before(5) == 0, "whether unit 3 matters cannot be told any more"
    assert causes(200, True, []).before(3) == 0
    found.note(9, 900)
    assert found.before(9) == 0, "a hole, as after a restart"


def test_marks_that_are_kept_are_enough() -> None:
    found = causes(200, True, [0, 100, 200, 300, 400, 500])
    through = found.before(5)
    found.forget(through)
    assert found.before(6) == 3


@given(st.integers(1, 6), st.integers(8, 40), st.data())
def test_a_window_that_is_built_again_has_the_same_results(length: int, last: int, data: st.DataObject) -> None:
    """From the unit after ``before(v)`` on, a fresh state has the results after v of one that has seen everything, also
    if it takes several units at once until shortly before."""
    strategy = Strategy(Ha.UPSTREAM, horizon_ms=float(STEP_MS * length + DELAY_MS))
    states, found = [Window()], Causes(strategy)
    for number in range(1, last + 1):
        found.note(number, states[-1].watermark)
        states.append(states[-1].after([(row_time(number), number)], strategy))
    through = data.draw(st.integers(1, last - 1))
    again, number = Window(), found.before(through)
    while number < last:
        first, most = number + 1, max(1, through - ALONE - number)
        number += data.draw(st.integers(1, most))
        again = again.after([(row_time(n), n) for n in range(first, number + 1)], strategy)
        if number > through:
            assert (again.units, again.closed) == (states[number].units, states[number].closed)


@given(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=8, max_size=16), st.data())
@settings(deadline=None)
def test_so_has_one_of_units_that_were_taken_together(length: int, sizes: list[int], data: st.DataObject) -> None:
    """Those before v, but for a few micro-batches, are taken in any way; a result in their middle is in the last."""
    strategy = Strategy(Ha.UPSTREAM, horizon_ms=float(STEP_MS * length + DELAY_MS))
    ends, state, states, found = [0], Window(), {0: Window()}, Causes(strategy)
    for size in sizes:
        first, last = ends[-1] + 1, ends[-1] + size
        found.note(last, state.watermark, first)
        found.check()
        state = state.after([(row_time(n), n) for n in range(first, last + 1)], strategy)
        ends.append(last)
        states[last] = state
    through = data.draw(st.integers(1, ends[-2]))
    if data.draw(st.booleans()):
        found.forget(found.before(data.draw(st.integers(0, through))))
    again, number = Window(), found.before(through)
    assert number in ends, "what was taken together is taken together again"
    while number < ends[-1]:
        first, number = number + 1, next(end for end in ends if end > number)
        number = max(number, data.draw(st.integers(0, max(0, through - ALONE * max(sizes)))))
        again = again.after([(row_time(n), n) for n in range(first, number + 1)], strategy)
        if number > through:
            assert (again.units, again.closed) == (states[number].units, states[number].closed)


# --- levels -------------------------------------------------------------------------------------------------


def outbox(levels: int, units: int = 9) -> Outbox:
    box = Outbox(STREAM, frozenset({ReplicaId(SINK, 0)}), levels=levels)
    for number in range(1, units + 1):
        box.add(UnitHeader(STREAM, number, number, 0, Digest(1, number)))
    return box


def test_units_are_let_go_at_the_level_that_is_needed() -> None:
    box, consumer = outbox(levels=2), str(ReplicaId(SINK, 0))
    box.ack(consumer, 7)
    box.ack(consumer, 5, level=1, rebuilt=Rebuilt(6))
    assert box.trim() == [] and (box.bound(0), box.bound(1), box.bound(2)) == (7, 5, 0)
    box.ack(consumer, 3, level=2, rebuilt=Rebuilt(4))
    assert box.trim() == [], "what is owed is not noted"
    box.noted = 2
    assert box.trim() == [1, 2]
    box.noted = 3
    assert box.trim() == [3] and (box.base, box.owed, box.rebuilt) == (3, 3, Rebuilt(4))
    assert box.rebuilds
    box.ack(consumer, 9, level=3)
    assert box.bound(3) == 3, "nobody asked for that level"
    box.check()


def test_one_that_keeps_its_state_safe_has_said_all_with_level_0() -> None:
    box = outbox(levels=0)
    box.ack(str(ReplicaId(SINK, 0)), 4)
    assert (box.bound(0), box.bound(1), box.bound(2)) == (4, 4, 4)


def test_what_clients_may_still_ask_for_is_not_acknowledged() -> None:
    box = Outbox(STREAM, frozenset(), retain=3)
    for number in range(1, 9):
        box.add(UnitHeader(STREAM, number, number, 0, Digest(1, number)))
    assert box.bound(0) == 5, "nobody is known to have read anything"


def test_what_all_clients_have_read_is_acknowledged() -> None:
    box = Outbox(STREAM, frozenset(), retain=6)
    box.subscribe("quick", 0)
    box.subscribe("slow", 0)
    for number in range(1, 9):
        box.add(UnitHeader(STREAM, number, number, 0, Digest(1, number)))
    box.ack("quick", 8)
    assert box.bound(0) == 2, "the slow one has read less than is kept"
    box.ack("slow", 4)
    assert box.bound(0) == 4


def test_a_client_that_has_lost_its_connection_may_come_back() -> None:
    box = Outbox(STREAM, frozenset(), retain=4)
    for number in range(1, 9):
        box.add(UnitHeader(STREAM, number, number, 0, Digest(1, number)))
    box.subscribe("stays", 8)
    box.subscribe("goes", 6)
    box.unsubscribe("goes")
    assert box.bound(0) == 6
    box.add(UnitHeader(STREAM, 9, 9, 0, Digest(1, 9)))
    box.ack("stays", 9)
    assert box.bound(0) == 6
    box.subscribe("goes", 6)
    box.ack("goes", 9)
    assert box.bound(0) == 9
    box.unsubscribe("goes")
    for number in range(10, 16):
        box.add(UnitHeader(STREAM, number, number, 0, Digest(1, number)))
    box.ack("stays", 15)
    assert box.bound(0) == 11, "what is not kept is not waited for"
    for index in range(2 * ABSENT_CLIENTS):
        box.subscribe(f"passes by {index}", 15)
        box.unsubscribe(f"passes by {index}")
    assert len(box.absent) <= ABSENT_CLIENTS


def test_an_outbox_that_was_begun_anew_may_have_too_little() -> None:
    """Its consumer's state reaches further back than what it has produced itself."""
    box = Outbox(STREAM, frozenset({ReplicaId(SINK, 0)}), base=6, levels=1)
    box.ack(str(ReplicaId(SINK, 0)), 4, level=1, rebuilt=Rebuilt(8))
    assert not box.rebuilds
    box.ack(str(ReplicaId(SINK, 0)), 6, level=1, rebuilt=Rebuilt(9))
    assert box.rebuilds


def test_a_quiet_outbox_sends_what_is_lacking_when_it_is_needed() -> None:
    box = outbox(levels=0)
    box.quiet = True
    box.subscribe("someone", 0)
    assert box.sends() == []
    box.ack("someone", 7)
    box.quiet = False
    assert box.sends() == [("someone", 8), ("someone", 9)]

"""Event-time buckets: every row in one unit, boundaries that never go back, silence that is not failure."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken import Dataflow, Push
from unbroken.errors import FlowError, InvariantViolation
from unbroken.node.policies.bucket import rule as buckets
from unbroken.node.policies.bucket.rule import BucketRule, BucketState, BucketStep, Ints, by_unit, rules_of, screened

SIZE = 100
NOON = 1_700_000_000_000
RULE = BucketRule(SIZE)


def times(*values: int) -> Ints:
    return np.array(values, np.int64)


def step(cut_ms: int, **how: object) -> BucketStep:
    return replace(BucketStep(1, cut_ms, 0, 1), **how)  # type: ignore[arg-type]


def taken(rule: BucketRule, steps: Sequence[tuple[BucketStep, Ints]]) -> tuple[list[BucketState], list[Ints]]:
    """The states after each step, and the units of the rows that came with it."""
    state = rule.begin(steps[0][0].cut_ms)
    states, units = [], []
    for each, came in steps:
        state, placed = rule.after(state, each, came)
        states.append(state)
        units.append(placed)
    return states, units


# --- where rows go ----------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.integers(1, 500),
        st.lists(st.integers(-2_000, 500), max_size=5),
        st.booleans(),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=12,
)
RULES = st.builds(
    BucketRule, st.sampled_from([50, 100, 333]), st.integers(0, 400), st.sampled_from([None, NOON - 700]), st.just(400)
)


def made(raw: list[tuple[int, list[int], bool, bool]]) -> list[tuple[BucketStep, Ints]]:
    """Steps at growing times, with rows around these times."""
    out, cut = [], NOON
    for passed, rows, reachable, exhausted in raw:
        cut += passed
        out.append((step(cut, reachable=reachable, exhausted=exhausted), times(*(cut + row for row in rows))))
    return out


@given(RULES, STEPS)
@settings(max_examples=300, deadline=None)
def test_every_row_is_in_one_unit_that_was_open(rule: BucketRule, raw: list[tuple[int, list[int], bool, bool]]) -> None:
    steps = made(raw)
    states, units = taken(rule, steps)
    before = rule.begin(steps[0][0].cut_ms)
    late = 0
    for (_, came), state, placed in zip(steps, states, units, strict=True):
        own = (came - state.origin_ms) // rule.size_ms + 1
        closed = rule.closed(before)
        assert (placed > closed).all()
        assert (placed[own > closed] == own[own > closed]).all()
        assert (placed[own <= closed] == closed + 1).all()
        late += int((own <= closed).sum())
        assert state.late_rows == late
        assert state.boundary_ms >= before.boundary_ms
        assert state.top >= max([before.top, rule.closed(state), *placed.tolist()])
        before = state
    assert before.rows == sum(len(came) for _, came in steps)


@given(
    disorder=st.integers(0, 300),
    size=st.sampled_from([50, 100, 250]),
    cuts=st.lists(st.tuples(st.integers(1, 300), st.booleans()), min_size=2, max_size=15),
    rows=st.lists(st.tuples(st.integers(0, 3_000), st.floats(0, 1)), max_size=30),
)
@settings(max_examples=300, deadline=None)
def test_rows_within_the_disorder_are_never_late(
    disorder: int, size: int, cuts: list[tuple[int, bool]], rows: list[tuple[int, float]]
) -> None:
    """A row that comes at time a has an event time from a - disorder to a; nothing comes while the source is away."""
    rule = BucketRule(size, disorder, None, 300)
    arriving = sorted((NOON + came, NOON + came - int(share * disorder)) for came, share in rows)
    steps: list[tuple[BucketStep, Ints]] = [(step(NOON), times())]
    cut = NOON
    for passed, reachable in cuts:
        cut += passed
        there = [event for came, event in arriving if came <= cut] if reachable else []
        arriving = [row for row in arriving if row[0] > cut] if reachable else arriving
        steps.append((step(cut, reachable=reachable), times(*there)))
    states, units = taken(rule, steps)
    assert states[-1].late_rows == 0
    for (_, came), placed in zip(steps, units, strict=True):
        assert (placed == (came - states[0].origin_ms) // size + 1).all()


def test_a_late_row_goes_to_the_oldest_open_bucket_and_is_counted() -> None:
    (_, state), (_, placed) = taken(RULE, [(step(NOON), times(NOON + 250)), (step(NOON + 300), times(NOON + 20))])
    assert RULE.closed(state) == 2 and placed.tolist() == [3] and state.late_rows == 1


def test_a_row_before_the_boundary_is_not_late_if_its_bucket_is_open() -> None:
    (_, state), (_, placed) = taken(RULE, [(step(NOON), times(NOON + 250)), (step(NOON + 300), times(NOON + 210))])
    assert placed.tolist() == [3] and state.late_rows == 0


# --- boundaries -------------------------------------------------------------------------------------------


def test_a_silent_source_goes_on_with_the_clock_from_its_newest_row() -> None:
    rule = BucketRule(SIZE, 50)
    rows = times(NOON - 900)  # its rows take a second
    states, _ = taken(rule, [(step(NOON + 100), rows), (step(NOON + 400), times()), (step(NOON + 1_400), times())])
    assert [state.boundary_ms - NOON for state in states] == [100, 100, 350]


def test_a_source_without_any_row_is_where_the_clock_is() -> None:
    rule = BucketRule(SIZE, 50, None, 50)
    states, _ = taken(rule, [(step(NOON), times()), (step(NOON + 400), times())])
    assert [state.boundary_ms for state in states] == [NOON - 50, NOON + 350]


def test_the_first_row_sets_the_clock_even_if_it_is_behind() -> None:
    states, _ = taken(RULE, [(step(NOON), times()), (step(NOON + 100), times(NOON - 500)), (step(NOON + 300), times())])
    assert [state.boundary_ms - NOON for state in states] == [0, 0, 0]
    assert states[1].late_rows == 1 and states[2].silent_ms(NOON + 300) == NOON - 300


def test_a_row_that_is_not_the_newest_does_not_set_the_clock() -> None:
    rows = [(step(NOON), times(NOON + 50)), (step(NOON + 200), times(NOON + 40)), (step(NOON + 300), times())]
    states, _ = taken(RULE, rows)
    assert [state.boundary_ms - NOON for state in states] == [50, 50, 350]


def test_a_failed_source_stays_where_it_is_and_takes_its_rows_when_it_is_back() -> None:
    away = [(step(NOON + 1_000 * n, reachable=False), times()) for n in range(1, 5)]
    back = (step(NOON + 5_000), times(NOON + 120, NOON + 4_300))
    states, units = taken(RULE, [(step(NOON), times(NOON + 50)), *away, back])
    assert {state.boundary_ms for state in states[:-1]} == {NOON + 50}
    assert states[-1].boundary_ms == NOON + 4_300 and states[-1].late_rows == 0
    assert units[-1].tolist() == [2, 44]


def test_rows_that_come_while_part_of_a_source_is_away_close_nothing() -> None:
    states, units = taken(RULE, [(step(NOON), times()), (step(NOON + 900, reachable=False), times(NOON + 700))])
    assert states[-1].boundary_ms == NOON and states[-1].newest_ms == NOON + 700 and units[-1].tolist() == [8]


@pytest.mark.parametrize(
    ("others", "settled", "together"),
    [
        ((), True, [20, 20, 20]),
        ((4,), True, [20, 20, 20]),  # it has yet to close unit 5, and says then how far it has come
        ((18,), True, [18, 18, 20]),
        ((30, 18, 4), True, [18, 18, 20]),
        ((30,), True, [20, 20, 20]),
        ((18,), False, [5, 18, 19]),  # it may have closed more by then, or not
    ],
)
def test_units_are_taken_together_as_far_as_every_source_has_come(
    others: tuple[int, ...], settled: bool, together: list[int]
) -> None:
    closing = step(NOON, others=others, settled=settled)
    assert [closing.together(unit, 20) for unit in (5, 18, 19)] == together


def test_a_source_that_has_ended_closes_its_rows_and_keeps_up() -> None:
    rule = BucketRule(SIZE, 1_000, NOON)
    begun = (step(NOON), times(NOON + 250))
    ended, other = (step(NOON + 10, exhausted=True), times()), (step(NOON + 50, reachable=False, others=(9,)), times())
    states, _ = taken(rule, [begun, ended, other])
    assert [rule.closed(state) for state in states] == [0, 3, 9]
    last, _ = taken(rule, [begun, (step(NOON + 5_000, exhausted=True, others=(40,), final=True), times())])
    assert rule.closed(last[-1]) == 3
    finished = rule.finish(last[-1], 7)
    assert rule.closed(finished) == finished.top == 7
    with pytest.raises(InvariantViolation):
        rule.finish(finished, 7)


def test_a_jump_is_taken_in_pieces_and_the_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "UNITS_PER_STEP", 3)
    rule = BucketRule(SIZE, 0, NOON)
    jump = [(step(NOON + 1), times(NOON + 1_000)), *((step(NOON + 2 + n), times()) for n in range(3))]
    states, _ = taken(rule, jump)
    assert [rule.closed(state) for state in states] == [3, 6, 9, 10]
    states, _ = taken(rule, [(step(NOON + 1, exhausted=True, final=True), times(NOON + 1_000))])
    assert rule.closed(states[-1]) == 11


def test_the_origin_is_on_the_grid_before_the_first_entry_or_as_given() -> None:
    assert BucketRule(SIZE, 0, None, 0).begin(NOON + 30).origin_ms == NOON
    begun = BucketRule(SIZE, 0, None, 250).begin(NOON + 30)
    assert begun.origin_ms == NOON - 300 and begun.boundary_ms == NOON - 300
    given_one = BucketRule(SIZE, 0, 12_345, 250).begin(NOON)
    assert given_one.origin_ms == 12_345 and given_one.silent_ms(NOON + 10) == 12_355


# --- rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize("unit", ["us", "ms", "ns"])
def test_rows_without_a_usable_time_are_set_aside(zone: str | None, unit: str) -> None:
    early, fine = NOON + buckets.TOLERANCE_MS + 1, NOON + buckets.TOLERANCE_MS
    per_ms = {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    raw = pa.array([None if ms is None else ms * per_ms for ms in (NOON, None, early, fine, -1)], pa.int64())
    table = pa.table({"at": raw.cast(pa.timestamp(unit, zone)), "n": [0, 1, 2, 3, 4]})
    kept, millis, bad = screened(table, "at", NOON)
    assert kept.column("n").to_pylist() == [0, 3, 4] and millis.tolist() == [NOON, fine, -1]
    assert [(json.loads(row.raw)["n"], row.origin) for row in bad] == [(1, "row 1"), (2, "row 2")]
    assert "is null" in bad[0].reason and "60 s after" in bad[1].reason


def test_times_before_1970_fall_into_their_millisecond() -> None:
    table = pa.table({"at": pa.array([-1, -1_000, -1_001], pa.int64()).cast(pa.timestamp("us"))})
    assert screened(table, "at", 0)[1].tolist() == [-1, -1, -2]


def test_no_rows_are_no_trouble() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    for table in (schema.empty_table(), pa.Table.from_batches([], schema)):
        kept, millis, bad = screened(table, "at", NOON)
        assert (kept.num_rows, len(millis), bad) == (0, 0, ())
    assert by_unit(schema.empty_table(), times()) == {}


@given(st.lists(st.integers(1, 4), max_size=20))
def test_rows_keep_their_order_within_a_unit(units: list[int]) -> None:
    table = pa.table({"n": pa.array(range(len(units)), pa.int64())})
    found = by_unit(table, times(*units))
    assert list(found) == sorted(set(units))
    for unit, piece in found.items():
        assert piece.column("n").to_pylist() == [n for n, other in enumerate(units) if other == unit]


# --- settings ---------------------------------------------------------------------------------------------


def test_rules_come_from_the_flow() -> None:
    flow = Dataflow("timed", ordering="bucket", bucket="2s", bucket_origin="2026-03-01T12:00:00+01:00")
    flow.source("a", Push("at timestamp"), event_time="at")
    flow.source("b", Push("at timestamp"), event_time="at", disorder="1.5s")
    origin = int(dt.datetime(2026, 3, 1, 11, tzinfo=dt.UTC).timestamp() * 1000)
    assert rules_of(flow) == {
        "a": BucketRule(2_000, 0, origin, 1_500),
        "b": BucketRule(2_000, 1_500, origin, 1_500),
    }


@pytest.mark.parametrize(
    ("given_one", "ms"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T00:00:00.0019Z", 1),
        (5_000, 5_000),
        (dt.datetime(1970, 1, 2), 86_400_000),
    ],
)
def test_an_origin_is_a_point_in_time(given_one: object, ms: int) -> None:
    assert Dataflow("timed", bucket_origin=given_one).settings.bucket_origin == ms


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"bucket": "20ms"}, "50"),
        ({"bucket": "100.5ms"}, "whole number of milliseconds"),
        ({"bucket": "2h"}, "3600000"),
        ({"bucket_origin": "yesterday"}, "not a point in time"),
    ],
)
def test_buckets_that_make_no_sense_are_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(FlowError, match=told):
        Dataflow("timed", **wrong)  # type: ignore[arg-type]

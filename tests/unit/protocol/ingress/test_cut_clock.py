"""The time of cuts: it never jumps and never goes back, whatever the clocks of machines do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.node.policies.bucket.rule import BucketRule, BucketStep
from unbroken.protocol.ingress.cut_clock import LEAP_MS, SLEW, STEP_MS, ClockLeap, ClockOffset, CutClock

HOUR_MS = 3_600_000.0
T = 1_700_000_000_000
WITHOUT = 10

gaps = st.lists(st.tuples(st.floats(1.0, 10_000.0), st.floats(-2 * HOUR_MS, 2 * HOUR_MS)), min_size=1, max_size=40)


@given(gaps)
def test_time_passes_evenly_whatever_the_clock_says(steps: list[tuple[float, float]]) -> None:
    clock, steady, last = CutClock(), 5_000.0, 0
    before = clock.now_ms(T, steady)
    for elapsed, wrong in steps:
        steady += elapsed
        now = clock.now_ms(T + steady + wrong, steady)
        assert (1 - SLEW) * elapsed <= now - before + 0.01 and now - before <= (1 + SLEW) * elapsed + 0.01
        cut = clock.cut(T + steady + wrong, steady, last)
        assert cut > last
        before, last = now, cut


@given(st.floats(-HOUR_MS, HOUR_MS), st.floats(10.0, 1_000.0))
def test_a_clock_that_was_set_is_followed_until_it_is_reached(offset: float, period: float) -> None:
    clock = CutClock()
    clock.now_ms(T, 0.0)
    steady, before = 0.0, abs(offset)
    for _ in range(50):
        steady += period
        clock.now_ms(T + offset + steady, steady)
        assert abs(clock.offset_ms) <= max(0.01, before - 0.99 * SLEW * period)
        before = abs(clock.offset_ms)
    steady += abs(offset) / SLEW + 1
    clock.now_ms(T + offset + steady, steady)
    assert abs(clock.offset_ms) < 0.01


@given(st.lists(st.floats(-HOUR_MS, HOUR_MS), min_size=2, max_size=4), st.lists(st.integers(0, 3), max_size=40))
def test_a_new_leader_continues_from_the_last_agreed_cut(skews: list[float], leaders: list[int]) -> None:
    """Each member has a clock of its own; whoever leads, cuts are as far apart as they were made."""
    clocks = [CutClock() for _ in skews]
    steady, last = 0.0, 0
    for index in [0, 0, 0, *leaders]:
        leader = index % len(skews)
        steady += 100.0
        cut = clocks[leader].cut(T + steady + skews[leader], steady, last)
        assert not last or 100 * (1 - SLEW) - 1 <= cut - last <= 100 * (1 + SLEW) + 1
        for skew, clock in zip(skews, clocks, strict=True):
            clock.agreed(cut, T + steady + skew, steady)
        last = cut


def test_a_process_that_begins_takes_its_clock_at_its_word_if_it_is_later() -> None:
    assert CutClock().cut(T + HOUR_MS, 0.0, T) == T + HOUR_MS, "the flow did not run for an hour"
    clock = CutClock()
    assert clock.cut(T - HOUR_MS, 0.0, T) == T + 1
    assert T + 90 <= clock.cut(T - HOUR_MS + 100, 100.0, T + 1) <= T + 110


def test_a_first_cut_long_after_the_last_one_is_reported_once() -> None:
    clock = CutClock()
    clock.now_ms(T + HOUR_MS, 0.0)
    first = clock.cut(T + HOUR_MS, 0.0, T)
    assert clock.leap() == ClockLeap(T, first) and clock.leap() is None
    clock.cut(T + 2 * HOUR_MS, 100.0, first)
    assert clock.leap() is None, "a step while it runs is followed slowly, and reported as one"


def test_no_leap_is_reported_of_a_short_restart_a_fresh_log_or_cuts_that_were_seen() -> None:
    for wall, last in ((T + LEAP_MS, T), (T - HOUR_MS, T), (float(T), 0)):
        clock = CutClock()
        clock.cut(wall, 0.0, last)
        assert clock.leap() is None
    clock = CutClock()
    for number in range(3):
        clock.agreed(T + 100 * number, T + HOUR_MS, 100.0 * number)
    clock.cut(T + 2 * HOUR_MS, HOUR_MS, T + 200)
    assert clock.leap() is None, "its time is that of the other leader, and did not leap"


def test_what_is_read_again_from_a_log_does_not_set_the_time() -> None:
    """The flow did not run for an hour; the first member that comes back is given the end of the log again."""
    clock = CutClock()
    for number in range(10):
        clock.agreed(T + 100 * number, T + HOUR_MS + number, float(number))
    assert clock.cut(T + HOUR_MS + 20, 20.0, T + 900) == T + HOUR_MS + 20


def test_a_step_is_told_once_and_when_it_is_over() -> None:
    clock, steady, wall = CutClock(), 0.0, float(T)
    told: list[tuple[float, ClockOffset]] = []

    def pass_time(seconds: int) -> None:
        nonlocal steady, wall
        for _ in range(10 * seconds):
            steady, wall = steady + 100.0, wall + 100.0
            clock.now_ms(wall, steady)
            if (step := clock.step()) is not None:
                told.append((steady, step))

    pass_time(5)
    assert told == []
    wall += 60_000.0
    pass_time(100)
    assert len(told) == 1 and told[0][1].offset_ms == pytest.approx(60_000, abs=20)
    wall += 60_000.0
    pass_time(10)
    assert len(told) == 2 and told[1][1].offset_ms > 100_000, "it was set once more"
    wall -= 200_000.0
    pass_time(10)
    assert len(told) == 3 and told[2][1].offset_ms < -STEP_MS
    pass_time(1_000)
    assert len(told) == 4 and told[3][1] == ClockOffset(0.0)


def rows_late(walls: Sequence[float]) -> tuple[int, int]:
    """Rows that are right, by buckets of event time, while pulses are cut every 100 ms by such a clock. One pulse has
    none."""
    rule = BucketRule(size_ms=500, disorder_ms=0, origin_ms=T)
    state, clock, last = rule.begin(T), CutClock(), T
    for number, wall in enumerate(walls):
        last = clock.cut(wall, 100.0 * number, last)
        rows = np.array([T + 100 * number] if number != WITHOUT else [], np.int64)
        state, _ = rule.after(state, BucketStep(number + 1, last, number, number + len(rows)), rows)
    return state.late_rows, state.rows


def test_one_pulse_with_a_clock_that_is_an_hour_ahead_makes_no_row_late() -> None:
    walls = [T + 100.0 * number for number in range(200)]
    assert rows_late(walls) == (0, 199)
    walls[WITHOUT] += HOUR_MS
    assert rows_late(walls) == (0, 199)

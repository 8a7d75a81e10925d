"""The watch on a replica: how long its input is waited for, how its results stand, when a fork is wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from kit.protocol_node import node
from kit.topologies import chain
from unbroken.protocol.policies.fork.fork import Fork
from unbroken.protocol.policies.fork.forks import Forks
from unbroken.protocol.policies.fork.missing_input import InputWatch
from unbroken.protocol.policies.fork.units import Results
from unbroken.protocol.values.consistency import Consistency, DelayBound, InputHandling, Reconcile
from unbroken.protocol.values.ids import StreamId
from unit.protocol.policies.fork.watching import FORK, LEFT, RIGHT, ask, process, replica, stable, tentative, watch_on

BOUND = DelayBound(1_000, alpha=0.9)
PATIENCE_MS = 900.0


def watch_at(committed: int = 0, how: DelayBound = BOUND) -> InputWatch:
    home = replica(committed)
    ask(home)
    return watch_on(home, how)


def come(watch: InputWatch, stream: StreamId, number: int, now_ms: float) -> None:
    watch.replica.arrive(stable(stream, number))
    watch.note(number - 1, number, now_ms)


def look(watch: InputWatch, now_ms: float) -> Consistency:
    watch.forget()
    watch.look(now_ms)
    watch.state = watch.stand(now_ms)
    watch.check()
    return watch.state


def given(watch: InputWatch, pulse: int) -> None:
    """Results up to a pulse were given out without some input."""
    if watch.fork is None:
        watch.fork = Fork.of(FORK, watch.replica, frozenset({RIGHT}))
    header = replace(tentative(watch.stable, pulse), stream=StreamId.parse("join~.0>sink.0"))
    watch.outbox.add(Results((header,), 0.0))
    watch.outbox.release(0.0)


def test_no_input_at_all_is_not_missing() -> None:
    watch = watch_at()
    assert look(watch, 1e6) is Consistency.STABLE
    assert watch.since_ms() is None and watch.wake_times_ms() == []


def test_patience_is_counted_from_the_first_piece_of_a_pulse() -> None:
    watch = watch_at()
    come(watch, LEFT, 1, 100.0)
    come(watch, LEFT, 2, 600.0)
    assert look(watch, 100.0 + PATIENCE_MS - 1) is Consistency.STABLE
    assert watch.stalled and watch.wants_fork(0.0), "it gets ready before anybody sees it"
    assert 100.0 + PATIENCE_MS in watch.wake_times_ms()
    assert look(watch, 100.0 + PATIENCE_MS) is Consistency.UP_FAILURE


class Unwalked(dict[int, float]):
    """Can be asked for single pulses only."""

    def items(self) -> Any:
        raise AssertionError("all that waits is looked at, although it may be much")


@each(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=12),
    st.lists(st.integers(0, 36), min_size=1, max_size=3),
)
def test_how_long_input_waits_is_known_without_looking_at_all_of_it(
    notes: list[tuple[int, int]], commits: list[int]
) -> None:
    watch = watch_at()
    watch.returns_from = None
    for place, (since, more) in enumerate(notes):
        watch.note(since, since + more, float(place))
        if place % 5 == 4:
            watch.replica.committed = commits[place % len(commits)]
            watch.forget()
        watch.check()
        came = dict(watch.came)
        watch.came = Unwalked(came)
        for pulse in range(40):
            assert watch.waiting_since(pulse) == next((ms for number, ms in came.items() if number > pulse), None)
        watch.came = came
        for first, last in ((0, 36), (since, since + more), (since, since)):
            covered = [ms for number, ms in came.items() if first < number <= last]
            assert watch.came_ms(first, last, 99.0) == min(covered, default=99.0)


def test_input_that_comes_in_time_changes_nothing() -> None:
    watch = watch_at()
    come(watch, LEFT, 1, 0.0)
    look(watch, PATIENCE_MS - 1)
    come(watch, RIGHT, 1, PATIENCE_MS - 1)
    process(watch.replica, 1)
    assert look(watch, PATIENCE_MS) is Consistency.STABLE
    assert not watch.stalled and not watch.came
    assert watch.usual_ms == 1 or watch.usual_ms > 0, "such waits are usual here"


def test_it_is_late_with_a_fork_where_input_is_often_late() -> None:
    watch = watch_at()
    assert watch.prepared_ms == PATIENCE_MS / 20
    watch.usual_ms = 100.0
    assert watch.prepared_ms == 200.0
    watch.usual_ms = 800.0
    assert watch.prepared_ms == PATIENCE_MS / 3


def test_results_are_put_right_before_it_is_stable_again() -> None:
    watch = watch_at()
    come(watch, LEFT, 1, 0.0)
    assert look(watch, PATIENCE_MS) is Consistency.UP_FAILURE
    given(watch, 1)
    come(watch, RIGHT, 1, 2_000.0)
    assert look(watch, 2_000.0) is Consistency.STABILIZATION
    process(watch.replica, 1)
    assert look(watch, 2_100.0) is Consistency.STABLE


def test_if_nothing_was_given_out_nothing_has_to_be_put_right() -> None:
    watch = watch_at()
    come(watch, LEFT, 1, 0.0)
    look(watch, PATIENCE_MS)
    come(watch, RIGHT, 1, 2_000.0)
    assert look(watch, 2_000.0) is Consistency.STABLE


def test_tentative_input_is_not_waited_for_to_become_stable() -> None:
    watch = watch_at()
    come(watch, LEFT, 1, 0.0)
    watch.inputs[RIGHT].arrive(tentative(0, 1), "n1", 0, 10.0)
    watch.note(0, 1, 10.0)
    assert look(watch, 10.0) is Consistency.UP_FAILURE
    assert watch.wants_fork(10.0)


def test_with_delay_it_is_waited_for() -> None:
    watch = watch_at(how=replace(BOUND, during_failure=InputHandling.DELAY))
    come(watch, LEFT, 1, 0.0)
    watch.inputs[RIGHT].arrive(tentative(0, 1), "n1", 0, 10.0)
    assert look(watch, 10.0) is Consistency.STABLE
    assert look(watch, PATIENCE_MS) is Consistency.UP_FAILURE


@pytest.mark.parametrize(
    ("policy", "now_ms"), [(InputHandling.PROCESS, 950.0), (InputHandling.DELAY, 50.0 + PATIENCE_MS)]
)
def test_when_results_are_due(policy: InputHandling, now_ms: float) -> None:
    watch = watch_at(how=replace(BOUND, during_failure=policy))
    come(watch, LEFT, 1, 0.0)
    look(watch, 940.0)
    watch.fork = Fork.of(FORK, watch.replica, frozenset({RIGHT}))
    watch.outbox.add(Results((tentative(0, 1),), 50.0 if policy is InputHandling.DELAY else 0.0))
    before = look(watch, now_ms - 1)
    assert before is Consistency.UP_FAILURE
    if policy is InputHandling.DELAY:
        assert watch.due(now_ms - 1) == [] and now_ms in watch.wake_times_ms()
    look(watch, now_ms)
    assert [results.pulse for results in watch.due(now_ms)] == [1]


def test_suspend_wants_no_fork() -> None:
    watch = watch_at(how=replace(BOUND, during_failure=InputHandling.SUSPEND))
    come(watch, LEFT, 1, 0.0)
    assert look(watch, 10 * PATIENCE_MS) is Consistency.UP_FAILURE
    assert not watch.wants_fork(10 * PATIENCE_MS)
    assert watch.ahead == 1, "and nobody has to wait for it all the same"


def test_a_fork_begins_with_a_state_that_is_at_rest() -> None:
    home = replica()
    watch = watch_on(home, BOUND)
    come(watch, LEFT, 1, 0.0)
    look(watch, PATIENCE_MS)
    assert not watch.wants_fork(PATIENCE_MS), "its query may still be in the middle of something"
    ask(home)
    assert watch.wants_fork(PATIENCE_MS)
    watch.not_before_ms = 5_000.0
    assert not watch.wants_fork(4_999.0) and watch.wants_fork(5_000.0)


def test_who_waits_is_not_waited_for() -> None:
    watch = watch_at(committed=3)
    watch.close = 2
    come(watch, LEFT, 4, 0.0)
    look(watch, 0.0)
    assert watch.ahead == 0
    look(watch, PATIENCE_MS)
    assert watch.ahead == 4
    for number in range(5, 9):
        come(watch, LEFT, number, 1_000.0)
    given(watch, 8)
    for number in range(4, 9):
        come(watch, RIGHT, number, 2_000.0)
    assert look(watch, 2_000.0) is Consistency.STABILIZATION
    assert watch.ahead == 8
    process(watch.replica, 6)
    assert look(watch, 2_100.0) is Consistency.STABILIZATION
    assert watch.ahead == 0, "two more, and it is there"


def test_nothing_is_late_before_it_is_warm() -> None:
    watch = watch_at()
    watch.warm, watch.warm_up = False, (2, 60_000.0)
    come(watch, LEFT, 1, 0.0)
    assert look(watch, 0.0) is Consistency.STABLE
    assert look(watch, 30_000.0) is Consistency.STABLE and not watch.stalled
    assert 60_000.0 in watch.wake_times_ms()
    assert look(watch, 60_000.0) is Consistency.UP_FAILURE


@pytest.mark.parametrize("way", Reconcile)
def test_queries_rest_only_where_they_are_set_back(way: Reconcile) -> None:
    topology = replace(chain((1,)), availability={"s0": replace(BOUND, reconcile=way)})
    (watch,) = node("b", topology).policies.of(Forks).watches.values()
    assert watch.alternates == (way is not Reconcile.FORK)

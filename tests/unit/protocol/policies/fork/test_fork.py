"""A fork takes what is there: of all inputs that are not missing, as far as all of them go."""

from __future__ import annotations

from typing import Any, cast

import pytest

from unbroken.protocol.events import GateAsked
from unbroken.protocol.instructions import AnswerGate
from unbroken.protocol.policies.fork.cuts import FOLDED
from unbroken.protocol.policies.fork.fork import Fork
from unbroken.protocol.policies.fork.forks import Forks
from unbroken.protocol.policies.fork.instructions import FeedFork
from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import UnitHeader
from unit.protocol.policies.fork.watching import FORK, LEFT, RIGHT, RIGHT_FORKED, replica, stable, tentative, watch_on

MISSING = frozenset({RIGHT})


def fork_at(committed: int, missing: frozenset[StreamId] = MISSING) -> Fork:
    return Fork.of(FORK, replica(committed), missing)


def feed(fork: Fork, stream: StreamId, *numbers: int) -> list[FeedFork]:
    return [step for number in numbers for step in fork.feed(stream, stable(stream, number), (stream, number))]


def run(fork: Fork) -> tuple[int, int] | None:
    """One round of the query, and its commit: which pulses the micro-batch covers, None if there is none."""
    start = fork.committed
    answers = []
    for instance in ("left", "right"):
        fork.ask(GateAsked(fork.replica, instance, start, 1, 0.0))
        answers += fork.answers(1.0)
    assert {(answer.offset, tuple(answer.cut.items())) for answer in answers} == {
        (answers[0].offset, tuple(answers[0].cut.items()))
    }, "all instances of a query are told the same"
    if answers[0].offset == start:
        return None
    number = answers[0].offset
    header = fork.cut_header(number, answers[0].cut)
    assert header is not None and not header.stable
    fork.commit(number, answers[0].cut)
    fork.check()
    return header.since, header.pulse


def test_it_goes_on_with_the_input_that_is_there() -> None:
    fork = fork_at(5)
    assert run(fork) is None
    assert feed(fork, LEFT, 6) == [FeedFork(fork.home, LEFT, 6, FORK, 6)]
    assert run(fork) == (5, 6)
    assert run(fork) is None


def test_it_takes_all_that_has_come_at_once() -> None:
    fork = fork_at(5)
    feed(fork, LEFT, *range(6, 10))
    assert run(fork) == (5, 9)
    assert fork.committed == 6, "its micro-batches are counted, not its pulses"
    feed(fork, LEFT, *range(10, 10 + FOLDED + 5))
    assert run(fork) == (9, 9 + FOLDED)
    assert run(fork) == (9 + FOLDED, 14 + FOLDED)


def test_it_waits_for_inputs_that_are_not_missing() -> None:
    fork = fork_at(5, frozenset())
    feed(fork, LEFT, 6, 7)
    assert run(fork) is None
    feed(fork, RIGHT, 6)
    assert run(fork) == (5, 6)
    assert fork.clean, "that is what its replica does as well"
    assert fork.give_up_on() and run(fork) == (6, 7)
    assert not fork.clean


def test_it_does_not_give_up_on_all_inputs() -> None:
    fork = fork_at(5, frozenset())
    assert not fork.give_up_on()
    feed(fork, LEFT, 6)
    assert fork.give_up_on()


def test_an_input_that_is_back_is_waited_for_again() -> None:
    fork = fork_at(5)
    feed(fork, LEFT, 6, 7)
    feed(fork, RIGHT, 6)
    assert fork.fork_cuts.missing == MISSING, "it has yet to catch up"
    feed(fork, RIGHT, 7)
    assert not fork.fork_cuts.missing
    assert run(fork) == (5, 7)
    feed(fork, LEFT, 8)
    assert run(fork) is None


def test_tentative_units_follow_stable_ones_and_are_not_taken_twice() -> None:
    fork = fork_at(5, frozenset())
    feed(fork, LEFT, *range(6, 10))
    feed(fork, RIGHT, 6)
    assert fork.feed(RIGHT, tentative(6, 8), (RIGHT_FORKED, 1)) == [FeedFork(fork.home, RIGHT_FORKED, 1, FORK, 7)]
    assert feed(fork, RIGHT, 7, 8) == [], "the stable ones of these pulses are for its replica"
    assert run(fork) == (5, 8)
    assert not fork.clean
    assert feed(fork, RIGHT, 9) == [FeedFork(fork.home, RIGHT, 9, FORK, 8)]
    assert run(fork) == (8, 9)


def test_it_is_offered_only_what_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much its replica keeps: what comes in a long failure is looked at once."""
    home = replica(5)
    watch = watch_on(home, DelayBound(1_000))
    fork = Fork.of(FORK, home, frozenset())
    offered: list[int] = []
    original = Fork.feed

    def counting(self: Fork, stream: StreamId, header: UnitHeader, kept_as: tuple[StreamId, int]) -> list[FeedFork]:
        offered.append(header.pulse)
        return original(self, stream, header, kept_as)

    monkeypatch.setattr(Fork, "feed", counting)
    forking, taken = Forks(*[cast(Any, None)] * 6), 0
    for number in range(6, 106):
        home.arrive(stable(LEFT, number))
        steps = forking._feed(watch, fork, (LEFT,))
        watch.inputs[RIGHT].arrive(tentative(number - 1, number), "a", 0, 0.0)
        taken += len(steps) + len(forking._feed(watch, fork, (RIGHT,)))
        if number == 50:
            assert run(fork) == (5, 50)
    assert taken == 200 and offered == [number for number in range(6, 106) for _ in range(2)]
    assert forking._feed(watch, fork, (LEFT, RIGHT)) == [] and len(offered) == 200
    watch.inputs[RIGHT].overtaken(60)
    watch.check()
    assert [*watch.inputs[RIGHT].units] == [*range(56, 101)]


def test_a_tentative_unit_is_taken_whole() -> None:
    fork = fork_at(5, frozenset())
    feed(fork, LEFT, 6, 7)
    fork.feed(RIGHT, tentative(5, 8), (RIGHT_FORKED, 1))
    assert run(fork) == (5, 7)
    assert fork.inboxes[RIGHT].consumed == 5, "it has rows of a pulse that is not taken yet"
    feed(fork, LEFT, 8)
    assert run(fork) == (7, 8)
    assert fork.inboxes[RIGHT].consumed == 6


def test_input_of_pulses_that_are_done_comes_too_late() -> None:
    fork = fork_at(5)
    feed(fork, LEFT, 6, 7)
    assert run(fork) == (5, 7)
    assert feed(fork, RIGHT, 6, 7) == []


def test_one_that_is_held_takes_nothing() -> None:
    fork = fork_at(5)
    feed(fork, LEFT, 6)
    fork.fork_cuts.held = True
    assert run(fork) is None
    fork.fork_cuts.held = False
    assert run(fork) == (5, 6)


def test_nobody_waits_for_one_that_is_dropped() -> None:
    fork = fork_at(5)
    fork.ask(GateAsked(fork.replica, "left", 5, 7, 1e9))
    assert fork.forget_questions() == [AnswerGate(7, 5)]


def test_a_unit_that_covers_more_pulses_than_are_wanted_is_taken_whole() -> None:
    """Somebody else has shown results up to pulse 7, and the only input that is there covers pulses 6 to 9."""
    fork = fork_at(5, frozenset({LEFT}))
    fork.fork_cuts.known = 7
    fork.feed(RIGHT, tentative(5, 9), (RIGHT_FORKED, 1))
    assert run(fork) == (5, 9), "there is no micro-batch without input"
    assert run(fork) is None

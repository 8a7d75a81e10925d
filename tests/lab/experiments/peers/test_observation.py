"""What an observation makes of results: the age of events, and what is lost, counted twice or said again."""

from __future__ import annotations

import numpy as np

from unbroken_lab.experiments.parameters.events import KEYS, Load, expected_counts, expected_tops, make_rows
from unbroken_lab.experiments.peers.observation import Observation

BEGAN_MS = 1_000_000.0
RATE = 1_000
ROWS = 2 * KEYS


def watched() -> Observation:
    return Observation(Load(RATE, ROWS, BEGAN_MS))


def all_at_once(seen: Observation, at_ms: float = BEGAN_MS + 30_000) -> None:
    seen.add(at_ms, np.arange(KEYS), expected_counts(ROWS), expected_tops(ROWS))


def test_an_event_is_as_old_as_the_first_result_that_counts_it() -> None:
    seen = watched()
    first = make_rows(0, 100)["k"].to_numpy()
    seen.add(BEGAN_MS + 500, first, np.ones(100), np.zeros(100))
    due_ms, age_ms = seen.events()
    assert sorted(due_ms) == [BEGAN_MS + index for index in range(100)]
    assert set(due_ms + age_ms) == {BEGAN_MS + 500}


def test_a_result_covers_all_events_since_the_one_before() -> None:
    seen = watched()
    all_at_once(seen)
    due_ms, age_ms = seen.events()
    assert len(due_ms) == ROWS
    assert age_ms.max() == 30_000
    assert seen.complete()
    assert (seen.lost(), seen.duplicated(), seen.wrong(), seen.repeated) == (0, 0, 0, 0)


def test_several_results_of_a_key_may_come_together() -> None:
    seen = watched()
    seen.add(BEGAN_MS, [5, 5, 6], [1, 2, 1], [10, 11, 12])
    assert seen.counted() == 3
    assert (seen.counts[5], seen.tops[5]) == (2, 11)
    assert seen.repeated == 0


def test_results_that_come_again_are_told_and_do_not_make_events_older() -> None:
    seen = watched()
    seen.add(BEGAN_MS + 100, [5], [2], [7])
    seen.add(BEGAN_MS + 9_000, [5, 5], [1, 2], [6, 7])
    assert seen.repeated == 2
    assert seen.last_ms() == BEGAN_MS + 100
    assert len(seen.arrivals()) == 1
    assert seen.counts[5] == 2


def test_what_is_missing_or_too_much_in_the_last_counts() -> None:
    seen = watched()
    all_at_once(seen)
    seen.add(BEGAN_MS + 31_000, [1, 2], [1, 5], [0, 0])
    assert (seen.lost(), seen.duplicated()) == (1, 3)


def test_a_wrong_maximum_with_the_right_count() -> None:
    seen = watched()
    all_at_once(seen)
    seen.add(BEGAN_MS + 31_000, [1], [2], [-5])
    assert (seen.lost(), seen.duplicated(), seen.wrong()) == (0, 0, 1)


def test_nothing_yet() -> None:
    seen = watched()
    seen.add(BEGAN_MS, [], [], [])
    assert seen.last_ms() is None
    assert not seen.complete()
    assert seen.lost() == ROWS
    assert [len(each) for each in seen.events()] == [0, 0]

"""The events of `unbroken bench peers`, and what counts of them say."""

from __future__ import annotations

import numpy as np
import pytest

from unbroken_lab.experiments.parameters.events import KEYS, Load, expected_counts, expected_tops, index_of, make_rows


@pytest.mark.parametrize("rows", [0, 1, 7_777, KEYS, KEYS + 1, 3 * KEYS + 4_321])
def test_what_is_expected_is_what_the_events_give(rows: int) -> None:
    table = make_rows(0, rows)
    keys, values = table["k"].to_numpy(), table["v"].to_numpy()
    assert expected_counts(rows).tolist() == np.bincount(keys, minlength=KEYS).tolist()
    tops = np.full(KEYS, -1)
    np.maximum.at(tops, keys, values)
    assert expected_tops(rows).tolist() == tops.tolist()


def test_a_count_says_which_event_made_it() -> None:
    counts = np.zeros(KEYS, dtype=np.int64)
    for index, key in enumerate(make_rows(0, 2 * KEYS + 50)["k"].to_pylist()):
        counts[key] += 1
        assert index_of(key, counts[key]) == index


def test_events_can_be_made_in_any_pieces() -> None:
    whole = make_rows(0, 500)
    assert make_rows(123, 321).equals(whole.slice(123, 198))


def test_a_maximum_goes_on_to_change() -> None:
    assert (expected_tops(8 * KEYS) > expected_tops(2 * KEYS)).mean() > 0.5


def test_events_are_due_at_their_rate() -> None:
    load = Load(rate=5_000, rows=10_000, began_ms=1_000.0)
    assert load.due_ms(5_000) == 2_000.0
    assert load.ended_ms == 3_000.0

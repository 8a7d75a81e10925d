"""The made-up rows of the benchmarks' flows."""

from __future__ import annotations

import pytest

from unbroken_lab.experiments.parameters.rows import PAYLOAD, KeyedRows

KEYS = 1_000


@pytest.mark.parametrize("start", [0, 7, KEYS - 3])
def test_rows_depend_on_their_number_alone(start: int) -> None:
    make_rows = KeyedRows(KEYS)
    whole = make_rows(start, start + 20, 0)
    assert whole.slice(5).combine_chunks().equals(make_rows(start + 5, start + 20, 1).combine_chunks())
    assert {len(value) for value in whole["payload"].to_pylist()} == {PAYLOAD}


def test_every_key_has_its_turn() -> None:
    assert sorted(KeyedRows(KEYS)(0, KEYS, 0)["k"].to_pylist()) == list(range(KEYS))

"""Two collections of rows: what is the same whatever the order, and how a difference is told."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from unbroken.testing.comparison import Difference, Misfit, compare, latest, rows_of


def of(*values: Any) -> list[dict[str, Any]]:
    return [{"v": value} for value in values]


def test_order_does_not_matter_and_counts_do() -> None:
    assert not compare({1: of(1, 2, 2)}, {1: of(2, 1, 2)})
    found = compare({1: of(1, 2, 2), 2: of(5)}, {1: of(2, 1, 1, 9), 2: of(5, 5)})
    assert found == Difference(
        missing=(Misfit(1, {"v": 2}),),
        extra=(Misfit(1, {"v": 9}),),
        doubled=(Misfit(1, {"v": 1}), Misfit(2, {"v": 5})),
    )


def test_a_row_in_another_unit_is_told_as_such() -> None:
    found = compare({1: of("a"), 2: of("b")}, {1: of(), 2: of("b"), 3: of("a")})
    assert found.moved == ((Misfit(1, {"v": "a"}), 3),) and not found.missing and not found.extra
    assert found.lines() == ["1 row in another unit", "expected in unit 1, came in unit 3: {'v': 'a'}"]


def test_the_difference_is_told_in_words_and_not_at_length() -> None:
    found = compare({1: of(*range(9))}, {1: of(100)})
    assert found.lines() == [
        "9 rows missing, 1 row not expected",
        *(f"unit 1: missing: {{'v': {value}}}" for value in range(5)),
        "and 4 more missing",
        "unit 1: not expected: {'v': 100}",
    ]
    assert compare({0: of(1)}, {0: of()}).lines() == ["1 row missing", "missing: {'v': 1}"]


def test_floating_point_numbers_may_differ_in_the_last_bits() -> None:
    assert not compare({1: of(0.1 + 0.2)}, {1: of(0.3)})
    assert not compare({1: of(float("nan"), [1.0, {"x": 0.3}])}, {1: of([1.0, {"x": 0.1 + 0.2}], float("nan"))})
    assert compare({1: of(0.3)}, {1: of(0.30001)})
    assert compare({1: of(float("inf"))}, {1: of(1e308)})


def test_values_of_different_types_are_different() -> None:
    assert (
        compare({1: of(1)}, {1: of(True)}) and compare({1: of(1)}, {1: of(1.0)}) and compare({1: of(1)}, {1: of("1")})
    )
    assert compare({1: of(None)}, {1: of(0)}) and not compare({1: of(None)}, {1: of(None)})


VALUES = st.none() | st.integers(-3, 3) | st.sampled_from([0.5, -0.0, 1e9]) | st.text("ab", max_size=2)


@given(st.lists(st.lists(VALUES, max_size=3), max_size=8), st.randoms())
def test_the_same_rows_in_any_order_do_not_differ(values: list[list[Any]], order: random.Random) -> None:
    shuffled = list(values)
    order.shuffle(shuffled)
    assert not compare({1: of(*values)}, {1: of(*shuffled)})
    if values:
        assert len(compare({1: of(*values)}, {1: of(*shuffled[1:])}).missing) == 1


def test_rows_of_a_table_have_an_order_that_does_not_depend_on_spark() -> None:
    moment = datetime.datetime(2026, 1, 1)
    table = pa.table({"a": [2, None, 10, 1], "b": ["x", "y", "x", None], "c": [moment, None, None, moment]})
    assert [row["a"] for row in rows_of(table)] == [None, 1, 2, 10]
    assert rows_of(table) == rows_of(table.take([3, 1, 0, 2]))
    assert rows_of(pa.table({"x": [[2], [1]], "y": [{"k": 1}, None]}))[0]["x"] == [1]


def test_the_latest_row_of_every_key() -> None:
    rows = [{"k": "a", "n": 1}, {"k": "b", "n": 1}, {"k": "a", "n": 2}]
    assert latest(rows, ["k"]) == [{"k": "a", "n": 2}, {"k": "b", "n": 1}]

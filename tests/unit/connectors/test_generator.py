"""The generator gives the rows that are due, the same ones whenever they are read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.connectors.generator import Generator
from unbroken.data.randomness import integers
from unbroken.errors import Flaw, UnbrokenError


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    rows = np.arange(start, stop)
    return pa.table({"n": rows, "user": integers(seed, rows, "user", 0, 10)})


SCHEMA = "user int, n long"


def test_without_a_function_rows_are_their_numbers() -> None:
    source = Generator(rate=100)
    assert source.problems() == [] and source.schema.simpleString() == "struct<n:bigint>"
    rows = source.open().read({"start_ms": 0, "row": 3}, {"start_ms": 0, "row": 6})
    assert rows.table.to_pydict() == {"n": [3, 4, 5]}


def test_function_and_schema_belong_together() -> None:
    for source in (Generator(numbers, rate=1), Generator(schema="n long", rate=1)):
        assert source.problems() == [
            Flaw("The function and the schema of a generator belong together", "give both, or neither")
        ]


def test_rows_become_due_at_the_rate() -> None:
    reader = Generator(numbers, schema=SCHEMA, rate=1000, seed=3).open()
    first = reader.poll(None, 5_000)
    assert first.position == {"start_ms": 5_000, "row": 0} and not first.exhausted
    second = reader.poll(first.position, 5_250)
    assert second.position == {"start_ms": 5_000, "row": 250}
    rows = reader.read(first.position, second.position)
    assert rows.table.column("n").to_pylist() == list(range(250))
    assert rows.table.schema == pa.schema([("user", pa.int32()), ("n", pa.int64())])
    assert reader.read(first.position, second.position).table.equals(rows.table)
    assert reader.read(second.position, second.position).table.num_rows == 0


def test_a_clock_that_goes_back_takes_no_rows_back() -> None:
    reader = Generator(numbers, schema=SCHEMA, rate=1000).open()
    assert reader.poll({"start_ms": 5_000, "row": 100}, 4_000).position["row"] == 100


def test_a_standstill_is_made_up_in_bounded_pulses() -> None:
    reader = Generator(numbers, schema=SCHEMA, rate=1000, max_rows_per_pulse=500).open()
    position = {"start_ms": 0, "row": 0}
    position = reader.poll(position, 60_000).position
    assert position["row"] == 500
    assert reader.poll(position, 60_000).position["row"] == 1000


def test_without_rate_every_pulse_has_a_batch() -> None:
    reader = Generator(numbers, schema=SCHEMA, rate=None, batch_rows=70).open()
    first = reader.poll(None, 0)
    assert reader.read(None, first.position).table.num_rows == 70
    assert reader.poll(first.position, 0).position["row"] == 140


def test_the_limit_ends_it() -> None:
    reader = Generator(numbers, schema=SCHEMA, rate=None, batch_rows=70, limit=100).open()
    first = reader.poll(None, 0)
    last = reader.poll(first.position, 0)
    assert (first.exhausted, last.exhausted) == (False, True)
    assert last.position["row"] == 100
    assert reader.poll(last.position, 10).position == last.position
    assert Generator(numbers, schema=SCHEMA, rate=10, limit=0).open().poll(None, 0).exhausted


@given(st.lists(st.integers(0, 400), max_size=8), st.integers(0, 500))
def test_any_cuts_give_the_same_rows(times: list[int], limit: int) -> None:
    reader = Generator(numbers, schema=SCHEMA, rate=1000, limit=limit).open()
    position, tables = None, []
    for now in times:
        cut = reader.poll(position, now)
        tables.append(reader.read(position, cut.position).table)
        position = cut.position
    if tables:
        got = pa.concat_tables(tables)
        assert got.column("n").to_pylist() == list(range(got.num_rows))
        assert got.equals(reader.read(None, position).table)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (pa.table({"n": [1]}), "the columns are n, but the schema has user, n"),
        (pa.table({"user": ["x"], "n": [1]}), "column 'user' is string, but the schema says int32"),
        (pa.table({"user": [2**40], "n": [1]}), "column 'user' does not fit int32"),
        (pa.table({"user": [1, 2], "n": [1, 2]}), "made 2 rows for 0 to 1"),
        ([1], "must return a pyarrow.Table"),
    ],
)
def test_what_the_function_gets_wrong_is_named(made: object, message: str) -> None:
    def bad(start: int, stop: int, seed: int) -> object:
        return made

    reader = Generator(bad, schema=SCHEMA, rate=1).open()
    with pytest.raises(UnbrokenError, match=message):
        reader.read(None, {"start_ms": 0, "row": 1})


def test_wrong_declarations_are_explained() -> None:
    assert Generator(numbers, schema=SCHEMA, rate=10).problems() == []
    wrong = Generator(None, schema=SCHEMA, rate=0, limit=-1, batch_rows=0)  # type: ignore[arg-type]
    assert len(wrong.problems()) == 4

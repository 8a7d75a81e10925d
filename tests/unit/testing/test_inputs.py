"""The rows of a test as a source has them: what is taken, and how what is wrong is told."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from unbroken import Client, Dataflow, Files
from unbroken.errors import UnbrokenError
from unbroken.testing import kill_here, mark
from unbroken.testing.input.inputs import Input, read_inputs

SCHEMA = (
    "user string NOT NULL, n long, at timestamp, day date, price decimal(10,2), tags array<string>, m map<string,int>"
)


def flow_of(*sources: str, schema: str = SCHEMA) -> Dataflow:
    flow = Dataflow("clicks")
    for name in sources:
        flow.source(name, Files("nowhere", format="json", schema=schema))
    flow.segment(*sources, name="all")(lambda *frames: frames[0])
    flow.sink("out", "all", Client())
    return flow


def one(given: Any, schema: str = SCHEMA) -> Input:
    return read_inputs(flow_of("clicks", schema=schema), given)["clicks"]


def test_rows_are_dicts_with_values_of_python_or_of_json() -> None:
    moment = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    python = {"user": "a", "n": 1, "at": moment, "day": moment.date(), "price": decimal.Decimal("1.50")}
    json = {"user": "a", "n": 1, "at": "2026-03-01T12:00:00Z", "day": "2026-03-01", "price": "1.50"}
    millis = {"user": "a", "n": 1, "at": 1_772_366_400_000, "day": moment.date(), "price": decimal.Decimal("1.50")}
    rows = one([python, json, millis]).table.to_pylist()
    assert rows[0] == rows[1] == rows[2] == {**python, "tags": None, "m": None}


def test_nested_values_are_taken() -> None:
    rows = one([{"user": "a", "tags": ["x", None], "m": {"k": 1}}]).table.to_pylist()
    assert rows[0]["tags"] == ["x", None] and rows[0]["m"] == [("k", 1)]


def test_tables_frames_and_marks_stand_in_one_list() -> None:
    schema = "user string, n long"
    table = pa.table({"user": ["b", "c"], "n": pa.array([2, 3], pa.int32())})
    frame = pd.DataFrame({"user": ["d"], "n": [4]})
    given = one([{"user": "a", "n": 1}, mark("x"), table, kill_here(), frame, mark("end")], schema)
    assert given.table.column("n").to_pylist() == [1, 2, 3, 4]
    assert given.marks == ((1, mark("x")), (3, kill_here()), (4, mark("end")))
    for alone in (table, frame, table.to_batches()[0]):
        assert one(alone, schema).table.num_rows == len(alone)
    assert one([], schema).table.num_rows == 0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"user": "a"}, {"usr": "b"}], "row 2: there is no column 'usr'; did you mean 'user'?"),
        ([{"user": "a"}, {"n": 1}], "row 2: column 'user' must not be null or missing"),
        ([{"user": "a", "n": "5"}], "row 1: '5' does not fit column 'n' (int64)"),
        ([{"user": "a", "n": True}], "row 1: True does not fit column 'n' (int64): a truth value is no number"),
        ([{"user": "a", "n": 1.5}], "row 1: 1.5 does not fit column 'n'"),
        ([{"user": "a", "at": "yesterday"}], "row 1: 'yesterday' does not fit column 'at'"),
        ([{"user": "a", "price": "much"}], "row 1: 'much' does not fit column 'price'"),
        ([{"user": "a"}, 5], "item 2 is 5, which is neither a row nor a mark"),
        ("abc", "str cannot be rows; give a list of dicts"),
        (pa.table({"user": ["a"]}), "from row 1 on: the columns are user, but the schema has user, n"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(rows: Any, words: str) -> None:
    with pytest.raises(UnbrokenError) as caught:
        one(rows)
    assert str(caught.value).startswith("input of source clicks") and words in str(caught.value)


def test_every_source_is_given_its_rows() -> None:
    flow = flow_of("left", "right", schema="n long")
    inputs = read_inputs(flow, {"right": [], "left": [{"n": 1}]})
    assert list(inputs) == ["left", "right"] and inputs["left"].table.num_rows == 1
    with pytest.raises(UnbrokenError, match="no rows for source 'right' of flow clicks; give them, or an empty list"):
        read_inputs(flow, {"left": []})
    with pytest.raises(UnbrokenError, match="no source 'lef'; did you mean 'left'"):
        read_inputs(flow, {"lef": [], "right": []})
    with pytest.raises(UnbrokenError, match="sources left, right: give a dict"):
        read_inputs(flow, [{"n": 1}])

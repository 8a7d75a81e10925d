"""Every table can be written as JSON and as PostgreSQL's CSV, whatever its values are."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.connectors.postgres.rows import copy_data
from unbroken.data.rows.json.output import in_years, json_lines

YEAR_10183 = pa.array([3_000_000], pa.int32()).cast(pa.date32())
FAR = pa.array([9_000_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))


def written(table: pa.Table) -> list[object]:
    return [json.loads(line) for line in b"".join(json_lines(table)).splitlines()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (YEAR_10183, None),
        (FAR, None),
        (pa.StructArray.from_arrays([YEAR_10183, FAR], ["d", "t"]), {"d": None, "t": None}),
        (pa.ListArray.from_arrays([0, 1], YEAR_10183), [None]),
        (pa.MapArray.from_arrays([0, 1], pa.array(["k"]), FAR), {"k": None}),
        (pa.array([5], pa.time64("us")), "00:00:00.000005"),
        (pa.array([1_500], pa.duration("ms")), 1_500_000),
        (pa.array([[{"a": None}, None]], pa.list_(pa.struct([("a", pa.int8())]))), [{"a": None}, None]),
        (pa.array([[1, 2]], pa.list_(pa.int16(), 2)), [1, 2]),
        (pa.array([{}], pa.struct([])), {}),
        (pa.array([b"\x00\xff"], pa.binary()), "AP8="),
    ],
    ids=str,
)
def test_values_that_stopped_a_sink(values: pa.Array, expected: object) -> None:
    table = pa.table({"v": values})
    assert written(table) == [{"v": expected}]
    # A slice of a longer column is what a sink is really given.
    longer = pa.table({"v": pa.concat_arrays([values, values, values])}).slice(1, 1)
    assert written(longer) == [{"v": expected}]


def test_text_that_is_not_utf8_is_written() -> None:
    raw = pa.array([b"\xff", b"ok"], pa.binary())
    text = pa.StringArray.from_buffers(2, *raw.buffers()[1:])
    assert written(pa.table({"s": text})) == [{"s": "\ufffd"}, {"s": "ok"}]


def test_the_years_that_are_kept() -> None:
    days = pa.array([-719_162, -719_163, 2_932_896, 2_932_897, None], pa.int32()).cast(pa.date32())
    assert in_years(days, 1, 9999).is_null().to_pylist() == [False, True, False, True, True]
    for unit, scale in {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}.items():
        ends = [-719_162 * scale, -719_162 * scale - 1, 2_932_897 * scale - 1, 2_932_897 * scale]
        times = pa.array(ends, pa.int64()).cast(pa.timestamp(unit))
        assert in_years(times, 1, 9999).is_null().to_pylist() == [False, True, False, True]
    assert in_years(pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("ns")), 1, 9999).null_count == 0


LEAVES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.decimal128(38, 10): st.decimals(
        allow_nan=False, allow_infinity=False, places=10, min_value=-(10**27), max_value=10**27
    ),
    pa.null(): st.none(),
}
INTEGERS = [
    pa.date32(),
    pa.date64(),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
]
INTEGERS += [pa.duration("us"), pa.duration("s"), pa.duration("ns")]


@st.composite
def arrays(draw: Callable[..., object], size: int, depth: int = 2) -> pa.Array:
    kinds = ["leaf", "time"] + (["struct", "list", "map"] if depth else [])
    match draw(st.sampled_from(kinds)):
        case "leaf":
            kind = draw(st.sampled_from([*LEAVES]))
            values = draw(st.lists(st.none() | LEAVES[kind], min_size=size, max_size=size))  # type: ignore[index]
            return pa.array(values, kind)
        case "time":
            kind = draw(st.sampled_from(INTEGERS))
            wide = pa.int32() if kind == pa.date32() else pa.int64()
            bits = 31 if kind == pa.date32() else 63
            numbers = st.none() | st.integers(-(2**bits), 2**bits - 1) | st.integers(-100_000, 100_000)
            return pa.array(draw(st.lists(numbers, min_size=size, max_size=size)), wide).view(kind)
        case "struct":
            mask = pa.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), pa.bool_())
            return pa.StructArray.from_arrays([draw(arrays(size, depth - 1)) for _ in range(2)], ["a", "b"], mask=mask)
        case "list":
            return pa.ListArray.from_arrays([*range(size), size], draw(arrays(size, depth - 1)))
        case _:
            keys = pa.array([f"k{n}" for n in range(size)])
            return pa.MapArray.from_arrays([*range(size), size], keys, draw(arrays(size, depth - 1)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_table_can_be_written(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    table = pa.table({f"c{n}": data.draw(arrays(size)) for n in range(2)}).slice(data.draw(st.integers(0, size)))
    rows = written(table)
    assert len(rows) == table.num_rows
    names = {
        name: "jsonb" if pa.types.is_nested(table.schema.field(name).type) else "text" for name in table.column_names
    }
    assert b"".join(copy_data(table, names)).count(b"value out of range") == 0

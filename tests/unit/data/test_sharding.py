"""The shard of a row is the same whether it comes out of Spark or not, and splitting loses nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from unbroken.data.hashed_rows import HashedRows, split
from unbroken.errors import UnbrokenError

ROWS = 400
SHARDS = 1009  # A prime much larger than any real number of shards, so that hashes cannot agree by chance.

WORDS = ["", "a", "ab", "abc", "abcd", "abcde", "Zürich", "日本語", "🚀🚀", "\x00", "x" * 1000, "é" * 333]


def with_nulls(values: list[Any], rng: np.random.Generator) -> list[Any]:
    dropped = rng.random(len(values)) < 0.2
    return [None if drop else value for value, drop in zip(values, dropped, strict=True)]


def integers(bits: int) -> Callable[[np.random.Generator], list[Any]]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda rng: [low, high, 0, -1, *rng.integers(low, high, ROWS).tolist()]


def floats(rng: np.random.Generator) -> list[Any]:
    return [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, *rng.normal(size=ROWS).tolist()]


def texts(rng: np.random.Generator) -> list[Any]:
    made = ["".join(chr(c) for c in rng.integers(1, 0xD7FF, n)) for n in rng.integers(0, 40, ROWS)]
    return [*WORDS, *made]


def blobs(rng: np.random.Generator) -> list[Any]:
    return [b"", b"\xff", b"\x80\x7f\xff", *(rng.bytes(n) for n in rng.integers(0, 70, ROWS))]


def times(rng: np.random.Generator) -> list[Any]:
    start = dt.datetime(1890, 1, 1, tzinfo=dt.UTC)
    return [start + dt.timedelta(microseconds=int(n)) for n in rng.integers(0, 2**52, ROWS)]


CASES: dict[str, tuple[pa.DataType, Callable[[np.random.Generator], list[Any]]]] = {
    "bool": (pa.bool_(), lambda rng: (rng.random(ROWS) < 0.5).tolist()),
    "int8": (pa.int8(), integers(8)),
    "int16": (pa.int16(), integers(16)),
    "int32": (pa.int32(), integers(32)),
    "int64": (pa.int64(), integers(64)),
    "date32": (pa.date32(), lambda rng: [dt.date(1900, 1, 1) + dt.timedelta(int(n)) for n in range(ROWS)]),
    "timestamp": (pa.timestamp("us", "UTC"), times),
    "timestamp_ntz": (pa.timestamp("us"), lambda rng: [time.replace(tzinfo=None) for time in times(rng)]),
    "float32": (pa.float32(), floats),
    "float64": (pa.float64(), floats),
    "decimal": (pa.decimal128(12, 3), lambda rng: [Decimal(int(n)).scaleb(-3) for n in integers(30)(rng)]),
    "string": (pa.string(), texts),
    "large_string": (pa.large_string(), texts),
    "binary": (pa.binary(), blobs),
}


def shard_of(table: pa.Table, keys: list[str], shards: int) -> np.ndarray[Any, Any]:
    """The shard of each row."""
    return HashedRows.of(table, [keys], computed=False).shards(keys, shards)


def spark_shards(spark: SparkSession, table: pa.Table, keys: list[str]) -> list[int]:
    """The shards of the same rows as they leave Spark."""
    # Row numbers travel along because Spark does not promise the order of rows.
    numbered = table.append_column("n", pa.array(range(table.num_rows)))
    left = spark.createDataFrame(numbered).toArrow().sort_by("n")
    pieces = HashedRows.of(left, [keys], computed=True).split(keys, SHARDS)
    homes = {n: shard for shard, piece in enumerate(pieces) for n in piece.table.column("n").to_pylist()}
    return [homes[n] for n in range(table.num_rows)]


@pytest.mark.parametrize("case", CASES)
def test_rows_of_sources_and_of_segments_have_the_same_shards(spark: SparkSession, case: str) -> None:
    kind, make = CASES[case]
    rng = np.random.default_rng(7)
    table = pa.table({"k": pa.array(with_nulls(make(rng), rng), kind)})
    assert shard_of(table, ["k"], SHARDS).tolist() == spark_shards(spark, table, ["k"])


def test_several_keys_slices_chunks_and_nulls_too(spark: SparkSession) -> None:
    rng = np.random.default_rng(8)
    columns = {name: pa.array(with_nulls(make(rng), rng)[: ROWS - 10], kind) for name, (kind, make) in CASES.items()}
    whole = pa.table(columns)
    chunked = pa.concat_tables([whole.slice(3, 100), whole.slice(50, 0), whole.slice(200, 77)])
    keys = list(CASES)
    assert chunked.column("string").num_chunks > 1
    assert shard_of(chunked, keys, SHARDS).tolist() == spark_shards(spark, chunked.combine_chunks(), keys)


def test_other_encodings_of_the_same_values_have_the_same_shards() -> None:
    words = pa.array([*WORDS, None])
    expected = shard_of(pa.table({"k": words}), ["k"], SHARDS).tolist()
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())):
        assert shard_of(pa.table({"k": words.cast(kind)}), ["k"], SHARDS).tolist() == expected
    seconds = pa.array([0, -1, 1_700_000_000, None], pa.timestamp("s"))
    micros = seconds.cast(pa.timestamp("us"))
    assert np.array_equal(
        shard_of(pa.table({"k": seconds}), ["k"], SHARDS), shard_of(pa.table({"k": micros}), ["k"], SHARDS)
    )


def test_a_null_key_ignores_the_bytes_below_it() -> None:
    offsets = pa.py_buffer(np.array([0, 3, 6], np.int32))
    valid = pa.py_buffer(b"\x01")
    array = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abcxyz"), valid)
    clean = pa.array(["abc", None])
    assert np.array_equal(
        shard_of(pa.table({"k": array}), ["k"], SHARDS), shard_of(pa.table({"k": clean}), ["k"], SHARDS)
    )


def test_no_keys_or_one_shard_is_shard_zero() -> None:
    table = pa.table({"k": [1, 2, 3]})
    assert shard_of(table, [], 4).tolist() == [0, 0, 0]
    assert shard_of(table, ["k"], 1).tolist() == [0, 0, 0]
    assert [part.num_rows for part in split(table, [], 3)] == [3, 0, 0]
    assert split(table, [], 4)[0] is table and split(table, ["k"], 1)[0] is table


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1]]),
        pa.array([1], pa.uint32()),
        pa.array([0], pa.timestamp("ns")),
        pa.array([Decimal(1)], pa.decimal128(38, 0)),
    ],
    ids=lambda array: str(array.type),
)
def test_types_that_cannot_be_keys_are_named(array: pa.Array) -> None:
    with pytest.raises(UnbrokenError, match=r"column 'k' has type .* cast it"):
        shard_of(pa.table({"k": array}), ["k"], 2)


def test_bad_requests_are_explained() -> None:
    table = pa.table({"k": [1, 2], "s": [0, 5]})
    with pytest.raises(UnbrokenError, match="no single column 'z' among k, s"):
        shard_of(table, ["z"], 2)
    with pytest.raises(UnbrokenError, match="at least 1"):
        split(table, ["k"], 0)


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.one_of(st.none(), st.text(max_size=9)), max_size=50),
    shards=st.integers(2, 7),
    cut=st.integers(0, 50),
)
def test_split_is_a_partition_that_keeps_order(keys: list[str | None], shards: int, cut: int) -> None:
    table = pa.table({"k": pa.array(keys, pa.string()), "n": pa.array(range(len(keys)), pa.int64())})
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    parts = split(table, ["k"], shards)
    assert len(parts) == shards
    assert all(part.schema == table.schema for part in parts)
    numbers = [part.column("n").to_pylist() for part in parts]
    assert sorted(n for part in numbers for n in part) == list(range(len(keys)))
    assert all(part == sorted(part) for part in numbers)
    homes = shard_of(table, ["k"], shards)
    assert all((homes[part] == shard).all() for shard, part in enumerate(numbers))

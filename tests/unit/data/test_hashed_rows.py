"""Digests see every difference between sets of rows, and nothing else."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from unbroken.data.hashed_rows import HashedRows
from unbroken.data.schema import check_names
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.units import Digest

SCHEMA = (
    "id bigint, name string, day date, at timestamp, price decimal(20,2), raw binary, ok boolean, "
    "tags array<string>, attrs map<string,int>, pos struct<x:int,y:string>, "
    "amount double, ratio float, track array<struct<t:int,v:double>>"
)
BASE: dict[str, Any] = {
    "id": 1,
    "name": "a",
    "day": dt.date(2024, 1, 1),
    "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    "price": Decimal("1.50"),
    "raw": b"\x00\x01",
    "ok": True,
    "tags": ["x", None],
    "attrs": {"k": 1, "l": 2},
    "pos": {"x": 1, "y": "z"},
    "amount": 10.5,
    "ratio": 0.25,
    "track": [{"t": 1, "v": 1.0}, {"t": 2, "v": -2.0}],
}
CHANGES: dict[str, Any] = {
    "id": 2,
    "name": None,
    "day": dt.date(2024, 1, 2),
    "at": dt.datetime(2024, 1, 1, microsecond=1, tzinfo=dt.UTC),
    "price": Decimal("1.51"),
    "raw": b"\x00",
    "ok": None,
    "tags": [None, "x"],
    "attrs": {"k": 2, "l": 1},
    "pos": {"x": 1, "y": None},
    "amount": 10.6,
    "ratio": math.nan,
    "track": [{"t": 1, "v": 1.0}, {"t": 2, "v": 2.0}],
}


def computed_digest(table: pa.Table) -> Digest:
    return HashedRows.of(table, computed=True).digest()


def arrow_digest(table: pa.Table) -> Digest:
    return HashedRows.of(table, computed=False).digest()


def digest(df: DataFrame) -> Digest:
    return computed_digest(df.toArrow())


def frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame([tuple(row.values()) for row in rows], SCHEMA)


@pytest.fixture(scope="module")
def people(spark: SparkSession) -> DataFrame:
    return spark.range(500).selectExpr(
        "id",
        "concat('name', id % 7) AS name",
        "id % 3 = 0 AS ok",
        "sqrt(id) * 1e6 AS x",
        "cast(id AS float) AS y",
    )


def test_order_and_partitioning_do_not_matter(people: DataFrame) -> None:
    expected = digest(people)
    assert expected.rows == 500 and len(expected.floats) == 2
    for other in (people.orderBy(F.desc("id")), people.repartition(7), people.coalesce(1).orderBy("name")):
        assert digest(other).matches(expected)


def test_a_missing_a_duplicate_and_an_exchanged_row_matter(people: DataFrame) -> None:
    expected = digest(people)
    missing = people.where("id <> 17")
    duplicate = people.unionAll(people.where("id = 17"))
    exchanged = missing.unionAll(people.where("id = 18"))
    for other in (missing, duplicate, exchanged):
        assert not digest(other).matches(expected)


@pytest.mark.parametrize("column", CHANGES)
def test_one_changed_value_matters(spark: SparkSession, column: str) -> None:
    before = digest(frame(spark, BASE))
    after = digest(frame(spark, {**BASE, column: CHANGES[column]}))
    assert not after.matches(before)


def test_map_order_does_not_matter(spark: SparkSession) -> None:
    turned = {**BASE, "attrs": {"l": 2, "k": 1}}
    assert digest(frame(spark, turned)).matches(digest(frame(spark, BASE)))


def test_nulls_keep_their_place(spark: SparkSession) -> None:
    left = spark.sql("SELECT cast(null AS int) a, 1 b, array(1) c, array(2, 3) d")
    right = spark.sql("SELECT 1 a, cast(null AS int) b, array(1, 2) c, array(3) d")
    assert digest(left.select("a", "b")).exact != digest(right.select("a", "b")).exact
    assert digest(left.select("c", "d")).exact != digest(right.select("c", "d")).exact


def test_null_collections_variants_and_odd_names(spark: SparkSession) -> None:
    query = "SELECT {} AS `a.b`, cast(null AS array<int>) n, cast(null AS map<int,double>) m, null v"
    one, two = (spark.sql(query.format(f"parse_json('{text}')")) for text in ('{"a":1}', '{"a":2}'))
    assert digest(one).exact != digest(two).exact and digest(one).matches(digest(one))


def test_last_bits_of_doubles_do_not_matter_and_real_differences_do() -> None:
    rng = np.random.default_rng(3)
    # Values of both signs whose plain sum nearly cancels out: the hard case for a relative tolerance.
    values = rng.normal(size=10_000) * 1e9
    values -= values.mean()
    ids = rng.integers(-(2**63), 2**63 - 1, len(values))
    expected = computed_digest(pa.table({"x": values, "id": ids}))
    noisy = values * (1 + rng.choice([-1e-15, 0, 1e-15], len(values)))
    order = rng.permutation(len(values))
    assert computed_digest(pa.table({"x": noisy[order], "id": ids[order]})).matches(expected)
    for change in (values + 1e5 * (order == 0), np.where(order == 0, -values, values), values[order]):
        assert not computed_digest(pa.table({"x": change, "id": ids})).matches(expected)


def test_nan_null_and_infinity_are_told_apart(spark: SparkSession) -> None:
    values = ["double('nan')", "cast(null AS double)", "double('inf')", "double('-inf')", "0.0d"]
    digests = [digest(spark.sql(f"SELECT {value} AS x, array({value}) AS a")) for value in values]
    assert len({one.exact for one in digests}) == len(values)
    assert all(one.matches(one) and one.floats == (0.0, 0.0) for one in digests)


def test_a_shuffled_sum_of_doubles_matches(spark: SparkSession) -> None:
    rows = spark.range(2000).selectExpr("id % 5 AS k", "sin(id) * 1e12 AS v")
    ordered = rows.coalesce(1).sort("v").groupBy("k").agg(F.sum("v").alias("v"))
    shuffled = rows.repartition(5).groupBy("k").agg(F.sum("v").alias("v"))
    assert digest(ordered).matches(digest(shuffled))


def test_mistakes_are_explained(spark: SparkSession) -> None:
    with pytest.raises(UnbrokenError, match="reserved"):
        check_names(spark.range(1).withColumnRenamed("id", "__ub_hash").schema)
    with pytest.raises(UnbrokenError, match="more than once: id"):
        check_names(spark.range(1).select("id", "id").schema)


ARROW = pa.table(
    {
        "i": pa.array([1, None, 3, 3], pa.int16()),
        "s": ["", None, "é" * 100, "b"],
        "f": [0.0, float("nan"), None, 1e300],
        "t": pa.array([1, 2, None, 4], pa.timestamp("ns", "UTC")),
        "d": pa.array([Decimal(1), None, Decimal(-3), Decimal(4)], pa.decimal128(38, 4)),
        "b": [True, False, None, True],
        "l": [[1, 2], [], None, [None]],
        "m": pa.array([[("a", 1)], None, [], [("b", None), ("c", 2)]], pa.map_(pa.string(), pa.int64())),
        "o": [{"x": 1, "y": [b"z"]}, None, {"x": None, "y": None}, {"x": 2, "y": []}],
        "c": pa.array(["p", "q", None, "p"]).dictionary_encode(),
        "z": pa.nulls(4),
    }
)


def test_arrow_digest_ignores_order_chunks_and_slices() -> None:
    expected = arrow_digest(ARROW)
    assert arrow_digest(ARROW.take([2, 0, 3, 1])) == expected
    padded = pa.concat_tables([ARROW.slice(3, 1), ARROW, ARROW.slice(0, 2)]).combine_chunks()
    assert arrow_digest(padded.slice(1, 4)) == expected
    assert arrow_digest(pa.concat_tables([ARROW.slice(2), ARROW.slice(0, 2)])) == expected
    assert arrow_digest(ARROW.slice(0, 0)) == Digest(0, 0)
    assert arrow_digest(ARROW.schema.empty_table()) == Digest(0, 0)


@pytest.mark.parametrize("column", [name for name in ARROW.column_names if name != "z"])
def test_arrow_digest_sees_every_column(column: str) -> None:
    index = ARROW.column_names.index(column)
    moved = ARROW.set_column(index, column, ARROW.column(column).take(pa.array([1, 2, 3, 0])))
    assert arrow_digest(moved) != arrow_digest(ARROW)


def test_arrow_digest_names_types_it_cannot_take() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(UnbrokenError, match=r"column 'u' holds type .*cast it"):
        arrow_digest(pa.table({"u": union}))


Row = tuple[int | None, str | None]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.none() | st.integers(-3, 3), st.none() | st.text("ab\x00", max_size=70)),
        max_size=12,
    ),
    data=st.data(),
)
def test_arrow_digests_are_equal_for_equal_bags_of_rows_only(rows: list[Row], data: st.DataObject) -> None:
    def made(values: list[Row]) -> Digest:
        numbers, words = [row[0] for row in values], [row[1] for row in values]
        return arrow_digest(pa.table({"n": pa.array(numbers, pa.int32()), "w": pa.array(words, pa.string())}))

    shuffled = data.draw(st.permutations(rows))
    assert made(rows) == made(shuffled)
    if rows:
        assert made(rows) != made([*shuffled[1:], (9, "changed")])
        assert made(rows) != made([*rows, rows[0]])


# --- one hash for shards and digests ---------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.text("ab", max_size=300), st.floats(width=32)), max_size=30),
    shards=st.integers(1, 5),
    computed=st.booleans(),
)
def test_pieces_have_the_digests_of_their_rows(rows: list[tuple[int, str, float]], shards: int, computed: bool) -> None:
    names, kinds = ("k", "w", "x"), (pa.int64(), pa.string(), pa.float64())
    columns = {
        name: pa.array([row[at] for row in rows], kind)
        for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }
    hashed = HashedRows.of(pa.table(columns), [("k",), ("k", "w"), ("x",)], computed=computed)
    for keys in (("k",), ("k", "w"), ("x",)):
        pieces = hashed.split(keys, shards)
        again = [HashedRows.of(piece.table, computed=computed).digest() for piece in pieces]
        assert [piece.digest() for piece in pieces] == again
        assert sum(piece.table.num_rows for piece in pieces) == len(rows)


def test_values_are_hashed_once_however_many_consumers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from unbroken.data import hashed_rows as module

    asked: list[str] = []
    real = module.hash_column

    def counted(name: str, column: pa.ChunkedArray, *, exact: bool = True) -> Any:
        asked.append(name)
        return real(name, column, exact=exact)

    monkeypatch.setattr(module, "hash_column", counted)
    hashed = HashedRows.of(pa.table({"k": [1, 2], "w": ["a", "b"]}), [("k",), ("w",), ("*",)], computed=True)
    for keys in (("k",), ("w",), ("*",)):
        for piece in hashed.split(keys, 3):
            piece.digest()
    assert asked == ["k", "w"]


def test_a_short_text_has_one_hash_next_to_long_ones_and_without_them() -> None:
    for size in (0, 1, 7, 8, 9, 127, 128, 129, 300):
        text = "x" * size
        alone = HashedRows.of(pa.table({"w": [text]}), computed=False).hashes[0]
        among = HashedRows.of(pa.table({"w": ["y" * 1_000, text, "z"]}), computed=False).hashes[1]
        assert alone == among


def test_texts_that_differ_in_one_place_have_different_hashes() -> None:
    base = bytes(range(1, 201)) * 2
    texts = {base[:size] for size in range(len(base))}
    texts |= {base[:at] + b"\x00" + base[at + 1 :] for at in range(len(base))}
    texts |= {bytes(size) for size in range(1, 300)}
    hashes = HashedRows.of(pa.table({"w": pa.array(sorted(texts), pa.binary())}), computed=False).hashes
    assert len(np.unique(hashes)) == len(texts)


def test_hashes_spread_over_shards_and_bits() -> None:
    columns = {"n": pa.array(range(20_000)), "w": pa.array([f"customer-{n}" for n in range(20_000)])}
    for name, column in columns.items():
        hashed = HashedRows.of(pa.table({name: column}), [(name,)], computed=False)
        for shards in (2, 3, 7, 16):
            counts = [piece.table.num_rows for piece in hashed.split((name,), shards)]
            assert max(counts) < 1.1 * 20_000 / shards
        bits = np.unpackbits(hashed.hashes.view(np.uint8)).reshape(-1, 64).mean(axis=0)
        assert (abs(bits - 0.5) < 0.02).all()

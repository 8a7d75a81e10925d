"""A segment may be split only by columns that every operator brings rows together by; else its result would differ."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

from unbroken import Client, Dataflow, Generator
from unbroken.data.hashed_rows import split
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import FlowError, Problem
from unbroken.flow.plan import build_topology
from unbroken.flow.shard_keys import parted
from unbroken.spark.analysis.analysis import Analysis, _placeholder, analyse
from unbroken.spark.analysis.lineage import find_needs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SALES = "shop string, customer int, n int, amount long, rate double, ts timestamp"
OTHER = "shop string, buyer int, n long, paid long, rate double, at timestamp"
SCHEMAS = {"sales": SALES, "other": OTHER}
SHARDS = 3

Function = Callable[..., "DataFrame"]


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a check reads no rows")


def flow_of(function: Function, inputs: Sequence[str] = ("sales",), **options: Any) -> Dataflow:
    flow = Dataflow("split", nodes=2)
    for name in dict.fromkeys(inputs):
        flow.source(name, Generator(nothing, schema=SCHEMAS[name], rate=None))
    flow.segment(*inputs, name="seg", **{"shards": SHARDS, "output_mode": "update", **options})(function)
    flow.sink("out", "seg", Client())
    return flow


def check(flow: Dataflow, spark: SparkSession) -> Analysis:
    return analyse(flow, tuple(build_topology(flow).segments), spark)


def refusal(flow: Dataflow, spark: SparkSession) -> Problem:
    with pytest.raises(FlowError) as caught:
        check(flow, spark)
    (problem,) = caught.value.problems
    return problem


# --- rows, and a segment with them all or split --------------------------------------------------------------


def some_rows(schema: str, seed: int, count: int = 60) -> pa.Table:
    """Few values for each column, some null, so that keys of every operator meet often."""
    rng = random.Random(seed)
    moment = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)

    def value(name: str) -> Any:
        if rng.random() < 0.1 and name not in ("ts", "at"):
            return None
        if name == "shop":
            return rng.choice(["a", "A", "b", "Zürich", ""])
        if name in ("ts", "at"):
            return moment + dt.timedelta(seconds=rng.randrange(600))
        return rng.randrange(8) if name != "rate" else rng.randrange(4) / 2

    columns = arrow_schema(parse_schema(schema))
    return pa.table({name: [value(name) for _ in range(count)] for name in columns.names}, schema=columns)


def results(frame: DataFrame) -> Counter[str]:
    return Counter(str(row) for row in frame.collect())


def whole_and_split(
    spark: SparkSession, function: Function, shard_by: dict[str, tuple[str, ...]], inputs: Sequence[str], seed: int
) -> tuple[Counter[str], Counter[str]]:
    """The rows of a segment as one, and those of its shards together."""
    tables = {name: some_rows(SCHEMAS[name], seed + place) for place, name in enumerate(dict.fromkeys(inputs))}
    whole = function(*(spark.createDataFrame(tables[name]) for name in inputs))
    pieces = {name: split(table, shard_by[name], SHARDS) for name, table in tables.items()}
    assert sum(pieces[inputs[0]][shard].num_rows > 0 for shard in range(SHARDS)) > 1
    shards = [function(*(spark.createDataFrame(pieces[name][i]) for name in inputs)) for i in range(SHARDS)]
    together = shards[0]
    for other in shards[1:]:
        together = together.unionAll(other)
    return results(whole), results(together)


# --- what is accepted, and gives the same ---------------------------------------------------------------------


def counted(frame: DataFrame, *keys: Any) -> DataFrame:
    return frame.groupBy(*keys).agg(F.count("*").alias("number"), F.sum("amount").alias("total"))


def joined(sales: DataFrame, other: DataFrame) -> DataFrame:
    on = (sales["shop"] == other["shop"]) & (sales["customer"] == other["buyer"])
    return sales.join(other, on).select(sales["shop"], "customer", "amount", "paid")


def by_shop_of_join(sales: DataFrame, other: DataFrame) -> DataFrame:
    return counted(sales.join(other.withColumnRenamed("paid", "p"), "shop").select("shop", "amount"), "shop")


def in_sql(sales: DataFrame) -> DataFrame:
    query = """WITH big AS (SELECT shop AS place, amount FROM {sales} WHERE amount > 1)
               SELECT a.place, count(*) AS number FROM big a GROUP BY a.place"""
    return sales.sparkSession.sql(query, sales=sales)


def spread(group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"customer": group["customer"][:1], "width": [len(group)]})


def united(sales: DataFrame, other: DataFrame) -> DataFrame:
    both = sales.select("shop", "amount").union(other.select("shop", F.col("paid")))
    return counted(both.where("amount > 0").withColumnRenamed("shop", "place"), "place")


SAME = ("sales",)
BOTH = ("sales", "other")
ONE: dict[str, tuple[Function, tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "group": (lambda a: counted(a, "shop"), SAME, {"sales": ("shop",)}),
    "group by more": (lambda a: counted(a, "shop", "customer"), SAME, {"sales": ("customer",)}),
    "group by what is computed, too": (
        lambda a: counted(a, "customer", F.expr("n % 3").alias("rest")),
        SAME,
        {"sales": ("customer",)},
    ),
    "windows": (
        lambda a: counted(a.withWatermark("ts", "1 minute"), "shop", F.window("ts", "2 minutes", "30 seconds")),
        SAME,
        {"sales": ("shop",)},
    ),
    "sessions": (lambda a: counted(a, "shop", F.session_window("ts", "20 seconds")), SAME, {"sales": ("shop",)}),
    "renamed": (
        lambda a: counted(a.select(F.col("shop").alias("s"), "amount").alias("x").where("s <> 'a'"), "x.s"),
        SAME,
        {"sales": ("shop",)},
    ),
    "cast to its own type": (
        lambda a: counted(a.withColumn("n", F.col("n").cast("int")), "n"),
        SAME,
        {"sales": ("n",)},
    ),
    "exploded": (
        lambda a: counted(a.select("shop", "amount", F.explode(F.array("n", "customer"))), "shop", "col"),
        SAME,
        {"sales": ("shop",)},
    ),
    "unpivoted": (
        lambda a: counted(a.unpivot(["shop"], ["amount", F.col("n").cast("long").alias("n")], "k", "amount"), "shop"),
        SAME,
        {"sales": ("shop",)},
    ),
    "grouping sets that share a key": (
        lambda a: a.groupingSets([["shop", "n"], ["shop"]], "shop", "n").agg(F.sum("amount").alias("total")),
        SAME,
        {"sales": ("shop",)},
    ),
    "duplicates": (lambda a: a.select("shop", "customer").dropDuplicates(), SAME, {"sales": ("customer",)}),
    "distinct": (lambda a: a.select("shop", "n").distinct(), SAME, {"sales": ("n", "shop")}),
    "groups of groups": (
        lambda a: counted(counted(a, "shop", "n").withColumn("amount", F.lit(1)), "shop"),
        SAME,
        {"sales": ("shop",)},
    ),
    "groups in pandas": (
        lambda a: a.where("customer IS NOT NULL").groupBy("customer").applyInPandas(spread, "customer int, width int"),
        SAME,
        {"sales": ("customer",)},
    ),
    "in SQL": (in_sql, SAME, {"sales": ("shop",)}),
    "without state": (lambda a: a.where("amount > 3").select("shop", F.expr("n * 2")), SAME, {"sales": ("ts",)}),
    "join": (joined, BOTH, {"sales": ("shop", "customer"), "other": ("shop", "buyer")}),
    "join by one of two": (joined, BOTH, {"sales": ("customer",), "other": ("buyer",)}),
    "left join": (
        lambda a, b: a.join(b.select("shop", "paid"), "shop", "left").select("shop", "paid"),
        BOTH,
        {"sales": ("shop",), "other": ("shop",)},
    ),
    "full join": (
        lambda a, b: a.select("shop", "n").join(b.select("shop", "paid"), "shop", "full"),
        BOTH,
        {"sales": ("shop",), "other": ("shop",)},
    ),
    "groups of a join": (by_shop_of_join, BOTH, {"sales": ("shop",), "other": ("shop",)}),
    "union": (united, BOTH, {"sales": ("shop",), "other": ("shop",)}),
    "join with itself": (
        lambda a, b: a.select("shop", "n").join(b.select("shop", "amount"), "shop"),
        ("sales", "sales"),
        {"sales": ("shop",)},
    ),
}
NOT_IN_A_STREAM = ("groups of groups", "grouping sets that share a key", "left join", "full join")
"""Spark runs these in streams only with watermarks that say nothing about how rows are split."""


@pytest.mark.parametrize("case", ONE)
def test_an_accepted_segment_gives_the_same_split_or_not(spark: SparkSession, case: str) -> None:
    function, inputs, shard_by = ONE[case]
    frames = [stream(spark, name) for name in inputs]
    assert not parted(find_needs(function(*frames), "seg", schemas(inputs)), shard_by)
    if case not in NOT_IN_A_STREAM:
        mode = "append" if inputs == BOTH and case != "union" and "groups" not in case else "update"
        mode = "append" if case in ("without state", "join with itself", "sessions") else mode
        if case not in ("groups of a join", "sessions"):
            check(flow_of(function, inputs, shard_by=shard_by, output_mode=mode), spark)
    whole, parts = whole_and_split(spark, function, shard_by, inputs, seed=5)
    assert whole == parts and whole


def schemas(inputs: Sequence[str]) -> dict[str, Any]:
    return {name: parse_schema(SCHEMAS[name]) for name in inputs}


def stream(spark: SparkSession, name: str) -> DataFrame:
    segment = flow_of(lambda *frames: frames[0], ("sales", "other")).segments["seg"]
    return _placeholder(spark, segment, name, parse_schema(SCHEMAS[name]))


# --- what is refused, and would have given something else ---------------------------------------------------------


DIFFERENT: dict[str, tuple[Function, tuple[str, ...], dict[str, tuple[str, ...]], str, str]] = {
    "group": (
        lambda a: counted(a, "shop"),
        SAME,
        {"sales": ("customer",)},
        "shard_by=['customer'] parts rows that groupBy(shop) brings together: each of 3 shards would have a part",
        "write shard_by=['shop'], or leave shard_by out",
    ),
    "one column too many": (
        lambda a: counted(a, "shop"),
        SAME,
        {"sales": ("shop", "customer")},
        "shard_by=['shop', 'customer'] parts rows that groupBy(shop)",
        "write shard_by=['shop']",
    ),
    "duplicates": (
        lambda a: a.select("shop", "customer").dropDuplicates(["shop"]).select("shop"),
        SAME,
        {"sales": ("customer",)},
        "dropDuplicates(shop)",
        "write shard_by=['shop']",
    ),
    "windows": (
        lambda a: counted(a, F.window("ts", "2 minutes")),
        SAME,
        {"sales": ("ts",)},
        "groupBy(window) groups by what is computed, and by no column as the input has it, and there are 3 shards",
        "compute the key in a segment before",
    ),
    "windows and another": (
        lambda a: counted(a, "shop", F.window("ts", "2 minutes")),
        SAME,
        {"sales": ("ts",)},
        "parts rows that groupBy(shop, window)",
        "write shard_by=['shop']",
    ),
    "a part of a number": (
        lambda a: counted(a, F.expr("n % 2").alias("rest")),
        SAME,
        {"sales": ("n",)},
        "groups by what is computed",
        "compute the key in a segment before",
    ),
    "lower case under the same name": (
        lambda a: counted(a.withColumn("shop", F.lower("shop")), "shop"),
        SAME,
        {"sales": ("shop",)},
        "groups by what is computed",
        "compute the key",
    ),
    "no keys": (
        lambda a: a.groupBy().agg(F.sum("amount")),
        SAME,
        {"sales": ("shop",)},
        "groupBy() brings all rows together, and there are 3 shards",
        "use one shard (leave shards out)",
    ),
    "subtotals": (
        lambda a: a.cube("shop", "n").agg(F.sum("amount").alias("total")),
        SAME,
        {"sales": ("shop",)},
        "groupBy(shop, n, spark_grouping_id)",
        "use one shard",
    ),
    "join by another column": (
        joined,
        BOTH,
        {"sales": ("amount",), "other": ("n",)},
        "shard_by={'sales': ['amount'], 'other': ['n']} parts rows that join(",
        "write shard_by={'sales': ['customer', 'shop'], 'other': ['buyer', 'shop']}",
    ),
    "join with another column of the same type": (
        lambda a, b: a.join(b, F.col("amount") == F.col("paid")).select("amount", "customer", "buyer"),
        BOTH,
        {"sales": ("customer",), "other": ("buyer",)},
        "shard_by={'sales': ['customer'], 'other': ['buyer']} parts rows that join(",
        "write shard_by={'sales': ['amount'], 'other': ['paid']}",
    ),
    "join of two types": (
        lambda a, b: a.join(b, a["n"] == b["n"]).select(a["n"], "amount", "paid"),
        BOTH,
        {"sales": ("amount",), "other": ("n",)},
        "does not say that a column of one input equals one of the other",
        "join on columns of the same type",
    ),
    "join of the one column with the other of itself": (
        lambda a, b: a.select("n").join(b.select(F.col("customer").alias("c")), F.col("n") == F.col("c")),
        ("sales", "sales"),
        {"sales": ("n",)},
        "does not say that a column of one input equals",
        "join on columns of the same type",
    ),
    "union at other places": (
        lambda a, b: counted(a.select(F.col("customer").alias("k"), "amount").union(b.select("buyer", "paid")), "k"),
        BOTH,
        {"sales": ("n",), "other": ("buyer",)},
        "parts rows that groupBy(k)",
        "write shard_by={'sales': ['customer'], 'other': ['buyer']}",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_refused_segment_would_give_something_else(spark: SparkSession, case: str) -> None:
    function, inputs, shard_by, what, remedy = DIFFERENT[case]
    mode = "append" if "join" in case else "update"
    problem = refusal(flow_of(function, inputs, shard_by=shard_by, output_mode=mode), spark)
    assert what in problem.what and remedy in problem.remedy
    whole, parts = whole_and_split(spark, function, shard_by, inputs, seed=7)
    assert whole != parts


class Counting(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"shop": [key[0]]})

    def close(self) -> None:
        pass


def with_state(keys: list[str]) -> Function:
    def function(sales: DataFrame) -> DataFrame:
        def each(key: Any, rows: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
            yield pd.DataFrame({"shop": [key[0]]})

        grouped = sales.groupBy(*keys)
        return grouped.applyInPandasWithState(each, "shop string", "n int", "update", GroupStateTimeout.NoTimeout)

    return function


def transformed(initial: bool) -> Function:
    def function(sales: DataFrame) -> DataFrame:
        begin = sales.sparkSession.createDataFrame([("a", 1)], "shop string, n int").groupBy("shop")
        more = (begin,) if initial else ()
        return sales.groupBy("shop").transformWithStateInPandas(Counting(), "shop string", "update", "None", *more)

    return function


ARBITRARY: dict[str, tuple[Function, str, str | None]] = {
    "state by its key": (with_state(["shop"]), "shop", None),
    "state by another key": (with_state(["shop"]), "customer", "groupBy(shop).applyInPandasWithState"),
    "state by one of two": (with_state(["shop", "customer"]), "customer", None),
    "transformed by its key": (transformed(initial=False), "shop", None),
    "transformed by another key": (transformed(initial=False), "n", "groupBy(shop).transformWithState"),
    "transformed from an initial state": (transformed(initial=True), "shop", "has an initial state"),
    "within the watermark": (
        lambda a: a.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["shop"]),
        "customer",
        "dropDuplicatesWithinWatermark(shop)",
    ),
    "groups of what a function made": (
        lambda a: counted(a.mapInPandas(lambda frames: frames, a.schema), "shop"),
        "shop",
        "groups by what is computed",
    ),
    "subtracted": (
        lambda a: a.select("shop").subtract(a.sparkSession.createDataFrame([("a",)], "shop string")),
        "shop",
        "subtract brings rows together in a way that the plan does not show",
    ),
}


@pytest.mark.parametrize("case", ARBITRARY)
def test_state_that_only_streams_have(spark: SparkSession, case: str) -> None:
    function, column, what = ARBITRARY[case]
    mode = "append" if case in ("within the watermark", "subtracted") else "update"
    flow = flow_of(function, shard_by=[column], output_mode=mode)
    if what is None:
        check(flow, spark)
    else:
        assert what in refusal(flow, spark).what


# --- columns that the author does not name -----------------------------------------------------------------------


DERIVED: dict[str, tuple[Function, tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "keys": (lambda a: counted(a, "shop", "customer"), SAME, {"sales": ("customer", "shop")}),
    "no floating-point ones": (lambda a: counted(a, "rate", "shop"), SAME, {"sales": ("shop",)}),
    "of a window none": (lambda a: counted(a, F.window("ts", "1 minute"), "n"), SAME, {"sales": ("n",)}),
    "all values": (lambda a: a.where("n > 1"), SAME, {"sales": ("*",)}),
    "of a union": (united, BOTH, {"sales": ("shop",), "other": ("shop",)}),
    "of a join": (joined, BOTH, {"sales": ("customer", "shop"), "other": ("buyer", "shop")}),
}


@pytest.mark.parametrize("case", DERIVED)
def test_columns_that_are_not_named_are_derived(spark: SparkSession, case: str) -> None:
    function, inputs, shard_by = DERIVED[case]
    mode = "append" if case in ("all values", "of a join") else "update"
    found = check(flow_of(function, inputs, output_mode=mode), spark).shard_by["seg"]
    assert found == shard_by
    whole, parts = whole_and_split(spark, function, dict(found), inputs, seed=11)
    assert whole == parts and whole


def test_columns_that_cannot_be_derived(spark: SparkSession) -> None:
    everything = refusal(flow_of(lambda a: a.groupBy().count()), spark)
    assert everything.what == "shards=3, but groupBy() brings all rows together"
    assert "group by a column of the input" in everything.remedy
    floats = refusal(flow_of(lambda a: a.groupBy("rate").count()), spark)
    assert "rows belong together by rate" in floats.what and "shard_by" in floats.remedy
    check(flow_of(lambda a: a.groupBy("rate").count(), shard_by=["rate"]), spark)


def test_one_shard_and_a_primary_need_no_columns(spark: SparkSession) -> None:
    assert not check(flow_of(lambda a: a.groupBy().count(), shards=1), spark).shard_by
    primary = flow_of(lambda a: a.groupBy().count(), shards=1, routing="primary", replicas=2, ha="passive")
    assert not check(primary, spark).shard_by


def test_random_routing_is_for_segments_that_bring_no_rows_together(spark: SparkSession) -> None:
    check(flow_of(lambda a: a.where("n > 1"), routing="random", replicas=2, output_mode="append"), spark)
    shared = flow_of(lambda a: counted(a, "shop"), routing="hashing", replicas=2, ha="passive")
    assert check(shared, spark).shard_by["seg"] == {"sales": ("shop",)}
    stateful = flow_of(lambda a: counted(a, "shop"), routing="random", replicas=2, ha="passive")
    assert "routing='random' parts rows that groupBy(shop) brings together" in refusal(stateful, spark).what


# --- any pipeline ------------------------------------------------------------------------------------------------


def any_pipeline(rng: random.Random) -> Function:
    """Some steps that keep or spoil columns, then an operator that brings rows together."""
    steps: list[Callable[[DataFrame], DataFrame]] = []
    made = [
        lambda f: f.where("amount IS NOT NULL"),
        lambda f: f.withColumn("shop", F.lower("shop")),
        lambda f: f.withColumn("customer", F.col("n")),
        lambda f: f.withColumn("n", F.expr("n % 2")),
        lambda f: f.select(F.col("customer").alias("n"), F.col("n").alias("customer"), "shop", "amount"),
        lambda f: f.select("shop", "customer", "n", "amount").union(f.select("shop", "n", "customer", "amount")),
        lambda f: f.select("shop", "customer", "n", "amount").union(f.select("shop", "customer", "n", "amount")),
        lambda f: f.withColumn("extra", F.explode(F.array(F.lit(1), F.lit(2)))).drop("extra"),
    ]
    for _ in range(rng.randrange(3)):
        steps.append(rng.choice(made))
    keys = rng.sample(["shop", "customer", "n"], rng.randrange(1, 4))
    last = rng.choice([lambda f: counted(f, *keys), lambda f: f.select(*keys).dropDuplicates()])

    def function(frame: DataFrame) -> DataFrame:
        for step in steps:
            frame = step(frame)
        return last(frame)

    return function


def test_no_accepted_pipeline_gives_anything_else(spark: SparkSession) -> None:
    rng = random.Random(19)
    accepted = 0
    for seed in range(30):
        function = any_pipeline(rng)
        shard_by = {"sales": tuple(rng.sample(["shop", "customer", "n"], rng.randrange(1, 3)))}
        if parted(find_needs(function(stream(spark, "sales")), "seg", schemas(SAME)), shard_by):
            continue
        accepted += 1
        whole, parts = whole_and_split(spark, function, shard_by, SAME, seed)
        assert whole == parts, (seed, shard_by)
    assert accepted > 5

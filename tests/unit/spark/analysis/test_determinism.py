"""What would make replicas differ is refused with a remedy; everything else is let through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from unbroken.errors import UnbrokenError
from unbroken.spark.analysis.determinism import Finding, find_nondeterminism

Segment = Callable[[DataFrame], DataFrame]


def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("timestamp AS at", "value AS v", "value % 3 AS k")


def with_state(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"k": [key[0]]})


def unchanged(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def plus_one(values: pd.Series) -> pd.Series:
    return values + 1


class Counter(StatefulProcessor):
    """Stands for any user's processor; it is only planned, never run."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]]})

    def close(self) -> None:
        pass


def watermarked(df: DataFrame) -> DataFrame:
    return df.withWatermark("at", "10 seconds")


def sql(expression: str) -> Segment:
    return lambda df: df.select(F.expr(expression))


def aggregate(expression: str) -> Segment:
    return lambda df: df.groupBy("k").agg(F.expr(expression))


def stateful(timeout: str) -> Segment:
    return lambda df: (
        watermarked(df).groupBy("k").applyInPandasWithState(with_state, "k long", "n long", "append", timeout)
    )


def transforming(mode: str) -> Segment:
    return lambda df: watermarked(df).groupBy("k").transformWithStateInPandas(Counter(), "k long", "append", mode)


def python_function(deterministic: bool) -> Segment:
    def build(df: DataFrame) -> DataFrame:
        function = F.udf(lambda v: v, "long")
        return df.select((function if deterministic else function.asNondeterministic())("v"))

    return build


def table_function(deterministic: bool) -> Segment:
    def build(df: DataFrame) -> DataFrame:
        class Twice:
            def eval(self, v: int) -> Iterator[tuple[int]]:
                yield (v,)

        function: Any = F.udtf(Twice, returnType="w long")
        if deterministic:
            function = function.asDeterministic()
        return df.lateralJoin(function(F.col("v").outer()))

    return build


# What is written in a segment; the expression of the finding; a word of its remedy.
REFUSED: dict[str, tuple[Segment, str, str]] = {
    "rand": (sql("rand()"), "rand()", "xxhash64"),
    "rand with a seed": (sql("rand(7) + v"), "rand(7)", "xxhash64"),
    "randn": (sql("randn()"), "randn()", "xxhash64"),
    "uniform": (sql("uniform(1, 5)"), "uniform(1, 5)", "xxhash64"),
    "randstr": (sql("randstr(5)"), "randstr(5)", "xxhash64"),
    "uuid": (sql("upper(uuid())"), "uuid()", "xxhash64"),
    "shuffle": (sql("shuffle(array(v, k))"), "shuffle(array(v, k))", "xxhash64"),
    "monotonically_increasing_id": (
        lambda df: df.select(F.monotonically_increasing_id()),
        "monotonically_increasing_id()",
        "source",
    ),
    "spark_partition_id": (lambda df: df.select(F.spark_partition_id()), "SPARK_PARTITION_ID()", "source"),
    "input_file_name": (sql("input_file_name()"), "input_file_name()", "source"),
    "current_timestamp": (lambda df: df.select(F.current_timestamp()), "current_timestamp()", "cut_time="),
    "current_timestamp in a filter": (
        lambda df: df.where("at > current_timestamp() - interval 1 hour"),
        "current_timestamp()",
        "cut_time=",
    ),
    "now": (sql("now()"), "now()", "cut_time="),
    "current_date": (sql("current_date()"), "current_date()", "cut_time="),
    "curdate": (sql("curdate()"), "current_date()", "cut_time="),
    "current_time": (sql("current_time()"), "current_time(6)", "cut_time="),
    "localtimestamp": (sql("localtimestamp()"), "localtimestamp()", "cut_time="),
    "unix_timestamp": (sql("unix_timestamp()"), "current_timestamp()", "cut_time="),
    "current_user": (sql("current_user()"), "current_user()", "literal"),
    "session_user": (sql("session_user()"), "session_user()", "literal"),
    "reflect": (
        sql("reflect('java.util.UUID', 'randomUUID')"),
        "reflect(java.util.UUID, randomUUID)",
        "source",
    ),
    "aes_encrypt": (
        sql("aes_encrypt('text', 'abcdefghijklmnop')"),
        "aes_encrypt(text, abcdefghijklmnop, GCM, DEFAULT, , )",
        "vector",
    ),
    "first": (aggregate("first(v)"), "first(v)", "min_by"),
    "last": (aggregate("last(v)"), "last(v)", "max_by"),
    "any_value": (aggregate("any_value(v)"), "any_value(v)", "min_by"),
    "collect_list": (aggregate("collect_list(v)"), "collect_list(v)", "sort_array"),
    "collect_set": (aggregate("concat(collect_set(v), array(1))"), "collect_set(v)", "sort_array"),
    "array_agg": (aggregate("array_agg(v)"), "collect_list(v)", "sort_array"),
    "listagg": (aggregate("listagg(string(v), ',')"), "listagg(v, ,)", "WITHIN GROUP"),
    "string_agg": (aggregate("string_agg(DISTINCT string(v))"), "string_agg", "WITHIN GROUP"),
    "approx_percentile": (aggregate("approx_percentile(v, 0.5)"), "approx_percentile(v, ", "percentile("),
    "histogram_numeric": (aggregate("histogram_numeric(v, 3)"), "histogram_numeric(v, 3)", "exact"),
    "hll_sketch_agg": (aggregate("hll_sketch_agg(v)"), "hll_sketch_agg(v, 12)", "approx_count_distinct"),
    "approx_top_k": (aggregate("approx_top_k(v)"), "approx_top_k(v, 5, 10000)", "exact"),
    "mode": (aggregate("mode(v)"), "mode(v)", "mode(x, true)"),
    "limit": (lambda df: df.limit(3), "limit(3)", "condition on columns"),
    "sample": (lambda df: df.sample(fraction=0.5, seed=1), "sample(0.5)", "pmod"),
    "python function": (python_function(deterministic=False), "<lambda>(v)", "asNondeterministic"),
    "table function": (table_function(deterministic=False), "Twice(", "asDeterministic"),
    "applyInPandasWithState": (
        stateful("ProcessingTimeTimeout"),
        "applyInPandasWithState(..., ProcessingTimeTimeout)",
        "EventTimeTimeout",
    ),
    "transformWithState": (transforming("processingTime"), "timeMode='processingTime'", "eventTime"),
    "below other operators": (
        lambda df: df.withColumn("r", F.rand(5)).where("v > 1").groupBy("k").count(),
        "rand(5)",
        "xxhash64",
    ),
    "in a subquery": (
        lambda df: df.where("v IN (SELECT cast(10 * rand() AS bigint) FROM range(3))"),
        "rand()",
        "xxhash64",
    ),
}

ACCEPTED: dict[str, Segment] = {
    "projection": lambda df: df.select("v", F.upper(F.lit("a")), F.date_format("at", "yyyy")),
    "windowed aggregate": lambda df: (
        watermarked(df)
        .groupBy(F.window("at", "5 seconds"), "k")
        .agg(F.count("*"), F.sum("v"), F.avg(F.col("v") / 3), F.min("v"), F.stddev("v"))
    ),
    "session window": lambda df: watermarked(df).groupBy(F.session_window("at", "5 seconds"), "k").count(),
    "min_by and max_by": lambda df: df.groupBy("k").agg(F.min_by("v", "at"), F.max_by("v", "at")),
    "approximate distinct count": aggregate("approx_count_distinct(v)"),
    "exact percentile": aggregate("percentile(v, 0.5)"),
    "deterministic mode": aggregate("mode(v, true)"),
    "sorted list": aggregate("sort_array(collect_list(v))"),
    "sorted set": aggregate("array_sort(collect_set(v))"),
    "size of a set": aggregate("size(collect_set(v))"),
    "ordered listagg": aggregate("listagg(string(v), ',') WITHIN GROUP (ORDER BY string(v))"),
    "unix_timestamp of a column": sql("unix_timestamp(at)"),
    "aes_encrypt with a vector": sql("aes_encrypt('text', 'abcdefghijklmnop', 'CBC', 'DEFAULT', '0000000000000000')"),
    "aes_encrypt without vectors": sql("aes_encrypt('text', 'abcdefghijklmnop', 'ECB')"),
    "dropDuplicates": lambda df: df.dropDuplicates(["v"]),
    "dropDuplicatesWithinWatermark": lambda df: watermarked(df).dropDuplicatesWithinWatermark(["v"]),
    "distinct": lambda df: df.distinct(),
    "union": lambda df: df.unionByName(df),
    "stream-stream join": lambda df: watermarked(df).join(
        watermarked(df).selectExpr("k AS j", "at AS bt"),
        F.expr("k = j AND bt BETWEEN at AND at + interval 1 minute"),
    ),
    "static join": lambda df: df.join(df.sparkSession.range(3).withColumnRenamed("id", "k"), "k", "left"),
    "explode": lambda df: df.select(F.explode(F.array("v", "k"))),
    "repartition": lambda df: df.repartition(4, "k"),
    "subquery": lambda df: df.where("v IN (SELECT id FROM range(3))"),
    "top of an order": lambda df: df.groupBy("k").count().orderBy("k").limit(2),
    "python function": python_function(deterministic=True),
    "table function": table_function(deterministic=True),
    "pandas function": lambda df: df.select(pandas_udf(plus_one, "long")("v")),  # type: ignore[call-overload]
    "mapInPandas": lambda df: df.mapInPandas(unchanged, df.schema),
    "state without timeout": stateful("NoTimeout"),
    "state with event time": stateful("EventTimeTimeout"),
    "transformWithState with event time": transforming("eventTime"),
    "transformWithState without timers": transforming("none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(spark: SparkSession, case: str) -> None:
    segment, expression, remedy = REFUSED[case]
    found = find_nondeterminism(segment(stream(spark)))
    assert len(found) == 1, found
    assert expression in found[0].expression
    assert remedy in found[0].remedy
    assert found[0].why


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(spark: SparkSession, case: str) -> None:
    assert find_nondeterminism(ACCEPTED[case](stream(spark))) == []


def test_batch_frames_are_checked_too_and_everything_is_found_once(spark: SparkSession) -> None:
    df = spark.range(5).selectExpr("id", "uuid() AS u", "now() AS a", "now() AS b").sample(0.1).offset(2)
    assert [finding.expression for finding in find_nondeterminism(df)] == [
        "offset(2)",
        "sample(0.1)",
        "uuid()",
        "now()",
    ]


def test_common_table_expressions_are_looked_into(spark: SparkSession) -> None:
    df = spark.sql("WITH a AS (SELECT rand(1) AS r FROM range(3)) SELECT x.r FROM a x JOIN a y ON x.r = y.r")
    assert [finding.expression for finding in find_nondeterminism(df)] == ["rand(1)"]


def test_a_finding_reads_as_a_sentence() -> None:
    assert str(Finding("f()", "it differs", "use g()")) == "f(): it differs\n    -> use g()"


def test_connect_frames_are_refused_with_a_reason() -> None:
    class ConnectFrame:
        """Has no Java DataFrame behind it, as those of Spark Connect."""

    with pytest.raises(UnbrokenError, match="classic session"):
        find_nondeterminism(ConnectFrame())  # type: ignore[arg-type]

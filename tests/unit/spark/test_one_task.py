"""Micro-batches with one partition of state are not shuffled, and nothing else about them changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from unbroken.spark.one_task import as_one_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

SCHEMA = "at timestamp, k long, v long"


def aggregate(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("v").alias("n"), F.sum("v").alias("total"))


def windows_of_windows(rows: DataFrame) -> DataFrame:
    seconds = rows.withWatermark("at", "1 second").groupBy(F.window("at", "1 second"), "k").agg(F.sum("v").alias("v"))
    return seconds.groupBy(F.window(F.window_time("window"), "10 seconds")).agg(F.max("v").alias("most"))


def join(rows: DataFrame) -> DataFrame:
    left = rows.withWatermark("at", "1 second")
    right = rows.select(F.col("k").alias("other"), F.col("at").alias("then"), "v").withWatermark("then", "1 second")
    return left.drop("v").join(right, F.expr("k = other AND then BETWEEN at AND at + INTERVAL 1 SECOND"), "left")


def distinct(rows: DataFrame) -> DataFrame:
    return rows.select("k").distinct()


def without_duplicates(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "1 second").dropDuplicatesWithinWatermark(["k"])


def after_a_python_function(rows: DataFrame) -> DataFrame:
    @F.udf("long")
    def twice(value: int) -> int:
        return 2 * value

    return aggregate(rows.select("k", twice("v").alias("v")))


def several_streams(rows: DataFrame) -> DataFrame:
    return aggregate(rows.unionByName(rows.where("v > 3")))


def own_state(rows: DataFrame) -> DataFrame:
    def count(key: tuple[int], pieces: Iterator[Any], state: GroupState) -> Iterator[Any]:
        import pandas as pd

        n = (state.get[0] if state.exists else 0) + sum(len(piece) for piece in pieces)
        state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    return rows.groupBy("k").applyInPandasWithState(count, "k long, n long", "n long", "update", "NoTimeout")


def own_processor(rows: DataFrame) -> DataFrame:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            import pandas as pd

            before = self.n.get() if self.n.exists() else None
            n = (before[0] if before else 0) + sum(len(piece) for piece in rows)
            self.n.update((n,))
            yield pd.DataFrame({"k": [key[0]], "n": [n]})

    return rows.groupBy("k").transformWithStateInPandas(Counting(), "k long, n long", "update", "none")


def aggregates_joined(rows: DataFrame) -> DataFrame:
    seconds = rows.withWatermark("at", "1 second").groupBy(F.window("at", "1 second"), "k").agg(F.sum("v").alias("v"))
    return seconds.join(seconds.select("window", "k", F.col("v").alias("w")), ["window", "k"])


def aggregates_beside_duplicates(rows: DataFrame) -> DataFrame:
    counted = rows.withWatermark("at", "1 second").groupBy(F.window("at", "1 second"), "k").agg(F.sum("v").alias("v"))
    return counted.select("k", "v").union(without_duplicates(rows).select("k", "v"))


def duplicates_beside_aggregates(rows: DataFrame) -> DataFrame:
    counted = rows.withWatermark("at", "1 second").groupBy(F.window("at", "1 second"), "k").agg(F.sum("v").alias("v"))
    return without_duplicates(rows).select("k", "v").union(counted.select("k", "v"))


def named_twice(rows: DataFrame) -> DataFrame:
    rows.withWatermark("at", "1 second").createOrReplaceTempView("named_twice")
    return rows.sparkSession.sql(
        "WITH seconds AS (SELECT window, k, sum(v) AS v FROM named_twice GROUP BY window(at, '1 second'), k) "
        "SELECT max(v) AS most FROM seconds GROUP BY window(window_time(window), '10 seconds')"
    )


def joined_with_a_table_before(rows: DataFrame) -> DataFrame:
    table = rows.sparkSession.createDataFrame([(1,)], "factor long")
    right = rows.select(F.col("k").alias("other"), F.col("v").alias("w"))
    return rows.select("k", "v").crossJoin(table).join(right, F.expr("k = other")).select("k", F.expr("w * factor"))


def spread_by_the_user(rows: DataFrame) -> DataFrame:
    return aggregate(rows.repartition(2).where("v > 1"))


WITH_STATE = (
    aggregate,
    join,
    distinct,
    without_duplicates,
    after_a_python_function,
    several_streams,
    own_state,
    own_processor,
)
UNSUITABLE = (
    windows_of_windows,
    aggregates_joined,
    aggregates_beside_duplicates,
    duplicates_beside_aggregates,
    named_twice,
    joined_with_a_table_before,
    spread_by_the_user,
)
"""Rows meet state at several places, or how they come there is not to be changed."""

APPEND = (*(segment for segment in UNSUITABLE if segment is not spread_by_the_user), join, without_duplicates)


def plan_of(frame: DataFrame) -> str:
    context: Any = frame.sparkSession.sparkContext
    return str(context._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "simple"))


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).json(str(directory))


@pytest.mark.parametrize("segment", WITH_STATE, ids=lambda segment: segment.__name__)
def test_nothing_is_shuffled_for_state(
    spark: SparkSession, tmp_path: Path, segment: Callable[[DataFrame], DataFrame]
) -> None:
    frame = segment(stream(spark, tmp_path))
    one = as_one_task(frame)
    assert one.schema == frame.schema
    assert "Exchange" in plan_of(frame)
    assert "Exchange" not in plan_of(one)


def test_without_state_there_is_nothing_to_change(spark: SparkSession, tmp_path: Path) -> None:
    rows = stream(spark, tmp_path)
    known = spark.createDataFrame([(1, "one")], "k long, name string")
    for frame in (rows, rows.where("v > 1").select("k"), rows.join(known, "k")):
        assert as_one_task(frame) is frame


@pytest.mark.parametrize("segment", UNSUITABLE, ids=lambda segment: segment.__name__)
def test_what_might_not_be_the_same_is_left_as_it_is(
    spark: SparkSession, tmp_path: Path, segment: Callable[[DataFrame], DataFrame]
) -> None:
    frame = segment(stream(spark, tmp_path))
    assert as_one_task(frame) is frame


def test_several_partitions_of_state_need_the_shuffle(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    request.addfinalizer(lambda: spark.conf.set("spark.sql.shuffle.partitions", "1"))
    frame = aggregate(stream(spark, tmp_path))
    assert as_one_task(frame) is frame


@pytest.mark.parametrize("segment", (*WITH_STATE, *UNSUITABLE), ids=lambda segment: segment.__name__)
def test_state_is_gone_on_with_in_either_direction(
    spark: SparkSession, tmp_path: Path, segment: Callable[[DataFrame], DataFrame]
) -> None:
    shuffled = results(spark, tmp_path / "shuffled", segment, (False, False, False))
    changing = results(spark, tmp_path / "changing", segment, (False, True, False))
    assert any(shuffled), "there are results to compare"
    assert changing == shuffled


def results(
    spark: SparkSession, place: Path, segment: Callable[[DataFrame], DataFrame], steps: tuple[bool, ...]
) -> list[list[str]]:
    """The results of one micro-batch for each of ``steps``, which says whether it is made one task of."""
    out: list[list[str]] = []
    (place / "in").mkdir(parents=True)
    for step, one in enumerate(steps):
        lines = [f'{{"at": "2026-01-01T00:00:{step * 15 + n // 5:02}Z", "k": {n % 7}, "v": {n}}}' for n in range(20)]
        (place / "in" / f"{step}.json").write_text("\n".join(lines))
        frame = segment(stream(spark, place / "in"))
        mode = "append" if segment in APPEND else "update"
        writer = (as_one_task(frame) if one else frame).writeStream.outputMode(mode)
        writer = writer.foreachBatch(lambda rows, _: out.append(sorted(map(str, rows.collect()))))
        query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    return out

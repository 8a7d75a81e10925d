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


def aggregates_joined(rows: DataFrame) -> DataFrame:
    seconds = rows.withWatermark("at", "1 second").groupBy(F.window("at", "1 second"), "k").agg(F.sum("v").alias("v"))
    return seconds.join(seconds.select("window", "k", F.col("v").alias("w")), ["window", "k"])


WITH_STATE = (
    aggregate,
    join,
    distinct,
    without_duplicates,
    after_a_python_function,
    several_streams,
    own_state,
)
TWICE = (windows_of_windows, aggregates_joined)
"""Rows meet state twice on their way."""

APPEND = (*TWICE, join, without_duplicates)


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


@pytest.mark.parametrize("segment", TWICE, ids=lambda segment: segment.__name__)
def test_rows_that_meet_state_twice_are_shuffled_in_between(
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


@pytest.mark.parametrize("segment", (*WITH_STATE, *TWICE), ids=lambda segment: segment.__name__)
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

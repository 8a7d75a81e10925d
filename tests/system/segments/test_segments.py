"""Every kind of segment: equal on both replicas and equal to plain Structured Streaming on the same micro-batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from kit.two_nodes import TwoNodes
from unbroken import Client, Dataflow, Generator
from unbroken.data.randomness import integers
from unbroken.protocol.values.ids import ShardId, StreamId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCHES = 12
"""Of two seconds of event time each: windows end, watermarks pass, and state is dropped several times."""

ROWS = 40
SCHEMA = "k int, name string, v long, x double, ts timestamp"


def make_rows(salt: str) -> Callable[[int, int, int], pa.Table]:
    def rows(start: int, stop: int, seed: int) -> pa.Table:
        index = np.arange(start, stop)
        key = integers(seed, index, f"{salt}k", 0, 25)
        stamp = (index * 50_000 - integers(seed, index, f"{salt}late", 0, 400_000)).astype("int64")
        return pa.table(
            {
                "k": pa.array(key, pa.int32()),
                "name": pa.array([f"n{value % 7}" for value in key]),
                "v": pa.array(integers(seed, index, f"{salt}v", 0, 60), pa.int64()),
                "x": pa.array(key / 3.0, pa.float64()),
                "ts": pa.array(stamp).cast(pa.timestamp("us", tz="UTC")),
            }
        )

    return rows


def project(rows: DataFrame) -> DataFrame:
    return rows.where("v > 20").select("k", (F.col("v") * 2).alias("twice"), F.upper("name").alias("name"), "x")


def running(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.max("v").alias("top"), F.sum("v").alias("total"), F.avg("x").alias("mean"))


def windowed(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("ts", "1 second")
        .groupBy(F.window("ts", "2 seconds"), "name")
        .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
        .select(F.col("window.start").alias("start"), "name", "n", "total")
    )


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    a = left.withWatermark("ts", "1 second").select("k", F.col("v").alias("lv"), F.col("ts").alias("lts"))
    b = right.withWatermark("ts", "1 second").select(
        F.col("k").alias("rk"), F.col("v").alias("rv"), F.col("ts").alias("rts")
    )
    near = F.expr("k = rk AND lv = rv AND rts BETWEEN lts - INTERVAL 2 SECONDS AND lts + INTERVAL 2 SECONDS")
    return a.join(b, near).select("k", "lv", "lts", "rts")


def united(left: DataFrame, right: DataFrame) -> DataFrame:
    return (
        left.select("k", "v")
        .union(right.select("k", "v"))
        .groupBy("k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    )


def distinct(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 second").dropDuplicates(["k", "v"]).select("k", "v")


def stateful(rows: DataFrame) -> DataFrame:
    def count(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        seen, total = state.get if state.exists else (0, 0)
        for frame in frames:
            seen += len(frame)
            total += int(frame["v"].sum())
        state.update((seen, total))
        yield pd.DataFrame({"name": [key[0]], "seen": [seen], "total": [total]})

    return rows.groupBy("name").applyInPandasWithState(
        count, "name string, seen long, total long", "seen long, total long", "update", "NoTimeout"
    )


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., DataFrame]
    inputs: int
    mode: str

    @property
    def sources(self) -> list[str]:
        return ["left", "right"][: self.inputs]


CASES = [
    Case("projection", project, 1, "append"),
    Case("aggregation", running, 1, "update"),
    Case("window", windowed, 1, "append"),
    Case("join", joined, 2, "append"),
    Case("union", united, 2, "update"),
    Case("distinct", distinct, 1, "append"),
    Case("stateful", stateful, 1, "update"),
]


def canonical(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows in a fixed order, doubles rounded to what summing in another order cannot change."""
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(
        (tuple(round(value, 9) if isinstance(value, float) else value for value in row) for row in rows), key=repr
    )


def build_flow() -> Dataflow:
    """All cases as segments of one flow, so that they share pulses and the start of the nodes."""
    flow = Dataflow("cases", nodes=2, pulse_min="20ms", pulse_start="20ms", in_flight_slack=3)
    for name in ("left", "right"):
        source = Generator(make_rows(name), schema=SCHEMA, rate=None, batch_rows=ROWS, limit=ROWS * BATCHES)
        flow.source(name, source)
    for case in CASES:
        flow.segment(*case.sources, name=case.name, output_mode=case.mode)(case.function)
        flow.sink(f"{case.name}-out", case.name, Client())
    return flow


Units = dict[str, list[dict[str, list[tuple[Any, ...]]]]]


@pytest.fixture(scope="module")
def units(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Units:
    """Every unit of every case on both nodes: case name -> unit -> node -> rows."""
    out: Units = {}
    with TwoNodes(build_flow(), spark, tmp_path_factory.mktemp("nodes")) as cluster:
        for case in CASES:
            stream = StreamId(ShardId(case.name, 0), ShardId(f"{case.name}-out", 0))
            cluster.wait_for_unit(stream, BATCHES, 280)
            out[case.name] = [
                {node: canonical(cluster.unit(node, stream, number)) for node in "ab"}
                for number in range(1, BATCHES + 1)
            ]
        for node in cluster.nodes.values():
            assert node.protocol is not None
            assert node.protocol.digest_exchange.divergences == []
            node.protocol.check()
    return out


Batches = dict[int, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Batches]:
    """The same segment functions as ordinary queries over files, one file of each input per micro-batch."""
    directory = tmp_path_factory.mktemp("plain")
    write_files(directory)
    out: dict[str, Batches] = {case.name: {} for case in CASES}
    queries = [start_plain(case, spark, directory, out[case.name]) for case in CASES]
    try:
        for query, case in zip(queries, CASES, strict=True):
            assert query.awaitTermination(120), f"plain Spark does not end: {case.name}"
    finally:
        for query in queries:
            query.stop()
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.timeout(900)
@pytest.mark.smoke
def test_replicas_and_plain_spark_agree(case: Case, units: Units, plain: dict[str, Batches]) -> None:
    assert len(plain[case.name]) == BATCHES
    assert sum(len(unit["a"]) for unit in units[case.name]) > BATCHES
    for number, unit in enumerate(units[case.name], start=1):
        assert unit["a"] == unit["b"], f"replicas differ in unit {number}"
        assert unit["a"] == plain[case.name][number], f"unit {number} differs from plain Spark"


def write_files(directory: Path) -> None:
    for name in ("left", "right"):
        (directory / name).mkdir()
        for number in range(BATCHES):
            path = directory / name / f"{number:05d}.parquet"
            pq.write_table(make_rows(name)(number * ROWS, (number + 1) * ROWS, 0), path)
            os.utime(path, (number + 1, number + 1))  # Spark takes files in the order of their times


def start_plain(case: Case, spark: SparkSession, directory: Path, out: Batches) -> StreamingQuery:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    frames = [reader.parquet(str(directory / name)) for name in case.sources]

    def keep(frame: DataFrame, batch: int) -> None:
        out[batch + 1] = canonical(frame.toArrow())

    writer = case.function(*frames).writeStream.outputMode(case.mode).foreachBatch(keep)
    # Ends by itself: a query that has taken all files would go on listing them and starve the others.
    writer = writer.trigger(availableNow=True)
    return writer.option("checkpointLocation", str(directory / f"checkpoint-{case.name}")).start()

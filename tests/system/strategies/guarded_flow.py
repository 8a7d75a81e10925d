"""The same rows through segments that are kept available in different ways. UNBROKEN_TEST_OUT holds their results."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Dataflow, Generator, Parquet

KEYS = 7
RATE = 200
STEP_MS = 5
"""Event time between two rows; rows come in about the order of their times."""

JITTER_MS = 400
WINDOW_S = 2

flow = Dataflow("guarded", nodes=3, pulse_min="1s", pulse_start="1s", catch_up_lag=3)


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop, dtype=np.int64)
    late = (index * 7919) % JITTER_MS
    return pa.table(
        {
            "k": pa.array(index % KEYS, pa.int32()),
            "v": index,
            "at": pa.array((index * STEP_MS - late + 10_000) * 1_000, pa.timestamp("us", tz="UTC")),
        }
    )


source = flow.source("numbers", Generator(numbers, schema="k int, v long, at timestamp", rate=RATE))


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


# The order decides about places: the node of `copied` also has `rebuilt`.
copied = flow.segment(source, name="copied", ha="passive", checkpoint_every=2, output_mode="update")(totals)


@flow.segment(source, replicas=2, routing="random")
def passed(rows: DataFrame) -> DataFrame:
    return rows.select("v")


@flow.segment(source, ha="upstream")
def rebuilt(rows: DataFrame) -> DataFrame:
    timed = rows.withWatermark("at", "1 second")
    windows = timed.groupBy(F.window("at", f"{WINDOW_S} seconds")).agg(F.count("*").alias("n"))
    return windows.select(F.col("window.start").alias("start"), "n")


followed = flow.segment(source, name="followed", ha="active-standby", output_mode="update")(totals)

OUT = os.environ.get("UNBROKEN_TEST_OUT", "results")
for segment in (passed, rebuilt, copied, followed):
    flow.sink(f"{segment.name}-files", segment, Parquet(f"{OUT}/{segment.name}"))

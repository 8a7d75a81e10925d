"""Numbers to sums per key in two shards, to files. The directory and length come from the environment."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Generator, JsonLines, Parquet

OUT = os.environ["FLOW_OUT"]
RATE = 2_000
ROWS = RATE * int(os.environ.get("FLOW_SECONDS", "20"))

flow = Dataflow("counted", nodes=int(os.environ.get("FLOW_NODES", "3")), pulse_min="500ms")


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop, dtype=np.int64)
    return pa.table({"k": pa.array((index * 31) % 101, pa.int32()), "v": index})


source = flow.source("numbers", Generator(numbers, schema="k int, v long", rate=RATE, limit=ROWS))


@flow.segment(source, shards=2, output_mode="update", cut_time="cut")  # Its rows are split by k: what it groups by.
def sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(
        F.count("*").alias("n"), F.sum("v").alias("total"), F.unix_millis(F.max("cut")).alias("cut_ms")
    )


flow.sink("parquet", sums, Parquet(f"{OUT}/parquet"))
flow.sink("jsonl", sums, JsonLines(f"{OUT}/jsonl"))
flow.sink("live", sums, Client())

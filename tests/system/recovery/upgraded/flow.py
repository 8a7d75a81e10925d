"""Sums per key of numbers that a Python function weighs. UNBROKEN_TEST_OUT is the directory of the results."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from weights import weigh  # type: ignore[import-not-found]

from unbroken import Client, Dataflow, Generator, Parquet

FLOW_RATE = 1_000
KEYS = 31

flow = Dataflow("upgraded", nodes=2, pulse_min="1s", catch_up_lag=4)


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop, dtype=np.int64)
    return pa.table({"k": pa.array(index % KEYS, pa.int32()), "v": index})


source = flow.source("numbers", Generator(numbers, schema="k int, v long", rate=FLOW_RATE))


@flow.segment(source)
def weighed(rows: DataFrame) -> DataFrame:
    def weight(value: int) -> int:
        return weigh(value, 1)

    return rows.select("k", F.udf(weight, "long")("v").alias("w"))


@flow.segment(weighed, output_mode="update")
def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("w").alias("total"))


flow.sink("files", totals, Parquet(os.environ.get("UNBROKEN_TEST_OUT", "results")))
flow.sink("live", totals, Client())

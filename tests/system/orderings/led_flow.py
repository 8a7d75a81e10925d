"""Two inputs of very different rates that come by different ways into a segment whose input is ordered by a leader.

The environment says where the results go, and where orders are kept.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Dataflow, Generator, Parquet

KEYS = 7
MANY, FEW = 200, 2
"""Rows of the two inputs in a pulse."""

PULSES = 24
OUT = os.environ.get("UNBROKEN_TEST_OUT", "out")

flow = Dataflow(
    "led",
    nodes=3,
    pulse_min="700ms",
    pulse_start="700ms",
    session_timeout="5s",
    order_log=os.environ.get("UNBROKEN_TEST_ORDERS", "zookeeper"),
)


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"v": np.arange(start, stop, dtype=np.int64)})


def source(name: str, rows: int) -> Generator:
    return Generator(numbers, schema="v long", rate=None, batch_rows=rows, limit=rows * PULSES)


flow.source("many", source("many", MANY))
flow.source("few", source("few", FEW))


@flow.segment("many")
def quick(rows: DataFrame) -> DataFrame:
    return rows.select((F.col("v") % KEYS).alias("k"))


@flow.segment("few")
def slow(rows: DataFrame) -> DataFrame:
    return rows.select((F.col("v") % KEYS).alias("k"))


@flow.segment("quick", "slow", ordering="leader", output_mode="update")
def counted(quick: DataFrame, slow: DataFrame) -> DataFrame:
    return quick.unionByName(slow).groupBy("k").count()


@flow.segment("counted")
def doubled(counts: DataFrame) -> DataFrame:
    return counts.select("k", "count", (F.col("count") * 2).alias("twice"))


flow.sink("results", "doubled", Parquet(OUT))

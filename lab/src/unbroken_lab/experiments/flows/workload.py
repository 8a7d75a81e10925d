"""The flow that `unbroken bench core` measures: keyed running count, sum and maximum over generated rows.

Environment: UNBROKEN_BENCH_RATE (rows per second, 0 for as fast as possible), UNBROKEN_BENCH_ROWS (rows in
all), UNBROKEN_BENCH_BATCH (rows per pulse at saturation), UNBROKEN_BENCH_NODES and UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow

KEYS = 10_000
SCHEMA = "k int, v long"
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "5000"))
ROWS = int(os.environ.get("UNBROKEN_BENCH_ROWS", "100000"))
BATCH = int(os.environ.get("UNBROKEN_BENCH_BATCH", "200000"))
NODES = int(os.environ.get("UNBROKEN_BENCH_NODES", "1"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "250"))


def make_rows(start: int, stop: int, seed: int) -> pa.Table:
    """Rows ``start`` to ``stop - 1``: keys spread over ``KEYS`` values by a multiplicative step."""
    index = np.arange(start, stop, dtype=np.int64)
    return pa.table({"k": pa.array((index * 7919) % KEYS, pa.int32()), "v": pa.array(index % 1000, pa.int64())})


def aggregate(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.max("v").alias("top"), F.sum("v").alias("total"), F.count("*").alias("n"))


flow = Dataflow(
    "bench",
    nodes=NODES,
    replicas=NODES,
    pulse_min=PULSE_MS,
    pulse_start=max(PULSE_MS, 250.0 if RATE else PULSE_MS),
)
source = flow.source(
    "rows",
    Generator(make_rows, schema=SCHEMA, rate=RATE or None, limit=ROWS, batch_rows=BATCH, max_rows_per_pulse=BATCH),
)
flow.segment(source, name="running", shard_by=["k"], output_mode="update")(aggregate)
flow.sink("live", "running", Client())

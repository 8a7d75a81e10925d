"""The flow of `unbroken bench recovery` and `piecemeal`: one row of state per key, with a payload that sets its size.

Environment: UNBROKEN_BENCH_KEYS, UNBROKEN_BENCH_RATE (rows per second), UNBROKEN_BENCH_SECONDS, UNBROKEN_BENCH_SHARDS,
UNBROKEN_BENCH_NODES, UNBROKEN_BENCH_STANDBYS and UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.parameters.rows import SCHEMA, KeyedRows

KEYS = int(os.environ.get("UNBROKEN_BENCH_KEYS", "50000"))
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "5000"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "60"))
SHARDS = int(os.environ.get("UNBROKEN_BENCH_SHARDS", "1"))
NODES = int(os.environ.get("UNBROKEN_BENCH_NODES", "2"))
STANDBYS = int(os.environ.get("UNBROKEN_BENCH_STANDBYS", "1"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "500"))

flow = Dataflow("recovery", nodes=NODES, standbys=STANDBYS, pulse_min=PULSE_MS, pulse_start=PULSE_MS)
source = flow.source("rows", Generator(KeyedRows(KEYS), schema=SCHEMA, rate=RATE, limit=RATE * SECONDS))


@flow.segment(source, shard_by=["k"], shards=SHARDS, output_mode="update")
def latest(rows: DataFrame) -> DataFrame:
    """The number of rows of every key; the largest payload is state that is not handed on."""
    known = rows.groupBy("k").agg(F.count("*").alias("n"), F.max("payload").alias("top"))
    return known.select("k", "n", F.length("top").alias("size"))


flow.sink("live", latest, Client())

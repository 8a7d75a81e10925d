"""The flow of `unbroken bench strategies`: rows per key and window, in a segment that is kept available in some way.

A stateless segment stands in front of it, because the first segment shares a node with the sources and what stays on a
node is not sent. With three nodes the one with the measured segment then has nothing else, its producer is on the next,
and the third is where a backup or a spare lives. The producer takes its input from one of the sources' nodes, its own,
so that the bytes between nodes are those to the measured segment. Pulses have a fixed length, so that all ways send as
many units.

A result ``k, n`` is the number of rows ``n`` of a key in a window so far; ``k`` stands for both.

Environment: UNBROKEN_BENCH_STRATEGY, UNBROKEN_BENCH_INTERVAL (units between two acknowledgements, and between two
checkpoints of a passive standby), UNBROKEN_BENCH_RATE (rows per second), UNBROKEN_BENCH_SECONDS and
UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.parameters.rows import SCHEMA, KeyedRows

KEYS = 1_000
WINDOW_S = 5
DELAY_S = 1
"""The delay of the watermark; rows come in the order of their times, so that none is late."""

BEGIN_S = 1_000_000_000
"""Event time of the first row."""

PATIENCE_MS = 60_000
"""The producer stays with the sources' node that is its own, also while the first micro-batches are slow."""

STRATEGY = os.environ.get("UNBROKEN_BENCH_STRATEGY", "active")
INTERVAL = int(os.environ.get("UNBROKEN_BENCH_INTERVAL", "1"))
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "2000"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "105"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "750"))

ROWS = f"{SCHEMA}, at timestamp"


def make_rows(start: int, stop: int, seed: int) -> pa.Table:
    """Keyed rows whose event times are as far apart as ``RATE`` says."""
    times = BEGIN_S * 1_000_000 + np.arange(start, stop, dtype=np.int64) * 1_000_000 // RATE
    rows = KeyedRows(KEYS)(start, stop, seed)
    return rows.append_column("at", pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC")))


def stamp(rows: DataFrame) -> DataFrame:
    """Every row with a checksum of its payload: as many bytes as before."""
    return rows.withColumn("checksum", F.crc32("payload"))


def count(rows: DataFrame) -> DataFrame:
    """The number of rows of every key in every window, and the largest checksum."""
    windows = rows.withWatermark("at", f"{DELAY_S} seconds").groupBy(F.window("at", f"{WINDOW_S} seconds"), "k")
    counts = windows.agg(F.count("*").alias("n"), F.max("checksum").alias("top"))
    window = ((F.col("window.start").cast("long") - BEGIN_S) / WINDOW_S).cast("long")
    return counts.select((window * KEYS + F.col("k")).alias("k"), "n", "top")


def redundancy(strategy: str, interval: int) -> dict[str, Any]:
    """How the measured segment is kept available, as arguments of its declaration."""
    backups = {} if strategy == "none" else {"k_safety": 1}
    copies = {"checkpoint_every": interval} if strategy == "passive" else {}
    return {"ha": strategy, **backups, **copies}


flow = Dataflow(
    "strategies",
    nodes=3,
    delivery="single",
    patience=PATIENCE_MS,
    pulse_min=PULSE_MS,
    pulse_start=PULSE_MS,
    pulse_max=PULSE_MS,
    ack_every=INTERVAL,
    # One replica is built again at a time: three nodes that share a small machine have little to spare for it.
    transfers=1,
)
source = flow.source("rows", Generator(make_rows, schema=ROWS, rate=RATE, limit=RATE * SECONDS))
stamped = flow.segment(source, name="stamped", ha="upstream", k_safety=1)(stamp)
counted = flow.segment(stamped, name="counted", output_mode="update", **redundancy(STRATEGY, INTERVAL))(count)
flow.sink("live", counted, Client())

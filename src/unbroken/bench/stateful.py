"""The flow that `unbroken bench recovery` measures: one row of state per key, with a payload that sets its size.

Environment: UNBROKEN_BENCH_KEYS, UNBROKEN_BENCH_RATE (rows per second) and UNBROKEN_BENCH_SECONDS.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.generator import Generator
from unbroken.connectors.sinks import Client
from unbroken.flow import Dataflow

PAYLOAD = 200
"""Bytes of payload per key; they do not compress, so that the state on disk is as large as it says."""

KEYS = int(os.environ.get("UNBROKEN_BENCH_KEYS", "50000"))
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "5000"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "60"))


NOISE = np.random.default_rng(7).integers(0, 256, size=(8192, PAYLOAD), dtype=np.uint8)


def make_rows(start: int, stop: int, seed: int) -> pa.Table:
    """Rows ``start`` to ``stop - 1``: every key in turn, so that all of them are known after ``KEYS`` rows."""
    index = np.arange(start, stop, dtype=np.int64)
    keys = index % KEYS
    bytes_of_rows = np.ascontiguousarray(NOISE[(index * 31) % len(NOISE)])
    payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PAYLOAD), len(index), [None, pa.py_buffer(bytes_of_rows)])
    return pa.table({"k": keys, "payload": payload.cast(pa.binary())})


flow = Dataflow("recovery", nodes=2, standbys=1, pulse_min="500ms")
source = flow.source("rows", Generator(make_rows, schema="k long, payload binary", rate=RATE, limit=RATE * SECONDS))


@flow.segment(source, shard_by=["k"], output_mode="update")
def latest(rows: DataFrame) -> DataFrame:
    """The number of rows of every key; the largest payload is state that is not handed on."""
    known = rows.groupBy("k").agg(F.count("*").alias("n"), F.max("payload").alias("top"))
    return known.select("k", "n", F.length("top").alias("size"))


flow.sink("live", latest, Client())

"""The flow that campaigns run: two aggregations in a chain, the first one in two shards.

Its results tell whether a single row was lost, doubled or moved to another pulse; see ``reference.py``.

Environment: UNBROKEN_CHAOS_OUT (directory of the results), UNBROKEN_CHAOS_STOP (the source ends once this file is
there) and UNBROKEN_CHAOS_SEED.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.base import Cut, Position
from unbroken.connectors.files.sinks import Client, Parquet
from unbroken.connectors.generator import Generator, GeneratorReader
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.chaos.reference import GROUPS, RATE, SCHEMA, numbers

OUT = os.environ.get("UNBROKEN_CHAOS_OUT", "chaos-results")
STOP = Path(os.environ.get("UNBROKEN_CHAOS_STOP", "chaos-stop"))
SEED = int(os.environ.get("UNBROKEN_CHAOS_SEED", "0"))


class UntilTold(Generator):
    """A generator that ends when a file appears.

    Only the leader of the ingress looks for it, and what it finds goes into the ingress log with the pulse, so the
    others agree on the end as on every other cut.
    """

    def open(self) -> GeneratorReader:
        return _Reader(self)


class _Reader(GeneratorReader):
    def poll(self, position: Position | None, now_ms: int) -> Cut:
        return Cut(super().poll(position, now_ms).position, exhausted=STOP.exists())


flow = Dataflow("chaos", nodes=3, replicas=2, pulse_min="400ms", pulse_start="800ms")

source = flow.source("numbers", UntilTold(numbers, schema=SCHEMA, rate=RATE, seed=SEED))


@flow.segment(source, shard_by=["k"], shards=2, output_mode="update")
def keys(rows: DataFrame) -> DataFrame:
    """What is known of every key that got a row."""
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.max("v").alias("last"))


@flow.segment(keys, output_mode="update", cut_time="cut")
def groups(keys: DataFrame) -> DataFrame:
    """Sums over every update of a key: what they are depends on all cuts before."""
    return keys.groupBy((F.col("k") % GROUPS).alias("g")).agg(
        F.count("*").alias("updates"),
        F.sum("n").alias("seen"),
        F.sum("total").alias("weight"),
        F.max("last").alias("newest"),
        F.unix_millis(F.max("cut")).alias("cut_ms"),
    )


flow.sink("table", groups, Parquet(OUT))
flow.sink("live", groups, Client())

"""The flow of `unbroken bench peers`: a keyed running count and maximum with two replicas on two nodes.

Environment: UNBROKEN_BENCH_RATE (events per second), UNBROKEN_BENCH_ROWS, UNBROKEN_BENCH_BEGAN_MS (when the first event
is due) and UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.base import Cut, Position
from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator, GeneratorReader
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.parameters.events import SCHEMA, make_rows

RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "5000"))
ROWS = int(os.environ.get("UNBROKEN_BENCH_ROWS", "100000"))
BEGAN_MS = int(os.environ.get("UNBROKEN_BENCH_BEGAN_MS", "0"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "400"))


class DueGenerator(Generator):
    """Events are due from a fixed time on and not from the first pulse on, as for the other systems."""

    def open(self) -> GeneratorReader:
        return _DueReader(self)


class _DueReader(GeneratorReader):
    def poll(self, position: Position | None, now_ms: int) -> Cut:
        return super().poll({"start_ms": BEGAN_MS, "row": 0} if position is None else position, now_ms)


def count(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.max("v").alias("top"))


flow = Dataflow("peers", nodes=2, replicas=2, pulse_min=PULSE_MS, pulse_start=PULSE_MS)
source = flow.source("events", DueGenerator(make_rows, schema=SCHEMA, rate=RATE, limit=ROWS))
flow.segment(source, name="running", shard_by=["k"], output_mode="update")(count)
flow.sink("live", "running", Client())

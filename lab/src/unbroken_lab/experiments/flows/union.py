"""Two sources of different rates into one segment that hands on the rows of both, for `mib3` and `unordered`.

Pulses have a fixed length, so that all configurations are given the same units.

Environment: UNBROKEN_BENCH_WAY (see ``ways``), UNBROKEN_BENCH_RARE_RATE and UNBROKEN_BENCH_RATE (rows per second of the
two sources), UNBROKEN_BENCH_COMPARE (1: digests are compared also where nobody orders), UNBROKEN_BENCH_NODES,
UNBROKEN_BENCH_SECONDS and UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.parameters.arrival import take_what_arrives
from unbroken_lab.experiments.parameters.numbered import SCHEMA, NumberedRows
from unbroken_lab.experiments.parameters.ways import UNORDERED, arguments

WAY = os.environ.get("UNBROKEN_BENCH_WAY", "pulse")
RARE_RATE = int(os.environ.get("UNBROKEN_BENCH_RARE_RATE", "5"))
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "1000"))
COMPARE = os.environ.get("UNBROKEN_BENCH_COMPARE", "0") == "1"
NODES = int(os.environ.get("UNBROKEN_BENCH_NODES", "2"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "60"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "750"))

if WAY == UNORDERED:
    take_what_arrives(compare=COMPARE)


def source(rate: int) -> Generator:
    return Generator(NumberedRows(), schema=SCHEMA, rate=rate, limit=rate * SECONDS)


flow = Dataflow(
    "union",
    nodes=NODES,
    pulse_min=PULSE_MS,
    pulse_start=PULSE_MS,
    pulse_max=PULSE_MS,
    transfers=1,
)
rare = flow.source("rare", source(RARE_RATE))
often = flow.source("often", source(RATE))


@flow.segment(rare, often, cut_time="cut", **arguments(WAY))
def both(rare: DataFrame, often: DataFrame) -> DataFrame:
    """The rows of both, each with the source that it comes from and when it was cut."""
    rows = rare.withColumn("source", F.lit("rare")).unionByName(often.withColumn("source", F.lit("often")))
    return rows.select("source", "n", "payload", F.unix_millis("cut").alias("cut_ms"))


flow.sink("live", both, Client())

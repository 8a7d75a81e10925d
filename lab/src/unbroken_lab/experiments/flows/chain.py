"""The flow of `unbroken bench delivery`: two segments in a chain, so that units pass between nodes twice.

Pulses have a fixed length, so that both ways of delivery send as many units.

Environment: UNBROKEN_BENCH_DELIVERY ("duplicate" or "single"), UNBROKEN_BENCH_RATE (rows per second),
UNBROKEN_BENCH_SECONDS and UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.parameters.rows import SCHEMA, KeyedRows

KEYS = 1_000
DELIVERY = os.environ.get("UNBROKEN_BENCH_DELIVERY", "duplicate")
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "2000"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "70"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "750"))

flow = Dataflow(
    "delivery",
    nodes=3,
    replicas=2,
    delivery=DELIVERY,
    pulse_min=PULSE_MS,
    pulse_start=PULSE_MS,
    pulse_max=PULSE_MS,
    # One replica is built again at a time: three nodes that share a small machine have little to spare for it.
    transfers=1,
)
source = flow.source("rows", Generator(KeyedRows(KEYS), schema=SCHEMA, rate=RATE, limit=RATE * SECONDS))


@flow.segment(source, output_mode="append")
def stamped(rows: DataFrame) -> DataFrame:
    """Every row with a checksum of its payload, so that the second hop carries as many bytes as the first."""
    return rows.withColumn("checksum", F.crc32("payload"))


@flow.segment(stamped, output_mode="update")
def counted(rows: DataFrame) -> DataFrame:
    """The number of rows of every key, and the largest checksum."""
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.max("checksum").alias("top"))


flow.sink("live", counted, Client())

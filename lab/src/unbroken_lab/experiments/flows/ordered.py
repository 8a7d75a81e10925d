"""The flow of `unbroken bench ordering`: two inputs on ways of different length into a segment that somebody orders.

The rows of one source go straight to the segment, those of the other pass a stateless segment first, so that they come
later by the time of a micro-batch. Both have keys of their own, by which results tell what they are made of.

On four nodes the sources are on the first two, the stateless segment is on the second, and the two replicas of the
ordered segment have the other two for themselves: losing one of those loses a replica of that segment and nothing else.
The stateless segment has no backup, because its node is never killed. Pulses have a fixed length, so that all orderings
are given the same units.

A result ``k, n, top, cut_ms`` has the number of rows ``n`` of a key so far, the largest checksum among them, and when
the newest of them was cut at its source.

Environment: UNBROKEN_BENCH_ORDERING ("pulse" or "leader"), UNBROKEN_BENCH_ORDER_LOG, UNBROKEN_BENCH_DIRECT_RATE and
UNBROKEN_BENCH_STAMPED_RATE (rows per second of the two inputs), UNBROKEN_BENCH_SECONDS and UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.parameters.ordered import KEYS
from unbroken_lab.experiments.parameters.rows import SCHEMA, KeyedRows

ORDERING = os.environ.get("UNBROKEN_BENCH_ORDERING", "pulse")
ORDER_LOG = os.environ.get("UNBROKEN_BENCH_ORDER_LOG", "zookeeper")
DIRECT_RATE = int(os.environ.get("UNBROKEN_BENCH_DIRECT_RATE", "2500"))
STAMPED_RATE = int(os.environ.get("UNBROKEN_BENCH_STAMPED_RATE", "2500"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "80"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "750"))


def source(rate: int) -> Generator:
    return Generator(KeyedRows(KEYS), schema=SCHEMA, rate=rate, limit=rate * SECONDS)


flow = Dataflow(
    "ordered",
    nodes=4,
    order_log=ORDER_LOG,
    pulse_min=PULSE_MS,
    pulse_start=PULSE_MS,
    pulse_max=PULSE_MS,
    # One replica is built again at a time: four nodes that share a small machine have little to spare for it.
    transfers=1,
)
direct = flow.source("direct", source(DIRECT_RATE))
detour = flow.source("detour", source(STAMPED_RATE))


@flow.segment(detour, ha="none")
def stamped(rows: DataFrame) -> DataFrame:
    """Every row with a checksum of its payload, under keys that the other input does not have."""
    return rows.select((F.col("k") + KEYS).alias("k"), "payload", F.crc32("payload").alias("checksum"))


@flow.segment(direct, stamped, ordering=ORDERING, output_mode="update", cut_time="cut")
def counted(direct: DataFrame, stamped: DataFrame) -> DataFrame:
    """The number of rows of every key, the largest checksum, and when the newest row was cut."""
    rows = direct.withColumn("checksum", F.crc32("payload")).unionByName(stamped)
    newest = F.unix_millis(F.max("cut")).alias("cut_ms")
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.max("checksum").alias("top"), newest)


flow.sink("live", counted, Client())

"""Network monitoring: packets to sessions to statistics of their durations per application and source.

The dataflow that the Flux paper measures. Run it by itself with ``unbroken run``, or with a failure and a
check of every result with ``unbroken demo``.

Environment: UNBROKEN_DEMO_RATE (packets per second), UNBROKEN_DEMO_SECONDS (length of the stream) and
UNBROKEN_DEMO_OUT (directory of the results).
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client, Parquet
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.demo.packets import SCHEMA, Packets

RATE = int(os.environ.get("UNBROKEN_DEMO_RATE", "2000"))
SECONDS = int(os.environ.get("UNBROKEN_DEMO_SECONDS", "70"))
OUT = os.environ.get("UNBROKEN_DEMO_OUT", "netmon-results")

# One replica is built again at a time: three nodes that share a small machine have little to spare for it.
flow = Dataflow("netmon", nodes=3, replicas=2, transfers=1)

packets = flow.source("packets", Generator(Packets(RATE), schema=SCHEMA, rate=RATE, limit=RATE * SECONDS))


@flow.segment(packets, shard_by=["src", "dst"], shards=2, output_mode="update")
def sessions(packets: DataFrame) -> DataFrame:
    """One row per session, in the micro-batch in which its end packet arrives."""
    return (
        packets.withWatermark("started", "1 minute")
        .groupBy("app", "src", "dst", "started")
        .agg(F.max("ts").alias("last"), F.max(F.col("kind") == "end").alias("ended"))
        .where("ended")
        .select("app", "src", (F.unix_millis("last") - F.unix_millis("started")).alias("dur_ms"))
    )


@flow.segment(sessions, shard_by=["app", "src"], output_mode="update")
def stats(sessions: DataFrame) -> DataFrame:
    """The running statistics of every (app, src) that had a session end in this micro-batch."""
    return sessions.groupBy("app", "src").agg(
        F.max("dur_ms").alias("longest_ms"),
        (F.sum("dur_ms") / F.count("dur_ms")).alias("average_ms"),
        F.count("dur_ms").alias("sessions"),
    )


flow.sink("table", stats, Parquet(OUT))
flow.sink("live", stats, Client())

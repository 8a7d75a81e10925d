"""The flow of the experiments of Flux: the network monitoring of the demonstration, at a given rate or at saturation.

The first segment does some work on every packet, so that processors are what limits it.

Environment: UNBROKEN_BENCH_RATE (packets per second; 0: as many as can be processed), UNBROKEN_BENCH_ROWS (packets in
all), UNBROKEN_BENCH_BATCH (packets per pulse at saturation), UNBROKEN_BENCH_NODES, UNBROKEN_BENCH_REPLICAS,
UNBROKEN_BENCH_STANDBYS, UNBROKEN_BENCH_PAIRS ("partition" or "cluster"), UNBROKEN_BENCH_SHARDS (of the first segment),
UNBROKEN_BENCH_JVM and UNBROKEN_BENCH_MEMORY (of a node), UNBROKEN_BENCH_STORE (of the state: "rocksdb" or "memory") and
UNBROKEN_BENCH_WORK (rounds of hashing).
"""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.demo import netmon
from unbroken_lab.demo.packets import SATURATED_RATE, SCHEMA, Packets

RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "2000"))
ROWS = int(os.environ.get("UNBROKEN_BENCH_ROWS", "140000"))
BATCH = int(os.environ.get("UNBROKEN_BENCH_BATCH", "40000"))
NODES = int(os.environ.get("UNBROKEN_BENCH_NODES", "3"))
REPLICAS = int(os.environ.get("UNBROKEN_BENCH_REPLICAS", "2"))
STANDBYS = int(os.environ.get("UNBROKEN_BENCH_STANDBYS", "0"))
PAIRS = os.environ.get("UNBROKEN_BENCH_PAIRS", "partition")
SHARDS = int(os.environ.get("UNBROKEN_BENCH_SHARDS", "2"))
JVM = os.environ.get("UNBROKEN_BENCH_JVM", "small")
MEMORY = os.environ.get("UNBROKEN_BENCH_MEMORY", "1g")
STORE = os.environ.get("UNBROKEN_BENCH_STORE", "rocksdb")
WORK = int(os.environ.get("UNBROKEN_BENCH_WORK", "0"))

MOST_ROWS = 1_000_000
DIGITS = 64
"""Length of a hash, which every packet has: nothing is left out by asking for it."""


def sessions(packets: DataFrame) -> DataFrame:
    """The ended sessions, after ``WORK`` rounds of hashing for every packet."""
    worked = F.concat_ws("|", "src", "dst", F.col("ts").cast("string"))
    for _ in range(WORK):
        worked = F.sha2(worked, 256)
    chosen = packets.where(F.length(worked) == DIGITS) if WORK else packets
    return netmon.sessions.function(chosen)


SHORT_PULSES: dict[str, Any] = {} if RATE else {"pulse_min": 20, "pulse_start": 20}
"""At saturation the next pulse is cut as soon as somebody is free for it."""

MEMORY_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SPARK = {"spark.sql.streaming.stateStore.providerClass": MEMORY_STORE} if STORE == "memory" else {}

# One replica is built again at a time: nodes that share a small machine have little to spare for it.
flow = Dataflow(
    "monitoring",
    nodes=NODES,
    replicas=REPLICAS,
    standbys=STANDBYS,
    pairs=PAIRS,
    transfers=1,
    jvm=JVM,
    node_memory=MEMORY,
    spark=SPARK,
    **SHORT_PULSES,
)
packets = flow.source(
    "packets",
    Generator(
        Packets(RATE or SATURATED_RATE),
        schema=SCHEMA,
        rate=RATE or None,
        limit=ROWS,
        batch_rows=BATCH,
        max_rows_per_pulse=MOST_ROWS if RATE else BATCH,
    ),
)
ended = flow.segment(packets, name="sessions", shard_by=["src", "dst"], shards=SHARDS, output_mode="update")(sessions)
stats = flow.segment(ended, name="stats", shard_by=["app", "src"], output_mode="update")(netmon.stats.function)
flow.sink("live", stats, Client())

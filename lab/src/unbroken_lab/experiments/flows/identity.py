"""A chain of segments that hand on what they get, for `mib1`, `mib1-pulse`, `mib2` and `faults`.

The first segment notes when the sources cut the unit that a row came in; the others change nothing. Pulses have a fixed
length, so that all configurations are given the same units; the sources only hold one back while too many are under
way.

Environment: UNBROKEN_BENCH_WAY (see ``ways``), UNBROKEN_BENCH_LENGTH (segments), UNBROKEN_BENCH_SHARDS (of each),
UNBROKEN_BENCH_NODES, UNBROKEN_BENCH_RATE (rows per second), UNBROKEN_BENCH_SECONDS and UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow, Segment, Source
from unbroken_lab.experiments.parameters.arrival import take_what_arrives
from unbroken_lab.experiments.parameters.numbered import SCHEMA, NumberedRows
from unbroken_lab.experiments.parameters.ways import UNORDERED, arguments

WAY = os.environ.get("UNBROKEN_BENCH_WAY", "pulse")
LENGTH = int(os.environ.get("UNBROKEN_BENCH_LENGTH", "2"))
SHARDS = int(os.environ.get("UNBROKEN_BENCH_SHARDS", "1"))
NODES = int(os.environ.get("UNBROKEN_BENCH_NODES", "2"))
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "5000"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "60"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "1000"))

if WAY == UNORDERED:
    # Nothing would be left to measure of replicas that differ if one of them were stopped.
    take_what_arrives(compare=False)


def stamped(rows: DataFrame) -> DataFrame:
    return rows.select("n", "payload", F.unix_millis("cut").alias("cut_ms"))


def same(rows: DataFrame) -> DataFrame:
    return rows


flow = Dataflow(
    "identity",
    nodes=NODES,
    pulse_min=PULSE_MS,
    pulse_start=PULSE_MS,
    pulse_max=PULSE_MS,
    # One replica is built again at a time: nodes that share a small machine have little to spare for it.
    transfers=1,
)
shared: dict[str, Any] = {**arguments(WAY), "shards": SHARDS, **({"shard_by": ["n"]} if SHARDS > 1 else {})}
last: Source | Segment = flow.source("rows", Generator(NumberedRows(), schema=SCHEMA, rate=RATE, limit=RATE * SECONDS))
for place in range(1, LENGTH + 1):
    first = place == 1
    declare = flow.segment(last, name=f"step{place}", cut_time="cut" if first else None, **shared)
    last = declare(stamped if first else same)
flow.sink("live", last.name, Client())

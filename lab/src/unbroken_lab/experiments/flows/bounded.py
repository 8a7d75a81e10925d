"""The flow of `unbroken bench consistency`: three inputs, one of which may be missing, united and counted.

The rows of all three are put together by their event time, so that one that is missing is known to be missing. The
state is bounded, as ``reconcile="undo"`` needs it: count and sum of each key in windows of some seconds. In a chain
further segments follow, each with state of its own, that hand on what they get.

A result ``w, k, n0, n1, n2, total, newest_ms`` is, for a window and a key, the number of rows of each input so far, the
sum of their values, and the event time of the newest of them: it tells what it was made of, and what it lacks.

Environment: UNBROKEN_BENCH_FAILURE and UNBROKEN_BENCH_STABILIZATION (what becomes of input meanwhile),
UNBROKEN_BENCH_RECONCILE, UNBROKEN_BENCH_MAX_DELAY_MS, UNBROKEN_BENCH_ALPHA, UNBROKEN_BENCH_RATE (rows per second of
each input), UNBROKEN_BENCH_BUCKET_MS, UNBROKEN_BENCH_REPLICAS, UNBROKEN_BENCH_BEGIN_MS (the time of the first row) and
UNBROKEN_BENCH_SWITCH (the file that disconnects the last input); UNBROKEN_BENCH_KEYS, UNBROKEN_BENCH_WINDOW_MS (the
length of the windows) and UNBROKEN_BENCH_DEPTH (the number of segments in the chain).
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.flow.availability import Availability
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.flows.interrupted import KEYS as USUAL_KEYS
from unbroken_lab.experiments.flows.interrupted import SOURCES, InterruptedSource, Stream
from unbroken_lab.experiments.flows.interrupted import WINDOW_MS as USUAL_WINDOW_MS

FAILURE = os.environ.get("UNBROKEN_BENCH_FAILURE", "process")
STABILIZATION = os.environ.get("UNBROKEN_BENCH_STABILIZATION", "process")
RECONCILE = os.environ.get("UNBROKEN_BENCH_RECONCILE", "fork")
MAX_DELAY_MS = float(os.environ.get("UNBROKEN_BENCH_MAX_DELAY_MS", "3000"))
ALPHA = float(os.environ.get("UNBROKEN_BENCH_ALPHA", "0.9"))
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "1500"))
BUCKET_MS = float(os.environ.get("UNBROKEN_BENCH_BUCKET_MS", "500"))
REPLICAS = int(os.environ.get("UNBROKEN_BENCH_REPLICAS", "1"))
BEGIN_MS = int(os.environ.get("UNBROKEN_BENCH_BEGIN_MS", "1700000000000"))
SWITCH = os.environ.get("UNBROKEN_BENCH_SWITCH")
KEYS = int(os.environ.get("UNBROKEN_BENCH_KEYS", str(USUAL_KEYS)))
WINDOW_MS = int(os.environ.get("UNBROKEN_BENCH_WINDOW_MS", str(USUAL_WINDOW_MS)))
DEPTH = int(os.environ.get("UNBROKEN_BENCH_DEPTH", "1"))

DELAY_MS = 1_000
"""The delay of the watermark; buckets come in the order of their times, so that no row is late."""

PULSE_MS = 100
"""Sources are asked this often, and a bucket is closed when the next one has begun: what it waits for that counts as
delay, too. Fixed, so that all runs do the same."""

flow = Dataflow(
    "bounded",
    nodes=max(2, REPLICAS),
    replicas=REPLICAS,
    ordering="bucket",
    bucket=BUCKET_MS,
    pulse_min=PULSE_MS,
    pulse_start=PULSE_MS,
    pulse_max=PULSE_MS,
)
inputs = [
    flow.source(
        f"input{number}",
        InterruptedSource(Stream(BEGIN_MS, RATE, number, KEYS), SWITCH if number == SOURCES - 1 else None),
        event_time="at",
    )
    for number in range(SOURCES)
]


BOUND = Availability(
    MAX_DELAY_MS, alpha=ALPHA, during_failure=FAILURE, during_stabilization=STABILIZATION, reconcile=RECONCILE
)


@flow.segment(*inputs, output_mode="update", availability=BOUND)
def counted(first: DataFrame, second: DataFrame, third: DataFrame) -> DataFrame:
    """Rows of each input and the sum of all values, for each window and key."""
    marked = [rows.withColumn("s", F.lit(number)) for number, rows in enumerate((first, second, third))]
    rows = marked[0].unionByName(marked[1]).unionByName(marked[2])
    timed = rows.withWatermark("at", f"{DELAY_MS} milliseconds")
    groups = timed.groupBy(F.window("at", f"{WINDOW_MS} milliseconds").alias("window"), "k")
    counts = [F.count_if(F.col("s") == number).alias(f"n{number}") for number in range(SOURCES)]
    found = groups.agg(*counts, F.sum("v").alias("total"), F.unix_millis(F.max("at")).alias("newest_ms"))
    return found.withColumn("w", F.unix_millis("window.start")).drop("window")


def carried(rows: DataFrame) -> DataFrame:
    """The same rows again, out of a state: counts and times of a key only grow, and the largest is the last one."""
    timed = rows.withColumn("at", F.timestamp_millis("w")).withWatermark("at", f"{DELAY_MS} milliseconds")
    groups = timed.groupBy(F.window("at", f"{WINDOW_MS} milliseconds").alias("window"), "k")
    columns = (*(f"n{number}" for number in range(SOURCES)), "total", "newest_ms")
    found = groups.agg(*(F.max(name).alias(name) for name in columns))
    return found.withColumn("w", F.unix_millis("window.start")).drop("window")


last = counted
for place in range(2, DEPTH + 1):
    last = flow.segment(last, name=f"carried{place}", output_mode="update", availability=BOUND)(carried)
flow.sink("live", last, Client())

"""Two sources put together by event time, which can be disconnected; counted per window on two replicas.

Environment: UNBROKEN_TEST_OUT (directory of the Parquet sink), UNBROKEN_TEST_SWITCHES (a directory in which a file with
the name of a source disconnects it), UNBROKEN_TEST_BEGIN_MS (the time of the first row), UNBROKEN_TEST_RECONCILE.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Availability, Client, Dataflow, Parquet
from unbroken_lab.experiments.flows.interrupted import WINDOW_MS, InterruptedSource, Stream

RATE = 200
BUCKET_MS = 2_000
"""Long enough for four queries, two of them forks, that share two cores with other tests: one that corrects the past
while new results have to be in time catches up only if the machine is faster than the flow."""
BEGIN_MS = int(os.environ.get("UNBROKEN_TEST_BEGIN_MS", "1700000000000"))
SWITCHES = Path(os.environ.get("UNBROKEN_TEST_SWITCHES", "away"))

flow = Dataflow(
    "lacking", nodes=2, replicas=2, ordering="bucket", bucket=BUCKET_MS, pulse_min=200, pulse_start=200, pulse_max=400
)
left = flow.source("left", InterruptedSource(Stream(BEGIN_MS, RATE, 0), str(SWITCHES / "left")), event_time="at")
right = flow.source("right", InterruptedSource(Stream(BEGIN_MS, RATE, 1), str(SWITCHES / "right")), event_time="at")


@flow.segment(
    left,
    right,
    output_mode="update",
    availability=Availability("4s", alpha=0.5, reconcile=os.environ.get("UNBROKEN_TEST_RECONCILE", "fork")),
)
def counted(left: DataFrame, right: DataFrame) -> DataFrame:
    """Rows of each source, the sum of all values and the time of the newest row, for each window and key."""
    rows = left.withColumn("s", F.lit(0)).unionByName(right.withColumn("s", F.lit(1)))
    window = F.window("at", f"{WINDOW_MS} milliseconds")
    grouped = rows.withWatermark("at", "1 second").groupBy(window, "k")
    return grouped.agg(
        F.sum(F.when(F.col("s") == 0, 1).otherwise(0)).alias("n0"),
        F.sum(F.when(F.col("s") == 1, 1).otherwise(0)).alias("n1"),
        F.sum("v").alias("total"),
        F.max(F.unix_millis("at")).alias("newest_ms"),
    ).select((F.unix_micros("window.start") / 1000).cast("long").alias("w"), "k", "n0", "n1", "total", "newest_ms")


flow.sink("out", counted, Parquet(os.environ.get("UNBROKEN_TEST_OUT", "out")))
flow.sink("live", counted, Client())

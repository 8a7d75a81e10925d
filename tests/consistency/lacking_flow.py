"""Two sources put together by event time, one of which can be disconnected; counted per window on two replicas.

Environment: UNBROKEN_TEST_OUT (directory of the Parquet sink), UNBROKEN_TEST_SWITCH (the file that disconnects the
second source), UNBROKEN_TEST_BEGIN_MS (the time of the first row), UNBROKEN_TEST_RECONCILE.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Availability, Client, Dataflow, Parquet
from unbroken.bench.interrupted import WINDOW_MS, Interrupted, Stream

RATE = 200
BEGIN_MS = int(os.environ.get("UNBROKEN_TEST_BEGIN_MS", "1700000000000"))

flow = Dataflow(
    "lacking", nodes=2, replicas=2, ordering="bucket", bucket="1s", pulse_min=200, pulse_start=200, pulse_max=400
)
steady = flow.source("steady", Interrupted(Stream(BEGIN_MS, RATE, 0)), event_time="at")
fragile = flow.source(
    "fragile", Interrupted(Stream(BEGIN_MS, RATE, 1), os.environ.get("UNBROKEN_TEST_SWITCH")), event_time="at"
)


@flow.segment(
    steady,
    fragile,
    output_mode="update",
    availability=Availability("4s", alpha=0.5, reconcile=os.environ.get("UNBROKEN_TEST_RECONCILE", "fork")),
)
def counted(steady: DataFrame, fragile: DataFrame) -> DataFrame:
    """Rows of each source and the sum of all values, for each window and key."""
    rows = steady.withColumn("s", F.lit(0)).unionByName(fragile.withColumn("s", F.lit(1)))
    window = F.window("at", f"{WINDOW_MS} milliseconds")
    grouped = rows.withWatermark("at", "1 second").groupBy(window, "k")
    return grouped.agg(
        F.sum(F.when(F.col("s") == 0, 1).otherwise(0)).alias("n0"),
        F.sum(F.when(F.col("s") == 1, 1).otherwise(0)).alias("n1"),
        F.sum("v").alias("total"),
    ).select((F.unix_micros("window.start") / 1000).cast("long").alias("w"), "k", "n0", "n1", "total")


flow.sink("out", counted, Parquet(os.environ.get("UNBROKEN_TEST_OUT", "out")))
flow.sink("live", counted, Client())

"""Numbers to sums per key, until a file appears: what a Spark cluster runs in the tests of this directory.

Environment: that of ``unbroken_lab.chaos.flow``. Pulses are long and everybody is patient, because a master, workers,
drivers and executors on a small machine leave little of it to the flow.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, JsonLines
from unbroken_lab.chaos.flow import UntilTold

RATE = 200
KEYS = 17

flow = Dataflow(
    "remote",
    nodes=2,
    pulse_min="1s",
    pulse_start="2s",
    link_timeout="30s",
    session_timeout="30s",
    ring_period="10s",
    node_memory="600m",
    node_cores=1,
)


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop, dtype=np.int64)
    return pa.table({"k": pa.array((index * 31) % KEYS, pa.int32()), "v": index})


source = flow.source("numbers", UntilTold(numbers, schema="k int, v long", rate=RATE))


@flow.segment(source, output_mode="update")
def sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.max("v").alias("last"))


flow.sink("lines", sums, JsonLines(os.environ.get("UNBROKEN_CHAOS_OUT", "remote-results")))
flow.sink("live", sums, Client())

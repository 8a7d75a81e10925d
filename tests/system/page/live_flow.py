"""The flow of the page's test on real nodes: a stream of numbers without end, counted by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow

flow = Dataflow("counts", nodes=2, pulse_min="1s")


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    n = np.arange(start, stop)
    return pa.table({"k": n % 7, "v": n})


source = flow.source("numbers", Generator(numbers, schema="k long, v long", rate=500))


@flow.segment(source, output_mode="update")
def counts(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").count()


flow.sink("live", counts, Client())

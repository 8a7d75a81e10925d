"""Clicks of users, counted: the flow of the first example, for a first deployment."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from unbroken import Client, Dataflow, Generator

# As many nodes as the StatefulSet has replicas: the flow begins when all of them are there.
flow = Dataflow("clicks", nodes=3)


def make_clicks(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop)
    return pa.table({"user": index % 5, "price": index % 100})


clicks = flow.source("clicks", Generator(make_clicks, schema="user long, price long", rate=100))


@flow.segment(clicks, output_mode="update")
def per_user(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").count()


flow.sink("counts", per_user, Client())

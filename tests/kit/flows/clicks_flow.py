"""The flow of these tests: clicks per user in two shards, and the busiest users of all; its sinks are never written."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Files, Parquet

flow = Dataflow("clicks", nodes=3, pulse_min="700ms")
clicks = flow.source("clicks", Files("nowhere/in", format="json", schema="user string, n long"))


@flow.segment(clicks, shard_by=["user"], shards=2, output_mode="update")
def per_user(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.count("*").alias("clicks"), F.sum("n").alias("total"))


flow.sink("totals", per_user, Parquet("nowhere/out"))
flow.sink("live", per_user, Client())

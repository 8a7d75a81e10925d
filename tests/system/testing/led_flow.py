"""Clicks per user where a leader decides what each micro-batch takes, so that units differ from run to run."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Files

flow = Dataflow("led", nodes=3, ordering="leader")
clicks = flow.source("clicks", Files("nowhere/in", format="json", schema="user string, n long"))


@flow.segment(clicks, output_mode="update")
def per_user(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").agg(F.count("*").alias("clicks"), F.sum("n").alias("total"))


flow.sink("totals", per_user, Client())

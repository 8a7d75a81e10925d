"""Pushed events joined in one count per user; files of users' countries come in beside them."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Files, Push

flow = Dataflow("pushed", nodes=2, pulse_min="600ms")
events = flow.source("events", Push(schema="user string, amount long"))
users = flow.source("users", Files(os.environ["FLOW_IN"], format="json", schema="user string, amount long"))


@flow.segment(events, users, output_mode="update")
def totals(events: DataFrame, users: DataFrame) -> DataFrame:
    return events.union(users).groupBy("user").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))


flow.sink("live", totals, Client())

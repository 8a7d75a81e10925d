"""Two sources with event times: a join, a function in Python, and windows behind them that see the cut time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

from unbroken import Client, Dataflow, Files

flow = Dataflow("joined", nodes=3, pulse_min="700ms")
orders = flow.source("orders", Files("nowhere/a", format="json", schema="id long, at timestamp, amount double"))
payments = flow.source("payments", Files("nowhere/b", format="json", schema="id long, at timestamp"))


@F.udf(DoubleType())
def doubled(amount: float) -> float:
    return amount * 2


@flow.segment(orders, payments, shard_by=["id"], shards=2)
def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    left = orders.withWatermark("at", "5 minutes").alias("o")
    right = payments.withWatermark("at", "5 minutes").alias("p")
    joined = left.join(right, F.expr("o.id = p.id AND p.at >= o.at AND p.at <= o.at + INTERVAL 1 MINUTE"))
    return joined.select(F.col("o.id").alias("id"), F.col("o.at").alias("at"), doubled("o.amount").alias("amount"))


@flow.segment(paid, cut_time="cut")
def minutes(paid: DataFrame) -> DataFrame:
    windows = paid.withWatermark("at", "10 seconds").groupBy(F.window("at", "30 seconds"))
    return windows.agg(F.sum("amount").alias("amount"), F.unix_millis(F.max("cut")).alias("cut_ms"))


flow.sink("joined-rows", paid, Client())
flow.sink("windows", minutes, Client())

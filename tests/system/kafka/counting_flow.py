"""From Kafka to Kafka: how often each key has come so far. The environment says where."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame

from unbroken import Dataflow, Kafka, KafkaSink

SERVERS = os.environ.get("UNBROKEN_TEST_KAFKA", "127.0.0.1:9092")

flow = Dataflow("counting", nodes=2, pulse_min="700ms", pulse_start="700ms", session_timeout="5s")
rows = flow.source(
    "rows", Kafka(SERVERS, os.environ.get("UNBROKEN_TEST_IN", "in"), format="json", schema="k long, v long")
)


@flow.segment(rows, output_mode="update")
def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").count()


flow.sink("counts", counted, KafkaSink(SERVERS, os.environ.get("UNBROKEN_TEST_OUT", "out"), key="k"))

"""A flow with a secret among its settings and every kind of port that a node opens."""

import os

from unbroken import Client, Dataflow, Push, Secret

flow = Dataflow(
    "exposed",
    nodes=1,
    metrics_port=0,
    spark={
        "spark.hadoop.fs.s3a.secret.key": Secret.env("EXPOSED_KEY"),
        "spark.hadoop.exposed.plain": Secret.env("EXPOSED_KEY"),
        # Chosen from outside, so that they are known there.
        "spark.driver.port": os.environ.get("EXPOSED_DRIVER_PORT", "0"),
        "spark.blockManager.port": os.environ.get("EXPOSED_BLOCKS_PORT", "0"),
    },
)
events = flow.source("events", Push("user string, amount long"))


@flow.segment(events, replicas=1, output_mode="update")
def per_user(events):
    # The value reaches Spark, or this fails.
    conf = events.sparkSession.sparkContext._jsc.hadoopConfiguration()
    assert conf.get("fs.s3a.secret.key") == os.environ["EXPOSED_KEY"]
    return events.groupBy("user").count()


flow.sink("live", per_user, Client())

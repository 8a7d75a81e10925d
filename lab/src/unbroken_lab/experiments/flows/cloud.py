"""Events of a cloud's customers against rules that control events set, for `saas`.

Two sources, each filtered; two joins side by side, of events with the rules for their kind and for their customer; and
the notifications of each violation. As one segment, which is one query for each replica, or as three: the filters are
then in the segments with the joins, as neighbours are merged into one task in the paper's system, too.

Pulses are at least as long as they are told, and longer if the machine does not come along.

Environment: UNBROKEN_BENCH_WAY (see ``ways``), UNBROKEN_BENCH_RATE (events per second), UNBROKEN_BENCH_SEGMENTS (1 or
3), UNBROKEN_BENCH_SHARDS (of the last one of three), UNBROKEN_BENCH_NODES, UNBROKEN_BENCH_SECONDS and
UNBROKEN_BENCH_PULSE_MS.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.generator import Generator
from unbroken.flow.dataflow import Dataflow
from unbroken_lab.experiments.parameters import cloud
from unbroken_lab.experiments.parameters.ways import arguments

WAY = os.environ.get("UNBROKEN_BENCH_WAY", "pulse")
RATE = int(os.environ.get("UNBROKEN_BENCH_RATE", "1000"))
SEGMENTS = int(os.environ.get("UNBROKEN_BENCH_SEGMENTS", "1"))
SHARDS = int(os.environ.get("UNBROKEN_BENCH_SHARDS", "1"))
NODES = int(os.environ.get("UNBROKEN_BENCH_NODES", "2"))
SECONDS = int(os.environ.get("UNBROKEN_BENCH_SECONDS", "60"))
PULSE_MS = float(os.environ.get("UNBROKEN_BENCH_PULSE_MS", "800"))

WATERMARK = "1 second"
"""Times grow with the numbers of rows, so that none is late."""

SPARK = {"spark.sql.streaming.join.stateFormatVersion": "3"}
"""One store for the state of a join instead of four: a quarter less time for each micro-batch."""

flow = Dataflow("cloud", nodes=NODES, pulse_min=PULSE_MS, pulse_start=PULSE_MS, transfers=1, spark=SPARK)
events = flow.source(
    "events",
    Generator(cloud.Events(RATE), schema=cloud.EVENTS, rate=RATE, limit=RATE * SECONDS),
)
control = flow.source(
    "control",
    Generator(
        cloud.Control(),
        schema=cloud.CONTROL,
        rate=cloud.CONTROL_RATE,
        limit=int(cloud.CONTROL_RATE * SECONDS),
    ),
)


def watched(events: DataFrame) -> DataFrame:
    """Events of the kinds that somebody looks at, with values that violate some rule at least."""
    looked_at = (F.col("kind") < cloud.WATCHED) & (F.col("value") >= cloud.LEVELS[0])
    return events.where(looked_at).withWatermark("at", WATERMARK)


def in_use(control: DataFrame, scope: str) -> DataFrame:
    """Rules of a kind that are not switched off."""
    rules = control.where((F.col("scope") == scope) & F.col("enabled"))
    return rules.select("m", "key", "level", "actions", "since").withWatermark("since", WATERMARK)


def violations(events: DataFrame, control: DataFrame, scope: str) -> DataFrame:
    """Events that violate the rule that is in force for them."""
    ends = f"since + INTERVAL {cloud.VALID_S} SECONDS"
    violated = F.expr(f"{scope} = key AND at >= since AND at < {ends} AND value >= level")
    found = watched(events).join(in_use(control, scope), violated)
    return found.select("n", "tenant", "m", "actions", F.unix_millis("cut").alias("cut_ms"))


def notifications(violations: DataFrame) -> DataFrame:
    """As many for each violation as its rule asks for."""
    actions = F.explode(F.sequence(F.lit(1).cast("long"), F.col("actions")))
    return violations.select("n", "m", actions.alias("action"), "cut_ms")


def in_one(events: DataFrame, control: DataFrame) -> DataFrame:
    both = violations(events, control, "kind").unionByName(violations(events, control, "tenant"))
    return notifications(both)


def by_kind(events: DataFrame, control: DataFrame) -> DataFrame:
    return violations(events, control, "kind")


def by_tenant(events: DataFrame, control: DataFrame) -> DataFrame:
    return violations(events, control, "tenant")


def notified(by_kind: DataFrame, by_tenant: DataFrame) -> DataFrame:
    return notifications(by_kind.unionByName(by_tenant))


how: dict[str, Any] = arguments(WAY)
if SEGMENTS == 1:
    flow.segment(events, control, name="notified", cut_time="cut", **how)(in_one)
else:
    flow.segment(events, control, cut_time="cut", **how)(by_kind)
    flow.segment(events, control, cut_time="cut", **how)(by_tenant)
    keys = ["tenant"] if SHARDS > 1 else ()
    flow.segment("by_kind", "by_tenant", shards=SHARDS, shard_by=keys, **how)(notified)

flow.sink("live", "notified", Client())

"""Randomness that hides from the check inside a Python function: noticed by digests, and the younger replica stops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from kit.support import wait_until
from kit.two_nodes import TwoNodes
from unbroken import Client, Dataflow, Generator
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices.replicas import ReplicaDiverged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20
UNITS = 30
FIRST_RANDOM = 6
STREAM = StreamId(ShardId("hidden", 0), ShardId("live", 0))
OLDER, YOUNGER = (ReplicaId(ShardId("hidden", 0), index) for index in (0, 1))


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"v": np.arange(start, stop)})


def hidden(rows: DataFrame) -> DataFrame:
    # Defined in here so that Spark's workers get the function itself, not the name of a module they lack.
    calm_rows = ROWS * (FIRST_RANDOM - 1)

    @F.udf("long")
    def shaky(value: int) -> int:
        return value if value < calm_rows else int.from_bytes(os.urandom(6), "big")

    return rows.select("v", shaky("v").alias("result"))


@pytest.mark.timeout(900)
def test_the_younger_replica_stops_and_the_older_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    flow = Dataflow("diverging", nodes=2, pulse_min="50ms", pulse_start="50ms")
    flow.source("numbers", Generator(numbers, schema="v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS))
    flow.segment("numbers", name="hidden")(hidden)
    flow.sink("live", "hidden", Client())
    with TwoNodes(flow, spark, tmp_path) as cluster:
        layout = chained_placement(cluster.topology, dict.fromkeys(cluster.nodes, ""))
        home = layout.placement
        older, younger = cluster.nodes[home[OLDER]], cluster.nodes[home[YOUNGER]]
        last = older.store.outbox_path(OLDER, STREAM, UNITS)
        wait_until(last.exists, 120, lambda: f"all units; divergences: {[n.story for n in cluster.nodes.values()]}")
        wait_until(lambda: younger.runners[YOUNGER].failure(), 20, "the end of the younger replica's query")

        for node in cluster.nodes.values():
            assert node.protocol is not None
            found = node.protocol.digest_exchange.divergences
            wait_until(lambda found=found: found, 30, f"the divergence on {node.name}")  # type: ignore[misc]
            (divergence,) = found
            assert (divergence.kept, divergence.stopped) == (OLDER, YOUNGER)
            assert (divergence.stream, divergence.number) == (STREAM, FIRST_RANDOM)
            told = [each.notice for each in node.story if isinstance(each.notice, ReplicaDiverged)]
            assert told == [divergence.notice()]
            node.protocol.check()

        assert older.protocol is not None and younger.protocol is not None
        assert older.runners[OLDER].failure() is None
        assert older.protocol.replicas[OLDER].stopped is None
        assert f"diverged from {OLDER}" in str(younger.protocol.replicas[YOUNGER].stopped)
        assert younger.protocol.outboxes.boxes[STREAM].muted and not older.protocol.outboxes.boxes[STREAM].muted

        for number in range(1, UNITS + 1):
            values = cluster.unit(older.name, STREAM, number).column("v").to_pylist()
            assert sorted(values) == list(range((number - 1) * ROWS, number * ROWS))
        for number in range(1, FIRST_RANDOM):
            assert cluster.unit(older.name, STREAM, number).equals(cluster.unit(younger.name, STREAM, number))

"""A unit that is damaged on the disk of a consumer: Spark never reads it, and the producer sends it once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from support import wait_until
from two_nodes import TwoNodes
from unbroken import Client, Dataflow, Generator
from unbroken.cluster.node import Node
from unbroken.protocol.ids import ShardId, StreamId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20
UNITS = 8
DAMAGED = 3
INPUT = StreamId(ShardId("numbers", 0), ShardId("doubled", 0))
OUTPUT = StreamId(ShardId("doubled", 0), ShardId("live", 0))


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"v": np.arange(start, stop)})


def doubled(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("v * 2 as v")


def damage_once(node: Node) -> list[Path]:
    """Flip a bit of one unit as soon as it is in an inbox of ``node``; the paths at which that was done."""
    done: list[Path] = []
    write, link = node.store.write, node.store.link

    def flip(path: Path) -> None:
        if "inbox" in path.parts and path.stem == f"{DAMAGED:012d}" and not done:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.unlink()  # the bytes may be shared with an outbox
            path.write_bytes(data)
            done.append(path)

    def written(path: Path, data: pa.Buffer | bytes) -> None:
        write(path, data)
        flip(path)

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        flip(target)

    node.store.write, node.store.link = written, linked  # type: ignore[method-assign]
    return done


@pytest.mark.timeout(200)
def test_a_damaged_unit_is_fetched_from_a_producer_and_the_results_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Dataflow("damaged", nodes=2, pulse_min="50ms", pulse_start="50ms")
    flow.source("numbers", Generator(numbers, schema="v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS))
    flow.segment("numbers", name="doubled")(doubled)
    flow.sink("live", "doubled", Client())
    cluster = TwoNodes(flow, spark, tmp_path)
    damaged = damage_once(cluster.nodes["b"])
    with cluster:
        last = [cluster.outbox_path(name, OUTPUT, UNITS) for name in cluster.nodes]
        wait_until(lambda: all(path.exists() for path in last), 150, lambda: f"all units: {cluster.nodes['b'].story}")
        [path] = damaged
        told = [sentence for _, sentence in cluster.nodes["b"].story if "refetches" in sentence]
        assert len(told) == 1 and f"unit {DAMAGED} of {INPUT}" in told[0] and str(path) in told[0]
        for number in range(1, UNITS + 1):
            found = [sorted(cluster.unit(name, OUTPUT, number).column("v").to_pylist()) for name in cluster.nodes]
            expected = [2 * value for value in range((number - 1) * ROWS, number * ROWS)]
            assert found == [expected, expected]

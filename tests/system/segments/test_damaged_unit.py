"""A unit that is damaged on the disk of a consumer: Spark never reads it, and a producer sends it once more.

Its bytes may be those of the outbox beside it. Then they are taken from another node, for the outbox as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from kit.support import wait_until
from kit.two_nodes import TwoNodes
from unbroken import Client, Dataflow, Generator
from unbroken.node.node import Node
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.replicas import UnitRefetched
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.calls import GateAnswer, GateQuestion

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


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(data)


def damage_own(_: Node, node: Node) -> list[Path]:
    """Flip a bit of one unit as soon as it is in an inbox of the second node, and nowhere else; the paths."""
    done: list[Path] = []
    adopt, link = node.store.adopt, node.store.link

    def damage(path: Path) -> None:
        if is_chosen(path) and not done:
            data = path.read_bytes()
            path.unlink()  # the bytes may be shared with an outbox
            path.write_bytes(data)
            flip(path)
            done.append(path)

    def adopted(source: Path, target: Path, header: UnitHeader) -> None:
        adopt(source, target, header)
        damage(target)

    def linked(source: Path, target: Path, header: UnitHeader | None = None) -> None:
        link(source, target, header)
        damage(target)

    node.store.adopt, node.store.link = adopted, linked  # type: ignore[method-assign]
    return done


def damage_shared(*nodes: Node) -> list[Path]:
    """The same with the bytes that an inbox shares with the outbox beside it, on the node that has the unit first."""
    done: list[Path] = []

    def linked(link: Callable[..., None], source: Path, target: Path, header: UnitHeader | None = None) -> None:
        link(source, target, header)
        if is_chosen(target) and not done:
            assert target.stat().st_nlink > 1
            flip(target)
            done.append(target)

    for node in nodes:
        node.store.link = partial(linked, node.store.link)  # type: ignore[method-assign]
    return done


def damage_late(_: Node, node: Node) -> list[Path]:
    """The same after the unit was sent to the other node, and before Spark reads it here."""
    done: list[Path] = []
    sent = threading.Event()
    read, ask = node.service.read_outbox, node.service.ask_gate

    def reading(replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        data = read(replica, header)
        if (header.stream, header.number) == (INPUT, DAMAGED):
            sent.set()
        return data

    def asking(question: GateQuestion) -> GateAnswer:
        answer = ask(question)
        path = node.store.inbox_path(question.replica, INPUT, DAMAGED)
        if answer.offset >= DAMAGED and not done and sent.wait(8) and path.exists():
            flip(path)
            done.append(path)
        return answer

    node.service.read_outbox, node.service.ask_gate = reading, asking  # type: ignore[method-assign]
    return done


def is_chosen(path: Path) -> bool:
    return "inbox" in path.parts and path.stem == f"{DAMAGED:012d}" and path.parent.name == str(INPUT)


def story(cluster: TwoNodes) -> list[Notice]:
    return [reported.notice for node in cluster.nodes.values() for reported in node.story]


@pytest.mark.parametrize("damage", [damage_own, damage_shared, damage_late])
@pytest.mark.timeout(900)
def test_a_damaged_unit_is_fetched_from_a_producer_and_the_results_are_the_same(
    spark: SparkSession, tmp_path: Path, damage: Callable[..., list[Path]]
) -> None:
    flow = Dataflow("damaged", nodes=2, pulse_min="50ms", pulse_start="50ms")
    flow.source("numbers", Generator(numbers, schema="v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS))
    flow.segment("numbers", name="doubled")(doubled)
    flow.sink("live", "doubled", Client())
    cluster = TwoNodes(flow, spark, tmp_path)
    damaged = damage(*cluster.nodes.values())
    with cluster:
        last = [cluster.outbox_path(name, OUTPUT, UNITS) for name in cluster.nodes]
        wait_until(lambda: all(path.exists() for path in last), 150, lambda: f"all units: {story(cluster)}")
        [path] = damaged
        assert not any(node.failure or node.stopping for node in cluster.nodes.values())
        (told,) = [notice for notice in story(cluster) if isinstance(notice, UnitRefetched)]
        assert (told.stream, told.unit) == (INPUT, DAMAGED) and str(path) in told.detail
        for number in range(1, UNITS + 1):
            found = [sorted(cluster.unit(name, OUTPUT, number).column("v").to_pylist()) for name in cluster.nodes]
            expected = [2 * value for value in range((number - 1) * ROWS, number * ROWS)]
            assert found == [expected, expected]

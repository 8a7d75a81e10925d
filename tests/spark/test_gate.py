"""Several source instances in one query: every trigger takes a whole cut, also when it takes long to come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from support import wait_until
from two_nodes import TwoNodes
from unbroken import Client, Dataflow, Generator
from unbroken.connectors.base import Cut, Position, Rows, SourceConnector, SourceReader
from unbroken.protocol.ids import ShardId, StreamId
from unbroken.spark.types import parse_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNITS = 20
ROWS = 10
GATE_WAIT_MS = 100
STREAM = StreamId(ShardId("segment", 0), ShardId("live", 0))


class Held(SourceConnector):
    """``ROWS`` rows per pulse; each pulse may be polled only after the test has let it go."""

    def __init__(self) -> None:
        self.let_go = threading.Semaphore(0)
        self.closed = threading.Event()
        self._gone = {1}
        self._lock = threading.Lock()

    def let_go_once(self, pulse: int) -> None:
        """Let a pulse go, whoever asks for it first."""
        with self._lock:
            if pulse not in self._gone:
                self._gone.add(pulse)
                self.let_go.release()

    @property
    def schema(self) -> Any:
        return parse_schema("k long, v long")

    def problems(self) -> list[str]:
        return []

    def open(self) -> SourceReader:
        return HeldReader(self)


class HeldReader(SourceReader):
    def __init__(self, source: Held) -> None:
        self._source = source

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        while not self._source.let_go.acquire(timeout=0.05):
            if self._source.closed.is_set():
                break
        end = (position or 0) + ROWS
        return Cut(end, end >= ROWS * UNITS)

    def read(self, start: Position | None, end: Position) -> Rows:
        return Rows(made(start or 0, end, 0))


def made(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop)
    return pa.table({"k": index % 5, "v": index})


def united(left: DataFrame, right: DataFrame) -> DataFrame:
    marked = [frame.select("v", F.lit(side).alias("side")) for frame, side in ((left, "l"), (right, "r"))]
    return marked[0].union(marked[1])


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    a, b = left.select("v"), right.select(F.col("v").alias("rv"))
    return a.join(b, F.expr("v = rv")).select("v", F.lit("j").alias("side"))


def used_twice(left: DataFrame, right: DataFrame) -> DataFrame:
    """The first input as two instances, and the second one."""
    even = left.where("v % 2 = 0").select("v", F.lit("even").alias("side"))
    odd = left.where("v % 2 = 1").select("v", F.lit("odd").alias("side"))
    return even.union(odd).union(right.select("v", F.lit("r").alias("side")))


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., DataFrame]
    expected: Callable[[int], list[str]]
    """The sides on which row v must be seen in its unit."""


CASES = [
    Case("union", united, lambda v: ["l", "r"]),
    Case("join", joined, lambda v: ["j"]),
    Case("twice", used_twice, lambda v: ["even" if v % 2 == 0 else "odd", "r"]),
]


def rows_of(table: pa.Table) -> list[tuple[int, str]]:
    return sorted(zip(table.column("v").to_pylist(), table.column("side").to_pylist(), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.timeout(200)
def test_no_cut_is_halved_when_the_gate_gives_up_waiting(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    held = Held()
    flow = Dataflow("gated", nodes=2, pulse_min="20ms", pulse_start="20ms", gate_wait=GATE_WAIT_MS)
    flow.source("left", Generator(made, schema="k long, v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS))
    flow.source("right", held)
    flow.segment("left", "right", name="segment")(case.function)
    flow.sink("live", "segment", Client())
    with TwoNodes(flow, spark, tmp_path) as cluster:
        traps = [Trap(node, held) for node in cluster.nodes.values()]
        try:
            held.let_go.release()
            cluster.wait_for_unit(STREAM, 1, 90)
            for number in range(2, UNITS + 1):
                cluster.wait_for_unit(STREAM, number, 90)
            assert all(trap.sprung > UNITS // 2 for trap in traps)
            units = [{name: rows_of(cluster.unit(name, STREAM, n)) for name in "ab"} for n in range(1, UNITS + 1)]
            for node in cluster.nodes.values():
                assert node.protocol is not None
                assert node.protocol.divergences == []
                node.protocol.check()
        finally:
            held.closed.set()
    for number, unit in enumerate(units, start=1):
        assert unit["a"] == unit["b"], f"replicas differ in unit {number}"
        span = range((number - 1) * ROWS, number * ROWS)
        assert unit["a"] == sorted((v, side) for v in span for side in case.expected(v)), f"half a cut in unit {number}"


class Trap:
    """Holds each "nothing yet" of a node's gate back until the cut is there, so that the next instance could get it.

    The cut that all wait for is let go by whichever node's gate gives up first.
    """

    def __init__(self, node: Any, held: Held) -> None:
        self._node = node
        self._held = held
        self._ask = node.ask_gate
        self.sprung = 0
        node.ask_gate = self.ask

    def ask(self, replica: str, instance: str, start: int) -> int:
        answer: int = self._ask(replica, instance, start)
        if answer == start and 0 < start < UNITS:
            self.sprung += 1
            self._held.let_go_once(start + 1)
            wait_until(lambda: self._complete(start + 1) or self._held.closed.is_set(), 30, f"cut {start + 1}")
        return answer

    def _complete(self, number: int) -> bool:
        (replica,) = self._node.protocol.replicas.values()
        return all(inbox.available >= number for inbox in replica.inboxes.values())

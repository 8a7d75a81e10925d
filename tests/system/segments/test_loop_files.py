"""What the loops of two nodes do to files of units, while a flow runs: they give them names, and nothing else.

Other threads write, read and remove them, so that no disk and no size of a unit holds a loop up.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from kit.support import wait_until
from kit.two_nodes import TwoNodes
from unbroken import Client, Dataflow, Generator
from unbroken.protocol.values.ids import ShardId, StreamId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200_000
"""Enough for a unit to be sent in pieces."""

UNITS = 6
BETWEEN = StreamId(ShardId("doubled", 0), ShardId("halved", 0))
OUTPUT = StreamId(ShardId("halved", 0), ShardId("live", 0))
NAMES = {"os.rename", "os.link"}
"""What takes the same time for a unit of any size."""


class FileGuard:
    """Counts what threads do to files of units below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._lock = threading.Lock()
        self.seen: Counter[tuple[str, str]] = Counter()

    def note(self, kind: str, arguments: tuple[Any, ...]) -> None:
        paths = [str(path) for path in arguments[:2] if isinstance(path, str | Path)]
        units = [path for path in paths if path.startswith(self._root) and ("box/" in path or "/staging/" in path)]
        if any(path.endswith((".arrow", ".partial", ".dropped")) for path in units):
            with self._lock:
                self.seen[threading.current_thread().name, kind] += 1

    def kinds(self, thread: str) -> set[str]:
        return {kind for name, kind in self.seen if name.startswith(thread)}


guards: list[FileGuard] = []


def audit(kind: str, arguments: tuple[Any, ...]) -> None:
    if guards and (kind == "open" or kind.startswith("os.")):
        for guard in guards:
            guard.note(kind, arguments)


sys.addaudithook(audit)


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"v": np.arange(start, stop)})


def doubled(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("v * 2 as v")


def halved(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("v div 2 as v")


@pytest.mark.timeout(900)
def test_a_loop_writes_reads_and_removes_no_unit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = FileGuard(tmp_path)
    memory_map = pa.memory_map

    def mapped(path: str, *more: Any) -> Any:
        guard.note("read", (path,))
        return memory_map(path, *more)

    monkeypatch.setattr(pa, "memory_map", mapped)
    flow = Dataflow("guarded", nodes=2, pulse_min="50ms", pulse_start="50ms", client_retain=1)
    flow.source("numbers", Generator(numbers, schema="v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS))
    flow.segment("numbers", name="doubled")(doubled)
    flow.segment("doubled", name="halved")(halved)
    flow.sink("live", "halved", Client())
    guards.append(guard)
    try:
        with TwoNodes(flow, spark, tmp_path) as cluster:
            cluster.wait_for_unit(OUTPUT, UNITS, 150)
            gone = [cluster.outbox_path(name, BETWEEN, 1) for name in cluster.nodes]
            wait_until(lambda: not any(path.exists() for path in gone), 30, "units that are done with are dropped")
            wait_until(lambda: "os.remove" in guard.kinds("remove-units"), 30, "files are removed")
            for name in cluster.nodes:
                assert not cluster.nodes[name].failure
                assert cluster.unit(name, OUTPUT, UNITS).num_rows == ROWS
    finally:
        guards.remove(guard)
    assert guard.kinds("loop-") == NAMES, guard.seen
    assert {"open", "os.link"} <= guard.kinds("to-"), "links write units, and link copies of what is there"
    assert {"open", "read"} <= {kind for _, kind in guard.seen}, "the guard sees what other threads do"

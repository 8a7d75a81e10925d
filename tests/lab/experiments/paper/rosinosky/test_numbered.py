"""Latencies, losses and repetitions of rows that are told from their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from unbroken.client import Result
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.experiments.paper.rosinosky.numbered import (
    ArrivedRows,
    NumberedReader,
    box,
    per_second,
    within,
)
from unbroken_lab.experiments.parameters.numbered import PAYLOAD, NumberedRows

NO_SUBSCRIPTION: Any = None
BEGAN_MS = 50_000.0


def rows_of(numbers: list[int], cut_ms: float, arrived_ms: float) -> ArrivedRows:
    return ArrivedRows.of([(np.array(numbers), np.full(len(numbers), cut_ms), arrived_ms)])


def result(shard: int, number: int, rows: dict[int, int], at_ms: float, sources: list[str] | None = None) -> Result:
    stream = StreamId(ShardId("last", shard), ShardId("live", 0))
    header = UnitHeader(stream, number, pulse=number, cut_ms=7, digest=Digest(len(rows), 0))
    columns: dict[str, Any] = {
        "n": pa.array(list(rows), pa.int64()),
        "cut_ms": pa.array(list(rows.values()), pa.int64()),
    }
    return Result(header, pa.table({**columns, **({"source": sources} if sources else {})}), arrived_ms=at_ms)


def test_rows_are_made_from_their_numbers_wherever_they_are_cut() -> None:
    whole = NumberedRows()(0, 100, 0)
    parts = pa.concat_tables([NumberedRows()(0, 37, 0), NumberedRows()(37, 100, 0)])
    assert whole.equals(parts) and whole["n"].to_pylist() == list(range(100))
    assert {len(payload) for payload in whole["payload"].to_pylist()} == {PAYLOAD}


def test_the_latency_of_a_row_begins_when_it_is_due() -> None:
    # 10 rows per second from 50 s on; the cut at 51 s takes rows 0 to 9, the result is there 300 ms later.
    first = rows_of(list(range(10)), BEGAN_MS + 1_000, BEGAN_MS + 1_300)
    late = first.latencies(10)
    assert late[9] == pytest.approx(300) and late[0] == pytest.approx(1_200)


def test_a_shard_that_lacks_the_newest_row_of_a_cut_does_not_shift_the_latencies() -> None:
    both = ArrivedRows.of(
        [
            (np.array([0, 2, 4]), np.full(3, BEGAN_MS + 600), BEGAN_MS + 700),
            (np.array([1, 3, 5]), np.full(3, BEGAN_MS + 600), BEGAN_MS + 900),
        ]
    )
    assert both.latencies(10).tolist() == pytest.approx([600, 400, 200, 700, 500, 300])
    assert len(ArrivedRows.of([]).latencies(10)) == 0


def test_missing_and_repeated_rows() -> None:
    rows = rows_of([0, 1, 3, 3, 7], 1.0, 2.0)
    assert rows.missing(4) == 1 and rows.missing(8) == 4 and rows.missing(0) == 0
    assert rows.repeated == 1


def test_the_reader_tells_sources_and_shards_apart() -> None:
    reader = NumberedReader(NO_SUBSCRIPTION)
    reader.take(result(0, 1, {0: 100, 1: 100, 2: 200}, 250.0, ["a", "b", "a"]))
    reader.take(result(1, 1, {1: 100}, 260.0, ["a"]))
    reader.take(result(1, 2, {}, 300.0))
    assert reader.rows("a").n.tolist() == [0, 2, 1] and reader.rows("b").n.tolist() == [1]
    assert reader.due("a") == 2 and reader.due("b") == 2 and reader.due("c") == 0
    # The latency of a unit is that of its newest row; one without rows has none.
    assert reader.last_latency_ms == 160.0 and [one.cut_ms for one in reader.by_shard[0]] == [200]
    assert reader.units[1, 2] == 1


def test_boxes_and_seconds() -> None:
    rows = ArrivedRows(np.arange(4), np.zeros(4), np.array([-500.0, 100.0, 900.0, 1_500.0]))
    latencies = np.array([10.0, 20.0, 40.0, 30.0])
    assert box(latencies)["p50_ms"] == 25.0 and box(latencies)["max_ms"] == 40.0
    assert box(np.empty(0)) == dict.fromkeys(("p1_ms", "p25_ms", "p50_ms", "p75_ms", "p99_ms", "max_ms"))
    assert within(rows, latencies, 0, 1_000).tolist() == [20.0, 40.0]
    course = per_second(rows, latencies, 0.0, range(-1, 3))
    assert [one["rows"] for one in course] == [1, 2, 1, 0]
    assert [one["max_ms"] for one in course] == [10.0, 40.0, 30.0, None]

"""How results of a measured flow are counted; real kills are left to chaos."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from unbroken.client import Result
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.experiments.cost.delivery import remote_readers
from unbroken_lab.experiments.observation.observed import Reader, observed
from unbroken_lab.experiments.observation.usage import Reading

NO_SUBSCRIPTION: Any = None


def result(shard: int, number: int, counts: dict[int, int]) -> Result:
    stream = StreamId(ShardId("latest", shard), ShardId("live", 0))
    header = UnitHeader(stream, number, pulse=number, cut_ms=1_000 * number, digest=Digest(len(counts), 0))
    return Result(header, pa.table({"k": list(counts), "n": list(counts.values())}), arrived_ms=1_000 * number + 50)


def test_the_last_counts_of_all_keys_are_all_rows() -> None:
    reader = Reader(NO_SUBSCRIPTION)
    for one in (result(0, 1, {1: 2}), result(1, 1, {2: 1}), result(0, 2, {1: 5, 3: 1})):
        reader.take(one)
    assert reader.lost(7) == 0 and reader.lost(9) == 2
    assert reader.duplicated == 0
    assert {shard: [sample.latency_ms for sample in of] for shard, of in reader.by_shard.items()} == {
        0: [50, 50],
        1: [50],
    }


def test_a_unit_that_comes_twice_and_a_count_that_does_not_grow() -> None:
    reader = Reader(NO_SUBSCRIPTION)
    for one in (result(0, 1, {1: 2}), result(0, 1, {}), result(0, 2, {1: 2})):
        reader.take(one)
    assert reader.duplicated == 2


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_short_flow_without_a_kill() -> None:
    seconds, rate = 3, 500
    load = {"KEYS": 100, "RATE": rate, "SECONDS": seconds, "SHARDS": 2, "NODES": 2, "STANDBYS": 0}
    with observed("stateful.py", load) as run:
        run.await_end(120)
        states = run.cluster.status()
    assert run.reader.lost(rate * seconds) == 0 and run.reader.duplicated == 0
    assert set(run.reader.by_shard) == {0, 1}
    assert Reading.of(states).rows == rate * seconds
    assert remote_readers(states).total() > 0

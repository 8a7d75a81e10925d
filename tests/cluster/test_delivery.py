"""The threads that hand units to sinks: what happens when a sink fails, and when a unit is gone."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from unbroken.cluster import delivery
from unbroken.cluster.delivery import SinkWorkers
from unbroken.connectors.call import Call, Unit
from unbroken.protocol.events import Event, SinkDelivered, SinkFailed
from unbroken.protocol.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.instructions import Deliver
from unbroken.protocol.units import Digest, UnitHeader
from unbroken.transport.store import encode_unit

STREAM = StreamId.parse("sums.0>out.0")
REPLICA = ReplicaId(ShardId("sums", 0), 0)
TABLE = pa.table({"n": [1, 2]})
DEADLINE_S = 20.0


class Bench:
    """Workers with one stream, a store of units, and a function that fails as often as it is told to."""

    def __init__(self, directory: Path) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.units: dict[int, pa.Buffer] = {}
        self.calls: list[int] = []
        self.failures: list[Exception] = []
        self.workers = SinkWorkers(self.events.put, self.read)
        self.workers.open(STREAM, Call(self.take), directory)

    def take(self, table: pa.Table, unit: Unit) -> None:
        self.calls.append(unit.number)
        if self.failures:
            raise self.failures.pop(0)

    def read(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        if header.number not in self.units:
            raise FileNotFoundError(header.number)
        return self.units[header.number]

    def deliver(self, number: int, once: bool, kept: bool = True) -> Event:
        header = UnitHeader(STREAM, number, number, 0, Digest(2, 1))
        if kept:
            self.units[number] = encode_unit(header, TABLE)
        self.workers.deliver(Deliver(REPLICA, header, once))
        return self.events.get(timeout=DEADLINE_S)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(delivery, "RETRY_S", 0.01)
    out = Bench(tmp_path)
    yield out
    out.workers.close()


@pytest.mark.parametrize("failure", [ValueError("away"), FileNotFoundError("a file of the user's")], ids=str)
def test_a_sink_that_fails_is_asked_again(bench: Bench, failure: Exception) -> None:
    """Whatever it raises: that a unit is gone from the outbox is another matter."""
    bench.failures = [failure, failure]
    assert bench.deliver(1, once=False) == SinkDelivered(STREAM, 1)
    assert bench.calls == [1, 1, 1] and bench.workers.writes[STREAM] == 1


@pytest.mark.parametrize("failure", [ValueError("away"), FileNotFoundError("a file of the user's")], ids=str)
def test_a_sink_that_may_have_a_unit_once_is_not_asked_again(bench: Bench, failure: Exception) -> None:
    bench.failures = [failure]
    assert bench.deliver(1, once=True) == SinkFailed(STREAM, 1, f"{type(failure).__name__}: {failure}")
    assert bench.deliver(2, once=True) == SinkDelivered(STREAM, 2)
    assert bench.calls == [1, 2] and bench.workers.writes[STREAM] == 1


@pytest.mark.parametrize("once", [False, True])
def test_a_unit_that_is_gone_from_the_outbox_is_done_with(bench: Bench, once: bool) -> None:
    assert bench.deliver(1, once, kept=False) == SinkDelivered(STREAM, 1)
    assert bench.calls == []


def test_a_unit_that_cannot_be_read_was_not_handed_over_and_is_tried_again(bench: Bench) -> None:
    good = bench.read
    attempts: list[int] = []

    def read(replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        attempts.append(header.number)
        if len(attempts) == 1:
            raise OSError("the disk is slow")
        return good(replica, header)

    bench.workers._read_outbox = read
    assert bench.deliver(1, once=True) == SinkDelivered(STREAM, 1)
    assert attempts == [1, 1] and bench.calls == [1]

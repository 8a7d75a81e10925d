"""The threads that hand units to sinks: what happens when a sink fails, and when a unit is gone."""

from __future__ import annotations

import json
import queue
import threading
import urllib.error
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pyarrow as pa
import pytest

from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.call import Call, CallWriter, Unit
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.data.unit_store import encode_unit
from unbroken.errors import Flaw, UnbrokenError, Unfit
from unbroken.node import sink_threads as delivery
from unbroken.node.sink_threads import SinkWorkers
from unbroken.protocol.events import Event, SinkDelivered, SinkFailed, SinkRefused
from unbroken.protocol.instructions import Deliver
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.sinks import SinkOpened, SinkUnopened
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId.parse("sums.0>out.0")
REPLICA = ReplicaId(ShardId("sums", 0), 0)
TABLE = pa.table({"n": [1, 2]})
DEADLINE_S = 20.0


class PanicException(BaseException):
    """As pyo3 raises it for a panic in Rust."""


class Wild(Exception):
    def __str__(self) -> str:
        raise SystemExit("no message")


class Bench:
    """Workers with one stream, a store of units, and a function that fails as often as it is told to."""

    def __init__(self, directory: Path) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.units: dict[int, pa.Buffer] = {}
        self.calls: list[int] = []
        self.failures: list[BaseException] = []
        self.directory = directory
        self.letters = DeadLetters(directory / "letters" / "run")
        self.open()

    def open(self, connector: SinkConnector | None = None, stops: bool = False) -> None:
        self.workers = SinkWorkers(self.events.put, self.read, lambda: self.letters)
        self.workers.open(STREAM, connector or Call(self.take), self.directory, stops)

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
    assert bench.letters.directory.exists() == isinstance(failure, ValueError), "rows that were refused are kept"
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


# --- units that a sink refuses ----------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "failure",
    [
        *(OverflowError("date value out of range"), pa.ArrowInvalid("no"), Unfit("never"), KeyError("x")),
        *(RecursionError(), SystemExit(1), PanicException("rust panicked"), KeyboardInterrupt(), GeneratorExit()),
        *(Wild(), urllib.error.HTTPError("http://shop", 422, "no", Message(), None)),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_unit_that_a_sink_refuses_goes_to_its_dead_letters(bench: Bench, failure: BaseException) -> None:
    bench.failures = [failure] * delivery.REFUSALS
    refused = bench.deliver(7, once=False)
    assert isinstance(refused, SinkRefused) and (refused.stream, refused.number, refused.stops) == (STREAM, 7, False)
    assert bench.deliver(8, once=False) == SinkDelivered(STREAM, 8)
    assert bench.calls == [7] * delivery.REFUSALS + [8]
    (path,) = bench.letters.directory.iterdir()
    assert path.name == "sums.0-to-out.0-0000000007.jsonl"
    head, *rows = lines(path)
    assert (head["stream"], head["unit"], head["rows"]) == (str(STREAM), 7, 2) and rows == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    "failure",
    [
        *(OSError("away"), MemoryError(), ConnectionError(), UnbrokenError("away")),
        urllib.error.HTTPError("http://shop", 429, "slower", Message(), None),
    ],
    ids=repr,
)
def test_a_unit_is_never_set_aside_because_the_sink_is_unavailable(bench: Bench, failure: Exception) -> None:
    bench.failures = [failure] * (3 * delivery.REFUSALS)
    assert bench.deliver(1, once=False) == SinkDelivered(STREAM, 1)
    assert not bench.letters.directory.exists()


class Opens(Call):
    """A sink that cannot be opened at first, and cannot be closed."""

    def __init__(self, bench: Bench, failures: list[BaseException]) -> None:
        super().__init__(bench.take)
        self.failures = failures

    def open(self, flow_dir: Path) -> CallWriter:
        if self.failures:
            raise self.failures.pop(0)
        writer = super().open(flow_dir)
        writer.close = lambda: exec("raise SystemExit(2)")  # type: ignore[method-assign]
        return writer


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failure", [SystemExit(1), PanicException("rust panicked"), OSError("away")], ids=repr)
def test_a_sink_that_cannot_be_opened_is_opened_later(bench: Bench, failure: BaseException) -> None:
    bench.workers.close()
    bench.open(Opens(bench, [failure, failure]))
    assert bench.deliver(1, once=False) == SinkDelivered(STREAM, 1)


def test_only_the_same_failure_counts(bench: Bench) -> None:
    """A unit that meets one trouble after the other is not known to be the cause."""
    kinds = (ValueError, KeyError)
    bench.failures = [kinds[n // (delivery.REFUSALS - 1) % 2]("no") for n in range(3 * delivery.REFUSALS)]
    assert bench.deliver(1, once=False) == SinkDelivered(STREAM, 1)


class Ledger(SinkConnector):
    """A sink with a ledger that refuses rows with n = 1 in one of its units, as a table with a constraint does."""

    def __init__(self) -> None:
        self.units: dict[int, list[int]] = {}

    def problems(self) -> list[Flaw]:
        return []

    def open(self, flow_dir: Path) -> SinkWriter:
        sink = self

        class Writer(SinkWriter):
            def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
                if header.number <= max(sink.units, default=0):
                    return False
                if header.number == 2 and table.num_rows:
                    raise Unfit("the row violates a constraint")
                sink.units[header.number] = table.column("n").to_pylist()
                return True

        return Writer()


def test_exactly_once_holds_around_a_refused_unit(bench: Bench) -> None:
    """Another replica delivers the same units at another pace: each is in the sink once, the refused one nowhere."""
    sink = Ledger()
    bench.workers.close()
    for numbers in ([1, 2, 3], [1, 2], [2, 3, 4]):
        bench.open(sink)
        for number in numbers:
            event = bench.deliver(number, once=False)
            assert isinstance(event, SinkDelivered | SinkRefused) and event.number == number
        bench.workers.close()
    assert sink.units == {1: [1, 2], 2: [], 3: [1, 2], 4: [1, 2]}
    assert len([*bench.letters.directory.iterdir()]) == 1


def test_a_sink_that_is_to_stop_stays_stopped_after_a_restart(bench: Bench) -> None:
    bench.workers.close()
    bench.open(Call(bench.take), stops=True)
    bench.failures = [ValueError("no")] * delivery.REFUSALS
    stopped = bench.deliver(3, once=False)
    assert isinstance(stopped, SinkRefused) and stopped.stops
    bench.workers.close()
    bench.open(Call(bench.take), stops=True)
    assert bench.events.get(timeout=DEADLINE_S) == stopped
    assert len([*bench.letters.directory.iterdir()]) == 1


def test_a_sink_that_hangs_can_be_seen(bench: Bench) -> None:
    go, begun = threading.Event(), threading.Event()

    def hang(table: pa.Table, unit: Unit) -> None:
        begun.set()
        assert go.wait(DEADLINE_S)

    bench.workers.close()
    bench.open(Call(hang))
    assert bench.workers.busy_s() == {}
    header = UnitHeader(STREAM, 1, 1, 0, Digest(2, 1))
    bench.units[1] = encode_unit(header, TABLE)
    bench.workers.deliver(Deliver(REPLICA, header))
    assert begun.wait(DEADLINE_S)
    assert 0 <= bench.workers.busy_s()[STREAM] < DEADLINE_S
    go.set()
    assert bench.events.get(timeout=DEADLINE_S) == SinkDelivered(STREAM, 1)


class Refusal(Exception):
    """A class of a user's."""


@pytest.mark.parametrize("kind", [RuntimeError, Exception, Refusal])
def test_what_a_function_refuses_is_set_aside_whatever_it_raises_and_says(bench: Bench, kind: type[Exception]) -> None:
    bench.failures = [kind(f"row {object()}, attempt {n}") for n in range(delivery.REFUSALS)]
    assert isinstance(bench.deliver(1, once=False), SinkRefused)
    assert bench.deliver(2, once=False) == SinkDelivered(STREAM, 2)


@pytest.mark.parametrize("failure", [TimeoutError(), UnbrokenError("away"), ConnectionResetError()], ids=repr)
def test_a_unit_waits_for_a_system_that_is_unavailable(bench: Bench, failure: Exception) -> None:
    bench.failures = [failure] * (4 * delivery.REFUSALS)
    assert bench.deliver(1, once=False) == SinkDelivered(STREAM, 1)
    assert not bench.letters.directory.exists()


class Later(SinkConnector):
    """A sink that cannot be opened at first."""

    def __init__(self, bench: Bench, failures: int) -> None:
        self.bench, self.failures = bench, failures
        self.threads: set[str] = set()

    def problems(self) -> list[Flaw]:
        return []

    def open(self, flow_dir: Path) -> SinkWriter:
        self.threads.add(threading.current_thread().name)
        if self.failures:
            self.failures -= 1
            raise UnbrokenError("The directory of a sink cannot be made: no space")
        return Call(self.bench.take).open(flow_dir)


def test_a_sink_that_cannot_be_opened_is_tried_again_on_its_own_thread(bench: Bench) -> None:
    bench.workers.close()
    told: list[Notice] = []
    connector = Later(bench, failures=3)
    bench.workers = SinkWorkers(bench.events.put, bench.read, lambda: bench.letters, tell=told.append)
    bench.workers.open(STREAM, connector, bench.directory)
    assert bench.deliver(1, once=False) == SinkDelivered(STREAM, 1)
    assert connector.threads == {f"sink-{STREAM}"}
    assert isinstance(told[0], SinkUnopened) and "no space" in told[0].detail
    assert told[1:] == [SinkOpened(STREAM)]


def test_a_stream_can_be_closed_while_its_sink_cannot_be_opened(bench: Bench) -> None:
    bench.workers.close()
    bench.open(Later(bench, failures=1_000_000))
    bench.workers.close_one(STREAM)
    [thread] = bench.workers._threads
    thread.join(timeout=DEADLINE_S)
    assert not thread.is_alive()


def test_every_flipped_bit_of_the_note_of_a_stopped_sink_keeps_it_stopped_and_names_the_file(bench: Bench) -> None:
    bench.workers.close()
    bench.open(stops=True)
    bench.failures = [Unfit("no")] * delivery.REFUSALS
    assert isinstance(bench.deliver(7, once=False), SinkRefused)
    [marker] = (bench.directory / delivery.STOPPED).iterdir()
    raw = marker.read_bytes()
    for bit in range(0, 8 * len(raw), 5):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        marker.write_bytes(damaged)
        bench.workers._recall(STREAM)
        found = bench.events.get(timeout=DEADLINE_S)
        assert isinstance(found, SinkRefused) and found.stops and found.number == 1
        assert str(marker) in found.reason and "delete the file" in found.reason

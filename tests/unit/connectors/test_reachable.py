"""Sources say whether they can be asked: silence of one that can means that there are no rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.support import TOKEN, wait_until
from unbroken import Files, Kafka, Push
from unbroken.client import PushClient
from unbroken.connectors.base import Cut, Position
from unbroken.connectors.files.source import FilesReader
from unbroken.connectors.kafka.positions import KafkaOffsets
from unbroken.connectors.push.http import PushOutcome, PushServer
from unbroken.connectors.push.source import PushBatch, PushReader
from unbroken.errors import UnbrokenError

DEADLINE_S = 30.0
SECOND = 1_000


# --- files ------------------------------------------------------------------------------------------------


def test_a_directory_that_is_gone_for_a_while_is_away_and_nothing_is_read_twice(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "in", tmp_path / "unmounted"
    now_s = [0.0]
    reader = FilesReader(Files(path, format="json", schema="n long"), lambda: now_s[0])

    def poll(position: Position | None) -> Cut:
        now_s[0] += 1.0
        return reader.poll(position, 0)

    assert not poll(None).reachable
    path.mkdir()
    (path / "a.json").write_text('{"n":1}\n')
    assert not poll(None).reachable  # the file has yet to settle
    cut = poll(None)
    assert cut.reachable and reader.read(None, cut.position).table.num_rows == 1
    position = json.loads(json.dumps(cut.position))
    assert poll(position) == Cut(position)
    path.rename(elsewhere)
    away = poll(position)
    assert away == Cut(position, reachable=False) and away.why == f"there is no directory {path}"
    elsewhere.rename(path)
    for _ in range(3):
        assert poll(position) == Cut(position)


# --- Kafka ------------------------------------------------------------------------------------------------

A, B = ("orders", 0), ("orders", 1)


class FakeLookout:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.snapshot: KafkaOffsets | None = None

    def look(self, known: object) -> KafkaOffsets | None:
        return self.snapshot


def ends(**offsets: int) -> dict[tuple[str, int], int]:
    return {("orders", int(name[1:])): offset for name, offset in offsets.items()}


def test_kafka_is_away_while_a_partition_does_not_say_how_far_it_goes() -> None:
    reader = Kafka("nowhere:9092", "orders").open()
    lookout: Any = FakeLookout()
    reader._lookout = lookout
    silent = reader.poll(None, 0)
    assert silent == Cut(None, reachable=False) and silent.why == "Kafka does not answer at nowhere:9092"
    both = frozenset({A, B})
    lookout.snapshot = KafkaOffsets(both, ends(p0=5, p1=5), ends(p0=0, p1=0))
    cut = reader.poll(None, 0)
    assert cut.position == {"orders": {"0": 0, "1": 0}} and not cut.reachable  # what is there is not asked yet
    lookout.snapshot = KafkaOffsets(both, ends(p0=5, p1=5))
    cut = reader.poll(cut.position, 0)
    assert cut.position == {"orders": {"0": 5, "1": 5}} and cut.reachable
    lookout.snapshot = KafkaOffsets(both, ends(p0=7))
    partly = reader.poll(cut.position, 0)
    assert partly.position == {"orders": {"0": 7, "1": 5}} and not partly.reachable
    lookout.snapshot = None
    assert reader.poll(cut.position, 0) == Cut(cut.position, reachable=False)
    lookout.snapshot = KafkaOffsets(frozenset(), {})
    assert reader.poll({}, 0) == Cut({})  # a topic that is not there yet has no rows


# --- pushed rows ------------------------------------------------------------------------------------------


def alive(producer: str) -> PushBatch:
    return PushBatch("clicks", producer, 0, b"", sign="alive")


def left(producer: str) -> PushBatch:
    return PushBatch("clicks", producer, 0, b"", sign="leaving")


def rows(producer: str, sequence: int = 1) -> PushBatch:
    return PushBatch("clicks", producer, sequence, b'{"n":1}')


def reachable(reader: PushReader, *seconds: float) -> list[bool]:
    return [reader.poll(None, int(second * SECOND)).reachable for second in seconds]


def test_without_heartbeats_silence_means_nothing() -> None:
    reader = Push("n long").open()
    reader.take(1, rows("p"))
    assert reachable(reader, 1, 100) == [True, True]


def test_a_producer_that_is_not_heard_makes_the_source_unreachable() -> None:
    reader = Push("n long", heartbeat="2s").open()
    assert reachable(reader, 100) == [True]  # nobody is known yet
    reader.take(1, rows("p"))
    assert reachable(reader, 101, 103, 104) == [True, True, False]
    reader.hear(alive("p"), 104_500)
    assert reachable(reader, 105, 106.5, 106.6) == [True, True, False]
    reader.take(2, rows("p", 2))
    assert reachable(reader, 107, 109.1) == [True, False]
    reader.hear(alive("q"), 110_000)
    assert reachable(reader, 110) == [False]  # all of them have to be heard


def test_a_producer_that_has_left_is_not_waited_for() -> None:
    reader = Push("n long", heartbeat=2_000).open()
    reader.take(1, rows("p"))
    reader.take(2, left("p"))
    reader.hear(alive("p"), 1_000)  # it was on its way when the producer left
    assert reachable(reader, 50, 100) == [True, True]
    assert reader.read(None, 2).table.num_rows == 1 and reader.poll(None, 0).position == 2
    reader.take(3, rows("p", 2))
    assert reachable(reader, 101, 104) == [True, False]


def test_the_producers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken.connectors.push.source.MOST_HEARD", 3)
    reader = Push("n long", heartbeat="1s").open()
    for number in range(10):
        reader.hear(alive(str(number)), number * SECOND)
    assert reachable(reader, 8, 9) == [True, False] and len(reader._heard) == 3


@pytest.mark.parametrize("heartbeat", ["soon", 0, "10ms", [], "-1s"])
def test_heartbeats_that_make_no_sense_are_explained(heartbeat: Any) -> None:
    (problem,) = Push("n long", heartbeat=heartbeat).problems()
    assert "heartbeat is" in problem.what and "2s" in problem.remedy
    assert Push("n long", heartbeat="2s").problems() == []


def test_signs_travel_in_the_log() -> None:
    assert PushBatch.from_bytes(left("p").to_bytes()) == left("p")
    with pytest.raises(UnbrokenError, match="Invalid enum value 'x'"):
        PushBatch.from_bytes(PushBatch("s", "p", 0, b"", sign="x").to_bytes())  # type: ignore[arg-type]


# --- the client and its server ----------------------------------------------------------------------------


class Node:
    """Stands for an ingress node that logs everything, unless it is told to refuse."""

    def __init__(self) -> None:
        self.batches: list[PushBatch] = []
        self.away = False

    def submit(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        if self.away:
            return PushOutcome("timeout")
        self.batches.append(batch)
        return PushOutcome("logged")

    def count(self, sign: str) -> int:
        return sum(batch.sign == sign for batch in list(self.batches))


@contextmanager
def serving(submit: Callable[[PushBatch, float], PushOutcome], sources: Mapping[str, Push]) -> Iterator[PushServer]:
    server = PushServer("127.0.0.1", 0, TOKEN, submit, sources=sources)
    server.start()
    try:
        yield server
    finally:
        assert server.stop(10)


BEATING = {"clicks": Push("n long", heartbeat=100)}


def test_a_client_gives_signs_of_life_until_it_leaves() -> None:
    first, second = Node(), Node()
    with serving(first.submit, BEATING) as one, serving(second.submit, BEATING) as two:
        client = PushClient([one.address, two.address], TOKEN, "clicks", "p", deadline_s=5)
        assert first.count("alive") == 0
        client.send([{"n": 1}])
        wait_until(lambda: min(first.count("alive"), second.count("alive")) >= 3, DEADLINE_S, "signs of life")
        client.close()
        assert first.count("leaving") + second.count("leaving") == 1
        wait_until(lambda: not _beating(), DEADLINE_S, "the threads to end")
        assert client.next_sequence == 2 and client.send([{"n": 2}]) == 2
        client.close()
    signs = [batch for batch in first.batches + second.batches if batch.sign]
    assert {(batch.producer, batch.sequence, batch.rows) for batch in signs} == {("p", 0, b"")}


def _beating() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeat-")]


def test_a_client_with_a_batch_in_doubt_gives_no_sign() -> None:
    node = Node()
    with serving(node.submit, BEATING) as server:
        client = PushClient([server.address], TOKEN, "clicks", "p", deadline_s=0.3)
        client.send([{"n": 1}])
        node.away = True
        with pytest.raises(UnbrokenError, match="in doubt"):
            client.send([{"n": 2}])
        node.away = False
        before = node.count("alive")
        with pytest.raises(AssertionError):
            wait_until(lambda: node.count("alive") > before, 0.3, "a sign of life")
        client.resend()
        wait_until(lambda: node.count("alive") > before, DEADLINE_S, "signs of life again")
        client.close()
        assert node.count("leaving") == 1


def test_leave_is_said_for_a_producer_that_cannot() -> None:
    node = Node()
    with serving(node.submit, BEATING) as server:
        PushClient([server.address], TOKEN, "clicks", "crashed").leave()
        assert [(batch.producer, batch.sign) for batch in node.batches] == [("crashed", "leaving")]
        node.away = True
        with pytest.raises(UnbrokenError, match="could be told that crashed leaves"):
            PushClient([server.address], TOKEN, "clicks", "crashed").leave(0.2)


def test_without_heartbeats_a_client_is_as_quiet_as_ever() -> None:
    node = Node()
    with serving(node.submit, {"clicks": Push("n long")}) as server:
        with PushClient([server.address], TOKEN, "clicks", "p") as client:
            client.send([{"n": 1}])
        assert not _beating()
        assert [batch.sign for batch in node.batches] == [""]

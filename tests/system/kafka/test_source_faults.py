"""The Kafka source when something goes wrong: servers that die, records that are gone, readers that fall apart."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kit.kafka.broker import Broker
from kit.support import wait_until
from system.kafka.reading import MakeTopic, Open, begin, numbered, poll_until, total, values
from unbroken import Kafka, Secret
from unbroken.connectors.base import Position
from unbroken.connectors.kafka import fetch as kafka_fetch
from unbroken.connectors.kafka import lookout as kafka_lookout
from unbroken.connectors.kafka.client import KafkaError

if TYPE_CHECKING:
    from kit.kafka.server import Server


def test_records_that_retention_deleted_are_never_skipped(kafka: Server, topic: MakeTopic, opened: Open) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        kafka.produce(name, numbered(10), partition)
    reader = opened(name)
    start = begin(reader)
    end = poll_until(reader, start, lambda position: total(position) == 20)
    kafka.delete_records(name, 1, 6)
    with pytest.raises(KafkaError) as caught:
        reader.read(start, end)
    words = str(caught.value)
    assert f"Records of {name}[1] are gone: offsets 0 to 9 were to be read. It holds 6 to 9." in words
    assert "longer retention" in words
    with pytest.raises(KafkaError, match="are gone"):
        reader.read(start, end)
    # What is there can still be read.
    assert values(reader.read({name: {"0": 0, "1": 6}}, end)) == numbered(10) + numbered(4, 6)


def test_a_topic_that_was_made_again_is_noticed(
    kafka: Server, topic: MakeTopic, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    kafka.produce(name, numbered(3))
    now = [0.0]
    reader = opened(name)
    monkeypatch.setattr(reader, "_clock", lambda: now[0])
    beyond: Position = {name: {"0": 5}}
    assert reader.poll(beyond, 0).position == beyond
    now[0] = 100.0
    with pytest.raises(KafkaError, match=r"ends at offset 3, but is to be read on from 5"):
        reader.poll(beyond, 0)
    kafka.produce(name, numbered(3))
    assert total(poll_until(reader, beyond, lambda position: position != beyond)) == 6


def test_a_broker_that_is_killed_during_a_read_and_comes_back(
    kafka: Server, broker: Broker, topic: MakeTopic, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    for first in range(0, 1000, 100):
        for partition in range(2):
            kafka.produce(name, numbered(100, first), partition)
    # Little is fetched ahead, so that most of the range is still on the server when it dies.
    reader = opened(name, metadata=[], options={"queued.min.messages": 1, "max.partition.fetch.bytes": 1024})
    start, end = begin(reader), {name: {"0": 1000, "1": 1000}}
    keep = kafka_fetch.Fetcher._keep
    starting = threading.Thread(target=broker.start)
    reached: list[int] = []

    def keeping(self: kafka_fetch.Fetcher, messages: Any) -> None:
        keep(self, messages)
        if not reached:
            reached.append(int(self._reached.sum()))
            broker.kill()
            starting.start()

    monkeypatch.setattr(kafka_fetch.Fetcher, "_keep", keeping)
    assert values(reader.read(start, end)) == [*numbered(1000), *numbered(1000)]
    starting.join()
    assert 0 < reached[0] < 1000


def test_polls_go_on_while_the_broker_is_away(kafka: Server, broker: Broker, topic: MakeTopic, opened: Open) -> None:
    name = topic()
    kafka.produce(name, numbered(5))
    reader = opened(name, metadata=[])
    start = begin(reader)
    end = poll_until(reader, start, lambda position: total(position) == 5)
    broker.kill()
    # The first one is given a moment for its answer, the others are not.
    asked = time.monotonic()
    for _ in range(20):
        assert reader.poll(end, 0).position == end
    assert time.monotonic() - asked < 10.0
    got: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: got.append(values(reader.read(start, end))))
    thread.start()
    broker.start()
    thread.join(kafka_fetch.STALL_S)
    assert got == [numbered(5)]
    kafka.produce(name, [b"after"])
    final = poll_until(reader, end, lambda position: position != end)
    assert values(reader.read(end, final)) == [b"after"]


def test_a_read_that_gets_nothing_is_told_and_a_closed_one_lets_go(
    kafka: Server, topic: MakeTopic, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    kafka.produce(name, [b"x"])
    reader = opened(name)
    begin(reader)
    monkeypatch.setattr(kafka_fetch, "STALL_S", 0.5)
    with pytest.raises(KafkaError, match=rf"gave no record of {name}\[0\] from offset 1 on for 0.5 s.*up to 9"):
        reader.read({name: {"0": 0}}, {name: {"0": 9}})
    assert values(reader.read({name: {"0": 0}}, {name: {"0": 1}})) == [b"x"]
    monkeypatch.setattr(kafka_fetch, "STALL_S", 60.0)
    failed: list[BaseException] = []

    def read() -> None:
        try:
            reader.read({name: {"0": 0}}, {name: {"0": 9}})
        except KafkaError as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: reader._reading.locked(), 30, "the read")
    reader.close()
    thread.join(30)
    assert not thread.is_alive()
    assert "closed" in str(failed[0])


def test_servers_that_are_not_there_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(kafka_lookout, "PATIENCE_S", 0.3)
    reader = Kafka("127.0.0.1:1", "orders").open()
    asked = time.monotonic()
    for _ in range(5):
        assert reader.poll(None, 0).position is None
    assert time.monotonic() - asked < 10.0
    reader.close()


def test_a_partition_that_is_far_ahead_waits_for_the_others(
    kafka: Server, topic: MakeTopic, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for the next read is bounded, and nothing is lost or repeated by pausing."""
    monkeypatch.setattr(kafka_fetch, "AHEAD_ROWS", 500)
    monkeypatch.setattr(kafka_fetch, "BATCH", 100)
    paused: dict[int, bool] = {}
    pause = kafka_fetch.Fetcher._pause

    def pausing(self: kafka_fetch.Fetcher, codes: Any) -> None:
        pause(self, codes)
        paused[len(paused)] = True

    monkeypatch.setattr(kafka_fetch.Fetcher, "_pause", pausing)
    name = topic(partitions=2)
    kafka.produce(name, numbered(20_000))
    reader = opened(name, metadata=[])
    ahead: list[bytes] = []

    def read(start: Position, end: Position, into: list[list[bytes]]) -> None:
        into.append(values(reader.read(start, end)))

    for turn in range(8):
        start: Position = {name: {"0": 900 * turn, "1": turn}}
        end: Position = {name: {"0": 900 * (turn + 1), "1": turn + 1}}
        got: list[list[bytes]] = []
        thread = threading.Thread(target=read, args=(start, end, got))
        thread.start()
        wait_until(partial(paused.get, turn), 30, "the pause")
        kafka.produce(name, [b"x%d" % turn], 1)
        thread.join(30)
        assert got and got[0][-1] == b"x%d" % turn
        ahead += got[0][:-1]
        assert reader._fetcher is not None
        # The bound, and what the last look at the client's queue may bring on top of it.
        assert sum(table.num_rows for table in reader._fetcher._kept) <= 500 + 101
    assert values(reader.read(end, {name: {"0": 20_000, "1": 8}})) == numbered(20_000 - len(ahead), len(ahead))
    assert ahead == numbered(7200)


def test_servers_that_refuse_are_told(kafka: Server, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not pass by itself, so the user has to know."""
    monkeypatch.setenv("KAFKA_PASSWORD", "p")
    reader = opened(
        "orders",
        options={
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": Secret.env("KAFKA_PASSWORD"),
        },
    )

    def refused() -> bool:
        try:
            assert reader.poll(None, 0).position is None
        except KafkaError as error:
            assert "does not let this source in" in str(error) and "Correct the security settings" in str(error)
            return True
        return False

    wait_until(refused, 30, "the refusal")

"""Units appear in Kafka once, whole and in order, whoever delivers them and whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from kit.kafka.broker import Broker
from kit.kafka.server import Server
from kit.support import wait_until
from system.kafka.sink_child import header, sink, table
from system.kafka.sinking import (
    DEADLINE_S,
    Topic,
    at_once,
    child,
    deliver_all,
    delivered,
    opened,
    read,
    rows,
    wait_stopped,
    whole,
)
from unbroken.connectors.kafka import ledger as kafka_ledger
from unbroken.connectors.kafka import sink as kafka_sink
from unbroken.connectors.kafka.sink import KafkaSinkWriter
from unbroken.connectors.sink_ledger import SINK_MARK, SinkMark
from unbroken.errors import UnbrokenError

confluent_kafka = pytest.importorskip("confluent_kafka")

FIRST_STEPS = ["read", "taken", "settled"]
STEPS = ["begun", "recorded", "written", "flushed", "committed"]


def test_each_unit_appears_once_whoever_delivers_it(kafka: Server, topic: Topic) -> None:
    name = topic("out")
    with opened(kafka.servers, name) as first, opened(kafka.servers, name) as second:
        assert first.deliver(header(1), table(1)) and first.deliver(header(2), table(2))
        assert not second.deliver(header(1), table(1)) and not second.deliver(header(2), table(2))
        # A unit without rows leaves nothing, so the next one is not the one after the last that is recorded.
        assert first.deliver(header(3), table(3, 0)) and second.deliver(header(3), table(3, 0))
        assert second.deliver(header(4), table(4))
        assert not first.deliver(header(4), table(4)) and not first.deliver(header(2), table(2))
        assert first.deliver(header(5), table(5))
    assert rows(kafka.servers, name) == whole(1, 2) + whole(4, 5)


def test_the_next_generation_of_the_code_goes_on_where_the_last_one_ended(kafka: Server, topic: Topic) -> None:
    name = topic("out")
    with opened(kafka.servers, name) as first, opened(kafka.servers, name) as second:
        assert first.deliver(header(1, "counts.0>out.0"), table(1))
        assert not second.deliver(header(1, "counts@2.0>out.0"), table(1))
        assert second.deliver(header(2, "counts@2.0>out.0"), table(2))
        assert not first.deliver(header(2, "counts.0>out.0"), table(2))


def test_the_shards_of_a_segment_do_not_wait_for_each_other(kafka: Server, topic: Topic) -> None:
    """The transaction of one is open; the other is delivered and found, whose record stands behind it."""
    name = topic("out")
    held, go_on = threading.Event(), threading.Event()

    def at(step: str) -> None:
        if step == "flushed":
            held.set()
            assert go_on.wait(DEADLINE_S)

    frozen = KafkaSinkWriter(sink(kafka.servers, name), at)

    def deliver_the_others() -> None:
        assert held.wait(DEADLINE_S)
        try:
            with opened(kafka.servers, name) as one, opened(kafka.servers, name) as other:
                assert one.deliver(header(1, "counts.2>out.0"), table(1))
                assert not other.deliver(header(1, "counts.2>out.0"), table(1))
        finally:
            go_on.set()

    at_once(lambda: frozen.deliver(header(1, "counts.0>out.0"), table(1)), deliver_the_others)
    frozen.close()
    assert sorted(rows(kafka.servers, name)) == sorted(whole(1, 1) * 2)


def test_writers_at_the_same_time(kafka: Server, topic: Topic) -> None:
    name, last = topic("out"), 20
    done: list[dict[int, bool]] = []

    def deliver() -> None:
        with opened(kafka.servers, name) as writer:
            done.append(deliver_all(writer, 1, last))

    at_once(deliver, deliver, deliver)
    assert [sum(each[unit] for each in done) for unit in range(1, last + 1)] == [1] * last
    assert rows(kafka.servers, name) == whole(1, last)


def test_processes_at_the_same_time(kafka: Server, topic: Topic) -> None:
    name, last = topic("out"), 30
    with child(kafka.servers, name, 1, last) as one, child(kafka.servers, name, 1, last) as other:
        first, second = delivered(one), delivered(other)
    assert [first[unit] + second[unit] for unit in range(1, last + 1)] == [1] * last
    assert rows(kafka.servers, name) == whole(1, last)


def test_a_process_is_killed_between_two_steps(kafka: Server, topic: Topic) -> None:
    """Between any two, of the first unit, for which it takes the producer, and of a later one; all at the same time."""

    def killed(step: str, unit: int, name: str) -> None:
        with child(kafka.servers, name, 1, 3, step=step, unit=unit, signal="SIGKILL") as process:
            before = delivered(process)
            assert process.returncode == -signal.SIGKILL and len(before) == unit - 1, step
        with opened(kafka.servers, name) as writer:
            after = deliver_all(writer, 1, 3)
        assert after[unit] == (step != "committed") and after[3], step
        assert rows(kafka.servers, name) == whole(1, 3), step

    places = [*((step, 1) for step in FIRST_STEPS), *((step, 2) for step in STEPS)]
    at_once(*(partial(killed, *place, topic("out")) for place in places))


def test_a_frozen_process_goes_on_when_another_has_delivered(kafka: Server, topic: Topic) -> None:
    """It had looked, had begun or was about to commit; all at the same time."""

    def frozen(step: str, name: str) -> None:
        with child(kafka.servers, name, 1, 4, step=step, unit=1, signal="SIGSTOP") as process:
            wait_stopped(process)
            with opened(kafka.servers, name) as writer:
                assert deliver_all(writer, 1, 2) == {1: True, 2: True}, step
            process.send_signal(signal.SIGCONT)
            assert delivered(process) == {1: False, 2: False, 3: True, 4: True}, step
        assert rows(kafka.servers, name) == whole(1, 4), step

    at_once(*(partial(frozen, step, topic("out")) for step in ("read", "settled", "flushed")))


def test_a_frozen_process_whose_transaction_was_ended_writes_the_unit_again(kafka: Server, topic: Topic) -> None:
    """As the brokers do it after the transaction's time, or a replica that dies right after it has taken over."""
    name = topic("out")
    with child(kafka.servers, name, 1, 2, step="flushed", unit=1, signal="SIGSTOP") as process:
        wait_stopped(process)
        transactional_id = f"unbroken/{name}.ledger/flow/out/counts.0>out.0"
        other = confluent_kafka.Producer({"bootstrap.servers": kafka.servers, "transactional.id": transactional_id})
        other.init_transactions(DEADLINE_S)
        process.send_signal(signal.SIGCONT)
        assert delivered(process) == {1: True, 2: True}
    assert rows(kafka.servers, name) == whole(1, 2)


def test_processes_are_killed_at_any_moment(kafka: Server, topic: Topic) -> None:
    name, chance, last = topic("out", 1), random.Random(5), 400
    for _ in range(3):
        with child(kafka.servers, name, 1, last) as process:
            assert process.stdout is not None
            wanted, seen = chance.randint(2, 12), 0
            while seen < wanted and (line := process.stdout.readline()):
                seen += line.rstrip().endswith("True")
            time.sleep(chance.uniform(0, 0.02))  # Anywhere within the unit that follows.
            process.kill()
    reached = max(unit for unit, _ in rows(kafka.servers, name))
    with opened(kafka.servers, name) as writer:
        deliver_all(writer, 1, reached + 3)
    assert rows(kafka.servers, name) == whole(1, reached + 3)


def test_the_broker_is_killed_and_started_again(kafka: Server, topic: Topic, broker: Broker) -> None:
    once, often, last = topic("once"), topic("often"), 30
    reached = threading.Event()
    done: list[dict[int, bool]] = []

    def at(step: str) -> None:
        if step == "written" and len(done_units) >= 10:
            reached.set()

    done_units: list[int] = []

    def deliver(name: str, **parameters: Any) -> None:
        writer = KafkaSinkWriter(sink(kafka.servers, name, **parameters), at)
        for unit in range(1, last + 1):
            done.append(deliver_all(writer, unit, unit, 50))
            done_units.append(unit)
        writer.close()

    def restart() -> None:
        assert reached.wait(DEADLINE_S)
        broker.kill()
        broker.start()

    at_once(restart, lambda: deliver(once), lambda: deliver(once), lambda: deliver(often, exactly_once=False))
    assert rows(kafka.servers, once) == whole(1, last, 50)
    assert set(rows(kafka.servers, often)) == set(whole(1, last, 50))


def test_a_commit_without_an_answer_is_found_out(kafka: Server, topic: Topic, broker: Broker) -> None:
    name, pid = topic("out"), broker.pid
    assert pid is not None

    def at(step: str) -> None:
        if step == "flushed" and freeze:
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, DEADLINE_S, "the broker stops")

    freeze = False
    writer = KafkaSinkWriter(sink(kafka.servers, name, options={"transaction.timeout.ms": 6_000}), at)
    deliver_all(writer, 1, 1)
    freeze = True
    try:
        with pytest.raises(UnbrokenError, match="Unit 2 is not known to be written"):
            writer.deliver(header(2), table(2))
    finally:
        os.kill(pid, signal.SIGCONT)
    freeze = False
    deliver_all(writer, 2, 3)
    writer.close()
    assert rows(kafka.servers, name) == whole(1, 3)


def test_rows_whose_end_the_brokers_have_lost_are_taken_back(
    kafka: Server, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done about it, with brokers that have not; those that are killed above do lose ends now and then."""
    name = topic("out", 3)
    lost = iter([SinkMark(1, "")])
    monkeypatch.setattr(kafka_ledger.KafkaLedger, "lost", lambda self, deadline: next(lost, None))
    with opened(kafka.servers, name, key="unit") as writer:
        assert deliver_all(writer, 1, 2) == {1: True, 2: True}
    assert sorted(rows(kafka.servers, name)) == whole(1, 2)
    partitions = [message.partition() for message in read(kafka.servers, name, "read_uncommitted")]
    assert set(partitions) == {0, 1, 2} and len(partitions) == 3 + len(whole(1, 2))


def test_the_ledger_outlives_the_writers_and_says_so(
    kafka: Server, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("out")
    assert sink(kafka.servers, name).occupied() is None
    with opened(kafka.servers, name) as writer:
        deliver_all(writer, 1, 3)
    told = sink(kafka.servers, name).occupied()
    assert told is not None and f"{name}.ledger" in told and "unit 3 of counts.0>out.0" in told
    another = sink(kafka.servers, name)
    another.identity = "flow/others"
    assert another.occupied() is None and sink(kafka.servers, name, exactly_once=False).occupied() is None
    # Far from the end, because another sink went on writing to the same ledger.
    writer = another.open(Path())
    deliver_all(writer, 1, 5)
    writer.close()
    monkeypatch.setattr(kafka_ledger, "TAIL", 2)
    with opened(kafka.servers, name) as writer:
        assert deliver_all(writer, 1, 4) == {1: False, 2: False, 3: False, 4: True}


def test_a_ledger_that_another_sink_holds_up_is_not_misread(kafka: Server, topic: Topic) -> None:
    # All of this time is waited, and a busy machine needs some of it to connect.
    name, options = topic("out"), {"transaction.timeout.ms": 6_000}
    with opened(kafka.servers, name) as first, opened(kafka.servers, name, options=options) as second:
        assert first.deliver(header(1), table(1))
        stranger = confluent_kafka.Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"{name}-x"})
        stranger.init_transactions(20)
        stranger.begin_transaction()
        stranger.produce(f"{name}.ledger", SINK_MARK.encode(SinkMark(1, "x")), b"stranger", partition=0)
        assert stranger.flush(20) == 0
        assert first.deliver(header(2), table(2))
        # What it can read of the ledger ends before unit 2, so it must neither write nor leave out anything.
        with pytest.raises(UnbrokenError, match="held up"):
            second.deliver(header(2), table(2))
        stranger.abort_transaction(20)
        assert not second.deliver(header(2), table(2))
    assert rows(kafka.servers, name) == whole(1, 2)


def test_messages(kafka: Server, topic: Topic) -> None:
    name, other = topic("out", 7), topic("other")
    data = pa.table(
        {
            # Where Kafka's own clients put these keys is known from the tests of their hash function.
            "key": ["21", "foobar", "a-little-bit-long-string", None],
            "n": [1, 2, 3, 4],
            "where": [None, None, None, other],
            "more": pa.array([[("a", b"1")], [], None, [("b", None)]], pa.map_(pa.string(), pa.binary())),
        }
    )
    with opened(kafka.servers, name, key="key", topic_column="where", headers="more") as writer:
        assert writer.deliver(header(8), data)
    found = {message.key(): message for message in read(kafka.servers, name)}
    for key, value in {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}.items():
        assert found[key].partition() == (value & 0x7FFFFFFF) % 7
    assert json.loads(found[b"21"].value()) == {"key": "21", "n": 1}
    assert found[b"21"].headers() == [("a", b"1"), ("unbroken-unit", b"counts.0/8")]
    assert found[b"foobar"].headers() == [("unbroken-unit", b"counts.0/8")]
    (single,) = read(kafka.servers, other)
    assert single.key() is None and single.headers() == [("b", None), ("unbroken-unit", b"counts.0/8")]


def test_mistakes_are_explained(kafka: Server, topic: Topic) -> None:
    with opened(kafka.servers, "nowhere") as writer, pytest.raises(UnbrokenError, match="nowhere is not there"):
        writer.deliver(header(1), table(1))
    forgetful = topic("forgetful", config={"cleanup.policy": "delete"})
    with (
        opened(kafka.servers, topic("out"), ledger=forgetful) as writer,
        pytest.raises(UnbrokenError, match=r"cleanup\.policy=delete"),
    ):
        writer.deliver(header(1), table(1))
    small = topic("small", config={"max.message.bytes": "2000"})
    ways: list[dict[str, Any]] = [{}, {"exactly_once": False}, {"options": {"message.max.bytes": 5000}}]
    for unit, parameters in enumerate(ways, 1):
        with opened(kafka.servers, small, **parameters) as writer:
            with pytest.raises(UnbrokenError, match=r"message of \d{5} bytes.*max.message.bytes"):
                writer.deliver(header(unit), pa.table({"text": ["short", "x" * 20_000]}))
            assert writer.deliver(header(unit), pa.table({"unit": [unit], "row": [0]}))
    assert rows(kafka.servers, small) == [(1, 0), (2, 0), (3, 0)]
    impatient = {"topic.metadata.propagation.max.ms": 500}
    with (
        opened(kafka.servers, topic("out"), topic_column="to", options=impatient) as writer,
        pytest.raises(UnbrokenError, match="all topics that the rows name"),
    ):
        writer.deliver(header(1), pa.table({"to": ["nowhere"], "n": [1]}))


def test_a_broker_that_is_away_is_told_of_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "LOOK_UP_S", 1.0)
    began = time.monotonic()
    with pytest.raises(UnbrokenError, match="check that the brokers run"):
        sink("127.0.0.1:1", "out").occupied()
    writer = KafkaSinkWriter(sink("127.0.0.1:1", "out", options={"transaction.timeout.ms": 1_000}))
    with pytest.raises(UnbrokenError, match="check that the brokers run"):
        writer.deliver(header(1), table(1))
    assert time.monotonic() - began < 20

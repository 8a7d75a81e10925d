"""The Kafka source against a real server: which rows a range of offsets has."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kit.support import consumers_of, wait_until
from system.kafka.reading import DEADLINE_S, MakeTopic, Open, begin, numbered, poll_until, total, values
from unbroken import Client, Dataflow, Kafka, SparkCheckpoint
from unbroken.connectors.base import Position
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.kafka import fetch as kafka_fetch
from unbroken.connectors.kafka import lookout as kafka_lookout
from unbroken.connectors.kafka.client import KafkaError
from unbroken.data.hashed_rows import HashedRows
from unbroken.data.unit_store import UnitStore, unit_name
from unbroken.node.ingress.feeder import Feeder
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.units import Digest, UnitHeader

if TYPE_CHECKING:
    from kit.kafka.server import Server


def digest_of(table: pa.Table) -> Digest:
    return HashedRows.of(table, computed=False).digest()


def test_two_readers_give_the_same_rows_for_agreed_ranges(kafka: Server, topic: MakeTopic, opened: Open) -> None:
    name = topic(partitions=3)
    for partition in range(3):
        kafka.produce(name, numbered(400, 1000 * partition), partition, key=b"k")
    leader, other, late = opened(name, max_records_per_pulse=500), opened(name), opened(name)
    positions = [begin(leader)]
    while total(positions[-1]) < 1200:
        positions.append(poll_until(leader, positions[-1], lambda position: position != positions[-1]))
    assert [total(position) for position in positions] == [0, 500, 1000, 1200]
    spans = list(pairwise(positions))
    first = [leader.read(*span) for span in spans]
    assert [digest_of(other.read(*span).table) for span in spans] == [digest_of(rows.table) for rows in first]
    # Again, out of order, and over several pulses at once.
    for i in (2, 0, 1):
        assert late.read(*spans[i]).table == first[i].table
    whole = late.read(positions[0], positions[-1]).table
    assert whole.column("value").to_pylist() == [v for p in range(3) for v in numbered(400, 1000 * p)]
    assert whole.column("partition").to_pylist() == [p for p in range(3) for _ in range(400)]
    assert late.read(positions[1], positions[1]).table.num_rows == 0
    assert late.read(None, positions[0]).table.schema == whole.schema


def test_reading_on_fetches_nothing_twice(
    kafka: Server, topic: MakeTopic, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        kafka.produce(name, numbered(3000), partition)
    reader = opened(name, max_records_per_pulse=700, metadata=[])
    made: list[object] = []
    fetched: list[int] = []
    make, keep = kafka_fetch.Fetcher.__init__, kafka_fetch.Fetcher._keep

    def making(self: kafka_fetch.Fetcher, *arguments: Any) -> None:
        made.append(self)
        make(self, *arguments)

    def keeping(self: kafka_fetch.Fetcher, messages: Any) -> None:
        fetched.append(len(messages))
        keep(self, messages)

    monkeypatch.setattr(kafka_fetch.Fetcher, "__init__", making)
    monkeypatch.setattr(kafka_fetch.Fetcher, "_keep", keeping)
    position, rows = begin(reader), 0
    while total(position) < 6000:
        end = reader.poll(position, 0).position
        rows += reader.read(position, end).table.num_rows
        position = end
    assert (len(made), sum(fetched), rows) == (1, 6000, 6000)


def test_transactions_leave_holes_and_aborted_ones_are_not_seen(kafka: Server, topic: MakeTopic, opened: Open) -> None:
    from confluent_kafka import Producer

    name = topic()
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": name})
    producer.init_transactions(DEADLINE_S)

    def transaction(records: list[bytes], commit: bool) -> None:
        producer.begin_transaction()
        for value in records:
            producer.produce(name, value, partition=0)
        producer.flush(DEADLINE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)

    transaction([b"a", b"b"], commit=True)
    transaction([b"gone"] * 3, commit=False)
    transaction([b"c"], commit=True)
    # Records at 0, 1 and 7; marks of the transactions at 2, 6 and 8; aborted ones from 3 to 5.
    wait_until(lambda: kafka.ends(name) == [9], DEADLINE_S, "the end of the last transaction")
    reader, other = opened(name), opened(name)
    start = begin(reader)
    end = poll_until(reader, start, lambda position: total(position) == 9)
    assert values(reader.read(start, end)) == [b"a", b"b", b"c"]
    # Every cut through holes gives what lies between, by reading on and by any other way.
    at: list[Position] = [{name: {"0": n}} for n in range(10)]
    assert [values(other.read(at[n], at[n + 1])) for n in range(9)] == [[b"a"], [b"b"], [], [], [], [], [], [b"c"], []]
    assert values(opened(name).read(at[3], at[6])) == []
    assert values(opened(name).read(at[4], at[8])) == [b"c"]
    # Uncommitted records are not even offered; with read_uncommitted they are.
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    producer.flush(DEADLINE_S)
    eager = opened(name, isolation="read_uncommitted")
    first = begin(eager)
    assert values(eager.read(first, poll_until(eager, first, lambda p: total(p) == 10)))[2:] == [b"gone"] * 3 + [
        b"c",
        b"open",
    ]
    assert reader.poll(end, 0).position == end
    producer.commit_transaction(DEADLINE_S)
    final = poll_until(reader, end, lambda position: total(position) == 11)
    assert values(reader.read(end, final)) == [b"open"]


def test_compaction_leaves_holes(kafka: Server, topic: MakeTopic, opened: Open) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "0",
    }
    name = topic(config=config)
    for i in range(40):
        kafka.produce(name, [b"old-%d" % i], key=b"a" if i % 2 else b"b")

    def remaining() -> list[bytes]:
        # A segment is closed by a record that comes when it is old enough.
        kafka.produce(name, [b"tick"], key=b"tick")
        end: Position = {name: {"0": (kafka.ends(name) or [0])[0]}}
        return values(opened(name).read({name: {"0": 0}}, end))

    wait_until(lambda: b"old-0" not in remaining(), 30.0, "compaction", interval_s=0.15)
    (end,) = kafka.ends(name) or [0]
    at: list[Position] = [{name: {"0": n}} for n in range(end + 1)]
    reader = opened(name)
    whole = reader.read(at[0], at[end]).table
    offsets = whole.column("offset").to_pylist()
    assert len(offsets) < end
    assert offsets[-1] == end - 1
    first = offsets[0]
    assert first > 0
    assert values(opened(name).read(at[0], at[first])) == []
    by_steps = opened(name)
    steps = [*range(0, end, 7), end]
    pieces = [by_steps.read(at[a], at[b]).table.column("offset").to_pylist() for a, b in pairwise(steps)]
    got = [offset for each in pieces for offset in each]
    # The broker goes on compacting, which only makes more holes.
    later = opened(name).read(at[0], at[end]).table.column("offset").to_pylist()
    assert got == sorted(got) and set(later) <= set(got) <= set(offsets)


def test_new_partitions_are_read_from_their_beginning(
    kafka: Server, topic: MakeTopic, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_lookout, "METADATA_S", 0.05)
    name = topic()
    kafka.produce(name, [b"before"])
    reader = opened(name, start="latest")
    start = begin(reader)
    assert start == {name: {"0": 1}}
    kafka.add_partitions(name, 2)
    kafka.produce(name, [b"first", b"second"], partition=1)
    named = poll_until(reader, start, lambda position: "1" in position[name])
    assert named == {name: {"0": 1, "1": 0}}
    assert values(reader.read(start, named)) == []
    end = poll_until(reader, named, lambda position: total(position) == 3)
    assert values(reader.read(named, end)) == [b"first", b"second"]
    assert values(opened(name).read(named, end)) == [b"first", b"second"]


def test_topics_that_match_the_pattern_are_found(
    kafka: Server, topic: MakeTopic, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_lookout, "METADATA_S", 0.05)
    first = topic("pattern-a")
    kafka.produce(first, [b"1"])
    topic("no-pattern-a")
    prefix = first[-8:]
    reader = opened(pattern=f"{first}|pattern-b-{prefix}-.*", start="latest")
    start = begin(reader)
    assert start == {first: {"0": 1}}
    second = topic(f"pattern-b-{prefix}")
    kafka.produce(second, [b"2"])
    named = poll_until(reader, start, lambda position: second in position)
    end = poll_until(reader, named, lambda position: position[second]["0"] == 1)
    assert reader.read(named, end).table.select(["value", "topic"]).to_pylist() == [{"value": b"2", "topic": second}]


def test_a_topic_may_come_later(kafka: Server, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka.admin import NewTopic

    monkeypatch.setattr(kafka_lookout, "METADATA_S", 0.05)
    name = f"later-{time.monotonic_ns()}"
    reader = opened(name, start="latest")
    start = begin(reader)
    assert start == {}
    kafka.admin.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)
    wait_until(lambda: kafka.ends(name), DEADLINE_S, "the topic")
    kafka.produce(name, [b"x"])
    named = poll_until(reader, start, lambda position: position)
    end = poll_until(reader, named, lambda position: total(position) == 1)
    assert values(reader.read(named, end)) == [b"x"]


def test_json_and_records_that_cannot_be_parsed(kafka: Server, topic: MakeTopic, opened: Open) -> None:
    name = topic()
    kafka.produce(name, ['{"id": 1, "shop": "a"}', "oops", None, '{"id": "2"}', '{\n"id": 3\n}'], key=b"k")
    reader = opened(name, format="json", schema="id long, shop string", metadata={"offset": "at", "key": "who"})
    start = begin(reader)
    rows = reader.read(start, poll_until(reader, start, lambda position: total(position) == 5))
    assert rows.table.to_pylist() == [
        {"id": 1, "shop": "a", "at": 0, "who": b"k"},
        {"id": 3, "shop": None, "at": 4, "who": b"k"},
    ]
    assert [bad.origin for bad in rows.bad] == [f"{name}[0]@1", f"{name}[0]@2", f"{name}[0]@3"]
    assert [bad.raw for bad in rows.bad] == ["oops", "", '{"id": "2"}']
    assert rows.bad[1].reason == "the value is null (a tombstone)"


def test_keys_headers_and_times(kafka: Server, topic: MakeTopic, opened: Open) -> None:
    name, appended = topic(), topic(config={"message.timestamp.type": "LogAppendTime"})
    headers = [("trace", b"\x01"), ("trace", None), ("user", b"ann")]
    kafka.produce(name, [b"v"], key=b"k", headers=headers, timestamp=1_700_000_000_123)
    kafka.produce(name, [None], key=None)
    kafka.produce(appended, [b"v"], timestamp=1_700_000_000_123)
    fields = ["topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    reader = opened([name, appended], metadata=fields)
    start = begin(reader)
    table = reader.read(start, poll_until(reader, start, lambda position: total(position) == 3)).table
    rows = {(row["topic"], row["offset"]): row for row in table.to_pylist()}
    full, empty, late = rows[name, 0], rows[name, 1], rows[appended, 0]
    assert (full["key"], full["value"], full["partition"], full["timestampType"]) == (b"k", b"v", 0, 0)
    assert full["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert full["headers"] == [{"key": key, "value": value} for key, value in headers]
    assert (empty["key"], empty["value"], empty["headers"]) == (None, None, None)
    assert late["timestampType"] == 1 and late["timestamp"].year > 2023
    assert digest_of(table) == digest_of(
        opened([name, appended], metadata=fields).read(start, {name: {"0": 2}, appended: {"0": 1}}).table
    )


def test_where_to_begin(kafka: Server, topic: MakeTopic, opened: Open, tmp_path: Path) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        kafka.produce(name, numbered(10), partition)
    kafka.delete_records(name, 1, 4)
    assert begin(opened(name)) == {name: {"0": 0, "1": 4}}
    assert begin(opened(name, start="latest")) == {name: {"0": 10, "1": 10}}
    assert begin(opened(name, start={name: {0: 7}})) == {name: {"0": 7, "1": 4}}
    assert begin(opened(name, start={name: {"0": -1, "1": -2}})) == {name: {"0": 10, "1": 4}}
    with pytest.raises(KafkaError, match=r"\[1\] is to be read from offset 3 on, but begins at 4"):
        begin(opened(name, start={name: {1: 3}}))


def test_a_flow_goes_on_where_a_query_stopped(kafka: Server, topic: MakeTopic, opened: Open, tmp_path: Path) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        kafka.produce(name, numbered(10), partition)
    for kind in ("offsets", "commits"):
        (tmp_path / kind).mkdir()
    for batch, end in ((0, {"0": 3, "1": 5}), (1, {"0": 8, "1": 9}), (2, {"0": 10, "1": 10})):
        (tmp_path / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps({name: end}))
    for batch in (0, 1):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    reader = opened(name, start=SparkCheckpoint(tmp_path))
    start = begin(reader)
    assert start == {name: {"0": 8, "1": 9}}
    end = poll_until(reader, start, lambda position: total(position) == 20)
    assert values(reader.read(start, end)) == [b"000008", b"000009", b"000009"]


def test_ingress_nodes_write_the_same_units(kafka: Server, topic: MakeTopic, tmp_path: Path) -> None:
    name = topic(partitions=2)
    flow = Dataflow("shop", nodes=2)
    flow.source("orders", Kafka(kafka.servers, name, format="json", schema="id long", max_records_per_pulse=40))
    flow.segment("orders", name="split", shard_by=["id"], shards=2)(lambda frame: frame)
    flow.sink("out", "split", Client())

    def feeder(node: str) -> Feeder:
        root = tmp_path / node
        store = UnitStore(root)
        letters = DeadLetters(tmp_path / "letters")
        units = UnitWriter(consumers_of(flow), store, lambda s, n: root / str(s) / unit_name(n))
        return Feeder(flow, units, letters)

    leader, follower = feeder("a"), feeder("b")
    headers: list[UnitHeader] = []
    for pulse in range(1, 7):
        if pulse > 1:
            values_ = [b'{"id": %d}' % (10 * pulse + i) for i in range(10)]
            kafka.produce(name, [*values_, b"bad"], partition=pulse % 2)
        entry = Entry(pulse, 1, leader.poll(pulse * 1000, 1)[0], pulse)
        for each in (leader, follower):
            each.persisted(entry)
        headers += leader.produce(entry)
        assert follower.produce(entry) == tuple(headers[-2:])
    assert leader.rows == follower.rows == sum(header.digest.rows for header in headers) == 50
    assert leader.bad_rows == 5
    files = {str(p.relative_to(tmp_path / "a")): p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    assert all((tmp_path / "b" / path).read_bytes() == data for path, data in files.items())
    assert len(files) == 12
    letters = [json.loads(line) for path in (tmp_path / "letters").iterdir() for line in path.read_text().splitlines()]
    assert {letter["origin"] for letter in letters} >= {f"{name}[0]@10", f"{name}[1]@10"}
    leader.close()
    follower.close()

"""The Kafka source as far as no server is needed; what needs one is in tests/kafka."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unbroken import Kafka, SparkCheckpoint
from unbroken.connectors.kafka import client as kafka_client
from unbroken.connectors.kafka import positions as kafka_positions
from unbroken.connectors.kafka.client import KafkaError
from unbroken.connectors.kafka.fetch import CODE, FIELDS, OFFSET
from unbroken.connectors.kafka.positions import (
    EARLIEST,
    LATEST,
    KafkaOffsets,
    Start,
    advance,
    fair_split,
    first_offsets,
    new_partitions,
    to_offsets,
    to_position,
)
from unbroken.connectors.kafka.rows import JsonRows, parse_values, why_wrong
from unbroken.data.rows.json.lines import JsonFormat
from unbroken.flow.network.signatures import given as as_given
from unbroken.flow.network.signatures import model_of

A, B, C = ("orders", 0), ("orders", 1), ("orders", 10)


# --- the declaration


def test_raw_has_the_columns_of_sparks_kafka_source() -> None:
    assert Kafka("a:9092", "orders").schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    raw = Kafka("a:9092", "orders", metadata=["key", "headers"])
    assert raw.schema.simpleString() == "struct<key:binary,value:binary,headers:array<struct<key:string,value:binary>>>"


def test_json_has_the_declared_columns_and_the_metadata_asked_for() -> None:
    source = Kafka("a:9092", "orders", format="json", schema="id long", metadata={"timestamp": "sent", "key": "key"})
    assert source.problems() == []
    assert source.schema.simpleString() == "struct<id:bigint,sent:timestamp,key:binary>"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"servers": "a:0"}, "servers is 'a:0'; give host:port"),
        ({"servers": []}, "servers is empty; give host:port"),
        ({"servers": "a b:1"}, "servers is 'a b:1'; give host:port"),
        ({"topics": ()}, "There are no topics; name them"),
        ({"topics": "a/b"}, "'a/b' cannot be a topic; use letters"),
        ({"pattern": "o.*"}, "Both topics and a pattern are given; give one"),
        ({"topics": (), "pattern": "o["}, "The pattern 'o[' is no regular expression"),
        ({"format": "avro"}, "format is 'avro'; use one of raw, json."),
        ({"format": "json"}, "format='json' has no schema; give the columns"),
        ({"schema": "id long"}, "format='raw' has a schema; leave it out"),
        ({"metadata": ["ofset"]}, "There is no metadata 'ofset'; use some of key, topic"),
        ({"metadata": {"key": "k"}}, "format='raw' has the column key already; leave it out"),
        (
            {"format": "json", "schema": "id long, OFFSET long", "metadata": ["offset"]},
            "There are two columns 'offset'; rename one: metadata={'offset': 'kafka_offset'}.",
        ),
        ({"start": "newest"}, "start is 'newest'; use 'earliest', 'latest', {topic: {partition: offset}}"),
        ({"start": {"orders": 5}}, "start is {'orders': 5}; use 'earliest'"),
        ({"start": {"order": {0: 5}}}, "start names the topic 'order', which is not read; correct its name"),
        ({"topics": (), "pattern": "o.*", "start": {"clicks": {0: 5}}}, "start names the topic 'clicks', which is not"),
        ({"start": {"orders": {0: -3}}}, "start has 0: -3 for orders; give the partition's number and offset"),
        ({"start": {"orders": {"x": 3}}}, "start has 'x': 3 for orders; give"),
        ({"isolation": "none"}, "isolation is 'none'; use one of read_committed, read_uncommitted."),
        ({"tombstones": "row"}, "tombstones is 'row'; use one of bad, skip."),
        ({"max_records_per_pulse": 0}, "max_records_per_pulse is 0; give at least 1."),
        ({"max_bytes_per_pulse": 0}, "max_bytes_per_pulse is 0; give at least 1."),
        ({"options": {"bootstrap.servers": "b:1"}}, "options has 'bootstrap.servers'; give the servers"),
        (
            {"options": {"auto.offset.reset": "latest"}},
            "options has 'auto.offset.reset'; say where to begin with start=",
        ),
        ({"options": {"ssl.ca": None}}, "The option 'ssl.ca' is a NoneType; give a string"),
    ],
)
def test_what_is_wrong_is_told_with_a_remedy(changed: dict[str, Any], sentence: str) -> None:
    (problem,) = Kafka(**{"servers": "a:9092", "topics": "orders", **changed}).problems()
    assert str(problem).startswith(sentence) and problem.remedy


@pytest.mark.parametrize("servers", ["a:9092", "a:1,b:2", ["a:1", "b:2"], "[::1]:9092", "SASL_SSL://a.b-c.d:9093", "a"])
def test_ways_to_name_servers(servers: str | list[str]) -> None:
    assert Kafka(servers, "orders").problems() == []


def test_a_missing_library_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "find_spec", lambda name: None)
    (problem,) = Kafka("a:9092", "orders").problems()
    assert problem.remedy == "run pip install 'unbroken[kafka]'"


def test_a_network_can_declare_it() -> None:
    written = {
        "servers": ["a:1"],
        "topics": "orders",
        "format": "json",
        "schema": "id long",
        "start": {"orders": {0: 5}},
        "metadata": {"offset": "kafka_offset"},
        "options": {"security.protocol": "SSL"},
    }
    source = Kafka(**as_given(model_of(Kafka).model_validate(written)))
    assert source.problems() == []
    assert source.starting() == Start(EARLIEST, {A: 5})


# --- positions


def test_positions_are_the_same_text_for_the_same_offsets() -> None:
    position = to_position({C: 3, A: 1, ("clicks", 0): 0, B: 2})
    assert json.dumps(position) == '{"clicks": {"0": 0}, "orders": {"0": 1, "1": 2, "10": 3}}'
    assert to_offsets(json.loads(json.dumps(position))) == {("clicks", 0): 0, A: 1, B: 2, C: 3}
    assert to_offsets(None) == {}


def test_a_partition_is_read_from_the_pulse_after_the_one_that_names_it() -> None:
    start = {"orders": {"0": 5, "1": 7}}
    end = {"orders": {"0": 9, "1": 7, "2": 0}}
    assert kafka_positions.ranges(start, end) == {A: (5, 9)}
    assert kafka_positions.ranges(None, start) == {}


SNAPSHOT = KafkaOffsets(frozenset({A, B}), ends={A: 100, B: 50}, begins={A: 10, B: 0})


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        (Start(EARLIEST), {A: 10, B: 0}),
        (Start(LATEST), {A: 100, B: 50}),
        (Start(EARLIEST, {A: 42}), {A: 42, B: 0}),
        (Start(EARLIEST, {A: LATEST, B: EARLIEST}), {A: 100, B: 0}),
        (Start(EARLIEST, {B: 60}), {A: 10, B: 60}),  # Not yet there: an open transaction may be in between.
    ],
)
def test_the_first_position(start: Start, offsets: dict[Any, int]) -> None:
    assert first_offsets(start, SNAPSHOT) == offsets


def test_the_first_position_waits_for_a_partition_that_begins_at_its_latest_record() -> None:
    without_leader = KafkaOffsets(frozenset({A, B}), ends={A: 100}, begins={A: 10})
    assert first_offsets(Start(LATEST), without_leader) is None
    assert first_offsets(Start(EARLIEST), without_leader) == {A: 10}
    assert first_offsets(Start(EARLIEST, {B: 7}), without_leader) == {A: 10, B: 7}


def test_offsets_that_are_given_are_kept_for_partitions_that_are_not_there_yet() -> None:
    assert first_offsets(Start(EARLIEST, {C: 7}), SNAPSHOT) == {A: 10, B: 0, C: 7}


def test_a_start_that_is_gone_is_refused() -> None:
    with pytest.raises(KafkaError, match=r"orders\[0\] is to be read from offset 3 on, but begins at 10") as caught:
        first_offsets(Start(EARLIEST, {A: 3}), SNAPSHOT)
    assert "Give a later offset" in str(caught.value)


def test_partitions_that_come_later_begin_at_their_earliest_record() -> None:
    assert new_partitions(SNAPSHOT, {A: 50}) == {B: 0}
    assert new_partitions(KafkaOffsets(frozenset({A, B}), ends={}), {A: 5}) == {}


def test_a_position_never_goes_back() -> None:
    assert advance({A: 10, B: 5}, {A: 7}, limit=100, turn=1) == {A: 10, B: 5}


# --- fair shares


@pytest.mark.parametrize(
    ("waiting", "limit", "taken"),
    [
        ([5, 5], 100, [5, 5]),
        ([1000, 5, 0], 100, [95, 5, 0]),
        ([1000, 1000, 10, 1000], 100, [30, 30, 10, 30]),
        ([50, 40, 3], 60, [29, 28, 3]),
        ([], 5, []),
    ],
)
def test_shares(waiting: list[int], limit: int, taken: list[int]) -> None:
    assert fair_split(waiting, limit) == taken


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 200), st.integers(0, 20))
def test_shares_use_the_limit_and_nobody_gets_more_than_waits(waiting: list[int], limit: int, turn: int) -> None:
    taken = fair_split(waiting, limit, turn)
    assert sum(taken) == min(limit, sum(waiting))
    assert all(0 <= got <= there for got, there in zip(taken, waiting, strict=True))
    short = [got for got, there in zip(taken, waiting, strict=True) if got < there]
    assert not short or max(short) - min(short) <= 1
    assert not short or max(taken) <= max(short) + 1


def test_with_less_than_one_for_each_all_get_their_turn() -> None:
    got: Counter[int] = Counter()
    for turn in range(10):
        got.update({i: n for i, n in enumerate(fair_split([9] * 5, 2, turn)) if n})
    assert got == dict.fromkeys(range(5), 4)


# --- values


ROW = pa.schema([("a", pa.int64()), ("b", pa.string())])


def parse(*values: bytes) -> tuple[list[Any], dict[int, str]]:
    form = JsonFormat(ROW)
    table, wrong = parse_values(pa.array(values, pa.binary()), form)
    reasons = {int(i): why_wrong(values[i], form) for i in wrong}
    return [tuple(row.values()) for row in table.to_pylist()], reasons


def test_a_value_with_line_breaks_is_one_row() -> None:
    rows, wrong = parse(b'{\n  "a": 1,\r\n  "b": "x"\n}\n', b'{"a": 2}', b'\n\n {"a": 3}\r\n', b'{"a":\n\n\n4}')
    assert rows == [(1, "x"), (2, None), (3, None), (4, None)]
    assert wrong == {}


def test_a_value_cannot_become_two_rows_or_reach_into_the_next() -> None:
    rows, wrong = parse(b'{"a": 1}\n{"a": 2}', b'{"b": "}', b'{", "a": 3}', b'{"a": 4}', b'{"a": 5}{"a": 6}')
    assert rows == [(4, None)]
    assert sorted(wrong) == [0, 1, 2, 4]


def test_a_line_break_within_a_string_is_wrong_as_in_any_json() -> None:
    rows, wrong = parse(b'{"b": "x\ny"}', b'{"b": "x\\ny"}', b'{"b": "x\ty"}')
    assert rows == [(None, "x\ny")]
    assert sorted(wrong) == [0, 2]
    assert "control character" in wrong[0]


def test_values_that_are_empty_or_blank_are_not_lost() -> None:
    rows, wrong = parse(b"", b'{"a": 1}', b"  \n ", b" " * 50, b"", b'{"a": 2}', b"\x0b")
    assert rows == [(1, None), (2, None)]
    assert {i: wrong[i] for i in (0, 2, 3, 4)} == dict.fromkeys((0, 2, 3, 4), "the value is empty")
    assert sorted(wrong) == [0, 2, 3, 4, 6]
    assert parse() == ([], {})
    assert parse(b"") == ([], {0: "the value is empty"})


def test_values_of_other_kinds_are_wrong_with_the_reason() -> None:
    _, wrong = parse(b'{"b": "\xff"}', b"[1]", b'{"a": "1"}', b"null", b'{"a": 1.5}')
    assert sorted(wrong) == [0, 1, 2, 3, 4]
    assert "not UTF-8" in wrong[0] and "must be a JSON object" in wrong[1] and "'a'" in wrong[2]


def row_by_the_standard_library(value: bytes) -> tuple[int | None, str | None] | None:
    """The row of a value as Python's own JSON parser reads it, or None for a bad one: an oracle for short values."""
    try:
        found = json.loads(value.decode())
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    a, b = found.get("a"), found.get("b")
    fits = (a is None or type(a) is int) and (b is None or isinstance(b, str))
    return (a, b) if fits else None


VALUES = st.one_of(
    st.integers(-5, 5).map(lambda number: b'{"a": %d}' % number),
    st.binary(max_size=8),
    # Two bytes in ten random ones are seldom an object: with these letters many are.
    st.text('{}":ab1, ', max_size=9).map(str.encode),
    st.sampled_from([b"{}", b'{"a":5}', b'{"b":""}', b'{"b":1}', b'{"":NaN}', b'{"":{}}', b'{"a":1.}', b"[{}]"]),
)


@given(st.lists(VALUES, max_size=30), st.text(" \t\r\n", max_size=12))
@example([b"{}"], "")
def test_every_value_is_one_row_or_one_bad_row_in_order(parts: list[bytes], space: str) -> None:
    values = [space.encode() + part + space.encode() for part in parts]
    rows, wrong = parse(*values)
    expected = [row_by_the_standard_library(value) for value in values]
    assert rows == [row for row in expected if row is not None]
    assert sorted(wrong) == [i for i, row in enumerate(expected) if row is None]


def fetched(*values: bytes | None) -> pa.Table:
    count = len(values)
    return pa.table({CODE: [1] * count, OFFSET: list(range(100, 100 + count)), "value": pa.array(values, pa.binary())})


def test_bad_values_say_where_they_are_from_and_metadata_stays_with_its_row() -> None:
    schema = pa.schema([*ROW, ("at", pa.int64())])
    table = fetched(b'{"a": 1}', None, b"oops\nagain", b'{"a": 2}')
    rows = JsonRows(ROW, {"offset": "at"}, skip_null=False).rows(table, [B, A], schema)
    assert rows.table.to_pylist() == [{"a": 1, "b": None, "at": 100}, {"a": 2, "b": None, "at": 103}]
    null, wrong = rows.bad
    assert (null.raw, null.reason, null.origin) == ("", "the value is null (a tombstone)", "orders[0]@101")
    assert (wrong.raw, wrong.origin) == ("oops\nagain", "orders[0]@102")
    assert wrong.reason.startswith("not JSON")
    skipped = JsonRows(ROW, {"offset": "at"}, skip_null=True).rows(table, [B, A], schema)
    assert skipped.table == rows.table
    assert skipped.bad == (wrong,)


# --- checkpoints of Structured Streaming


HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def checkpoint(root: Path, batches: dict[int, list[str]], committed: list[int], version: str = "v1") -> Path:
    (root / "offsets").mkdir(parents=True)
    (root / "commits").mkdir()
    for batch, sources in batches.items():
        (root / "offsets" / str(batch)).write_text("\n".join([version, HEAD, *sources]))
        (root / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in committed:
        (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (root / "commits" / f".{batch}.crc").write_bytes(b"crc")
    return root


def test_a_checkpoint_tells_where_its_last_committed_micro_batch_ended(tmp_path: Path) -> None:
    batches = {9: ['{"orders":{"0":5}}'], 10: ['{"orders":{"1":7,"0":12}}'], 11: ['{"orders":{"1":9,"0":20}}']}
    path = checkpoint(tmp_path, batches, [9, 10])
    source = Kafka("a:1", "orders", start=SparkCheckpoint(path))
    assert source.problems() == []
    assert source.starting() == Start(EARLIEST, {A: 12, B: 7})
    assert SparkCheckpoint(path.as_uri()).offsets() == {A: 12, B: 7}


def test_one_of_several_sources_of_a_query_is_chosen(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", {0: ["-", "7", '{"orders":{"0":5}}', '{"logOffset":3}']}, [0])
    assert SparkCheckpoint(one).offsets() == {A: 5}
    two = checkpoint(tmp_path / "two", {0: ['{"clicks":{"0":1}}', '{"orders":{"0":5}}']}, [0])
    assert SparkCheckpoint(two, source=1).offsets() == {A: 5}
    with pytest.raises(KafkaError, match=r"2 sources from Kafka: 0 \(clicks\), 1 \(orders\). Say which one"):
        SparkCheckpoint(two).offsets()
    with pytest.raises(KafkaError, match="has no source 3 from Kafka; sources there: 0: "):
        SparkCheckpoint(two, source=3).offsets()
    named = checkpoint(tmp_path / "named", {0: ['clicks:{"clicks":{"0":1}}', 'bought:{"orders":{"0":5}}']}, [0], "v2")
    assert SparkCheckpoint(named, source="bought").offsets() == {A: 5}


def test_checkpoints_that_do_not_tell(tmp_path: Path) -> None:
    def refused(path: Path | str, words: str) -> None:
        with pytest.raises(KafkaError, match=words) as caught:
            SparkCheckpoint(path).offsets()
        assert "Give " in str(caught.value) or "give " in str(caught.value)

    refused(tmp_path / "none", "There is no checkpoint directory")
    (tmp_path / "odd").mkdir()
    refused(tmp_path / "odd", "it has no directory 'commits'")
    refused(checkpoint(tmp_path / "new", {0: ['{"orders":{"0":5}}']}, []), "has not committed any micro-batch")
    refused(checkpoint(tmp_path / "cut", {0: ['{"orders":{"0":5}}']}, [0, 1]), "offsets/1 is not")
    refused(checkpoint(tmp_path / "files", {0: ['{"logOffset":3}']}, [0]), "has no source from Kafka")
    refused(checkpoint(tmp_path / "v9", {0: ['{"orders":{"0":5}}']}, [0], "v9"), "does not begin with v1 or v2")


def test_a_checkpoint_of_other_topics_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, {0: ['{"orders":{"0":5},"other":{"0":9}}']}, [0])
    with pytest.raises(KafkaError, match="has offsets of orders, other, and the source reads clicks"):
        Kafka("a:1", "clicks", start=SparkCheckpoint(path)).starting()
    assert Kafka("a:1", pattern="ord.*", start=SparkCheckpoint(path)).starting().given == {A: 5}


def test_a_checkpoint_that_is_gone_is_no_problem_of_the_declaration(tmp_path: Path) -> None:
    """It is read at the first start only, and nodes that start again later check the declaration too."""
    assert Kafka("a:1", "orders", start=SparkCheckpoint(tmp_path / "gone")).problems() == []


def test_poison_values_are_wrong_and_the_others_are_rows() -> None:
    deep = [b'{"a":' + b"[" * depth + b"]" * depth + b"}" for depth in (190, 980, 985, 100_000)]
    poison = [b'{"a":1e1000000000000000000000}', b'{"a":' + b"9" * 5000 + b"}", *deep, b"{" * 1000]
    rows, wrong = parse(b'{"a": 1}', *poison, b'{"a": 2}')
    assert rows == [(1, None), (2, None)]
    assert sorted(wrong) == list(range(1, len(poison) + 1)) and all(len(reason) < 500 for reason in wrong.values())


def test_a_timestamp_that_a_producer_made_up_is_null() -> None:
    stamps = [(1, 0), (1, 2**63 - 1), (1, -(2**62)), (0, -1), (2, 1_700_000_000_000)]
    times = FIELDS["timestamp"]([SimpleNamespace(timestamp=lambda stamp=stamp: stamp) for stamp in stamps])
    assert times.cast(pa.int64()).to_pylist() == [0, None, None, None, 1_700_000_000_000_000]

"""The Kafka sink as far as no server is needed; what needs one is in tests/kafka."""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from unbroken import Dataflow, KafkaSink, Push
from unbroken.connectors.kafka import client as kafka_client
from unbroken.connectors.kafka.calls import CallDeadline, KafkaServers
from unbroken.connectors.kafka.client import KafkaError
from unbroken.connectors.kafka.delivery import StreamDelivery, UnitMessages
from unbroken.connectors.kafka.ledger import KafkaLedger
from unbroken.connectors.kafka.messages import Headers, KafkaMessage, RowFormat
from unbroken.connectors.kafka.sink import KafkaSinkWriter
from unbroken.errors import FlowError
from unbroken.flow.network.signatures import given, model_of
from unbroken.flow.plan import build_topology
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

REPEATING = KafkaSink("a:1", "t", exactly_once=False)
UNIT: Headers = [("unbroken-unit", b"counts.0/7")]


def messages(table: pa.Table, marks: Headers | None = None, **how: Any) -> list[KafkaMessage]:
    return list(RowFormat(**{"topic": "out", **how}).messages(table, marks or []))


# --- the declaration


def test_a_declaration_without_mistakes() -> None:
    sink = KafkaSink(["a:9092", "b:9092"], "orders", key=["shop", "day"], options={"compression.type": "lz4"})
    assert sink.problems() == [] and sink.idempotent and not sink.client
    assert sink.ledger == "orders.ledger" and KafkaSink("a:1", "orders", ledger="mine").ledger == "mine"
    assert KafkaSink("a:9092", topic_column="to", ledger="mine").problems() == []
    assert KafkaSink("a:9092", topic_column="to", exactly_once=False).problems() == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"servers": ""}, "servers is ''; give host:port"),
        ({"topic": None}, "no topic; give topic="),
        ({"topic": "my topic"}, "topic is 'my topic', which Kafka does not take as a name; use letters"),
        ({"format": "avro"}, "format is 'avro'; give 'json' or 'raw'"),
        ({"format": "raw", "key": ["a", "b"]}, "the key is one column; give one"),
        ({"key": [""]}, "key is ('',); give the name of a column"),
        ({"ledger": "orders"}, "ledger and topic are both 'orders'; the ledger has to be"),
        ({"ledger": "?"}, "ledger is '?', which Kafka does not take as a name; use"),
        ({"topic": None, "topic_column": "to"}, "the ledger has no name; give ledger="),
        ({"options": {"acks": 1}}, "options has 'acks'; leave it out, because a unit counts"),
        ({"options": {"transactional.id": "x"}}, "options has 'transactional.id'; leave it out"),
        ({"options": {"linger.ms": None}}, "The option 'linger.ms' is a NoneType; give a string"),
        ({"options": {"transaction.timeout.ms": "soon"}}, "transaction.timeout.ms is 'soon'; give a number"),
    ],
)
def test_mistakes_in_a_declaration(changed: dict[str, Any], sentence: str) -> None:
    (problem,) = KafkaSink(**{"servers": "a:9092", "topic": "orders", **changed}).problems()
    assert sentence in str(problem)


def test_the_library_is_asked_for_when_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kafka_client, "find_spec", lambda name: None)
    monkeypatch.setattr(kafka_client, "import_module", missing)
    sink = KafkaSink("a:9092", "orders")
    assert "pip install 'unbroken[kafka]'" in sink.problems()[0].remedy
    writer = sink.open(tmp_path)
    header = UnitHeader(StreamId.parse("counts.0>out.0"), 1, 1, 0, Digest(1, 1))
    assert writer.deliver(header, pa.table({"n": pa.array([], pa.int64())}))
    with pytest.raises(KafkaError, match="unbroken\\[kafka\\]"):
        writer.deliver(header, pa.table({"n": [1]}))


def missing(name: str) -> Any:
    raise ImportError(name)


def flow_with(connector: KafkaSink, guarantee: str) -> Dataflow:
    flow = Dataflow("shops", nodes=2, guarantee=guarantee)
    orders = flow.source("orders", Push("n int"))
    flow.segment(orders, name="all")(lambda rows: rows)
    flow.sink("out", "all", connector)
    return flow


def test_without_transactions_a_flow_has_to_ask_for_less() -> None:
    for sink, guarantee in ((KafkaSink("a:1", "t"), "exactly-once"), (REPEATING, "at-least-once")):
        build_topology(flow_with(sink, guarantee))
        assert sink.identity == "shops/out"
    with pytest.raises(FlowError, match="KafkaSink cannot tell a unit that it was given before"):
        build_topology(flow_with(REPEATING, "exactly-once"))
    assert REPEATING.occupied() is None


def test_it_can_be_written_in_a_network() -> None:
    model = model_of(KafkaSink)
    written = {"servers": "a:9092", "topic": "orders", "key": ["shop"], "options": {"linger.ms": 10}, "format": "raw"}
    sink = KafkaSink(**given(model.model_validate(written)))
    assert sink.problems() == [] and sink.rows == RowFormat("orders", "raw", ("shop",))


# --- how messages say how they stand


class FakeLane(StreamDelivery):
    """Takes the messages of units, and says whether they correct something."""

    def __init__(self, corrects: bool) -> None:
        super().__init__(KafkaServers("a:1", {}), 1.0)
        self.corrects = corrects
        self.written: list[KafkaMessage] = []

    def deliver(self, header: UnitHeader, rows: UnitMessages) -> bool:
        self.written += rows(self.corrects)
        return True


def lane_of(sink: KafkaSink, table: pa.Table, corrects: bool = False) -> list[KafkaMessage]:
    """The messages of a stable unit."""
    writer, lane = KafkaSinkWriter(sink), FakeLane(corrects)
    writer._lanes["counts.0>out.0"] = lane
    assert writer.deliver(UnitHeader(StreamId.parse("counts.0>out.0"), 7, 9, 0, Digest(1, 1)), table)
    return lane.written


STATUS: Headers = [*UNIT, ("unbroken-status", b"stable"), ("unbroken-pulse", b"9")]
VOID = ("t", None, b"unbroken/counts.0", [*STATUS, ("unbroken-corrects", b"true")])
ROW, NO_ROW = pa.table({"n": [1]}), pa.table({"n": pa.array([], pa.int64())})


def test_headers_are_those_that_were_asked_for() -> None:
    plain, asked = KafkaSink("a:1", "t"), KafkaSink("a:1", "t", tentative=True)
    asked.tentative = False  # as a node says where the segment has no bound on its delay
    assert lane_of(plain, ROW) == [("t", b'{"n":1}', None, UNIT)]
    assert lane_of(asked, ROW) == [("t", b'{"n":1}', None, STATUS)]
    assert lane_of(asked, NO_ROW) == []


def test_a_unit_without_rows_says_that_tentative_ones_are_void() -> None:
    sink = KafkaSink("a:1", "t", tentative=True)
    assert lane_of(sink, NO_ROW) == []
    assert lane_of(sink, NO_ROW, corrects=True) == [VOID]
    assert [message.value for message in lane_of(sink, ROW, corrects=True)] == [b'{"n":1}']
    spread = KafkaSink("a:1", topic_column="to", ledger="mine", tentative=True)
    assert lane_of(spread, NO_ROW, corrects=True) == [], "there is no topic that all of its readers read"


# --- messages


def test_json_has_all_columns_and_the_key_beside_them() -> None:
    table = pa.table({"shop": ["a", None], "n": [1, 2], "at": pa.array([0, None], pa.timestamp("us", "UTC"))})
    first, second = messages(table, UNIT, key=("shop",))
    assert first == ("out", b'{"shop":"a","n":1,"at":"1970-01-01T00:00:00.000000Z"}', b"a", UNIT)
    assert second == ("out", b'{"shop":null,"n":2,"at":null}', None, UNIT)
    assert [message.key for message in messages(table)] == [None, None]
    assert messages(table)[0].headers is None


@pytest.mark.parametrize(
    ("column", "key"),
    [
        (["ä\nb"], "ä\nb".encode()),
        ([b"\xff\x00"], b"\xff\x00"),
        (pa.array(["a"]).dictionary_encode(), b"a"),
        ([42], b"42"),
        ([True], b"true"),
        ([1.5], b"1.5"),
        ([Decimal("1.50")], b"1.50"),
        ([dt.date(2024, 1, 2)], b"2024-01-02"),
        ([{"a": 1}], b'{"a":1}'),
        (pa.array([None], pa.int64()), None),
    ],
)
def test_a_key_is_the_text_of_its_column(column: Any, key: bytes | None) -> None:
    assert messages(pa.table({"k": column, "n": [1]}), key=("k",))[0].key == key


def test_a_key_of_several_columns_is_an_object_of_them() -> None:
    table = pa.table({"a": ["x", None], "n": [1, 2], "b": [2, 3]})
    assert [message.key for message in messages(table, key=("b", "a"))] == [b'{"b":2,"a":"x"}', b'{"b":3,"a":null}']


def test_raw_takes_key_and_value_as_they_are() -> None:
    table = pa.table({"key": [b"\x00", None], "value": ["ä", None]})
    assert messages(table, kind="raw") == [("out", "ä".encode(), b"\x00", None), ("out", None, None, None)]
    assert messages(table.select(["value"]), kind="raw")[0].key is None
    named = pa.table({"id": ["7"], "value": pa.array([b"v"], pa.large_binary())})
    assert messages(named, kind="raw", key=("id",)) == [("out", b"v", b"7", None)]


def test_topics_and_headers_of_rows_are_not_part_of_the_value() -> None:
    pairs = pa.map_(pa.string(), pa.string())
    structs = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    for kind, some in ((pairs, [("a", "1")]), (structs, [{"key": "a", "value": b"1"}])):
        table = pa.table({"n": [1, 2], "to": ["x", None], "h": pa.array([some, None], kind)})
        first, second = messages(table, UNIT, topic_column="to", headers="h")
        value = "1" if kind is pairs else b"1"
        assert first == ("x", b'{"n":1}', None, [("a", value), *UNIT])
        assert second == ("out", b'{"n":2}', None, UNIT)


def test_many_rows_stay_in_order_with_their_keys() -> None:
    table = pa.table({"n": range(25_000), "k": [str(n) for n in range(25_000)]})
    made = messages(table, key=("k",))
    assert [json.loads(message.value or b"")["n"] for message in made] == list(range(25_000))
    assert [int(message.key or b"") for message in made] == list(range(25_000))


@pytest.mark.parametrize(
    ("table", "how", "told"),
    [
        ({"n": [1]}, {"key": ("shop",)}, "no column 'shop', which the Kafka sink is told to use; they have n"),
        ({"n": [1]}, {"kind": "raw"}, "no column 'value'"),
        ({"n": [1], "value": ["a"]}, {"kind": "raw"}, "column 'n' would be lost"),
        ({"value": [1]}, {"kind": "raw"}, "'value' is int64.*cast it to string or binary"),
        ({"to": ["x"]}, {"topic_column": "to"}, "nothing to write"),
        ({"n": [1], "to": [None]}, {"topic_column": "to", "topic": None}, "names no topic in the column 'to'"),
        ({"n": [1], "to": [5]}, {"topic_column": "to"}, "names no topic in the column 'to'"),
        ({"n": [1], "h": ["a"]}, {"headers": "h"}, "'h' does not hold headers; make it a map"),
        ({"n": [1], "h": [[{"key": "a"}]]}, {"headers": "h"}, "'h' does not hold headers"),
    ],
)
def test_rows_that_cannot_be_written(table: dict[str, Any], how: dict[str, Any], told: str) -> None:
    with pytest.raises(KafkaError, match=told):
        messages(pa.table(table), **how)


# --- calls


def test_a_deadline_never_says_that_there_is_no_time() -> None:
    over = CallDeadline(0)
    assert over.over and over.remaining() > 0 and over.remaining(least=2.0) == 2.0
    assert not CallDeadline(60).over and 59 < CallDeadline(60).remaining() <= 60


def test_failures_are_told_with_a_remedy() -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    place = KafkaServers("a:9092")
    for name, remedy in (
        ("_TRANSPORT", "check that the brokers run"),
        ("TOPIC_AUTHORIZATION_FAILED", "allow it to the user"),
        ("_AUTHENTICATION", "check the security settings"),
        ("UNKNOWN_TOPIC_OR_PART", "create the topic"),
    ):
        code = getattr(confluent_kafka.KafkaError, name)
        told = pytest.raises(KafkaError, match=f"^Nothing works \\(Kafka at a:9092\\): .*; {remedy}")
        with told, place.explained("Nothing works"):
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(code))


def test_a_producer_that_was_taken_over_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("unbroken.connectors.kafka")
    with caplog.at_level("DEBUG", log.name):
        log.critical("FATAL [x#producer-1]: This instance has been fenced by a newer instance")
        log.error("FAIL [x#producer-1]: Connection refused")
        log.error("something else")
    assert [record.message for record in caplog.records] == ["something else"]


# --- the ledger


class Slowing:
    """A consumer of a ledger that ends at ``end``; from the second look on it gives no answer in the time it has."""

    def __init__(self, end: int, answers: int) -> None:
        self.end = end
        self.answers = answers

    def get_watermark_offsets(self, _partition: Any, timeout: float) -> tuple[int, int]:
        self.answers -= 1
        if self.answers < 0:
            time.sleep(timeout)
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
        return self.end, self.end


@pytest.mark.parametrize(("answers", "told"), [(0, "cannot be read"), (1, "is held up by an open transaction")])
def test_a_wait_that_ends_in_the_last_look_is_told_as_what_it_was(answers: int, told: str) -> None:
    ledger = KafkaLedger(KafkaServers("a:1"), "out.ledger", 0, "flow/s")
    ledger._consumer = ledger._onlooker = Slowing(5, answers)
    with pytest.raises(KafkaError, match=told):
        ledger.settle(9, CallDeadline(0.2))

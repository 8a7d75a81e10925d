"""Records that are none of an order log, and clients that hand them over in any way: all readers deliver the same."""

from __future__ import annotations

import json
import queue
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.support import TOKEN
from unbroken.node.policies.leader import kafka as order_kafka
from unbroken.node.policies.leader.kafka import KafkaOrderLog, _Followed
from unbroken.node.policies.leader.log import Delivery, LogEvent, Standing, always_room
from unbroken.node.policies.leader.records import OrderLogMark, OrderRecord, Tail
from unbroken.node.policies.leader.seal import RecordSeal
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered
from unbroken.protocol.values.ids import ShardId, StreamId

STREAM = StreamId.parse("a.0>b.0")
SHARD = ShardId("b", 0)
SEAL = RecordSeal(TOKEN, "t", SHARD)


def said(
    offset: bytes = b"0", leader: bytes = b'""', node: bytes = b'"n"', term: bytes = b"1", order: bytes = b"null"
) -> bytes:
    """A record with other values in some places."""
    standing = b'{"term":0,"leader":%s,"before":0,"last":0}' % leader
    mark = b'{"offset":%s,"standing":%s}' % (offset, standing)
    return b'order-record/1 {"node":%s,"writer":"w","mark":%s,"term":%s,"order":%s}' % (node, mark, term, order)


HEAD = said()
WILD = [
    said(offset=b"Infinity"),
    said(offset=b"NaN"),
    said(offset=b"-1"),
    said(offset=b"1e400"),
    said(offset=b"1.5"),
    said(term=b"9" * 30),
    said(term=b"9" * 5_000),
    said(term=b"%d" % 2**63),
    said(term=b'"7"'),
    said(term=b"true"),
    said(node=b"[]"),
    said(node=b'"%s"' % (b"n" * 1_001)),
    said(leader=b'"\\ud800"'),
    said(leader=b'"\\u0007"'),
    said().replace(b',"last":0', b""),
    said().replace(b'{"offset":0', b'{"offset":0,"more":1'),
    said().replace(b"record/1", b"record/2"),
    said()[15:],
    b"[" * 900,
    b"[" * 100_000,
    b"order-record/1 " + b"[" * 100_000,
    b"order-record/1 " + b"{" * 100_000,
    said().replace(b'{"node"', b'{"x":' + b"[" * 990 + b"]" * 990 + b',"node"'),
    said(order=b'{"number":1,"cut":{"a.0>b.0":Infinity},"term":1}'),
    said(order=b'{"number":1,"cut":{"a.0>b.0":-1},"term":1}'),
    said(order=b'{"number":1,"cut":{"a":1},"term":1}'),
    said(order=b'{"number":1,"cut":{"a.0>b.%s":1},"term":1}' % (b"9" * 5_000)),
    said(order=b'{"number":1,"cut":[1],"term":1}'),
    said(order=b"[" * 100_000),
    b"null",
    b"",
    b"\n",
    b"\xff\xfe\x00",
    b"\x00" * 100,
]


def test_these_differ_from_a_record_in_one_place_only() -> None:
    assert OrderRecord.from_bytes(HEAD) == OrderRecord("n", "w", OrderLogMark(), 1)


@pytest.mark.parametrize("data", WILD, ids=range(len(WILD)))
def test_what_is_no_record_is_none_for_everybody(data: bytes) -> None:
    assert OrderRecord.from_bytes(data) is None


def test_it_does_not_matter_how_much_of_the_stack_is_left() -> None:
    def at_depth(depth: int, data: bytes) -> OrderRecord | None:
        return OrderRecord.from_bytes(data) if depth == 0 else at_depth(depth - 1, data)

    for data in (*WILD, HEAD):
        answers = {at_depth(depth, data) is None for depth in (0, sys.getrecursionlimit() - 250)}
        assert len(answers) == 1, data[:50]


FIELDS = st.sampled_from(["node", "writer", "term", "mark", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(FIELDS, inner, max_size=5),
)


@given(st.binary(max_size=200) | VALUES.map(lambda value: b"order-record/1 " + json.dumps(value).encode()))
@settings(max_examples=200, deadline=None)
def test_decoding_is_total(data: bytes) -> None:
    found = OrderRecord.from_bytes(data)
    assert found is None or OrderRecord.from_bytes(found.to_bytes()) == found


# --- readers ------------------------------------------------------------------------------------------------------


@dataclass
class Message:
    place: int
    data: bytes | None
    trouble: Any = None

    def topic(self) -> str:
        return "t"

    def error(self) -> Any:
        return self.trouble

    def offset(self) -> int:
        return self.place

    def value(self) -> bytes | None:
        return self.data


class Passing:
    """An error that passes by itself."""

    def name(self) -> str:
        return "_TRANSPORT"


@dataclass
class Consumer:
    """Kafka's client: it hands records over from where it was told to, and goes on from what it handed over."""

    records: list[bytes | None]
    choices: list[int]
    position: int = 0
    assigned: bool = False
    used: int = 0
    failures: int = field(default=40)

    def _choice(self, *among: int) -> int:
        self.used += 1
        return among[self.choices[self.used % len(self.choices)] % len(among)] if self.choices else among[0]

    def _may_fail(self) -> None:
        if self.failures and self._choice(0, 0, 0, 1):
            self.failures -= 1
            raise RuntimeError("the client fails")

    def consume(self, most: int, timeout_s: float) -> list[Message]:
        assert self.assigned or not self.records
        count = min(most, self._choice(1, 0, 2, 3, 5, 1_000))
        found = [Message(place, self.records[place]) for place in range(self.position, len(self.records))[:count]]
        self.position += len(found)
        self._may_fail()
        if self._choice(0, 1):
            found.insert(self._choice(0, 1), Message(-1, None, Passing()))
        return found

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self._may_fail()
        assert self.assigned
        self.assigned = False

    def incremental_assign(self, partitions: list[Any]) -> None:
        self._may_fail()
        assert not self.assigned
        self.assigned, self.position = True, partitions[0].offset


def read(records: list[bytes | None], choices: list[int], high: int | None = None) -> list[LogEvent]:
    """What a reader of these records delivers, with the product's own turn of its reading thread."""
    consumer = Consumer(records, choices)
    log = KafkaOrderLog.__new__(KafkaOrderLog)
    log._gone, log._writer, log._room = [], "me", always_room
    log._opened = queue.SimpleQueue()
    got: list[LogEvent] = []

    def post(event: LogEvent) -> None:
        consumer._may_fail()
        got.append(event)

    followed = _Followed(Delivery(SHARD, 0, post), "t", SEAL)
    reading: dict[str, _Followed] = {"t": followed}
    followed.astray = True
    end = max(1, len(records)) if high is None else high
    followed.tail = Tail(Delivery(SHARD, 0, lambda _: None), "me", 0, end, SEAL.open)
    followed.tail._delivery = followed.delivery
    for turn in range(400):
        if turn == 100:  # whatever the client did up to here, it now works
            consumer.failures, consumer.choices = 0, []
        try:
            log._assign(consumer, reading)
            log._take(consumer, reading)
        except RuntimeError:
            continue
    assert followed.tail.position == len(records)
    return got


def orders_of(events: list[LogEvent]) -> list[Order]:
    return [order for event in events if isinstance(event, Ordered) for order in event.orders]


def leaders_of(events: list[LogEvent]) -> list[tuple[int, str]]:
    return [(event.term, event.leader) for event in events if isinstance(event, LeaderKnown)]


def topic(foreign: list[tuple[int, bytes | None]], orders: int = 20) -> list[bytes | None]:
    records: list[bytes | None] = [SEAL.seal(OrderRecord("n1", "w", OrderLogMark(), 1))]
    for number in range(1, orders + 1):
        mark = OrderLogMark(0, Standing())
        records.append(SEAL.seal(OrderRecord("n1", "w", mark, 1, Order(number, {STREAM: number}, 1))))
    for place, data in foreign:
        records.insert(place % (len(records) + 1), data)
    return records


@pytest.fixture(autouse=True)
def _partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Partition:
        def __init__(self, topic: str, partition: int, offset: int = -1) -> None:
            self.offset = offset

    monkeypatch.setattr(order_kafka, "client", lambda: type("Library", (), {"TopicPartition": Partition}))


OTHERS = [
    RecordSeal(TOKEN, "u", SHARD),
    RecordSeal(TOKEN, "t", ShardId("b", 1)),
    RecordSeal("another token of another flow, as long as it needs to be", "t", SHARD),
]
"""Seals of another topic or run, of another shard, and of another flow."""

NUMBERS = st.integers(0, 60)
STANDINGS = st.builds(Standing, NUMBERS, st.sampled_from(["", "n1", "n2"]), NUMBERS, NUMBERS)
ORDERS = st.builds(lambda number, unit, term: Order(number, {STREAM: unit}, term), NUMBERS, NUMBERS, NUMBERS)
RECORDS = st.builds(
    OrderRecord,
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["w", "me"]),
    st.builds(OrderLogMark, NUMBERS, STANDINGS),
    NUMBERS,
    st.none() | ORDERS,
)
"""Records as they would have to be: orders of the leader, terms that begin, and marks, all of them false."""

UNSEALED = RECORDS.map(OrderRecord.to_bytes) | RECORDS.map(lambda record: b"0" * 64 + b"\n" + record.to_bytes())
MOVED = st.builds(lambda seal, record: seal.seal(record), st.sampled_from(OTHERS), RECORDS)
CHANGED = st.builds(lambda record, at: _flipped(SEAL.seal(record), at), RECORDS, st.integers(0, 10_000))
RAW = st.sampled_from([*WILD, None])
SEALED_RAW = st.sampled_from(WILD).map(lambda data: SEAL._code(data) + b"\n" + data)


def _flipped(data: bytes, at: int) -> bytes:
    """With one bit that is not as it was sealed."""
    place = at % len(data)
    return data[:place] + bytes([data[place] ^ (1 << at % 8)]) + data[place + 1 :]


foreign = st.lists(st.tuples(st.integers(0, 40), RAW | SEALED_RAW | UNSEALED | MOVED | CHANGED), max_size=6)


@given(foreign, st.lists(st.integers(0, 59), min_size=1, max_size=40))
@example([(8, WILD[0])], [0])
@example([(8, OrderRecord("n2", "w", OrderLogMark(), 7).to_bytes())], [0])
@example([(8, OTHERS[0].seal(OrderRecord("n2", "w", OrderLogMark(), 7)))], [0])
@example([(8, OTHERS[1].seal(OrderRecord("n1", "w", OrderLogMark(), 1, Order(8, {STREAM: 50}, 1))))], [0])
@example([(30, OrderRecord("n1", "w", OrderLogMark(3, Standing(1, "n1", 0, 0)), 1).to_bytes())], [0])
@settings(max_examples=150, deadline=None)
def test_readers_of_one_topic_deliver_the_same_orders(
    foreign: list[tuple[int, bytes | None]], choices: list[int]
) -> None:
    records = topic(foreign)
    events = read(records, choices)
    assert orders_of(events) == [Order(number, {STREAM: number}, 1) for number in range(1, 21)]
    assert leaders_of(events) == leaders_of(read(records, []))[-len(leaders_of(events)) :] == [(1, "n1")]


def test_a_wild_record_does_not_end_what_follows() -> None:
    for count in range(6):
        events = read(topic([(8, WILD[0])]), [count])
        assert [order.number for order in orders_of(events)] == list(range(1, 21))

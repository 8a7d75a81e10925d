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

from support import TOKEN
from unbroken.coordination.orders import kafka as order_kafka
from unbroken.coordination.orders.kafka import KafkaOrderLog, _Followed
from unbroken.coordination.orders.log import Delivery, LogEvent, Standing, always_room
from unbroken.coordination.orders.records import Mark, Record, Tail
from unbroken.coordination.orders.seal import RecordSeal
from unbroken.protocol.leader.orders import LeaderKnown, Order, Ordered
from unbroken.protocol.values.ids import ShardId, StreamId

STREAM = StreamId.parse("a.0>b.0")
SHARD = ShardId("b", 0)
SEAL = RecordSeal(TOKEN, "t", SHARD)
HEAD = b'{"node":"n","writer":"w","term":1,"mark":[0,0,"",0,0]}'
WILD = [
    b'{"mark":[Infinity,0,"",0,0],"node":"","writer":"","term":0}',
    b'{"mark":[NaN,0,"",0,0],"node":"","writer":"","term":0}',
    b'{"mark":[-1,0,"",0,0],"node":"","writer":"","term":0}',
    b'{"mark":[1e400,0,"",0,0],"node":"","writer":"","term":0}',
    b'{"mark":[0,0,"",0,0],"node":"","writer":"","term":%s}' % (b"9" * 30),
    b'{"mark":[0,0,"",0,0],"node":"","writer":"","term":%s}' % (b"9" * 5_000),
    b'{"mark":[0,0,"",0,0],"node":"","writer":"","term":"7"}',
    b'{"mark":[0,0,"",0,0],"node":"","writer":"","term":true}',
    b'{"mark":[0,0,"",0,0],"node":[],"writer":"","term":7}',
    b'{"mark":[0,0,"\\ud800",0,0],"node":"","writer":"","term":7}',
    b'{"mark":[0,0,"",0],"node":"","writer":"","term":7}',
    b'{"mark":{"0":1},"node":"","writer":"","term":7}',
    b'{"mark":"12345","node":"","writer":"","term":7}',
    b"[" * 900,
    b"[" * 100_000,
    b"{" * 100_000,
    b'{"x":' + b"[" * 990 + b"]" * 990 + b',"mark":[0,0,"",0,0],"node":"","writer":"","term":7}',
    HEAD + b'\n{"number":1,"term":1,"cut":{"a.0>b.0":Infinity}}',
    HEAD + b'\n{"number":1,"term":1,"cut":{"a":1}}',
    HEAD + b'\n{"number":1,"term":1,"cut":{"a.0>b.%s":1}}' % (b"9" * 5_000),
    HEAD + b'\n{"number":1,"term":1,"cut":[1]}',
    HEAD + b"\nnull",
    HEAD + b"\n" + b"[" * 100_000,
    b"null",
    b"",
    b"\n",
    b"\xff\xfe\x00",
    b"\x00" * 100,
]


@pytest.mark.parametrize("data", WILD, ids=range(len(WILD)))
def test_what_is_no_record_is_none_for_everybody(data: bytes) -> None:
    assert Record.from_bytes(data) is None


def test_it_does_not_matter_how_much_of_the_stack_is_left() -> None:
    def at_depth(depth: int, data: bytes) -> Record | None:
        return Record.from_bytes(data) if depth == 0 else at_depth(depth - 1, data)

    nested = b'{"x":' + b"[" * 14 + b"]" * 14 + b"," + HEAD[1:]
    for data in (*WILD, nested[:-1] + b"}", HEAD):
        answers = {at_depth(depth, data) is None for depth in (0, sys.getrecursionlimit() - 250)}
        assert len(answers) == 1, data[:50]


FIELDS = st.sampled_from(["node", "writer", "term", "mark", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(FIELDS, inner, max_size=5),
)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=200, deadline=None)
def test_decoding_is_total(data: bytes) -> None:
    found = Record.from_bytes(data + b"\n")
    assert found is None or Record.from_bytes(found.to_bytes()) == found


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
    records: list[bytes | None] = [SEAL.seal(Record("n1", "w", Mark(), 1))]
    for number in range(1, orders + 1):
        mark = Mark(0, Standing())
        records.append(SEAL.seal(Record("n1", "w", mark, 1, Order(number, {STREAM: number}, 1))))
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
    Record,
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["w", "me"]),
    st.builds(Mark, NUMBERS, STANDINGS),
    NUMBERS,
    st.none() | ORDERS,
)
"""Records as they would have to be: orders of the leader, terms that begin, and marks, all of them false."""

UNSEALED = RECORDS.map(Record.to_bytes) | RECORDS.map(lambda record: b"0" * 64 + b"\n" + record.to_bytes())
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
@example([(8, Record("n2", "w", Mark(), 7).to_bytes())], [0])
@example([(8, OTHERS[0].seal(Record("n2", "w", Mark(), 7)))], [0])
@example([(8, OTHERS[1].seal(Record("n1", "w", Mark(), 1, Order(8, {STREAM: 50}, 1))))], [0])
@example([(30, Record("n1", "w", Mark(3, Standing(1, "n1", 0, 0)), 1).to_bytes())], [0])
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

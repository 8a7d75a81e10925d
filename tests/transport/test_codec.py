"""Messages as bytes: each comes back as it was, anything else is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unbroken.errors import UnbrokenError
from unbroken.protocol.ingress.log import Append, AppendAck, Entry
from unbroken.protocol.messages import (
    Ack,
    AskUnit,
    Delivered,
    DigestNote,
    LacksUnit,
    Message,
    Ping,
    Pong,
    Progress,
    Subscribe,
)
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest
from unbroken.transport.codec import decode, encode

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,12}", fullmatch=True)
NUMBERS = st.integers(0, 2**63)
SHARDS = st.builds(ShardId, NAMES, st.integers(0, 255))
REPLICAS = st.builds(ReplicaId, SHARDS, st.integers(0, 7))
STREAMS = st.builds(StreamId, SHARDS, SHARDS)
DIGESTS = st.builds(
    Digest, NUMBERS, st.integers(-(2**63), 2**64), st.lists(st.floats(allow_nan=False), max_size=3).map(tuple)
)
ENTRIES = st.builds(Entry, NUMBERS, NUMBERS, st.binary(max_size=200), NUMBERS, st.booleans())
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Subscribe, STREAMS, st.text(max_size=30), NUMBERS),
    st.builds(Ack, STREAMS, st.text(max_size=30), NUMBERS),
    st.builds(DigestNote, REPLICAS, STREAMS, NUMBERS, DIGESTS),
    st.builds(Delivered, STREAMS, NUMBERS),
    st.builds(Progress, REPLICAS, NUMBERS),
    st.builds(AskUnit, STREAMS, NUMBERS),
    st.builds(LacksUnit, STREAMS, NUMBERS, st.booleans()),
    st.builds(Ping, NUMBERS),
    st.builds(Pong, NUMBERS),
    st.builds(Append, NUMBERS, st.none() | ENTRIES, NUMBERS),
    st.builds(AppendAck, NUMBERS, NUMBERS),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TAGS = ["subscribe", "ack", "digest", "delivered", "progress", "ping", "pong", "append-ack", "commit", "append"]


@settings(max_examples=300)
@given(MESSAGES)
@example(Append(2, Entry(5, 1, b"line\nline\n\x00\xff", 3, True), 4))
@example(Append(2, Entry(5, 1, b""), 4))
@example(Subscribe(StreamId(ShardId("a", 0), ShardId("b", 1)), "\n\ud800é", 0))
def test_every_message_comes_back(message: Message) -> None:
    assert decode(encode(message)) == message


def test_a_sum_that_is_not_a_number_comes_back() -> None:
    stream = StreamId(ShardId("a", 0), ShardId("b", 0))
    note = DigestNote(ReplicaId(ShardId("a", 0), 1), stream, 7, Digest(1, 2, (math.nan, math.inf)))
    back = decode(encode(note))
    assert isinstance(back, DigestNote) and back.digest.matches(note.digest)


def test_messages_are_one_line_of_json_and_a_body() -> None:
    head, _, body = encode(Append(9, Entry(5, 8, b"\nrows", 0, False), 4)).partition(b"\n")
    assert json.loads(head) == ["append", 9, 4, 5, 8, 0, False] and body == b"\nrows"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"nonsense",
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        b"7",
        b'["unknown",1]',
        b'[["ack"],1]',
        b'["ack"]',
        b'["ack","a.0>b.0","r"]',
        b'["ack",5,"r",1]',
        b'["ack",null,"r",1]',
        b'["ack",["a.0>b.0"],"r",1]',
        b'["ack","a.0>b.0","r",null]',
        b'["ack","a.0>b.0","r","x"]',
        b'["ack","a.0>b.0","r",1e999]',
        b'["ack","a.0>b.0","r",NaN]',
        b'["ack","a.x>b.0","r",1]',
        b'["ack","no stream","r",1]',
        b'["progress","a.0",1]',
        b'["progress",7,1]',
        b'["ping"]',
        b'["pong",null]',
        b'["digest","a.0#0","a.0>b.0",1,7]',
        b'["digest","a.0#0","a.0>b.0",1,[1,2]]',
        b'["digest","a.0#0","a.0>b.0",1,[1,2,["x"]]]',
        b'["append",1,2,3]\nbody',
        b"[" * 200_000,
        b"cposix\nsystem\n(S'true'\ntR.",
    ],
    ids=lambda data: repr(data[:30]),
)
def test_garbage_is_refused_with_a_short_reason(data: bytes) -> None:
    with pytest.raises(UnbrokenError, match="a peer sent a message that cannot be read") as caught:
        decode(data)
    assert len(str(caught.value)) < 2_000


@settings(max_examples=300)
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode(data)
    except UnbrokenError:
        return
    assert decode(encode(message)) == message


@settings(max_examples=300)
@given(st.sampled_from(TAGS), st.lists(JSON, max_size=7))
def test_any_fields_behind_a_known_tag_are_a_message_or_refused(tag: str, fields: list[object]) -> None:
    try:
        message = decode(json.dumps([tag, *fields]).encode())
    except UnbrokenError:
        return
    assert isinstance(message, Message)

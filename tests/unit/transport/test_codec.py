"""Messages as bytes: what the tests of all codecs do not know about them."""

from __future__ import annotations

import math

import msgspec
import pytest

from unbroken.codecs.codec import Undecodable
from unbroken.protocol.ingress.log import Append, Entry
from unbroken.protocol.messages import DigestNote
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest
from unbroken.transport.codec import MESSAGE


def test_a_sum_that_is_not_a_number_comes_back() -> None:
    stream = StreamId(ShardId("a", 0), ShardId("b", 0))
    note = DigestNote(ReplicaId(ShardId("a", 0), 1), stream, 7, Digest(1, 2, (math.nan, math.inf)))
    back = MESSAGE.decode(MESSAGE.encode(note))
    assert isinstance(back, DigestNote) and back.digest.matches(note.digest)


def test_the_same_stream_is_the_same_object() -> None:
    """Its hash is made once, and streams are looked up for every message."""
    data = MESSAGE.encode(DigestNote(ReplicaId(ShardId("a", 0), 1), StreamId.parse("a.0>b.0"), 7, Digest(1, 2)))
    first, second = MESSAGE.decode(data), MESSAGE.decode(data)
    assert isinstance(first, DigestNote) and isinstance(second, DigestNote)
    assert first.stream is second.stream and first.replica is second.replica


def test_rows_are_in_a_message_as_they_are() -> None:
    rows = b"line\nline\n\x00\xff"
    assert rows in MESSAGE.encode(Append(9, Entry(5, 8, rows, 0, False), 4))


REBUILT = [0, []]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        ["unknown", 1],
        [["ack"], 1],
        ["ack"],
        ["ack", "a.0>b.0", "r"],
        ["ack", 5, "r", 1, 0, REBUILT],
        ["ack", None, "r", 1, 0, REBUILT],
        ["ack", ["a.0>b.0"], "r", 1, 0, REBUILT],
        ["ack", "a.0>b.0", "r", None, 0, REBUILT],
        ["ack", "a.0>b.0", "r", "x", 0, REBUILT],
        ["ack", "a.0>b.0", "r", math.nan, 0, REBUILT],
        ["ack", "a.x>b.0", "r", 1, 0, REBUILT],
        ["ack", "no stream", "r", 1, 0, REBUILT],
        ["ack", "a.0>b.0", "r", 1, 0, REBUILT, "more"],
        ["progress", "a.0", 1, 0],
        ["progress", 7, 1, 0],
        ["ping"],
        ["pong", None],
        ["digest-note", "a.0#0", "a.0>b.0", 1, 7],
        ["digest-note", "a.0#0", "a.0>b.0", 1, [1, 2]],
        ["digest-note", "a.0#0", "a.0>b.0", 1, [1, 2, ["x"]]],
        ["append", 1, [2, 3, "text", 0, False], 1],
    ],
    ids=repr,
)
def test_messages_that_are_none_are_refused(fields: list[object]) -> None:
    with pytest.raises(Undecodable, match="message cannot be read"):
        MESSAGE.decode(b"message/1 " + msgspec.msgpack.encode(fields))

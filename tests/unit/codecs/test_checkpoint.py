"""Checkpoints of protocol objects: what is read of them, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.changed_bytes import changed
from kit.topologies import chain
from unbroken.codecs.checkpoint import Frame, NoCheckpoint, read_checkpoint, write_checkpoint
from unbroken.codecs.journal import StandIns
from unbroken.protocol.events import LinkUp, Started, Tick
from unbroken.protocol.journal import Beginning
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ingress_log import InSync

BEGINNING = Beginning(
    "a", chain((1,)), chained_placement(chain((1,)), {"a": "1", "b": "2"}), InSync(1, "a", frozenset("ab"), 0)
)


def written() -> bytes:
    protocol = BEGINNING.protocol()
    frame = Frame(protocol)
    for event in (Started(), LinkUp("a"), LinkUp("b"), Tick()):
        protocol.handle(event, 1_000.0)
    return write_checkpoint(frame, StandIns())


WRITTEN = written()


def with_entry(index: int, entry: list[Any]) -> bytes:
    digest, table = msgspec.msgpack.decode(WRITTEN)
    table[index] = entry
    return msgspec.msgpack.encode([digest, table])


def test_a_state_that_is_read_is_written_again() -> None:
    protocol = BEGINNING.protocol()
    frame = Frame(protocol)
    fresh = write_checkpoint(frame, StandIns())
    restored = read_checkpoint(protocol, WRITTEN, StandIns())
    again = write_checkpoint(frame, StandIns())
    assert restored.links == {"a", "b"} and restored.seen_ms == 1_000.0
    assert sorted(msgspec.msgpack.decode(again)[1], key=str) != sorted(msgspec.msgpack.decode(fresh)[1], key=str)
    restored.check()
    told = [
        made.handle(Tick(), 9_000.0) for made in (restored, read_checkpoint(BEGINNING.protocol(), again, StandIns()))
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (["object", "subprocess:Popen", {}], "subprocess:Popen is no class of the protocol"),
        (["object", "unbroken.protocol.machine:sys", {}], "is no class of the protocol"),
        (["value", "unbroken.protocol.values.ids:ShardId", {"part": "x"}], "with other fields"),
        (["object", "unbroken.protocol.values.layout:Layout", {}], "is a value"),
        (["call", "os:system", ["true"]], "an entry"),
        (["tuple", [[1 << 40]]], "IndexError"),
    ],
)
def test_what_no_node_writes_is_refused(entry: list[Any], reason: str) -> None:
    last = len(msgspec.msgpack.decode(WRITTEN)[1]) - 1
    with pytest.raises(NoCheckpoint, match=reason):
        read_checkpoint(BEGINNING.protocol(), with_entry(last, entry), StandIns())


def test_a_checkpoint_of_another_object_is_refused() -> None:
    other = msgspec.msgpack.encode([b"other", msgspec.msgpack.decode(WRITTEN)[1]])
    with pytest.raises(NoCheckpoint, match="other parts"):
        read_checkpoint(BEGINNING.protocol(), other, StandIns())


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_changed_bytes_are_a_state_or_refused(data: st.DataObject) -> None:
    try:
        read_checkpoint(BEGINNING.protocol(), changed(data, WRITTEN), StandIns())
    except NoCheckpoint:
        return

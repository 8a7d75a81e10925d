"""Journals as bytes: every event and instruction comes back, and changed bytes are steps or refused."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.changed_bytes import changed
from kit.typed_values import values
from unbroken.codecs import journal
from unbroken.codecs.codec import Undecodable
from unbroken.codecs.derivation import concrete, derive
from unbroken.codecs.journal import MARK_BYTES, JournalForm, PackedSteps, StandIns
from unbroken.protocol.events import Event
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.journal import Beginning, JournalStep
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.strategy import Ha, Strategy

FORM = JournalForm()
MARKER = JournalForm()
"""Reads nothing, so that it has no stand-ins of rows that other rows may equal."""

INSTRUCTION = derive(Instruction, by_name=False)
EVENTS = pytest.mark.parametrize("kind", concrete(get_args(Event)), ids=lambda kind: kind.__name__)
INSTRUCTIONS = pytest.mark.parametrize("kind", concrete(get_args(Instruction)), ids=lambda kind: kind.__name__)

BEGINNINGS = values(Beginning, readable=False)
STEPS = values(JournalStep, readable=False)


@pytest.fixture(autouse=True, scope="module")
def small_stand_ins() -> Iterator[None]:
    """A changed length is some bytes of the machine that runs the test, for as long as the form is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "LARGEST_PIECE", 1 << 16)
        yield


def packed(*steps: JournalStep) -> tuple[bytes, ...]:
    out = PackedSteps()
    for step in steps:
        out.add(FORM.step_bytes(step))
    return out.all()


def rows_in(value: Any) -> list[bytes]:
    """The bytes in a value, in the place of which a journal has stand-ins."""
    if isinstance(value, bytes):
        return [value] if value else []
    if isinstance(value, dict):
        return rows_in(tuple(value.values()))
    if isinstance(value, list | tuple | frozenset):
        return [row for each in value for row in rows_in(each)]
    if is_dataclass(value):
        return [row for each in fields(value) for row in rows_in(getattr(value, each.name))]
    return []


def check_same(found: Any, given: Any, write: Callable[[Any], bytes]) -> None:
    """What was read is what was written; stand-ins have the length and the digest of the rows."""
    rows = rows_in(given)
    assert sorted(map(len, rows_in(found))) == sorted(map(len, rows))
    if not rows:
        assert found == given
    elif all(len(row) >= MARK_BYTES for row in rows):  # a shorter stand-in may be that of several rows
        assert write(found) == write(given)


@EVENTS
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_step_is_read_as_it_was_written(kind: type, data: st.DataObject) -> None:
    event = data.draw(values(kind, readable=False))
    step = JournalStep(data.draw(st.floats(0, 1e15)), event, data.draw(st.text("0123456789abcdef", max_size=16)), "")
    first, second = FORM.steps(packed(step, step))
    assert first == second and type(first.event) is kind
    check_same(first, step, FORM.step_bytes)
    assert FORM.line(event)


@INSTRUCTIONS
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_an_instruction_is_marked_by_all_that_it_says(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind, readable=False))
    written = msgspec.msgpack.encode(INSTRUCTION.out(value))
    assert INSTRUCTION.back(msgspec.msgpack.decode(written, type=INSTRUCTION.wire)) == value
    other = data.draw(values(kind, readable=False))
    assert (MARKER.mark([value]) == MARKER.mark([other])) == (written == msgspec.msgpack.encode(INSTRUCTION.out(other)))
    in_another_order = MARKER.mark([value, other]) != MARKER.mark([other, value])
    assert in_another_order == (MARKER.mark([value]) != MARKER.mark([other]))
    assert MARKER.line(value)


@settings(max_examples=25, deadline=None)
@given(BEGINNINGS)
def test_a_beginning_is_read_as_it_was_written(beginning: Beginning) -> None:
    check_same(FORM.beginning(FORM.beginning_bytes(beginning)), beginning, FORM.beginning_bytes)


def unpacked_and_changed(data: st.DataObject, piece: bytes) -> bytes:
    """A piece that is changed inside, so that it can still be unpacked, or as it is kept."""
    if data.draw(st.booleans()):
        return zlib.compress(changed(data, zlib.decompress(piece)), 1)
    return changed(data, piece)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEPS, min_size=1, max_size=3), data=st.data())
def test_changed_steps_are_steps_or_refused(steps: list[JournalStep], data: st.DataObject) -> None:
    (piece,) = packed(*steps)
    try:
        found = list(FORM.steps([unpacked_and_changed(data, piece)]))
    except Undecodable as error:
        assert "a part of the journal cannot be read" in str(error)
        return
    for step in found:
        FORM.step_bytes(step)


@settings(max_examples=100, deadline=None)
@given(beginning=BEGINNINGS, data=st.data())
def test_a_changed_beginning_is_one_or_refused(beginning: Beginning, data: st.DataObject) -> None:
    try:
        found = FORM.beginning(unpacked_and_changed(data, FORM.beginning_bytes(beginning)))
    except Undecodable as error:
        assert "a part of the journal cannot be read" in str(error)
        return
    FORM.beginning_bytes(found)


def test_a_beginning_that_breaks_an_invariant_is_refused() -> None:
    broken = Strategy(Ha.ACTIVE)
    object.__setattr__(broken, "every", 0)
    topology = Topology((), {"sums": 1}, (), (), {}, strategies={"sums": broken})
    written = FORM.beginning_bytes(Beginning("a", topology, Layout(1, {}, {}, {}), InSync(1, "a", frozenset(), 1)))
    with pytest.raises(Undecodable, match="cannot be read: no strategy"):
        FORM.beginning(written)


@pytest.mark.parametrize("length", [-1, 1 << 40])
def test_a_stand_in_of_a_length_that_cannot_be_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="a stand-in of"):
        StandIns().stand_in((length, bytes(MARK_BYTES)))

"""The inbox: first copy wins, in order, each number once."""

from __future__ import annotations

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.replica.inbox import AHEAD_LIMIT, Arrival, Inbox
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId(ShardId("a", 0), ShardId("b", 0))


def unit(number: int, content: int = 1) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 0, Digest(1, content))


def test_the_first_copy_wins() -> None:
    inbox = Inbox(STREAM)
    assert inbox.arrive(unit(1)) is Arrival.ACCEPTED
    assert inbox.arrive(unit(1)) is Arrival.DUPLICATE
    assert inbox.arrive(unit(1, content=2)) is Arrival.DIVERGENT
    assert inbox.headers[1].digest == unit(1).digest


def test_available_waits_for_the_gap_to_close() -> None:
    inbox = Inbox(STREAM)
    for number, available in [(2, 0), (3, 0), (1, 3)]:
        inbox.arrive(unit(number))
        assert inbox.available == available
        inbox.check()


def test_consumed_units_are_forgotten_and_known_as_duplicates() -> None:
    inbox = Inbox(STREAM)
    for number in (1, 2, 3):
        inbox.arrive(unit(number))
    assert inbox.consume(2) == [1, 2]
    assert inbox.arrive(unit(1)) is Arrival.DUPLICATE
    assert inbox.consume(1) == [] and inbox.consumed == 2
    inbox.check()


def test_nothing_is_consumed_that_is_not_here() -> None:
    inbox = Inbox(STREAM)
    inbox.arrive(unit(2))
    with pytest.raises(InvariantViolation):
        inbox.consume(1)


def test_what_is_held_ahead_is_bounded() -> None:
    inbox = Inbox(STREAM)
    assert inbox.arrive(unit(AHEAD_LIMIT)) is Arrival.ACCEPTED
    assert inbox.arrive(unit(AHEAD_LIMIT + 1)) is Arrival.REFUSED


def test_an_inbox_can_start_behind_a_checkpoint() -> None:
    inbox = Inbox(STREAM, consumed=7, available=7)
    assert inbox.arrive(unit(7)) is Arrival.DUPLICATE
    assert inbox.arrive(unit(8)) is Arrival.ACCEPTED
    assert inbox.available == 8

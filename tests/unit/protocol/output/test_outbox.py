"""The outbox: what is owed to whom."""

from __future__ import annotations

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.output.outbox import SEND_WINDOW, Outbox
from unbroken.protocol.replica.inbox import AHEAD_LIMIT
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId(ShardId("a", 0), ShardId("b", 0))
FAST, SLOW = ReplicaId(STREAM.consumer, 0), ReplicaId(STREAM.consumer, 1)


def unit(number: int) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 0, Digest(1, number))


def outbox(units: int = 0, counted: tuple[ReplicaId, ...] = (FAST, SLOW), retain: int = 0) -> Outbox:
    box = Outbox(STREAM, frozenset(counted), retain)
    for number in range(1, units + 1):
        box.add(unit(number))
    return box


def test_units_are_numbered_without_a_gap() -> None:
    box = outbox(2)
    assert not box.add(unit(2))
    with pytest.raises(InvariantViolation):
        box.add(unit(4))


def test_a_unit_of_another_stream_is_refused() -> None:
    other = StreamId(ShardId("x", 0), ShardId("b", 0))
    with pytest.raises(InvariantViolation):
        outbox().add(UnitHeader(other, 1, 1, 0, Digest(1, 1)))


def test_a_consumer_that_never_subscribed_keeps_everything_for_itself() -> None:
    box = outbox(5)
    box.subscribe(str(FAST), 0)
    box.ack(str(FAST), 5)
    assert box.trim() == []
    assert box.subscribe(str(SLOW), 0)
    assert [number for name, number in box.sends() if name == str(SLOW)] == [1, 2, 3, 4, 5]


def test_an_acknowledgement_may_come_before_the_unit_is_produced() -> None:
    box = outbox(1, counted=(FAST,))
    box.subscribe(str(FAST), 0)
    assert box.sends() == [(str(FAST), 1)]
    box.ack(str(FAST), 3)
    assert box.trim() == [1]
    for number in (2, 3):
        box.add(unit(number))
        assert box.sends() == [], "the consumer has it from a faster replica"
        assert box.trim() == [number]
        box.check()
    box.add(unit(4))
    assert box.sends() == [(str(FAST), 4)]


def test_an_acknowledgement_without_a_subscription_counts() -> None:
    box = outbox(3, counted=(FAST,))
    box.ack(str(FAST), 2)
    assert box.trim() == [1, 2]


def test_acknowledgements_never_go_back() -> None:
    box = outbox(3, counted=(FAST,))
    box.ack(str(FAST), 3)
    box.ack(str(FAST), 1)
    assert box.trim() == [1, 2, 3]


def test_a_link_that_ends_does_not_end_the_claim() -> None:
    box = outbox(3, counted=(FAST,))
    box.subscribe(str(FAST), 0)
    box.sends()
    box.unsubscribe(str(FAST))
    assert box.trim() == []
    box.subscribe(str(FAST), 1)
    assert box.sends() == [(str(FAST), 2), (str(FAST), 3)], "what was lost with the link is sent again"


def test_the_layout_ends_the_claim() -> None:
    box = outbox(3)
    box.ack(str(FAST), 3)
    box.count(frozenset({FAST}))
    assert box.trim() == [1, 2, 3]


def test_reconnecting_does_not_open_the_window_further() -> None:
    """Or a stalled consumer whose link flaps would be sent more than its inbox takes, and never again."""
    box = outbox(2 * AHEAD_LIMIT, counted=(FAST,))
    available = 0
    for _ in range(10):
        box.subscribe(str(FAST), available)
        available = max([available, *(number for _, number in box.sends())])
    assert available == SEND_WINDOW
    box.ack(str(FAST), 10)
    assert [number for _, number in box.sends()] == list(range(SEND_WINDOW + 1, SEND_WINDOW + 11))


def test_the_window_follows_what_is_committed_and_not_what_is_let_go() -> None:
    """A consumer that relies on its producers lets units go long after it has committed them; when it has connected
    again it needs those that follow what it has, however much is kept."""
    box = Outbox(STREAM, frozenset({FAST}), levels=1)
    for number in range(1, 3 * SEND_WINDOW):
        box.add(unit(number))
    box.ack(str(FAST), 2 * SEND_WINDOW)
    box.trim()
    assert box.base == 0, "all of it may be needed to build the state again"
    box.unsubscribe(str(FAST))
    box.subscribe(str(FAST), 2 * SEND_WINDOW)
    assert [number for _, number in box.sends()] == list(range(2 * SEND_WINDOW + 1, 3 * SEND_WINDOW))


def test_a_subscriber_that_does_not_count_may_miss_units_but_breaks_nothing() -> None:
    box = outbox(10, counted=(FAST,))
    box.subscribe("client", 0)
    assert len(box.sends()) == 10
    for number in range(11, 301):
        box.add(unit(number))
    assert [number for _, number in box.sends()] == list(range(11, SEND_WINDOW + 1))
    box.ack(str(FAST), 200)
    box.trim()
    assert box.sends() == []
    box.ack("client", SEND_WINDOW)
    assert [number for _, number in box.sends()] == list(range(201, 201 + SEND_WINDOW))
    box.check()


def test_a_late_client_gets_what_is_retained() -> None:
    box = outbox(10, counted=(), retain=4)
    assert box.trim() == [1, 2, 3, 4, 5, 6]
    assert not box.subscribe("client", 0)
    assert [number for _, number in box.sends()] == [7, 8, 9, 10]


def test_a_muted_outbox_sends_nothing() -> None:
    box = outbox(3)
    box.muted = True
    box.subscribe(str(FAST), 0)
    assert box.sends() == []

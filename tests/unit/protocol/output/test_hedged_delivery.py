"""Hedged delivery: in order, one at a time, whoever is first."""

from __future__ import annotations

from unbroken.protocol.output.hedged_delivery import HedgedDelivery


def test_the_first_replica_delivers_at_once_and_in_order() -> None:
    delivery = HedgedDelivery(rank=0, hedge_ms=100)
    for number in (1, 2):
        delivery.unit_ready(number, now_ms=5)
    assert delivery.next_delivery(5) == 1
    assert delivery.next_delivery(5) is None, "one at a time"
    assert delivery.next_due_ms() is None
    delivery.finish(1)
    assert delivery.next_delivery(5) == 2
    delivery.check()


def test_the_second_replica_waits_for_a_hedge_delay() -> None:
    delivery = HedgedDelivery(rank=1, hedge_ms=100)
    delivery.unit_ready(1, now_ms=5)
    assert delivery.next_delivery(104) is None
    assert delivery.next_due_ms() == 105
    assert delivery.next_delivery(105) == 1


def test_a_sibling_that_is_ahead_saves_the_delivery() -> None:
    delivery = HedgedDelivery(rank=1, hedge_ms=100)
    delivery.unit_ready(1, now_ms=0)
    delivery.mark_delivered(3)
    assert delivery.next_due_ms() is None
    delivery.unit_ready(2, now_ms=0)
    delivery.unit_ready(4, now_ms=0)
    assert delivery.next_delivery(1_000) == 4
    delivery.check()


def test_the_sink_is_given_nothing_else_until_it_has_come_back() -> None:
    delivery = HedgedDelivery(rank=0, hedge_ms=100)
    for number in (1, 2, 3):
        delivery.unit_ready(number, now_ms=0)
    assert delivery.next_delivery(0) == 1
    delivery.mark_delivered(2)
    delivery.check()
    assert delivery.next_delivery(0) is None
    assert delivery.done_with == 0, "the sink may still be reading unit 1"
    delivery.finish(1)
    assert delivery.done_with == 2
    assert delivery.next_delivery(0) == 3


def test_what_is_delivered_never_goes_back() -> None:
    delivery = HedgedDelivery(rank=0, hedge_ms=100)
    delivery.mark_delivered(5)
    delivery.mark_delivered(3)
    delivery.finish(4)
    assert delivery.delivered == 5

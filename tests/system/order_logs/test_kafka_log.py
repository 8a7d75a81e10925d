"""The order log in a Kafka that is killed, restarted, or has deleted what is old."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from kit.kafka.broker import Broker
from kit.orders.members import SHARD, Member, order, orders
from kit.orders.services import KafkaService
from kit.support import TOKEN
from unbroken.connectors.kafka.client import KafkaError
from unbroken.node.policies.leader.log import Standing
from unbroken.node.policies.leader.records import OrderLogMark, OrderRecord
from unbroken.node.policies.leader.seal import RecordSeal
from unbroken.node.policies.leader.topics import TOPIC_SETTINGS, topic_of
from unbroken.protocol.values.ids import ShardId

if TYPE_CHECKING:
    from kit.kafka.server import Server

Make = Callable[..., Member]
DEADLINE_S = 60.0
pytestmark = [pytest.mark.servers, pytest.mark.kafka]


def make_topic(kafka: Server, service: KafkaService, **settings: str) -> str:
    """The topic of the shard, as somebody else would have made it."""
    from confluent_kafka.admin import NewTopic

    topic = topic_of(service.name, SHARD)
    given = {name.replace("_", "."): value for name, value in settings.items()}
    kafka.admin.create_topics([NewTopic(topic, 1, 1, config=TOPIC_SETTINGS | given)])[topic].result(DEADLINE_S)
    return topic


def test_everything_goes_on_after_the_broker_was_killed(in_kafka: KafkaService, broker: Broker, member: Make) -> None:
    a, b, c = (member(in_kafka, name, each).follow() for name, each in (("a", 20.0), ("b", 20.0), ("c", 0.5)))
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    for each in (a, b, c):
        each.wait_orders(3)
    broker.kill()
    begun = time.monotonic()
    c.log.lead(SHARD, 2)
    c.wait_refusal(2)
    assert time.monotonic() - begun < 15.0, "it waited for as long as the others may"
    a.log.publish(SHARD, 1, [order(4, 1)])
    late = member(in_kafka, "late", 0.5).follow()
    late.log.lead(SHARD, 2)
    assert "Kafka" in late.wait_refusal(2).reason
    broker.start()
    for each in (a, b, c, late):
        assert each.wait_orders(4) == orders(1, 4, 1)
    assert not a.refusals()
    assert b.lead(2).last == 4


def test_late_records_of_old_leaders_are_passed_over_by_everybody(
    in_kafka: KafkaService, kafka: Server, member: Make
) -> None:
    a, b = member(in_kafka, "a").follow(), member(in_kafka, "b").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    b.wait_orders(3)
    b.lead(2)
    stale = OrderLogMark(4, Standing(1, "a", 0, 3))
    late = [OrderRecord("a", "late", stale, 1, order(number, 1, last=99)) for number in (3, 4, 5)]
    late += [OrderRecord("a", "late", stale, 2), OrderRecord("a", "late", stale, 2, order(4, 2, last=99))]
    topic = topic_of(in_kafka.name, SHARD)
    sealed = [RecordSeal(TOKEN, topic, SHARD).seal(each) for each in late]
    kafka.produce(topic, sealed)
    b.log.publish(SHARD, 2, orders(4, 5, 2))
    b.wait_orders(5)
    begins = OrderRecord("foreign", "foreign", OrderLogMark(7, Standing(9, "foreign", 0, 70)), 10)
    kafka.produce(topic, [*sealed, "not one of these", begins.to_bytes()])
    c = member(in_kafka, "c").follow()
    d = member(in_kafka, "d").follow(after=4)
    for each in (a, b, c):
        assert each.wait_orders(5) == [*orders(1, 3, 1), *orders(4, 5, 2)]
    assert d.wait_orders(5) == [order(5, 2)]
    assert c.lead(3).last == 5


def test_an_order_in_a_long_topic_is_found_soon(in_kafka: KafkaService, kafka: Server, member: Make) -> None:
    topic, last = make_topic(kafka, in_kafka), 20_000
    marks = [OrderLogMark(number, Standing(1, "a", 0, number - 1)) for number in range(1, last + 1)]
    records = [OrderRecord("a", "a", OrderLogMark(), 1)]
    records += [OrderRecord("a", "a", mark, 1, order(mark.offset, 1)) for mark in marks]
    seal = RecordSeal(TOKEN, topic, SHARD)
    kafka.produce(topic, [seal.seal(each) for each in records])
    for after in (last, last - 10, last - 3_000):
        begun = time.monotonic()
        found = member(in_kafka, "b").follow(after=after)
        found.wait_leader()
        assert found.wait_orders(last) == orders(after + 1, last, 1)
        assert time.monotonic() - begun < 30.0


def test_records_that_were_deleted_are_told(in_kafka: KafkaService, kafka: Server, member: Make) -> None:
    a = member(in_kafka, "a").follow()
    a.lead(1)
    for number in range(1, 31):
        a.log.publish(SHARD, 1, [order(number, 1)])
        a.wait_orders(number)
    kafka.delete_records(topic_of(in_kafka.name, SHARD), 0, 20)
    b = member(in_kafka, "b").follow(after=5)
    b.wait(lambda: bool(b.lost()), "the loss")
    assert b.lost()[0].after == 5 and 19 < b.lost()[0].first < 25
    b.follow(after=b.lost()[0].first - 1)
    assert b.wait_orders(30)[-1] == order(30, 1)
    a.log.publish(SHARD, 1, [order(31, 1)])
    assert b.wait_orders(31) == orders(b.lost()[0].first, 31, 1)


def test_a_topic_that_was_deleted_is_not_gone_on_with(in_kafka: KafkaService, kafka: Server, member: Make) -> None:
    a = member(in_kafka, "a").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    a.wait_orders(3)
    topic = topic_of(in_kafka.name, SHARD)
    kafka.admin.delete_topics([topic])[topic].result(DEADLINE_S)
    a.wait(lambda: bool(a.lost()), "the loss")
    assert (a.lost()[0].after, a.lost()[0].first) == (3, 1)


def test_a_topic_that_would_forget_is_refused_with_a_remedy(
    in_kafka: KafkaService, kafka: Server, member: Make
) -> None:
    topic = make_topic(kafka, in_kafka, retention_ms="3600000")
    a = member(in_kafka, "a", 1.0).follow()
    a.log.lead(SHARD, 1)
    reason = a.wait_refusal(1).reason
    assert topic in reason and "retention.ms=3600000" in reason and "set it to -1" in reason
    with pytest.raises(KafkaError, match="cannot be the name of a topic"):
        KafkaService(in_kafka.address, "no topic").open("a", print, 1.0)


def test_topics_have_names_that_kafka_takes() -> None:
    assert topic_of("flow-orders", ShardId("counts", 0)) == "flow-orders.counts.0"
    assert topic_of("flow-orders", ShardId("counts@2", 1)) == "flow-orders.counts..2.1"

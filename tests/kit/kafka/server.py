"""What tests do with a Kafka server: make topics, write records, delete records."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from kit.kafka.broker import Broker
from kit.support import wait_until
from unbroken.connectors.kafka.client import library_log

DEADLINE_S = 20.0


class Server:
    """A Kafka that serves: the tests' own ``broker``, or one that was running before (then that is None)."""

    def __init__(self, servers: str, broker: Broker | None = None) -> None:
        self.servers = servers
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": servers}, logger=library_log())
        self._created: list[str] = []

    def create(self, prefix: str = "test", partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A topic with a name that nobody else uses; ``config`` are Kafka's topic settings."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        made = self.admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])
        made[name].result(DEADLINE_S)
        self._created.append(name)
        wait_until(lambda: self.ends(name) is not None, DEADLINE_S, f"leaders of all partitions of {name}")
        return name

    def ends(self, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> list[int] | None:
        """The offset after the last record that can be read, for each partition; None if some have no leader yet."""
        partitions = sorted(self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        try:
            answers = self.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=DEADLINE_S)
            found = {place.partition: answer.result().offset for place, answer in answers.items()}
        except KafkaException:
            return None
        return [found[number] for number in partitions]

    def add_partitions(self, topic: str, total: int) -> None:
        """Give the topic more partitions, ``total`` in all."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(DEADLINE_S)
        wait_until(lambda: len(self.ends(topic) or ()) == total, DEADLINE_S, f"{total} partitions of {topic}")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention would."""
        place = TopicPartition(topic, partition, before)
        next(iter(self.admin.delete_records([place]).values())).result(DEADLINE_S)

    def produce(self, topic: str, values: Iterable[bytes | str | None], partition: int = 0, **extra: Any) -> None:
        """Append records to a partition and wait until they are written; ``extra`` goes to every ``produce`` call."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5}, logger=library_log())
        failed: list[Any] = []

        def told(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=told, **extra)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0, "the records were not written in time"
        assert not failed, failed[0]

    def close(self) -> None:
        """Remove what was made, if the server outlives the tests."""
        if self.broker is None and self._created:
            for done in self.admin.delete_topics(self._created).values():
                done.result(DEADLINE_S)

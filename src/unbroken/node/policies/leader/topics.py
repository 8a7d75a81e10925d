"""The topics of the order log in Kafka: one for each shard, made if it is missing.

A topic keeps at least its last `KEEP_BYTES`, for ever: by age, a shard that was idle for long would lose its standing.
"""

from __future__ import annotations

import logging
import time

from unbroken.connectors.kafka.calls import CallDeadline, KafkaServers
from unbroken.connectors.kafka.client import KafkaError, admin_client, client, reason
from unbroken.protocol.values.ids import ShardId

log = logging.getLogger(__name__)

KEEP_BYTES = 16 * 1024 * 1024
"""What the topic of a shard keeps at least: about 50,000 orders of a shard with a few inputs."""

TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": str(KEEP_BYTES),
    "segment.bytes": str(KEEP_BYTES // 4),
}

LOOK_S = 0.05
"""Pause before a topic that was just made is looked for again."""

OPEN_S = 5.0
"""How long one attempt to find a topic may take."""


def topic_of(topic: str, shard: ShardId) -> str:
    """The topic of a shard. The mark of a generation is not allowed in the name of a topic."""
    return f"{topic}.{shard}".replace("@", "..")


class Topics:
    """Finds topics. May be used by several threads at once."""

    def __init__(self, place: KafkaServers, replication: int) -> None:
        self._place = place
        self._replication = replication
        self._admin = place.admin()

    def open(self, topic: str) -> tuple[int, int]:
        """Make sure that a topic is there and keeps what it has to; where its records begin, and where they end.

        Raises
        ------
        KafkaError
            If the brokers do not answer in time, or refuse, or the topic would forget what is needed.
        """
        deadline = CallDeadline(OPEN_S)
        self._make_sure(topic, deadline)
        return self._ends(topic, deadline)

    def _make_sure(self, topic: str, deadline: CallDeadline) -> None:
        with self._place.explained(f"The topic {topic} cannot be looked up"):
            found = self._admin.list_topics(topic, timeout=deadline.remaining()).topics[topic]
            if found.error is None:
                self._check(topic, deadline)
                return
            if found.error.name() != "UNKNOWN_TOPIC_OR_PART":
                raise client().KafkaException(found.error)
        with self._place.explained(f"The topic {topic} cannot be made"):
            new = admin_client().NewTopic(topic, 1, self._replication, config=TOPIC_SETTINGS)
            try:
                self._admin.create_topics([new], request_timeout=deadline.remaining())[topic].result(OPEN_S)
            except client().KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise

    def _check(self, topic: str, deadline: CallDeadline) -> None:
        """Refuse a topic whose records would be deleted by their age, or replaced."""
        kinds = admin_client()
        resource = kinds.ConfigResource(kinds.ConfigResource.Type.TOPIC, topic)
        try:
            asked = self._admin.describe_configs([resource], request_timeout=deadline.remaining(least=0.1))
            found = asked[resource].result(deadline.remaining(least=1.0))
        except client().KafkaException as error:
            if "AUTHORIZATION" not in error.args[0].name():
                raise
            log.info("the settings of %s cannot be read, so they are not checked: %s", topic, reason(error))
            return
        wrong = {name: str(found[name].value) for name in ("cleanup.policy", "retention.ms")}
        wrong = {name: value for name, value in wrong.items() if value != TOPIC_SETTINGS[name]}
        for name, value in wrong.items():
            raise KafkaError(
                f"The topic {topic} (Kafka at {self._place.servers}) has {name}={value}, so the brokers would forget "
                f"who leads; set it to {TOPIC_SETTINGS[name]}, or name another topic."
            )

    def _ends(self, topic: str, deadline: CallDeadline) -> tuple[int, int]:
        """Where the records of a topic begin and end; waits for a topic that was just made to have a leader."""
        spec, partition = admin_client().OffsetSpec, client().TopicPartition(topic, 0)
        while True:
            try:
                with self._place.explained(f"The ends of {topic} cannot be found"):
                    low, high = (
                        self._admin.list_offsets({partition: each}, request_timeout=deadline.remaining(least=0.1))
                        for each in (spec.earliest(), spec.latest())
                    )
                    return (
                        int(low[partition].result(deadline.remaining(least=1.0)).offset),
                        int(high[partition].result(deadline.remaining(least=1.0)).offset),
                    )
            except KafkaError:
                if deadline.over:
                    raise
            time.sleep(LOOK_S)

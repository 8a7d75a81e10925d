"""Calls of a Kafka sink to the brokers: each ends in time, and what went wrong is told with a remedy."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from unbroken.connectors.kafka.client import KafkaError, Options, admin_client, client, reason, settings

PRODUCER_ONLY = frozenset(
    {
        "acks",
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "linger.ms",
        "message.send.max.retries",
        "message.timeout.ms",
        "partitioner",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queuing.strategy",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "sticky.partitioning.linger.ms",
        "transaction.timeout.ms",
    }
)
"""Settings that consumers and administrators would warn about."""

GROUP = "group.id"
"""Consumers have to name a group, though the sink's join none and commit nothing."""


class CallDeadline:
    """The time by which something has to be done with, passed down to all its steps."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end

    def remaining(self, least: float = 0.05) -> float:
        """Seconds left; never less than ``least``, because the library takes 0 for "do not wait at all"."""
        return max(least, self._end - time.monotonic())


@dataclass(frozen=True)
class KafkaServers:
    """The Kafka that a sink writes to, and how clients of it are made."""

    servers: str
    options: Options = field(default_factory=dict)

    def producer(self, fixed: dict[str, Any]) -> Any:
        options = {name: value for name, value in self.options.items() if name != GROUP}
        return client().Producer(settings(self.servers, options, fixed), logger=_log)

    def consumer(self, fixed: dict[str, Any]) -> Any:
        options = {GROUP: "unbroken", **self._common()}
        return client().Consumer(settings(self.servers, options, fixed), logger=_log)

    def admin(self) -> Any:
        fixed = {"allow.auto.create.topics": False}
        options = {name: value for name, value in self._common().items() if name != GROUP}
        return admin_client().AdminClient(settings(self.servers, options, fixed), logger=_log)

    def _common(self) -> Options:
        return {name: value for name, value in self.options.items() if name not in PRODUCER_ONLY}

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Tell of a failure of the library as one sentence about ``what``, with a remedy."""
        kafka = client()
        try:
            yield
        except kafka.KafkaException as error:
            raise KafkaError(f"{what} (Kafka at {self.servers}): {reason(error)}; {_remedy(error.args[0])}") from error
        except TimeoutError as error:
            raise KafkaError(f"{what} (Kafka at {self.servers}): no answer in time; {_AWAY}") from error


_AWAY = "check that the brokers run and that servers= names them"


def _remedy(error: Any) -> str:
    name = error.name()
    if "AUTHORIZATION" in name:
        return "allow it to the user of the sink (docs/kafka.md lists what it needs)"
    if "AUTHENTICATION" in name or name == "_SSL":
        return "check the security settings in options="
    if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
        return "create the topic"
    if name == "_INCONSISTENT":
        return "check that the brokers run and that all topics that the rows name are there"
    if name == "INVALID_TRANSACTION_TIMEOUT":
        return "set options={'transaction.timeout.ms': ...} to at most transaction.max.timeout.ms of the brokers"
    return _AWAY


def _not_told_otherwise(record: logging.LogRecord) -> bool:
    """Leave out of the library's log what whoever calls it is told anyway.

    These are connections that fail, every second for as long as a broker is away, and, at the highest level, producers
    that were taken over, which is usual here.
    """
    text = record.getMessage()
    return not text.startswith(("FAIL ", "ERROR ")) and "fence" not in text.lower() and "old epoch" not in text


_log = logging.getLogger("unbroken.connectors.kafka")
_log.addFilter(_not_told_otherwise)

"""Asks Kafka's servers which partitions there are and how far they can be read, in bounded time."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from unbroken.connectors.kafka.client import (
    KafkaError,
    Options,
    admin_client,
    client,
    library_log,
    reason,
    server_list,
    settings,
)
from unbroken.connectors.kafka.positions import KafkaOffsets, PartitionKey, PartitionOffsets

log = logging.getLogger(__name__)

METADATA_S = 3.0
"""How often partitions and topics are looked for: a new one is read this much later, an idle topic asked this often."""

AGAIN_S = 0.5
"""How soon they are looked for again after a partition could not be asked."""

PATIENCE_S = 1.0
"""How long a poll waits for servers that answered last time; other sources of the flow wait as long."""

GLANCE_S = 0.02
"""How long it waits while they do not answer: the question stays asked, so nothing is missed by not waiting."""

REQUEST_S = 3.0
"""When a question is given up and asked again. One that is asked while a server dies is not answered by the server that
comes back, so this is how late its return may be noticed."""


class Lookout:
    """Answers what a poll wants to know, or None when the servers do not say in time.

    A question is asked on a thread of its own, one at a time. If the answer does not come in time the question stays
    asked, and a later `look` gets its answer: a bit old, but never wrong, because what could be read once stays so.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: Sequence[str],
        pattern: str | None,
        committed_only: bool,
        options: Options,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = server_list(servers)
        self._topics = tuple(topics)
        self._pattern = None if pattern is None else re.compile(pattern)
        self._clock = clock
        self._library = client()
        self._admin_library = admin_client()
        self._isolation = self._library.IsolationLevel(int(committed_only))
        self._refusal: str | None = None
        fixed = {"error_cb": self._noticed, "logger": library_log()}
        self._admin = self._admin_library.AdminClient({**settings(servers, options, {}), **fixed})
        self._partitions: frozenset[PartitionKey] = frozenset()
        self._looked_at = -float("inf")
        self._missing: frozenset[str] = frozenset()
        self._question: Future[KafkaOffsets] | None = None
        self._answering = True

    def look(self, known: Collection[PartitionKey]) -> KafkaOffsets | None:
        """What the servers say; None if they do not answer. ``known`` partitions are not asked for their beginning.

        Raises
        ------
        KafkaError
            If the servers refuse, which does not pass by itself.
        """
        question = self._question
        if question is None:
            question = self._question = Future()
            thread = threading.Thread(target=self._ask, args=(question, frozenset(known)), name="kafka-lookout")
            thread.daemon = True
            thread.start()
        try:
            snapshot = question.result(PATIENCE_S if self._answering else GLANCE_S)
        except FutureTimeoutError:
            self._silent("no answer")
            return None
        except self._library.KafkaException as error:
            self._question = None
            self._silent(reason(error))
            return None
        except BaseException:
            self._question = None  # or every later look would find the same answer
            raise
        self._question = None
        if not self._answering:
            log.warning("Kafka at %s answers again", self._servers)
        self._answering = True
        self._refusal = None
        return snapshot

    def all_ends(self, partitions: Collection[PartitionKey]) -> PartitionOffsets:
        """Where partitions end, with records of open transactions; those that do not answer in time are left out."""
        everything = self._library.IsolationLevel.READ_UNCOMMITTED
        try:
            return self._offsets(partitions, self._admin_library.OffsetSpec.latest(), everything, PATIENCE_S)
        except self._library.KafkaException:
            return {}

    def _silent(self, why: str) -> None:
        self._admin.poll(0)  # Calls _noticed with what went wrong.
        if self._refusal is not None:
            raise KafkaError(
                f"Kafka at {self._servers} does not let this source in: {self._refusal}. Correct the security settings "
                "in options (security.protocol, sasl.*, ssl.*)."
            )
        if self._answering:
            log.warning("Kafka at %s does not answer (%s); its source waits, others go on", self._servers, why)
        self._answering = False

    def _noticed(self, error: Any) -> None:
        if error.code() in (self._library.KafkaError._AUTHENTICATION, self._library.KafkaError._SSL):
            self._refusal = reason(error)

    def _ask(self, question: Future[KafkaOffsets], known: frozenset[PartitionKey]) -> None:
        try:
            self._admin.poll(0)
            if self._clock() - self._looked_at >= METADATA_S:
                self._partitions = self._by_name() if self._pattern is None else self._by_pattern(self._pattern)
                self._looked_at = self._clock()
            partitions = self._partitions
            spec = self._admin_library.OffsetSpec
            ends = self._offsets(partitions, spec.latest(), self._isolation, REQUEST_S)
            begins = self._offsets(partitions - known, spec.earliest(), self._isolation, REQUEST_S)
            question.set_result(KafkaOffsets(partitions, ends, begins))
        except BaseException as error:
            question.set_exception(error)

    def _by_pattern(self, pattern: re.Pattern[str]) -> frozenset[PartitionKey]:
        topics = self._admin.list_topics(timeout=REQUEST_S).topics
        return frozenset(
            (name, number)
            for name, topic in topics.items()
            # Topics that begin like this are Kafka's own.
            if pattern.fullmatch(name) and not name.startswith("__")
            for number in topic.partitions
        )

    def _by_name(self) -> frozenset[PartitionKey]:
        found: set[PartitionKey] = set()
        missing: set[str] = set()
        collection = self._library.TopicCollection(list(self._topics))
        for name, answer in self._admin.describe_topics(collection, request_timeout=REQUEST_S).items():
            try:
                found.update((name, partition.id) for partition in answer.result(2 * REQUEST_S).partitions)
            except self._library.KafkaException as error:
                code = error.args[0].code()
                if code == self._library.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise KafkaError(
                        f"Kafka at {self._servers} does not allow this source to read the topic {name}. Grant it "
                        "Describe and Read on the topic, or correct the credentials in options."
                    ) from error
                if code != self._library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                missing.add(name)
        for name in sorted(missing - self._missing):
            log.warning("there is no topic %s at %s; it is read as soon as there is one", name, self._servers)
        self._missing = frozenset(missing)
        return frozenset(found)

    def _offsets(
        self, partitions: Iterable[PartitionKey], spec: Any, isolation: Any, deadline_s: float
    ) -> PartitionOffsets:
        """One request to each server; partitions for which there is no answer are left out."""
        wanted = {self._library.TopicPartition(*partition): spec for partition in sorted(partitions)}
        if not wanted:
            return {}
        answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=deadline_s)
        found: PartitionOffsets = {}
        failure: BaseException | None = None
        for partition, answer in answers.items():
            try:
                found[partition.topic, partition.partition] = int(answer.result(2 * deadline_s).offset)
            except self._library.KafkaException as error:
                failure = error
                # The topic may be gone. Not at once, because leaders are elected all the time.
                self._looked_at = min(self._looked_at, self._clock() - METADATA_S + AGAIN_S)
        if failure is not None and not found:
            raise failure
        return found

"""How the units of one stream get into Kafka: each once (`Transactions`), or at least once (`Repeats`).

Why each unit appears once
--------------------------
All replicas of a stream use one *transactional id*. Kafka lets the producer that called ``init_transactions`` last
write under it, and nobody else: that call ends what the one before had open, and from then on refuses it. A unit's rows
and the ledger's record of the unit are one transaction. So

1. whoever took the producer and then read the ledger knows all that was ever committed for the stream; and
2. what it commits as long as it is not refused directly follows that: nobody can have committed in between.

That the ledger was read to its end is known because the reader has come to the record that this producer has just
written: a broker that was replaced as leader, and does not know it yet, cannot pretend an earlier end.

A replica that dies leaves an open transaction, which readers of committed records do not see and which the next one
ends. One that was frozen finds itself refused, whatever it was about to do. A commit without an answer is decided by
the brokers before the next ``init_transactions`` returns, and the ledger tells how. Units come to each replica in their
order, and a unit is left out only if the ledger has it or a later one, so they are committed in their order, too.

Why replicas do not keep taking the producer from each other
-------------------------------------------------------------
A replica that does not have it looks at the ledger first, which disturbs nobody. The record is the first thing that is
written in a transaction, so others see that one is open, and give it `Transactions.patience_s` before they take over:
at least `PATIENCE_S`, twice what this replica itself needed the last time, and twice as much again whenever it was
refused within the same unit.

Tentative units
---------------
They go the same way as the stable ones of their stream, with the same transactional id and the same ledger, so what is
said above holds for all of them together. What there is when a unit is written is known: that it is the first of its
pulse, or, for a stable one, that it corrects tentative ones.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from unbroken.connectors.kafka.calls import CallDeadline, KafkaServers
from unbroken.connectors.kafka.client import KafkaError, UnfitRows, client, reason
from unbroken.connectors.kafka.ledger import LOOK_S, KafkaLedger
from unbroken.connectors.kafka.messages import Headers, KafkaMessage
from unbroken.connectors.sink_ledger import SinkMark
from unbroken.protocol.values.units import UnitHeader

log = logging.getLogger(__name__)

PATIENCE_S = 0.25
"""What another replica's open transaction is given at least: more than an ordinary unit takes, and short against the
time in which nothing else would happen if that replica is dead."""

LONGEST_PATIENCE_S = 10.0

ABORT_S = 1.0
"""For ending a transaction that failed. It is a courtesy to readers: the next taking over ends it as well."""

VISIBLE_S = 5.0
"""For a unit that was committed to become visible; it takes some milliseconds unless a broker fails just then."""

REFUSED = frozenset(
    {
        "_FENCED",
        "_FATAL",
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "UNKNOWN_PRODUCER_ID",
        "INVALID_TXN_STATE",
        # A producer gives its messages up when it learns that it was taken over.
        "_PURGE_QUEUE",
        "_PURGE_INFLIGHT",
    }
)
"""How the library says that another producer has this transactional id, or that the brokers ended the transaction."""

PRODUCER_SETTINGS: dict[str, Any] = {
    # Long enough for full batches while a unit is handed over, and short against the rest.
    "linger.ms": 5,
    # As Kafka's own clients do it, so that rows with a key lie where Kafka Streams and others expect them.
    "partitioner": "murmur2_random",
    # A mistyped name must not become a topic.
    "allow.auto.create.topics": False,
    # For how long the brokers are asked for a topic that they do not know; one that is made just now is soon known.
    "topic.metadata.propagation.max.ms": 5000,
    # The bound of what waits in memory; the library's own is 1 GB.
    "queue.buffering.max.kbytes": 65_536,
}

UnitMessages = Callable[[bool], Iterable[KafkaMessage]]
"""The messages of a unit, given whether it corrects tentative ones; called again when the unit is written again."""

COVER: tuple[bytes, bytes, Headers | None] = (b"", b"unbroken", None)
"""Value, key and headers of a message that is taken back, of a unit that has none itself."""


class ProducerTaken(Exception):
    """Another replica has taken the producer."""


class StreamDelivery(ABC):
    """Delivers the units of one stream; used by one thread."""

    def __init__(self, place: KafkaServers, timeout_s: float) -> None:
        self._place = place
        self._timeout_s = timeout_s
        self._producer: Any = None

    @abstractmethod
    def deliver(self, header: UnitHeader, rows: UnitMessages) -> bool:
        """Write a unit; False if it was there already."""

    def close(self) -> None:
        self._drop()

    def _open(self, settings: dict[str, Any]) -> Any:
        return self._place.producer(
            {**PRODUCER_SETTINGS, **self._place.options, "enable.idempotence": True, **settings}
        )

    def _write(self, rows: Iterable[KafkaMessage], deadline: CallDeadline) -> None:
        """Hand messages to the producer; what waits to be sent is bounded by its settings."""
        producer = self._producer
        produce = producer.produce
        for topic, value, key, headers in rows:
            while True:
                try:
                    produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(min(0.1, deadline.remaining()))
                    if deadline.over:
                        raise self._slow() from None

    def _flush(self, deadline: CallDeadline) -> None:
        """Wait until the brokers have taken or refused everything.

        Not with the library's ``flush``: that goes on serving callbacks after one of them has raised a fatal error, and
        calls into Python with an exception pending.
        """
        while len(self._producer):
            if deadline.over:
                raise self._slow()
            self._producer.poll(min(0.1, deadline.remaining()))

    def _slow(self) -> KafkaError:
        return KafkaError(
            f"Kafka at {self._place.servers} did not take a unit within {self._timeout_s:.0f} s; check that the "
            "brokers run. For units that take longer set options={'transaction.timeout.ms': ...}, or make them smaller "
            "with a shorter pulse."
        )

    def _drop(self) -> None:
        """Let go of the producer, whatever state it is in."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            # Serves the reports of what was purged, which the library keeps until then.
            for _ in range(10):
                with suppress(client().KafkaException, SystemError):
                    if not len(producer):
                        break
                    producer.poll(0.1)


class Repeats(StreamDelivery):
    """At least once: a unit is done with when the brokers have acknowledged all of it; until then it is repeated."""

    def __init__(self, place: KafkaServers, timeout_s: float) -> None:
        super().__init__(place, timeout_s)
        self._failed: list[Any] = []

    def deliver(self, header: UnitHeader, rows: UnitMessages) -> bool:
        deadline, failed = CallDeadline(self._timeout_s), self._failed
        if self._producer is None:
            failed.clear()
            self._producer = self._open({"delivery.report.only.error": True, "on_delivery": self._on_failure})
        try:
            with self._place.explained(f"Unit {header.number} is not known to be written"), _faults(rows):
                self._write(rows(False), deadline)
                self._flush(deadline)
                if failed:
                    raise client().KafkaException(failed[0])
        except BaseException:
            self._drop()
            raise
        return True

    def _on_failure(self, error: Any, _message: Any) -> None:
        # One is enough to repeat the unit.
        if not self._failed:
            self._failed.append(error)


class Transactions(StreamDelivery):
    """Each unit once, whatever other replicas do meanwhile.

    ``topics`` are those that units go to, as far as they are known without them. ``at`` is called between any two steps
    with the name of the one that is done; tests stop or end the process there.
    """

    def __init__(
        self,
        place: KafkaServers,
        timeout_s: float,
        ledger: KafkaLedger,
        transactional_id: str,
        topics: frozenset[str] = frozenset(),
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(place, timeout_s)
        self._topics = topics
        self.patience_s = PATIENCE_S
        self._ledger = ledger
        self._transactional_id = transactional_id
        self._at = at
        self._settled = False

    def deliver(self, header: UnitHeader, rows: UnitMessages) -> bool:
        deadline, refused = CallDeadline(self._timeout_s), 0
        while not self._ledger.has(header):
            try:
                if self._producer is None:
                    if self._delivered_by_another(header, refused, deadline):
                        break
                    self._take(header, rows, deadline)
                if self._transact(header, rows, deadline):
                    return True
            except ProducerTaken as error:
                refused += 1
                log.info("%s was taken over at %s: %s", self._transactional_id, _named(header).lower(), error)
                self._drop()
                if deadline.over:
                    raise KafkaError(
                        f"{_named(header)} was not written within {self._timeout_s:.0f} s, in which "
                        f"{self._transactional_id} was taken over {refused} times ({error}); it is tried again. If "
                        "this goes on, look for another run of a flow with the same name."
                    ) from None
            except BaseException:
                # The next attempt begins with clients that know nothing: some cling to a broker as it was before.
                self.close()
                raise
        return False

    def close(self) -> None:
        super().close()
        self._ledger.close()

    def _delivered_by_another(self, header: UnitHeader, refused: int, deadline: CallDeadline) -> bool:
        """Look whether the unit is there, and wait for whoever seems to be writing it."""
        self._ledger.refresh(deadline)
        self._at("read")
        patience = CallDeadline(min(self.patience_s * 2**refused, LONGEST_PATIENCE_S))
        while not self._ledger.has(header) and not patience.over and not deadline.over:
            # Who was refused just now knows of somebody, even if that one has not written anything yet.
            if not refused and not self._ledger.busy(deadline):
                break
            time.sleep(LOOK_S)
            self._ledger.refresh(deadline)
        return self._ledger.has(header)

    def _take(self, header: UnitHeader, rows: UnitMessages, deadline: CallDeadline) -> None:
        """Become the one who writes."""
        self._settled = False
        self._producer = self._open(
            {"transactional.id": self._transactional_id, "transaction.timeout.ms": int(self._timeout_s * 1000)}
        )
        with self._place.explained(f"{self._transactional_id} cannot begin transactions"), _refusals():
            # Connected first: the library looks every 500 ms whether it is, and only then begins.
            self._producer.list_topics(self._ledger.topic, deadline.remaining())
            self._producer.init_transactions(deadline.remaining())
            self._at("taken")
            lost = self._ledger.lost(deadline)
            if lost is not None:
                log.warning("the brokers have lost the end of unit %d of %s", lost.number, self._transactional_id)
                # One before this unit was reported as delivered, and becomes visible together with it. Where there are
                # tentative ones, numbers do not tell; but what is reported was seen in the ledger, and this was not.
                if self._ledger.tentative or lost.run != self._ledger.run.id or lost.number >= header.number:
                    self._cover(header, rows, deadline)

    def _transact(self, header: UnitHeader, rows: UnitMessages, deadline: CallDeadline) -> bool:
        """Write the unit, unless those before turn out to have written it."""
        began = time.monotonic()
        try:
            with self._place.explained(f"{_named(header)} is not known to be written"), _refusals(), _faults(rows):
                self._producer.begin_transaction()
                self._at("begun")
                mark, report = self._record(header)
                if not self._settled and not self._settle(header, mark, report, deadline):
                    self._producer.abort_transaction(deadline.remaining())
                    return False
                self._write(rows(self._ledger.corrected_by(header)), deadline)
                self._at("written")
                self._flush(deadline)
                self._at("flushed")
                # Without an answer it is open what became of it: the producer is dropped, and taking it again decides.
                self._producer.commit_transaction(deadline.remaining())
                self._at("committed")
                self._ledger.wait_visible(report[0][1], CallDeadline(min(VISIBLE_S, deadline.remaining())))
        except KafkaError:
            self._abort()
            raise
        self._ledger.mark = mark
        self.patience_s = max(PATIENCE_S, min(2 * (time.monotonic() - began), LONGEST_PATIENCE_S))
        return True

    def _record(self, header: UnitHeader) -> tuple[SinkMark, list[tuple[Any, int]]]:
        """Write the ledger's record; what it says, and a list in which its error and offset will be."""
        ledger, report = self._ledger, list[tuple[Any, int]]()
        mark = ledger.after(header)

        def written(error: Any, message: Any) -> None:
            report.append((error, message.offset()))

        value = ledger.value(mark)
        self._producer.produce(ledger.topic, value, ledger.key, partition=ledger.partition, on_delivery=written)
        self._at("recorded")
        return mark, report

    def _settle(
        self, header: UnitHeader, mark: SinkMark, report: list[tuple[Any, int]], deadline: CallDeadline
    ) -> bool:
        """Learn from the ledger what those before have written; whether to go on with the unit, recorded as it is."""
        self._flush(deadline)
        ((error, place),) = report
        if error is not None:
            raise client().KafkaException(error)
        self._ledger.settle(place, deadline)
        self._settled = True
        self._at("settled")
        return not self._ledger.has(header) and self._ledger.after(header) == mark

    def _cover(self, header: UnitHeader, rows: UnitMessages, deadline: CallDeadline) -> None:
        """Write to all partitions and take it back, which takes back everything that is open there.

        Brokers of some versions forget to write the end of a transaction to partitions that have no leader just then
        (KAFKA-20734): those with a single replica, when a broker starts after a crash. Such rows stay open, and the
        next end of a transaction of this producer in their partition will apply to them, whichever it is.
        """
        self._producer.begin_transaction()
        value, key, headers = next(((row.value, row.key, row.headers) for row in rows(False)), COVER)
        for topic in {row.topic for row in rows(False)} | self._topics:
            found = self._producer.list_topics(topic, deadline.remaining()).topics[topic]
            for partition in found.partitions:
                self._producer.produce(topic, value, key, partition=partition, headers=headers)
        self._flush(deadline)
        # Last, because what is open there is how others would know of it.
        self._record(header)
        self._flush(deadline)
        self._producer.abort_transaction(deadline.remaining())

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(ABORT_S)
        except client().KafkaException as error:
            log.info("the transaction of %s is left to the brokers: %s", self._transactional_id, reason(error))


def _named(header: UnitHeader) -> str:
    return f"Unit {header.number}" if header.stable else f"The tentative unit of pulse {header.pulse}"


@contextmanager
def _refusals() -> Iterator[None]:
    """Tell apart what means that another replica has the producer."""
    try:
        yield
    except client().KafkaException as error:
        if error.args[0].name() in REFUSED:
            raise ProducerTaken(reason(error)) from None
        raise
    except SystemError as error:
        # What Python makes of a fatal error that the library raises between two callbacks.
        raise ProducerTaken(str(error.__cause__ or error)) from None


UNFIT = {
    "INVALID_RECORD": "a compacted topic takes no row without a key",
    "INVALID_TIMESTAMP": "the topic bounds the times of messages",
    "TOPIC_EXCEPTION": "it names a topic that cannot be",
}
"""What brokers say of messages that they will never take, and what is usual."""


class TooLarge(UnfitRows):
    """A row that the topic has no room for."""


@contextmanager
def _faults(rows: UnitMessages) -> Iterator[None]:
    """Tell which row is too large, and what else the brokers refuse because of the rows."""
    try:
        yield
    except client().KafkaException as error:
        name = error.args[0].name()
        if name in UNFIT:
            raise UnfitRows(
                f"Kafka refuses a row: {reason(error)}; correct it in the segment ({UNFIT[name]})."
            ) from None
        if name != "MSG_SIZE_TOO_LARGE":
            raise
        # The brokers refuse whole batches and do not say which message is to blame.
        size, topic = max((len(row.value or b"") + len(row.key or b""), row.topic) for row in rows(False))
        raise TooLarge(
            f"A row makes a message of {size} bytes, which is too large for the topic {topic}; set max.message.bytes "
            "of the topic and options={'message.max.bytes': ...} of the sink above that, and options={'batch.size': "
            "...} not above the topic's."
        ) from None

"""Fetches exactly the records that two positions enclose, in big pieces, without asking for anything twice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.connectors.kafka.client import KafkaError, Options, client, library_log, reason, server_list, settings
from unbroken.connectors.kafka.positions import PartitionKey, PartitionOffsets, name_of
from unbroken.data.rows.values.times import YEAR_1_MS, YEAR_9999_MS
from unbroken.errors import require

log = logging.getLogger(__name__)

STALL_S = 30.0
"""How long a read waits for its next record. A broker that is restarted, or a new leader, takes less; the caller reads
again after that, so it only bounds how long nobody is told."""

WAIT_S = 0.1
"""How long one look at the client's queue takes at most; how soon a closed reader lets go."""

BATCH = 10_000
"""Messages taken from the client at a time; enough for the cost of a piece not to matter."""

AHEAD_ROWS = 100_000
AHEAD_BYTES = 32_000_000
"""Records after the end of a read that are kept for the next one. Beyond it, partitions that have given all that is
wanted are paused until the others have too."""

DEFAULTS: Options = {
    # The end of a transaction is a place without a record. That it was reached is known only when the server has
    # nothing more to give, which it says after this long. Asking so often costs half a percent of a core.
    "fetch.wait.max.ms": 20,
    "fetch.error.backoff.ms": 100,
    # What was prefetched is taken in big pieces; a full queue is empty again at once.
    "fetch.queue.backoff.ms": 10,
    "group.id": "unbroken",
}

FIXED: Options = {
    # Positions are in the ingress log; Kafka is told nothing.
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A read must never go on somewhere else than asked.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMES = pa.timestamp("us", "UTC")

CODE, OFFSET = "__code", "__offset"

Ints = npt.NDArray[np.int64]


def _times(messages: Sequence[Any]) -> pa.Array:
    """When records were written; null if not known, or outside of the years 1 to 9999, which a producer may claim."""
    stamps = (message.timestamp() for message in messages)
    return pa.array([1000 * ms if kind and YEAR_1_MS <= ms <= YEAR_9999_MS else None for kind, ms in stamps], TIMES)


def _headers(messages: Sequence[Any]) -> pa.Array:
    found = (message.headers() for message in messages)
    return pa.array([each and [{"key": k, "value": v} for k, v in each] for each in found], HEADERS)


FIELDS: Mapping[str, Callable[[Sequence[Any]], pa.Array]] = {
    "key": lambda messages: pa.array([message.key() for message in messages], pa.binary()),
    "value": lambda messages: pa.array([message.value() for message in messages], pa.binary()),
    "timestamp": _times,
    # The client counts from "not available"; Kafka, and Spark, from "create time".
    "timestampType": lambda messages: pa.array([message.timestamp()[0] - 1 for message in messages], pa.int32()),
    "headers": _headers,
}
"""What can be taken out of a record, beside where it is."""


class Fetcher:
    """A consumer that stands at an offset in each of its partitions.

    Invariants
    ----------
    - ``_next``: everything before it was given out. ``_reached``: every record before it was given out or is in
      ``_kept``. Both by the partition's code, its index in ``_partitions``.
    - ``_kept`` holds records from ``_next`` on, each once.

    Offsets have holes: compaction removes records, and transactions end with marks. So a range is complete when the
    consumer has come to its end, by a record at or after it or by the server's word that there is no more, not when
    some number of records is there.

    After an error it is of no use any more.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        options: Options,
        isolation: str,
        fields: Sequence[str],
        stopped: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = server_list(servers)
        self._library = client()
        self._fields = tuple(fields)
        self._stopped = stopped
        self._clock = clock
        self._trouble = ""
        fixed = {**FIXED, "isolation.level": isolation}
        callbacks = {"error_cb": self._noticed, "logger": library_log()}
        self._consumer = self._library.Consumer({**settings(servers, {**DEFAULTS, **options}, fixed), **callbacks})
        self._partitions: list[PartitionKey] = []
        self._codes: dict[PartitionKey, int] = {}
        self._next: Ints = np.zeros(0, np.int64)
        self._reached: Ints = np.zeros(0, np.int64)
        self._kept: list[pa.Table] = []
        self._paused: list[PartitionKey] = []
        self._lost: dict[int, str] = {}

    def stands_at(self, offsets: Mapping[PartitionKey, int]) -> bool:
        """Whether the records from ``offsets`` on are the next it gives, in each partition that it has."""
        return all(self._next[self._codes[each]] == at for each, at in offsets.items() if each in self._codes)

    def add(self, offsets: PartitionOffsets) -> None:
        """Take more partitions, from the given offsets on; those that it has already stay where they are."""
        added = {each: at for each, at in sorted(offsets.items()) if each not in self._codes}
        if not added:
            return
        for partition in added:
            self._codes[partition] = len(self._partitions)
            self._partitions.append(partition)
        starts = np.array(list(added.values()), np.int64)
        self._next = np.concatenate([self._next, starts])
        self._reached = np.concatenate([self._reached, starts])
        self._consumer.incremental_assign([self._library.TopicPartition(*each, at) for each, at in added.items()])

    def take(self, ranges: Mapping[PartitionKey, tuple[int, int]]) -> tuple[pa.Table, list[PartitionKey]]:
        """The records of all ranges, ordered by topic, partition and offset, and which partition each code means.

        Each range begins where this fetcher stands. The table has the columns `CODE`, `OFFSET` and the fields.

        Raises
        ------
        KafkaError
            If records in a range are not there any more, or the servers give nothing for `STALL_S`.
        """
        goals = self._next.copy()
        for partition, (first, end) in ranges.items():
            code = self._codes[partition]
            require(self._next[code] == first, f"{name_of(partition)} stands at {self._next[code]}, not at {first}")
            goals[code] = end
        self._fetch_up_to(goals)
        table = self._cut(goals)
        self._next = goals
        return table, self._partitions

    def close(self) -> None:
        self._consumer.close()

    def _fetch_up_to(self, goals: Ints) -> None:
        short = np.flatnonzero(self._reached < goals)
        if len(short):
            self._resume()
        progress = self._reached.copy()
        deadline = self._clock() + STALL_S
        after = _After(goals)
        counted = 0
        while len(short):
            if self._stopped.is_set():
                raise KafkaError("The reader of a Kafka source was closed while it read.")
            self._fetch()
            for code in short:
                if code in self._lost:
                    raise self._records_lost(int(code), int(goals[code]))
            if (self._reached != progress)[short].any():
                progress = self._reached.copy()
                deadline = self._clock() + STALL_S
            short = np.flatnonzero(self._reached < goals)
            if len(short) and self._clock() >= deadline:
                raise self._stalled(int(short[0]), int(goals[short[0]]))
            after.count(self._kept[counted:])
            counted = len(self._kept)
            if len(short) and after.too_much and not self._paused:
                self._pause(np.flatnonzero(self._reached >= goals))

    def _fetch(self) -> None:
        # Waits for one and takes what else is there: asked for many at once, it would wait until it has as many.
        messages = self._consumer.consume(1, WAIT_S)
        if not messages:
            return
        messages += self._consumer.consume(BATCH, 0)
        errors = [message for message in messages if message.error() is not None]
        if errors:
            messages = [message for message in messages if message.error() is None]
        if messages:
            self._keep(messages)
        # Only then: the end of a partition is reached after the records that came before the word of it.
        for message in errors:
            self._take_error(message, message.error())

    def _keep(self, messages: Sequence[Any]) -> None:
        codes: Ints = np.array(self._codes_of(messages), np.int64)
        offsets: Ints = np.array([message.offset() for message in messages], np.int64)
        columns = {name: FIELDS[name](messages) for name in self._fields}
        table = pa.table({CODE: codes, OFFSET: offsets, **columns})
        # A partition that was paused may be given again from where it was.
        fresh = offsets >= self._reached[codes]
        self._kept.append(table if fresh.all() else table.filter(pa.array(fresh)))
        np.maximum.at(self._reached, codes, offsets + 1)

    def _codes_of(self, messages: Sequence[Any]) -> list[int]:
        topics = {topic for topic, _ in self._partitions}
        if len(topics) == 1:
            # Most sources read one topic, whose name need not be taken out of every record then.
            numbers = {number: code for code, (_, number) in enumerate(self._partitions)}
            return [numbers[message.partition()] for message in messages]
        codes = self._codes
        return [codes[message.topic(), message.partition()] for message in messages]

    def _take_error(self, message: Any, error: Any) -> None:
        kinds = self._library.KafkaError
        code = self._codes.get((message.topic(), message.partition()))
        if error.code() == kinds._PARTITION_EOF and code is not None:
            self._reached[code] = max(self._reached[code], message.offset())
        elif error.code() in (kinds._AUTO_OFFSET_RESET, kinds.OFFSET_OUT_OF_RANGE) and code is not None:
            self._lost[code] = reason(error)
        elif error.code() in (kinds.TOPIC_AUTHORIZATION_FAILED, kinds.GROUP_AUTHORIZATION_FAILED):
            raise KafkaError(
                f"Kafka at {self._servers} does not allow this source to read: {reason(error)}. Grant Read on the "
                "topic and on the group that options={'group.id': ...} names."
            )
        else:
            self._trouble = reason(error)

    def _noticed(self, error: Any) -> None:
        self._trouble = reason(error)

    def _pause(self, codes: Ints) -> None:
        self._paused = [self._partitions[code] for code in codes]
        self._consumer.pause([self._library.TopicPartition(*each) for each in self._paused])

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        if paused:
            self._consumer.resume([self._library.TopicPartition(*each) for each in paused])

    def _cut(self, goals: Ints) -> pa.Table:
        """Take the records before the goals out of what is kept."""
        empty = pa.array([], pa.int64())
        columns = {name: FIELDS[name]([]) for name in self._fields}
        table = pa.concat_tables([pa.table({CODE: empty, OFFSET: empty, **columns}), *self._kept])
        codes, offsets = _ints(table, CODE), _ints(table, OFFSET)
        wanted = offsets < goals[codes]
        if wanted.all():
            self._kept = []
        else:
            self._kept = [table.filter(pa.array(~wanted))]
            table, codes, offsets = table.filter(pa.array(wanted)), codes[wanted], offsets[wanted]
        places = np.argsort(np.array([self._codes[each] for each in sorted(self._codes)], np.int64))[codes]
        order = np.lexsort((offsets, places))
        if not (order[1:] > order[:-1]).all():
            table, places, offsets = table.take(pa.array(order)), places[order], offsets[order]
        twice = (places[1:] == places[:-1]) & (offsets[1:] <= offsets[:-1])
        require(not twice.any(), "a record was fetched twice")
        return table

    def _records_lost(self, code: int, end: int) -> KafkaError:
        partition, first = self._partitions[code], int(self._reached[code])
        there = ""
        try:
            place = self._library.TopicPartition(*partition)
            low, high = self._consumer.get_watermark_offsets(place, timeout=1.0)
            there = f" It holds {low} to {high - 1}." if high > low else f" It is empty and goes on at {high}."
        except self._library.KafkaException:
            log.debug("the offsets of %s could not be asked", name_of(partition))
        return KafkaError(
            f"Records of {name_of(partition)} are gone: offsets {first} to {end - 1} were to be read.{there} The "
            "topic's retention deleted them before the flow came to them, or the topic was deleted and made again. "
            "Nothing is skipped without you: give the topic a longer retention, and start the flow anew (--fresh) with "
            "a start that is there."
        )

    def _stalled(self, code: int, end: int) -> KafkaError:
        why = f" ({self._trouble})" if self._trouble else ""
        return KafkaError(
            f"Kafka at {self._servers} gave no record of {name_of(self._partitions[code])} from offset "
            f"{self._reached[code]} on for {STALL_S:g} s{why}; those up to {end} are wanted. Check that the servers "
            "run and can be reached from this node; it is tried again."
        )


class _After:
    """How much has been fetched that lies after the goals of a read."""

    def __init__(self, goals: Ints) -> None:
        self._goals = goals
        self._rows = 0
        self._bytes = 0.0

    def count(self, tables: Sequence[pa.Table]) -> None:
        for table in tables:
            rows = int(np.count_nonzero(_ints(table, OFFSET) >= self._goals[_ints(table, CODE)]))
            self._rows += rows
            self._bytes += table.nbytes * rows / max(1, table.num_rows)

    @property
    def too_much(self) -> bool:
        return self._rows > AHEAD_ROWS or self._bytes > AHEAD_BYTES


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(table.column(name).to_numpy(), np.int64)

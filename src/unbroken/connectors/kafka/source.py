"""A source that reads topics of Kafka."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.connectors.kafka.client import KafkaError, Option, client_problems, is_topic, server_list
from unbroken.connectors.kafka.fetch import Fetcher
from unbroken.connectors.kafka.lookout import Lookout
from unbroken.connectors.kafka.positions import (
    EARLIEST,
    LATEST,
    PartitionKey,
    Start,
    advance,
    first_offsets,
    name_of,
    new_partitions,
    ranges,
    to_offsets,
    to_position,
)
from unbroken.connectors.kafka.rows import METADATA, JsonRows, raw_rows
from unbroken.connectors.kafka.spark_checkpoint import SparkCheckpoint
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import Flaw
from unbroken.quantities import number_problems
from unbroken.security.secret import declared

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger(__name__)

FORMATS = ("raw", "json")
ISOLATIONS = ("read_committed", "read_uncommitted")
TOMBSTONES = ("bad", "skip")
STARTS = {"earliest": EARLIEST, "latest": LATEST}

RAW_METADATA = ("topic", "partition", "offset", "timestamp", "timestampType")
"""Beside key and value, what Spark's Kafka source gives unless it is asked for more."""

RESERVED = {
    "enable.auto.commit": "leave it out, because the flow itself keeps what was read",
    "enable.auto.offset.store": "leave it out, because the flow itself keeps what was read",
    "enable.partition.eof": "leave it out, because the source depends on it",
    "auto.offset.reset": "say where to begin with start='earliest' or start='latest'",
    "isolation.level": "say isolation='read_committed' or isolation='read_uncommitted'",
}

BEHIND_S = 60.0
"""For this long a partition may end before what was read of it: a new leader takes a moment to know how far the others
were. A topic that was deleted and made again ends there for good."""

FIRST_RECORDS = 10_000
"""Records of a pulse as long as nothing is known about their size."""

Starting = str | Mapping[str, Mapping[int | str, int]] | SparkCheckpoint


class Kafka(SourceConnector):
    """The records of Kafka topics, each once.

    All ingress nodes read the same records, whatever the topic has by then: a pulse is a range of offsets of each
    partition. Nothing is committed to Kafka; how far the flow is, it keeps itself. New partitions, and topics that
    match the pattern, are read from their earliest record on.

    Parameters
    ----------
    servers
        ``host:port``, or several in a list or separated by commas.
    topics
        A topic or a list of topics.
    pattern
        Instead of ``topics``: a regular expression for whole names of topics.
    format
        ``"raw"``: columns ``key`` and ``value`` (binary) and those of Spark's Kafka source. ``"json"``: the value is a
        JSON object with the columns of ``schema``; a value that is not becomes a dead letter.
    schema
        The columns to read, with ``format="json"``.
    start
        Where the first start of the flow begins: ``"earliest"``, ``"latest"``, offsets as ``{topic: {partition:
        offset}}`` (-2 is earliest, -1 latest, partitions left out are read from their earliest record), or
        `SparkCheckpoint` to go on after a Structured Streaming query.
    metadata
        Further columns: some of ``key``, ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType`` and
        ``headers``, as a list, or as a mapping from these to the names they are to have.
    isolation
        ``"read_committed"``: records of transactions once they are committed, and no aborted ones.
        ``"read_uncommitted"``: everything.
    tombstones
        With ``format="json"``, records without a value are ``"bad"`` (dead letters) or left out (``"skip"``).
    max_records_per_pulse, max_bytes_per_pulse
        More than this waits for the next pulse; partitions get equal shares. Bytes are estimated from earlier records.
    options
        Settings of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``. A password is a `Secret`:
        ``{"sasl.password": Secret.env("KAFKA_PASSWORD")}``.

    Examples
    --------
    >>> Kafka("localhost:9092", "orders", format="json", schema="shop string, amount long", metadata=["timestamp"])
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str] = (),
        *,
        pattern: str | None = None,
        format: str = "raw",
        schema: str | StructType | None = None,
        start: Starting = "earliest",
        metadata: Sequence[str] | Mapping[str, str] | None = None,
        isolation: str = "read_committed",
        tombstones: str = "bad",
        max_records_per_pulse: int = 100_000,
        max_bytes_per_pulse: int = 256_000_000,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        self.servers = servers
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.pattern = pattern
        self.format = format
        self.start = start
        self.isolation = isolation
        self.tombstones = tombstones
        self.max_records_per_pulse = max_records_per_pulse
        self.max_bytes_per_pulse = max_bytes_per_pulse
        self.options = declared(options)
        if metadata is None:
            metadata = RAW_METADATA if format == "raw" else ()
        self.metadata = dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
        self.value_schema = None if schema is None else parse_schema(schema)

    @property
    def schema(self) -> StructType:
        from pyspark.sql.types import BinaryType, StructField, StructType

        if self.format == "raw" or self.value_schema is None:
            columns = [StructField("key", BinaryType()), StructField("value", BinaryType())]
        else:
            columns = list(self.value_schema.fields)
        types = _metadata_types()
        return StructType([*columns, *(StructField(self.metadata[n], types[n]) for n in self._known_metadata())])

    def problems(self) -> list[Flaw]:
        found = client_problems(self.servers, self.options, RESERVED)
        topics = self._topic_problems()
        found += topics
        found += self._column_problems()
        if not topics:
            found += self._start_problems()
        choices = (("format", FORMATS), ("isolation", ISOLATIONS), ("tombstones", TOMBSTONES))
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                found.append(Flaw(f"{name} is {getattr(self, name)!r}", f"use one of {', '.join(allowed)}"))
        return found + number_problems(self, ("max_records_per_pulse", "max_bytes_per_pulse"))

    def open(self) -> KafkaReader:
        return KafkaReader(self)

    def starting(self) -> Start:
        """Where the first start begins; raises KafkaError if a checkpoint does not tell."""
        if isinstance(self.start, SparkCheckpoint):
            given = self.start.offsets()
            if not any(self._reads(topic) for topic, _ in given):
                wanted = self.pattern or ", ".join(self.topics)
                there = ", ".join(sorted({topic for topic, _ in given}))
                raise KafkaError(
                    f"The checkpoint {self.start.path} has offsets of {there}, and the source reads {wanted}. Give the "
                    "checkpoint of the query that read these topics."
                )
            return Start(EARLIEST, {each: offset for each, offset in given.items() if self._reads(each[0])})
        if isinstance(self.start, str):
            return Start(STARTS[self.start])
        given = {(topic, int(number)): at for topic, each in self.start.items() for number, at in each.items()}
        return Start(EARLIEST, given)

    def _reads(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.topics
        return re.fullmatch(self.pattern, topic) is not None

    def _known_metadata(self) -> list[str]:
        return [name for name in self.metadata if name in METADATA and not (self.format == "raw" and name == "key")]

    def _topic_problems(self) -> list[Flaw]:
        found = []
        if self.pattern is None and not self.topics:
            found.append(Flaw("There are no topics", "name them, or give a pattern for their names"))
        if self.pattern is not None and self.topics:
            found.append(Flaw("Both topics and a pattern are given", "give one of them"))
        for topic in self.topics:
            if not is_topic(topic):
                found.append(
                    Flaw(f"{topic!r} cannot be a topic", "use letters, digits, '.', '_' and '-', or give a pattern")
                )
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except (re.error, TypeError) as error:
                found.append(Flaw(f"The pattern {self.pattern!r} is no regular expression ({error})", "correct it"))
        return found

    def _column_problems(self) -> list[Flaw]:
        found = []
        if self.format == "json" and self.value_schema is None:
            found.append(
                Flaw("format='json' has no schema", "give the columns, such as schema='shop string, amount long'")
            )
        if self.format == "raw" and self.value_schema is not None:
            found.append(Flaw("format='raw' has a schema", "leave it out, or say format='json' to have values parsed"))
        for name in self.metadata:
            if name not in METADATA:
                found.append(Flaw(f"There is no metadata {name!r}", f"use some of {', '.join(METADATA)}"))
        if self.format == "raw" and self.metadata.get("key", "key") != "key":
            found.append(Flaw("format='raw' has the column key already", "leave it out of metadata"))
        names = [name.lower() for name in self.schema.names]
        for name in sorted({name for name in names if names.count(name) > 1}):
            found.append(Flaw(f"There are two columns {name!r}", f"rename one: metadata={{'{name}': 'kafka_{name}'}}"))
        return found

    def _start_problems(self) -> list[Flaw]:
        if isinstance(self.start, SparkCheckpoint):
            return self.start.problems()
        help_ = "use 'earliest', 'latest', {topic: {partition: offset}} or SparkCheckpoint(path)"
        if isinstance(self.start, str):
            return [] if self.start in STARTS else [Flaw(f"start is {self.start!r}", help_)]
        if not isinstance(self.start, Mapping) or not all(isinstance(each, Mapping) for each in self.start.values()):
            return [Flaw(f"start is {self.start!r}", help_)]
        found = []
        for topic, partitions in self.start.items():
            if not is_topic(topic) or not self._reads(topic):
                found.append(
                    Flaw(f"start names the topic {topic!r}, which is not read", "correct its name or leave it out")
                )
            for number, offset in partitions.items():
                if not str(number).isdecimal() or type(offset) is not int or offset < EARLIEST:
                    found.append(
                        Flaw(f"start has {number!r}: {offset!r} for {topic}", "give the partition's number and offset")
                    )
        return found


def _metadata_types() -> dict[str, DataType]:
    from pyspark.sql.pandas.types import from_arrow_type

    return {name: from_arrow_type(kind) for name, kind in METADATA.items()}


class KafkaReader(SourceReader):
    """Cuts pulses by asking how far partitions go; reads ranges with a consumer that goes on where it was.

    The position is ``{topic: {partition: next offset}}``, see `kafka_positions`. While the servers do not answer it
    stays where it is, so that pulses go on. The source is reachable if all partitions that are read have said how far
    they go.
    """

    def __init__(self, source: Kafka, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._schema = arrow_schema(source.schema)
        self._metadata = {name: source.metadata[name] for name in source._known_metadata()}
        self._json: JsonRows | None = None
        if source.format == "json" and source.value_schema is not None:
            self._json = JsonRows(arrow_schema(source.value_schema), self._metadata, source.tombstones == "skip")
        self._lookout: Lookout | None = None
        self._fetcher: Fetcher | None = None
        self._turn = 0
        self._record_bytes: float | None = None
        self._behind: dict[PartitionKey, float] = {}
        self._stopped = threading.Event()
        self._reading = threading.Lock()

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        known = to_offsets(position)
        if self._lookout is None:
            source = self._source
            committed = source.isolation == "read_committed"
            self._lookout = Lookout(source.servers, source.topics, source.pattern, committed, source.options)
        snapshot = self._lookout.look(known.keys())
        if snapshot is None:
            return Cut(position, reachable=False, why=f"Kafka does not answer at {self._source.servers}")
        if position is None:
            first = first_offsets(self._source.starting(), snapshot)
            # Where to begin is known, and not yet what is there.
            return Cut(None if first is None else to_position(first), reachable=False)
        self._check_behind(self._lookout, known, snapshot.ends)
        self._turn += 1
        after = advance(known, snapshot.ends, self._limit(), self._turn)
        found = new_partitions(snapshot, known)
        answered = known.keys() <= snapshot.ends.keys() and not found
        return Cut(to_position(after | found), reachable=answered, why="some of its partitions have no leader to ask")

    def read(self, start: Position | None, end: Position) -> Rows:
        wanted = ranges(start, end)
        if not wanted:
            return Rows(self._schema.empty_table())
        with self._reading:
            try:
                fetcher = self._fetcher_at({partition: first for partition, (first, _) in wanted.items()})
                table, partitions = fetcher.take(wanted)
            except BaseException:
                self._drop()  # What it stood at is in doubt; the next read begins with another one.
                raise
        self._measure(table.nbytes / sum(last - first for first, last in wanted.values()))
        if self._json is not None:
            return self._json.rows(table, partitions, self._schema)
        return raw_rows(table, partitions, self._metadata, self._schema)

    def close(self) -> None:
        self._stopped.set()
        # A read that is under way sees that it is to stop within a moment.
        if self._reading.acquire(timeout=2.0):
            self._drop()
            self._reading.release()

    def _limit(self) -> int:
        """Offsets for one pulse: as many as are likely to fit, by the size of records that were read."""
        fitting = FIRST_RECORDS
        if self._record_bytes is not None:
            fitting = max(1, int(self._source.max_bytes_per_pulse / self._record_bytes))
        return min(self._source.max_records_per_pulse, fitting)

    def _measure(self, record_bytes: float) -> None:
        """Larger records count at once, smaller ones slowly: a pulse that is too large is worse than a small one."""
        before = self._record_bytes or 1.0
        self._record_bytes = max(record_bytes, 0.9 * before, 1.0)

    def _check_behind(
        self, lookout: Lookout, known: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]
    ) -> None:
        now = self._clock()
        behind = [each for each, at in known.items() if ends.get(each, at) < at]
        self._behind = {each: self._behind.get(each, now) for each in behind}
        suspects = [each for each, since in self._behind.items() if now - since >= BEHIND_S]
        # A start that was given may lie within an open transaction: then the records are there, but not to be read yet.
        for each, end in (lookout.all_ends(suspects) if suspects else {}).items():
            if end < known[each]:
                raise KafkaError(
                    f"{name_of(each)} at {server_list(self._source.servers)} ends at offset {end}, but is to be read "
                    f"on from {known[each]}: the topic was deleted and made again, or has lost records. Nothing is "
                    "skipped without you: restore the topic, or start the flow anew (--fresh)."
                )

    def _fetcher_at(self, offsets: dict[PartitionKey, int]) -> Fetcher:
        if self._fetcher is not None and not self._fetcher.stands_at(offsets):
            self._drop()
        if self._fetcher is None:
            source = self._source
            fields = ["value", *(name for name in self._metadata if name not in ("topic", "partition", "offset"))]
            if self._json is None:
                fields.insert(0, "key")
            self._fetcher = Fetcher(source.servers, source.options, source.isolation, fields, self._stopped)
        self._fetcher.add(offsets)
        return self._fetcher

    def _drop(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.close()

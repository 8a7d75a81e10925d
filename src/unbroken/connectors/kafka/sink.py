"""The sink that writes to Kafka topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.kafka.calls import CallDeadline, KafkaServers
from unbroken.connectors.kafka.client import KafkaError, Options, client_problems, is_topic, server_list
from unbroken.connectors.kafka.delivery import Repeats, StreamDelivery, Transactions
from unbroken.connectors.kafka.ledger import KafkaLedger, marks, prepare, replicas
from unbroken.connectors.kafka.messages import Headers, KafkaMessage, RowFormat
from unbroken.connectors.sink_ledger import SinkMark, stream_name
from unbroken.errors import Flaw
from unbroken.protocol.values.ids import fork_of, segment_of
from unbroken.protocol.values.units import UnitHeader
from unbroken.quantities import is_number, shown
from unbroken.security.secret import declared

UNIT_HEADER = "unbroken-unit"
"""The header that names the unit of a message: ``<segment>.<shard>/<number>``.

Of a tentative one it is ``<segment>~.<shard>/<number>``, and the number counts the units of whoever made it.
"""

STATUS_HEADER = "unbroken-status"
"""With ``tentative=True``: ``stable`` or ``tentative``."""

PULSE_HEADER, SINCE_HEADER = "unbroken-pulse", "unbroken-since"
"""With ``tentative=True``: the pulse that the unit of a message completes; and, of a tentative one, the pulse before
those that it covers."""

CORRECTS_HEADER = "unbroken-corrects"
"""``true`` for a stable message of pulses for which tentative ones were written before."""

VOID_KEY = "unbroken"
"""How the key of a message begins that only says that tentative ones are void; ``<segment>.<shard>`` follows."""

LEDGER_SUFFIX = ".ledger"

TIMEOUT = "transaction.timeout.ms"

TRANSACTION_TIMEOUT_MS = 30_000
"""After this the brokers end a transaction by themselves. It only matters to readers of the topic, whom a transaction
holds up that is open and that no replica is left to end; and it has to be longer than a unit takes to be written."""

LOOK_UP_S = 10.0
"""For a look at the ledger before a run begins."""

RESERVED = {
    "transactional.id": "leave it out, because the sink gives each stream its own",
    "enable.idempotence": "leave it out, because the sink always writes so",
    "acks": "leave it out, because a unit counts when all replicas have it",
    "request.required.acks": "leave it out, because a unit counts when all replicas have it",
    "isolation.level": "leave it out, because the sink reads its ledger as it needs it",
    "enable.partition.eof": "leave it out, because the sink reads its ledger as it needs it",
    "delivery.report.only.error": "leave it out, because the sink needs the reports as they are",
}


class KafkaSink(SinkConnector):
    """Each row becomes a message; each unit appears once, whole, to consumers with ``isolation.level=read_committed``.

    Parameters
    ----------
    servers
        ``host:port`` of brokers, one or several.
    topic
        The topic, which has to be there.
    topic_column
        A column with the topic of each row; rows without one go to ``topic``.
    format
        ``json``: the value is a JSON object of the columns. ``raw``: the columns ``value`` and, if there is one,
        ``key`` are taken as they are; they are strings or binary.
    key
        The column, or columns, that make the key of a message. Rows with the same key go to the same partition, as
        Kafka's own clients choose it; without one they are spread.
    headers
        A column with headers: a map, or an array of structs of key and value.
    exactly_once
        False writes without transactions and ledger: quicker, and after a failure units may be there twice. The flow
        has to say ``guarantee="at-least-once"`` then.
    ledger
        The topic that says which units were delivered, ``<topic>.ledger`` unless it is named. It is made if missing.
    unit_header
        Whether messages say in a header ``unbroken-unit`` which unit they belong to.
    tentative
        Take tentative results as well. Messages say in further headers how they stand: ``unbroken-status``,
        ``unbroken-pulse``, ``unbroken-since`` and ``unbroken-corrects``.
    options
        Further settings of librdkafka, such as ``compression.type`` and those for security. A password is a `Secret`.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str | None = None,
        *,
        topic_column: str | None = None,
        format: Literal["json", "raw"] = "json",
        key: str | Sequence[str] = (),
        headers: str | None = None,
        exactly_once: bool = True,
        ledger: str | None = None,
        unit_header: bool = True,
        tentative: bool = False,
        options: Options | None = None,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.ledger = f"{topic}{LEDGER_SUFFIX}" if ledger is None and topic is not None else ledger
        self.idempotent = exactly_once
        self.unit_header = unit_header
        self.tentative = tentative
        # What was asked for. ``tentative`` becomes false where the flow has nothing tentative for this sink; messages
        # then say that they are stable all the same.
        self.status_headers = tentative
        self.options: Options = declared(options)
        self.rows = RowFormat(topic, format, (key,) if isinstance(key, str) else tuple(key), topic_column, headers)

    def problems(self) -> list[Flaw]:
        timed = is_number(self.options.get(TIMEOUT, 0))
        options = {name: value for name, value in self.options.items() if timed or name != TIMEOUT}
        found = client_problems(self.servers, options, RESERVED)
        rows = self.rows
        if self.topic is None and rows.topic_column is None:
            found.append(Flaw("The Kafka sink has no topic", "give topic=, or topic_column= for a topic of each row"))
        elif self.topic is not None and not is_topic(self.topic):
            found.append(Flaw(f"topic is {self.topic!r}, which Kafka does not take as a name", _NAMES))
        if rows.kind not in ("json", "raw"):
            found.append(Flaw(f"format is {rows.kind!r}", "give 'json' or 'raw'"))
        if rows.kind == "raw" and len(rows.key) > 1:
            found.append(Flaw("With format='raw' the key is one column", "give one, or use format='json'"))
        if not timed:
            found.append(
                Flaw(f"The option {TIMEOUT} is {shown(self.options[TIMEOUT])}", "give a number of milliseconds")
            )
        if any(not isinstance(name, str) or not name for name in rows.key):
            found.append(Flaw(f"key is {rows.key!r}", "give the name of a column, or a list of names"))
        if self.tentative and not self.idempotent:
            found.append(Flaw("tentative=True needs the ledger to know what is there", "leave exactly_once=False out"))
        return found + (self._ledger_problems() if self.idempotent else [])

    def _ledger_problems(self) -> list[Flaw]:
        if self.ledger is None:
            missing = self.topic is None and self.rows.topic_column is not None
            return [Flaw("With topic_column alone the ledger has no name", "give ledger=")] if missing else []
        if self.ledger == self.topic:
            return [Flaw(f"ledger and topic are both {self.topic!r}", "the ledger has to be a topic of its own")]
        if not is_topic(self.ledger) and (self.topic is None or is_topic(self.topic)):
            return [Flaw(f"ledger is {self.ledger!r}, which Kafka does not take as a name", _NAMES)]
        return []

    @property
    def place(self) -> KafkaServers:
        return KafkaServers(server_list(self.servers), self.options)

    def occupied(self) -> str | None:
        found = self._marks()
        if not found:
            return None
        stream, mark = min(found.items())
        return (
            f"the topic {self.ledger} has unit {mark.number} of {stream}, which an earlier run of this sink delivered"
        )

    def runs(self) -> frozenset[str]:
        return frozenset(mark.run for mark in self._marks().values())

    def _marks(self) -> dict[str, SinkMark]:
        if not self.idempotent or self.ledger is None:
            return {}
        return marks(self.place, self.ledger, self.identity, CallDeadline(LOOK_UP_S))

    def open(self, flow_dir: Path) -> KafkaSinkWriter:
        return KafkaSinkWriter(self)


class KafkaSinkWriter(SinkWriter):
    """Hands the units of each stream to its `StreamDelivery`; connects with the first unit that has rows.

    A unit without rows leaves no trace: delivering it again changes nothing either. Only where there are tentative ones
    the ledger has to know of it; and one that corrects some is a message without a value, which says that these are
    void.
    """

    def __init__(self, sink: KafkaSink, at: Callable[[str], None] = lambda _: None) -> None:
        self._sink = sink
        self._at = at
        self._lanes: dict[str, StreamDelivery] = {}

    def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        return self._deliver(header, table) if table.num_rows or self._sink.tentative else True

    def deliver_tentative(self, header: UnitHeader, table: pa.Table) -> bool:
        if not self._sink.tentative:
            raise KafkaError("The Kafka sink takes stable results only; give tentative=True for others.")
        return self._deliver(header, table) if table.num_rows else True

    def _deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        stream = stream_name(header.stream)
        if stream not in self._lanes:
            self._lanes[stream] = self._lane(stream, header.stream.producer.index)

        def rows(corrects: bool) -> Iterable[KafkaMessage]:
            headers = self._headers(header, corrects)
            if corrects and not table.num_rows:
                return self._void(header, headers)
            return self._sink.rows.messages(table, headers)

        return self._lanes[stream].deliver(header, rows)

    def _headers(self, header: UnitHeader, corrects: bool) -> Headers:
        """What messages say of their unit."""
        producer, status = header.stream.producer, "stable" if header.stable else "tentative"
        part = segment_of(producer.part) if header.stable else fork_of(segment_of(producer.part))
        told = {
            UNIT_HEADER: f"{part}.{producer.index}/{header.number}" if self._sink.unit_header else "",
            STATUS_HEADER: status if self._sink.status_headers else "",
            PULSE_HEADER: str(header.pulse) if self._sink.status_headers else "",
            SINCE_HEADER: "" if header.stable else str(header.since),
            CORRECTS_HEADER: "true" if corrects else "",
        }
        return [(name, value.encode()) for name, value in told.items() if value]

    def _void(self, header: UnitHeader, headers: Headers) -> list[KafkaMessage]:
        """What is written of a unit without rows that takes the place of tentative ones: there is nothing instead.

        It needs a key, since a compacted topic takes no message without one. Where every row names its topic, there is
        none to write it to.
        """
        producer, topic = header.stream.producer, self._sink.topic
        key = f"{VOID_KEY}/{segment_of(producer.part)}.{producer.index}"
        return [] if topic is None else [KafkaMessage(topic, None, key.encode(), headers)]

    def close(self) -> None:
        while self._lanes:
            self._lanes.popitem()[1].close()

    def _lane(self, stream: str, shard: int) -> StreamDelivery:
        sink, place = self._sink, self._sink.place
        timeout_ms = float(str(sink.options.get(TIMEOUT, TRANSACTION_TIMEOUT_MS)))
        deadline = CallDeadline(timeout_ms / 1000)
        copies = self._copies(place, deadline)
        if not sink.idempotent:
            return Repeats(place, deadline.seconds)
        if sink.ledger is None:
            raise KafkaError("The Kafka sink has no ledger; give ledger=.")
        prepare(place, sink.ledger, shard, copies, deadline)
        ledger = KafkaLedger(place, sink.ledger, shard, f"{sink.identity}/{stream}", sink.run, sink.tentative)
        # With the ledger's name, so that two runs of a flow that write to different topics do not meet.
        identifier = f"unbroken/{sink.ledger}/{sink.identity}/{stream}"
        topics = frozenset({sink.topic} if sink.topic is not None and sink.tentative else ())
        return Transactions(place, deadline.seconds, ledger, identifier, topics, self._at)

    def _copies(self, place: KafkaServers, deadline: CallDeadline) -> int:
        """How often the topic is replicated, so that the ledger will be as safe; -1 leaves that to the brokers."""
        sink = self._sink
        if sink.topic is None:
            return -1
        found = replicas(place, place.admin(), sink.topic, deadline)
        if not found and not sink.options.get("allow.auto.create.topics"):
            raise KafkaError(
                f"The topic {sink.topic} is not there (Kafka at {place.servers}); create it, or correct the name."
            )
        return min(found, default=-1)


_NAMES = "use letters, digits, '.', '_' and '-', at most 249"

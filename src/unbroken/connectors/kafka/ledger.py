"""The ledger of a Kafka sink: which unit of each stream was delivered last.

It is a compacted topic. The record of a stream is written in the same transaction as the rows of the unit it names, so
one is there if and only if the others are.

Each stream has a partition of its own, by the number of its shard. A reader of committed records gets no further than
the first open transaction of a partition: in a partition that streams shared, the frozen writer of one would keep the
others from finding out where they are. (Sinks that are given the same ledger do share partitions. That is as right, see
`KafkaLedger.settle`, only slower when a writer dies.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from unbroken.codecs.codec import Undecodable
from unbroken.connectors.kafka.calls import CallDeadline, KafkaServers
from unbroken.connectors.kafka.client import KafkaError, admin_client, client, reason
from unbroken.connectors.sink_ledger import SINK_MARK, SinkMark, own_mark
from unbroken.protocol.values.run import NO_RUN, RunIdentity
from unbroken.protocol.values.units import UnitHeader

log = logging.getLogger(__name__)

TAIL = 1_000
"""How far before its end a partition is read first. A stream writes to it with every unit that has rows, so its last
record is nearly always there; only if it is not, the whole partition is read."""

LOOK_S = 0.02
"""Pause between two looks at something that is waited for."""

LOST_S = 1.0
"""For how long a transaction stays open that the brokers say has ended, until it is believed that they will not end it.
They write its end before they say so; this is for a reader that is told late."""

TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    # About 15,000 units. Only whole segments are compacted, so this bounds what may have to be read of a partition.
    "segment.bytes": str(4 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


class KafkaLedger:
    """The records of one stream; ``mark`` is the last unit known to be delivered.

    It only grows, unless somebody deletes the record (writes one without a value) to let the stream begin again.

    With ``tentative`` it also knows which pulses there are stable and tentative units of. The record of a tentative
    unit repeats what that of the last stable one says, since only the last record of a stream is sure to be kept.
    """

    def __init__(
        self,
        place: KafkaServers,
        topic: str,
        partition: int,
        key: str,
        run: RunIdentity = NO_RUN,
        tentative: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key.encode()
        self.run = run
        self.tentative = tentative
        self.mark: SinkMark | None = None
        self._place = place
        self._consumer: Any = None
        self._onlooker: Any = None
        self._next: int | None = None

    def value(self, mark: SinkMark) -> bytes:
        """The value of the record that says that a unit was delivered."""
        return SINK_MARK.encode(mark)

    def after(self, header: UnitHeader) -> SinkMark:
        """What the record of a unit says that is not known to be delivered."""
        if self.tentative:
            return (self._mine or SinkMark(0, self.run.id)).after(header)
        return SinkMark(header.number, self.run.id)

    @property
    def _mine(self) -> SinkMark | None:
        """What this run has delivered; raises UnbrokenError if the ledger is that of another, not superseded one."""
        remedy = "give the sink another topic with ledger=, or delete this one if its results are not needed"
        return own_mark(self.mark, self.run, f"The ledger {self.topic}", remedy)

    def corrected_by(self, header: UnitHeader) -> bool:
        """Whether a unit is a stable one of pulses for which tentative ones are known to be there."""
        return self._mine is not None and self._mine.corrected_by(header)

    def has(self, header: UnitHeader) -> bool:
        """Whether the unit is known to be delivered; raises UnbrokenError if the ledger is that of another run.

        Of a tentative one, whether anything that reaches its pulse is.
        """
        mine = self._mine
        return mine is not None and (mine.number >= header.number if header.stable else mine.reach >= header.pulse)

    def refresh(self, deadline: CallDeadline) -> None:
        """Read what was committed since the last time, up to the first open transaction."""
        if self._consumer is None:
            self._consumer, self._onlooker = _reader(self._place), _reader(self._place, "read_uncommitted")
        low, end = _offsets(self._place, self._consumer, (self.topic, self.partition), deadline)
        if self._next is not None and self._next > end:
            self._next = None  # The topic was made anew.
        if self._next is not None:
            self._take(self._next, end, deadline)
        else:
            tail = max(low, end - TAIL)
            if not self._take(tail, end, deadline):
                self._take(low, tail, deadline)
        self._next = end

    def busy(self, deadline: CallDeadline) -> bool:
        """Whether somebody has a transaction open; for use after ``refresh``, going by what that has seen."""
        return self._high(deadline) > (self._next or 0)

    def lost(self, deadline: CallDeadline) -> SinkMark | None:
        """A unit of this stream that is open although ``init_transactions`` of its producer ended what was open."""
        patience = CallDeadline(LOST_S)
        while True:
            self.refresh(deadline)
            mark = self._open_here(deadline)
            if mark is None or patience.over:
                return mark
            time.sleep(LOOK_S)

    def settle(self, place: int, deadline: CallDeadline) -> None:
        """Read everything before ``place``, where this stream's producer has just written.

        Of this stream nothing before it is open, because ``init_transactions`` of the producer ended that. So all that
        the stream has is read; only transactions of other sinks with the same ledger are waited for.
        """
        seen = False
        while True:
            try:
                self.refresh(deadline)
            except KafkaError:
                # The last look has little time left. That it ended without an answer is no fault of the brokers.
                if not (seen and deadline.over):
                    raise
            if self._next is not None and self._next >= place:
                return
            if deadline.over:
                raise KafkaError(
                    f"The ledger {self.topic} is held up by an open transaction of another sink; it ends by itself "
                    "after its transaction.timeout.ms. Give this sink a topic of its own with ledger=."
                )
            seen = True
            time.sleep(LOOK_S)

    def wait_visible(self, place: int, deadline: CallDeadline) -> None:
        """Wait until readers get behind ``place``, where this stream's producer has written and committed.

        That takes the brokers some milliseconds. Transactions of other sinks with the same ledger are not waited for.
        """
        pause_s = 0.001
        while (end := self._end(deadline)) <= place:
            if deadline.over:
                raise KafkaError(
                    f"The ledger {self.topic} (Kafka at {self._place.servers}) does not show what was committed; check "
                    "that the brokers run. It is tried again."
                )
            if pause_s >= LOOK_S:
                self._next = end
                if self._open_here(deadline) is None:
                    return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)

    def close(self) -> None:
        clients, self._consumer, self._onlooker, self._next = (self._consumer, self._onlooker), None, None, None
        for each in clients:
            if each is not None:
                each.close()

    def _take(self, start: int, end: int, deadline: CallDeadline) -> bool:
        found = False
        for key, mark in _read(self._place, self._consumer, (self.topic, self.partition), (start, end), deadline):
            if key == self.key:
                found = True
                if mark is None or self.mark is None or self._is_later(mark, self.mark):
                    self.mark = mark
        return found

    def _is_later(self, mark: SinkMark, known: SinkMark) -> bool:
        """Whether a record that was read was written after another that is known: within a run neither of these two
        ever goes back, and a superseded run writes nothing after this one has begun."""
        if mark.run == known.run:
            return (mark.number, mark.reach) > (known.number, known.reach)
        return known.run != self.run.id or mark.run not in self.run.supersedes

    def _end(self, deadline: CallDeadline) -> int:
        """How far readers of committed records get."""
        return _offsets(self._place, self._consumer, (self.topic, self.partition), deadline)[1]

    def _high(self, deadline: CallDeadline) -> int:
        """Where the partition ends, open transactions included."""
        return _offsets(self._place, self._onlooker, (self.topic, self.partition), deadline)[1]

    def _open_here(self, deadline: CallDeadline) -> SinkMark | None:
        """The unit whose open transaction ``refresh`` had to stop at, if it is one of this stream."""
        start = self._next
        if start is None or self._high(deadline) <= start:
            return None
        where, span = (self.topic, self.partition), (start, start + 1)
        return next(
            (mark for key, mark in _read(self._place, self._onlooker, where, span, deadline) if key == self.key), None
        )


def prepare(place: KafkaServers, topic: str, partition: int, replication: int, deadline: CallDeadline) -> None:
    """Make sure that the ledger and this partition of it are there, and that the brokers will keep its records."""
    admin, kinds, kafka = place.admin(), admin_client(), client()
    while (count := partitions(place, admin, topic, deadline)) <= partition:
        with place.explained(f"The ledger {topic} cannot be made"):
            if count == 0:
                new = kinds.NewTopic(topic, partition + 1, replication, config=TOPIC_SETTINGS)
                asked = admin.create_topics([new], request_timeout=deadline.remaining())
            else:
                asked = admin.create_partitions(
                    [kinds.NewPartitions(topic, partition + 1)], request_timeout=deadline.remaining()
                )
            try:
                asked[topic].result(deadline.remaining(least=1.0))
            except kafka.KafkaException as error:
                # Another shard's writer made it, or gave it more partitions, in the same moment.
                if error.args[0].name() not in ("TOPIC_ALREADY_EXISTS", "INVALID_PARTITIONS"):
                    raise
        if deadline.over:
            raise KafkaError(f"The ledger {topic} (Kafka at {place.servers}) was made but does not appear; look at it.")
        time.sleep(LOOK_S)
    _check_policy(place, admin, topic, deadline)


def _check_policy(place: KafkaServers, admin: Any, topic: str, deadline: CallDeadline) -> None:
    kinds, kafka = admin_client(), client()
    resource = kinds.ConfigResource(kinds.ConfigResource.Type.TOPIC, topic)
    try:
        asked = admin.describe_configs([resource], request_timeout=deadline.remaining(least=0.1))
        policy = str(asked[resource].result(deadline.remaining(least=1.0))["cleanup.policy"].value)
    except (kafka.KafkaException, TimeoutError) as error:
        log.info("the settings of the ledger %s cannot be read, so they are not checked: %s", topic, reason(error))
        return
    if policy != "compact":
        raise KafkaError(
            f"The ledger {topic} has cleanup.policy={policy}, so the brokers would forget what was delivered; set it "
            "to compact, or name another topic with ledger=."
        )


def partitions(place: KafkaServers, admin: Any, topic: str, deadline: CallDeadline) -> int:
    """How many partitions a topic has; 0 if it is not there."""
    return len(replicas(place, admin, topic, deadline))


def replicas(place: KafkaServers, admin: Any, topic: str, deadline: CallDeadline) -> list[int]:
    """How many replicas each partition of a topic has; none if it is not there."""
    with place.explained(f"The topic {topic} cannot be looked up"):
        found = admin.list_topics(topic, timeout=deadline.remaining()).topics[topic]
        if found.error is not None and found.error.name() != "UNKNOWN_TOPIC_OR_PART":
            raise client().KafkaException(found.error)
    return [] if found.error is not None else [len(each.replicas) for each in found.partitions.values()]


def marks(place: KafkaServers, topic: str, identity: str, deadline: CallDeadline) -> dict[str, SinkMark]:
    """The last unit of each stream of a sink; a topic that is not there has none."""
    count = partitions(place, place.admin(), topic, deadline)
    if not count:
        return {}
    found: dict[str, SinkMark | None] = {}
    consumer = _reader(place)
    try:
        for partition in range(count):
            span = _offsets(place, consumer, (topic, partition), deadline)
            for key, mark in _read(place, consumer, (topic, partition), span, deadline):
                owner, _, stream = key.decode(errors="replace").rpartition("/")
                if owner == identity:
                    found[stream] = mark
    finally:
        consumer.close()
    return {stream: mark for stream, mark in found.items() if mark is not None}


def _reader(place: KafkaServers, isolation: str = "read_committed") -> Any:
    """A consumer that belongs to no group."""
    return place.consumer(
        {
            "enable.auto.commit": False,
            "isolation.level": isolation,
            # A position that is gone means that the topic was cut at its beginning: the rest is to be read.
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            "queued.max.messages.kbytes": 4096,
            # A fetch that waits for further records would hold up the fetch of the next look.
            "fetch.wait.max.ms": 10,
        }
    )


def _offsets(place: KafkaServers, consumer: Any, where: tuple[str, int], deadline: CallDeadline) -> tuple[int, int]:
    """Where a partition begins and ends; for readers of committed records it ends where a transaction is open."""
    with place.explained(f"The ledger {where[0]} cannot be read"):
        found = consumer.get_watermark_offsets(client().TopicPartition(*where), timeout=deadline.remaining())
        if found is None:
            raise TimeoutError
        return int(found[0]), int(found[1])


def _read(
    place: KafkaServers, consumer: Any, where: tuple[str, int], span: tuple[int, int], deadline: CallDeadline
) -> Iterator[tuple[bytes, SinkMark | None]]:
    """Key and content of the committed records in a span of offsets.

    The partition is fetched only while it is read, so that nothing piles up in a client that stands by.
    """
    kafka = client()
    position, end = span
    if position >= end:
        return
    problem = None
    consumer.assign([kafka.TopicPartition(*where, position)])
    try:
        while position < end:
            message = consumer.poll(min(1.0, deadline.remaining()))
            error = None if message is None else message.error()
            if message is None or (error is not None and error.code() != kafka.KafkaError._PARTITION_EOF):
                problem = error or problem
                if deadline.over:
                    told = "no answer in time" if problem is None else reason(problem)
                    raise KafkaError(
                        f"The ledger {where[0]} (Kafka at {place.servers}) cannot be read to its end: {told}; check "
                        "the brokers, and that the sink may read the topic."
                    )
            elif error is not None:
                # The end: behind records that readers do not see, such as the marks of transactions.
                position = max(position, message.offset())
            else:
                position = message.offset() + 1
                yield message.key() or b"", _mark(message.value(), where[0])
    finally:
        consumer.unassign()


def _mark(value: bytes | None, topic: str) -> SinkMark | None:
    if value is None:
        return None
    try:
        return SINK_MARK.decode(value)
    except Undecodable as error:
        raise KafkaError(
            f"The topic {topic} has a record that is none of a ledger: {error}. Name another with ledger=."
        ) from None

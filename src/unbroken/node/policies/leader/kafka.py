"""The order log in Kafka.

Each shard has a topic of its own with one partition: ``<topic>.<part>.<index>``. Shards then neither wait for each
other nor read each other's records, and the records that a busy shard writes never make the brokers delete those of an
idle one. Kafka takes every record, so what counts is decided by the readers, see `records`. Each record is sealed
for its topic with a key of the flow, see `seal`: others cannot give orders.

Brokers must not elect a leader that lacks acknowledged records (``unclean.leader.election.enable=false``, the default),
or they take back what was read.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unbroken.connectors.kafka.calls import KafkaServers
from unbroken.connectors.kafka.client import KafkaError, Options, client, is_topic, reason, server_list
from unbroken.node.policies.leader.log import (
    DEADLINE_S,
    NOT_FOLLOWED,
    WAITING_LIMIT,
    Delivery,
    LogEvent,
    OrderLog,
    OrderWrite,
    Room,
    always_room,
    check_orders,
)
from unbroken.node.policies.leader.records import OrderLogMark, OrderRecord, Tail
from unbroken.node.policies.leader.seal import RecordSeal
from unbroken.node.policies.leader.topics import Topics, topic_of
from unbroken.protocol.policies.leader.orders import Order, OrderRefused
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

UNSENT_LIMIT = 10_000
"""Records of all shards on their way to the brokers."""

WAIT_S = 0.05
"""How long one look at the client's queue takes at most; how soon a shard is read after it was asked for."""

BATCH = 1_000
"""Records taken from the client at a time."""

RETRY_S = 0.5
"""Pause before a topic is looked for again."""

INTRODUCE_S = 0.5
"""How long the reading of all shards may be held up by one that is asked for; a few milliseconds do."""

CLOSE_S = 5.0
AWAY = "Kafka does not answer"

GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""Errors of a reader that do not pass: its position, or the whole topic, is not there."""

READER: dict[str, Any] = {
    # Asked for by the library; nothing is committed and no member ever joins.
    "group.id": "unbroken-orders",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Everybody has to read the same records; orders are written without transactions.
    "isolation.level": "read_uncommitted",
    # A read must never go on somewhere else than asked.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    # A shard that is asked for waits this long for the fetch that is under way. Records come at once.
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 100,
    # How long a topic may seem to be missing before that is told; it is looked for again then.
    "topic.metadata.propagation.max.ms": 2000,
    "queued.max.messages.kbytes": 4096,
}


class _Followed:
    """A shard that is followed. Its tail belongs to the reading thread; the rest is used under the lock."""

    def __init__(self, delivery: Delivery, topic: str, seal: RecordSeal) -> None:
        self.delivery = delivery
        self.topic = topic
        self.seal = seal
        self.tail: Tail | None = None
        self.sought = -1
        """Where the client was last told to read from."""
        self.assigned = False
        self.astray = False
        """Whether the client may have passed over records that were not taken: it has to be told where to read from."""
        self.trouble = AWAY
        self.lock = threading.Lock()
        self.waiting: deque[OrderWrite] = deque()

    @property
    def mark(self) -> OrderLogMark | None:
        """How things stand at the place that was read up to; None until the topic is read."""
        tail = self.tail
        return None if tail is None else tail.mark


class KafkaOrderLog(OrderLog):
    """The order logs of a flow's shards in Kafka.

    Parameters
    ----------
    topic
        Begin of the topics' names; no two runs of a flow may use the same. Topics that are missing are made.
    token
        The flow's token, from which the key of the records' seals is derived.
    replication
        Copies that the brokers keep of a topic that is made; -1 leaves it to them.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str,
        node: NodeId,
        post: Callable[[LogEvent], None],
        *,
        token: str,
        options: Options | None = None,
        replication: int = -1,
        deadline_s: float = DEADLINE_S,
        room: Room = always_room,
    ) -> None:
        if not is_topic(topic):
            raise KafkaError(f"{topic!r} cannot be the name of a topic; use letters, digits and . _ -")
        self._place = KafkaServers(server_list(servers), dict(options or {}))
        self._topic = topic
        self._token = token
        self._node = node
        self._post = post
        self._room = room
        self._deadline_s = deadline_s
        self._writer = uuid.uuid4().hex[:12]
        self._followed: dict[ShardId, _Followed] = {}
        self._opened: queue.SimpleQueue[tuple[_Followed, int, int]] = queue.SimpleQueue()
        self._failed: queue.SimpleQueue[tuple[ShardId, int, str]] = queue.SimpleQueue()
        self._gone: list[str] = []
        self._closed = threading.Event()
        with self._place.explained("The order log cannot be opened"):
            self._topics = Topics(self._place, replication)
            self._producer = self._new_producer()
            consumer = self._place.consumer(READER | {"error_cb": self._noticed})
        self._thread = LastingThread(self._read, "orders", (consumer,))
        self._thread.start()

    def follow(self, shard: ShardId, after: int) -> None:
        self.forget(shard)
        topic = topic_of(self._topic, shard)
        followed = _Followed(Delivery(shard, after, self._post), topic, RecordSeal(self._token, topic, shard))
        self._followed[shard] = followed
        self._open(followed)

    def forget(self, shard: ShardId) -> None:
        followed = self._followed.pop(shard, None)
        if followed is not None:
            followed.delivery.end()

    def lead(self, shard: ShardId, term: int) -> None:
        self._submit(shard, OrderWrite(term, time.monotonic() + self._deadline_s))

    def publish(self, shard: ShardId, term: int, orders: Sequence[Order]) -> None:
        check_orders(term, orders)
        if orders:
            self._submit(shard, OrderWrite(term, time.monotonic() + self._deadline_s, tuple(orders)))

    def close(self) -> None:
        self._closed.set()
        for shard in list(self._followed):
            self.forget(shard)
        self._thread.join(CLOSE_S)
        self._producer.purge()
        self._producer.poll(0)

    # --- writing --------------------------------------------------------------------------------------

    def _submit(self, shard: ShardId, job: OrderWrite) -> None:
        followed = self._followed.get(shard)
        if followed is None or followed.delivery.ended:
            self._post(OrderRefused(shard, job.term, NOT_FOLLOWED))
            return
        with followed.lock:
            if followed.mark is not None and not followed.waiting:
                refusal = self._send(followed, followed.mark, job)
            elif len(followed.waiting) >= WAITING_LIMIT:
                refusal = f"{WAITING_LIMIT} requests wait to be written already"
            else:
                followed.waiting.append(job)
                return
        if refusal is not None:
            followed.delivery.refused(job.term, refusal)

    def _send(self, followed: _Followed, mark: OrderLogMark, job: OrderWrite) -> str | None:
        """Hand records to the client, which sends them in this order; returns why not."""
        standing = mark.standing
        if job.orders is None:
            if job.term > standing.term:
                return self._produce(followed, OrderRecord(self._node, self._writer, mark, job.term))
            refusal = standing.refusal(self._node, job.term)
            if refusal is None:
                followed.delivery.repeat_leader(standing)
            return refusal
        if refusal := standing.refusal(self._node, job.term):
            return refusal
        if job.orders[0].number <= standing.before:
            return f"order {job.orders[0].number} was given before term {job.term}"
        for order in job.orders:
            if order.number > standing.last:
                refusal = self._produce(followed, OrderRecord(self._node, self._writer, mark, job.term, order))
                if refusal is not None:
                    return refusal
        return None

    def _produce(self, followed: _Followed, record: OrderRecord) -> str | None:
        told = partial(self._delivered, followed.delivery.shard, record.term)
        try:
            self._producer.produce(followed.topic, followed.seal.seal(record), partition=0, on_delivery=told)
        except BufferError:
            return f"{UNSENT_LIMIT} records wait to be sent already"
        except client().KafkaException as error:
            if error.args[0].code() == client().KafkaError._FATAL:
                # Such a client stays useless, and what it had under way is refused; it may be in the log all the same.
                useless, self._producer = self._producer, self._new_producer()
                useless.purge()
                useless.poll(0)
            return reason(error)
        return None

    def _delivered(self, shard: ShardId, term: int, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.put((shard, term, reason(error)))

    def _new_producer(self) -> Any:
        return self._place.producer(
            {
                "acks": "all",
                "enable.idempotence": True,
                # Orders are few and awaited. Those that are published together are sent together all the same.
                "linger.ms": 0,
                "message.timeout.ms": int(self._deadline_s * 1000),
                "queue.buffering.max.messages": UNSENT_LIMIT,
                "allow.auto.create.topics": False,
            }
        )

    # --- reading --------------------------------------------------------------------------------------

    def _read(self, consumer: Any) -> None:
        """The reading thread: gives each tail its records, and tells of what could not be written.

        Whatever fails, no record is passed over: the client reads each topic again from where its tail is.
        """
        reading: dict[str, _Followed] = {}
        told = ""
        try:
            while not self._closed.is_set():
                try:
                    self._assign(consumer, reading)
                    self._take(consumer, reading)
                    self._look_after_jobs()
                    told = ""
                except Exception as error:
                    if told != repr(error):
                        log.exception("reading the order logs at %s failed; trying again", self._place.servers)
                    told = repr(error)
                    self._closed.wait(RETRY_S)
        finally:
            consumer.close()

    def _assign(self, consumer: Any, reading: dict[str, _Followed]) -> None:
        """Begin to read topics that were found, and leave those that are not followed any more."""
        for topic in [topic for topic, followed in reading.items() if followed.delivery.ended]:
            del reading[topic]
            consumer.incremental_unassign([client().TopicPartition(topic, 0)])
        for followed in [followed for followed in reading.values() if followed.astray]:
            self._seek(consumer, reading, followed)
        while not self._opened.empty():
            followed, low, high = self._opened.get()
            if not followed.delivery.ended:
                self._introduce(consumer, followed.topic)
                followed.tail = Tail(followed.delivery, self._writer, low, high, followed.seal.open)
                self._seek(consumer, reading, followed)

    def _introduce(self, consumer: Any, topic: str) -> None:
        """Let the client hear of a topic that is there; by itself it looks for those it has to read once a second."""
        try:
            consumer.list_topics(topic, timeout=INTRODUCE_S)
        except client().KafkaException as error:
            log.debug("%s could not be looked up: %s", topic, reason(error))

    def _seek(self, consumer: Any, reading: dict[str, _Followed], followed: _Followed) -> None:
        """Have the client read a topic from where its tail is; tried again with the next turn if it fails."""
        partition = client().TopicPartition
        reading[followed.topic] = followed
        followed.astray = True
        if followed.assigned:
            consumer.incremental_unassign([partition(followed.topic, 0)])
            followed.assigned = False
        if followed.tail is None or followed.delivery.ended:
            del reading[followed.topic]
            return
        followed.sought = followed.tail.position
        consumer.incremental_assign([partition(followed.topic, 0, followed.sought)])
        followed.assigned, followed.astray = True, False

    def _take(self, consumer: Any, reading: dict[str, _Followed]) -> None:
        if not self._room(WAIT_S):
            return
        try:
            # Waits for one and takes what else is there: asked for many at once, it would wait until it has as many.
            messages = consumer.consume(1, WAIT_S)
            if messages:
                messages += consumer.consume(BATCH, 0)
            for message in messages:
                self._take_one(consumer, reading, message)
            for followed in reading.values():
                if followed.tail is not None:
                    followed.tail.flush()
        except Exception:
            # The client has given out records that were not taken, of any topic.
            for followed in reading.values():
                followed.astray = True
            raise
        gone, self._gone = self._gone, []
        for topic in [topic for topic in reading if any(text.startswith(f"{topic} [") for text in gone)]:
            self._open_again(consumer, reading, reading[topic], "it is not there")

    def _take_one(self, consumer: Any, reading: dict[str, _Followed], message: Any) -> None:
        followed, error = reading.get(message.topic()), message.error()
        if followed is None or followed.tail is None or followed.delivery.ended or followed.astray:
            return
        if error is not None:
            if error.name() in GONE:
                self._open_again(consumer, reading, followed, reason(error))
            return
        if message.offset() < followed.tail.position:
            return
        skipped = message.offset() > followed.tail.position != followed.sought
        if not skipped:
            followed.tail.take(message.offset(), message.value())
        # Skipped records were lost on the way, in this process; they are not passed over. The rest of what the client
        # has given out is of no use then, and it is told where to read from before it is asked again.
        followed.astray = skipped or followed.tail.position != message.offset() + 1

    def _noticed(self, error: Any) -> None:
        """Called when the client has something to say about no record; a missing topic is named in the text only."""
        if error.name() in GONE:
            self._gone.append(reason(error))

    def _open_again(self, consumer: Any, reading: dict[str, _Followed], followed: _Followed, why: str) -> None:
        """Look for a topic whose records are gone; what else goes wrong passes, and the client goes on by itself."""
        log.warning("%s cannot be read on (%s); looking for its orders again", followed.topic, why)
        if followed.tail is not None:
            followed.tail.flush()
        followed.tail = None
        self._open(followed)
        self._seek(consumer, reading, followed)

    def _look_after_jobs(self) -> None:
        self._producer.poll(0)
        failed: dict[tuple[ShardId, int], str] = {}
        while not self._failed.empty():
            shard, term, why = self._failed.get()
            failed[shard, term] = why
        for (shard, term), why in failed.items():
            known = self._followed.get(shard)
            if known is not None:
                known.delivery.refused(term, why)
        for followed in list(self._followed.values()):
            with followed.lock:
                refused = self._due(followed)
            for term, why in refused.items():
                followed.delivery.refused(term, why)

    def _due(self, followed: _Followed) -> dict[int, str]:
        """Send what waited for the topic to be read; returns the terms of what cannot be sent any more, and why."""
        refused: dict[int, str] = {}
        while followed.waiting:
            job, mark = followed.waiting[0], followed.mark
            why = followed.trouble if job.until <= time.monotonic() else None
            if why is None and mark is None:
                break
            followed.waiting.popleft()
            if why is None and mark is not None:
                why = self._send(followed, mark, job)
            if why is not None:
                refused[job.term] = why
        return refused

    # --- finding the topic ----------------------------------------------------------------------------

    def _open(self, followed: _Followed) -> None:
        name = f"orders-{followed.delivery.shard}"
        threading.Thread(target=self._find, args=(followed,), name=name, daemon=True).start()

    def _find(self, followed: _Followed) -> None:
        """Make sure that the topic is there, and have it read; tried until that is so."""
        told = ""
        while not self._closed.is_set() and not followed.delivery.ended:
            try:
                self._opened.put((followed, *self._topics.open(followed.topic)))
                return
            except KafkaError as error:
                followed.trouble = str(error)
            except BaseException as error:
                followed.trouble = f"{followed.topic} cannot be opened: {error!r}"
            if followed.trouble != told:
                log.warning("%s; trying again", followed.trouble)
            told = followed.trouble
            self._closed.wait(RETRY_S)

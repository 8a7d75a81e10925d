"""The order log in ZooKeeper.

| path | content |
|---|---|
| ``/unbroken/<flow>/orders/<shard>`` | the head: who leads, which orders there are, the ones added last |
| ``/unbroken/<flow>/orders/<shard>/<number>`` | one order; the last `KEEP` are there |

Whatever is written replaces the head by compare-and-set, in one transaction with the orders that it adds. That alone
gives all guarantees: a writer with an old idea of the head (an old term, an old newest order) changes nothing, be it
late by an hour, and numbers are dense because each head goes on from the one it replaces.

A reader has one watch, on the head. It fires for orders and for terms, and one request answers it, because the head
holds the orders added last itself. The others are read one by one only by those who were away or begin.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.documents import root_of
from unbroken.node.policies.leader.head import BATCH, HEAD, ORDER, OrderLogHead, fitting
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
from unbroken.protocol.policies.leader.orders import Order, OrderRefused
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

KEEP = 1_000
"""Orders of a shard that are kept. A replica that is further behind is initialised from its peer."""

LOOK_S = 5.0
"""The head is read this often although no watch fired: a watch that got lost only costs this much."""

RETRY_S = 0.2
"""Pause before something is tried again while ZooKeeper is away."""

SLICE_S = 0.2
"""How long a wait for an answer goes on without a look at what has become overdue."""

AWAY = "ZooKeeper does not answer"


class ZooKeeperOrderLog(OrderLog):
    """The order logs of a flow's shards in ZooKeeper.

    Each shard that is followed has a thread of its own, so that shards do not wait for each other. ``client`` belongs
    to the caller, who closes it after the log.
    """

    def __init__(
        self,
        client: KazooClient,
        flow: str,
        node: NodeId,
        post: Callable[[LogEvent], None],
        *,
        deadline_s: float = DEADLINE_S,
        keep: int = KEEP,
        room: Room = always_room,
    ) -> None:
        self._client = client
        self._room = room
        self._root = f"{root_of(flow)}/orders"
        self._node = node
        self._post = post
        self._deadline_s = deadline_s
        self._keep = keep
        self._shards: dict[ShardId, _Shard] = {}
        client.add_listener(self._state_changed)

    def follow(self, shard: ShardId, after: int) -> None:
        self.forget(shard)
        delivery = Delivery(shard, after, self._post)
        path = f"{self._root}/{shard}"
        shard_log = _Shard(self._client, path, self._node, delivery, self._deadline_s, self._keep, self._room)
        self._shards[shard] = shard_log
        self._shards[shard].start()

    def forget(self, shard: ShardId) -> None:
        followed = self._shards.pop(shard, None)
        if followed is not None:
            followed.end()

    def lead(self, shard: ShardId, term: int) -> None:
        self._submit(shard, OrderWrite(term, time.monotonic() + self._deadline_s))

    def publish(self, shard: ShardId, term: int, orders: Sequence[Order]) -> None:
        check_orders(term, orders)
        if orders:
            self._submit(shard, OrderWrite(term, time.monotonic() + self._deadline_s, tuple(orders)))

    def close(self) -> None:
        self._client.remove_listener(self._state_changed)
        shards, self._shards = self._shards, {}
        for followed in shards.values():
            followed.end()
        for followed in shards.values():
            followed.join()

    def _submit(self, shard: ShardId, job: OrderWrite) -> None:
        followed = self._shards.get(shard)
        if followed is None or not followed.submit(job):
            self._post(OrderRefused(shard, job.term, NOT_FOLLOWED))

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            for followed in list(self._shards.values()):
                followed.look()


class _Shard:
    """Reads and writes the log of one shard on one thread; that one alone knows the head."""

    def __init__(
        self,
        client: KazooClient,
        path: str,
        node: NodeId,
        delivery: Delivery,
        deadline_s: float,
        keep: int,
        room: Room,
    ) -> None:
        self._room = room
        self._client = client
        self._path = path
        self._node = node
        self._delivery = delivery
        self._deadline_s = deadline_s
        self._keep = keep
        self._waiting: deque[OrderWrite] = deque()
        self._job: OrderWrite | None = None
        self._head = OrderLogHead()
        self._version: int | None = None
        """The version of the head; None if there is none."""
        self._synced = False
        self._changed = threading.Event()
        """Set when the head may be another than the one that is known."""
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = LastingThread(self._run, f"orders-{delivery.shard}")

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: OrderWrite) -> bool:
        """Hand over something to write; False if this following has ended."""
        if self._delivery.ended:
            return False
        if len(self._waiting) >= WAITING_LIMIT:
            self._delivery.refused(job.term, f"{WAITING_LIMIT} requests wait to be written already")
            return True
        self._waiting.append(job)
        self._wake.set()
        return True

    def look(self, event: Any = None) -> None:
        """Read the head again; called by ZooKeeper's client when it has changed or the session is back."""
        self._changed.set()
        self._wake.set()

    def end(self) -> None:
        self._delivery.end()
        self._ended.set()
        self._wake.set()

    def join(self) -> None:
        self._thread.join(self._deadline_s)

    # --- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        self.look()
        told = ""
        while not self._delivery.ended:
            try:
                self._turn()
                told = told if self._changed.is_set() else ""
            except Exception as error:
                away = isinstance(error, (KazooException, KazooTimeoutError))
                trouble = AWAY if away else repr(error)
                if trouble != told and not self._delivery.ended:
                    log.warning("the order log at %s: %s; trying again", self._path, trouble, exc_info=not away)
                told = trouble
                self._refuse_overdue()
                self._ended.wait(RETRY_S)
                self.look()

    def _turn(self) -> None:
        """One turn of the thread: wait for something to do, and do it."""
        if not self._wake.wait(self._patience()):
            self._changed.set()
        self._wake.clear()
        if not self._client.connected:
            # A request made in this state would be queued for as long as ZooKeeper is away.
            self._refuse_overdue()
            return
        if self._changed.is_set():
            self._read()
        while not self._delivery.ended and self._next_job() is not None:
            self._write()

    def _patience(self) -> float:
        job = self._job or next(iter(self._waiting), None)
        return LOOK_S if job is None else min(LOOK_S, max(0.01, job.until - time.monotonic()))

    def _answer(self, asked: Any) -> Any:
        """What ZooKeeper answers, in time; what is overdue meanwhile is refused."""
        end = time.monotonic() + self._deadline_s
        while not asked.wait(SLICE_S):
            self._refuse_overdue()
            if time.monotonic() >= end or self._ended.is_set():
                raise KazooTimeoutError
        return asked.get()

    # --- reading --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the head, watch it, and post what is new in it."""
        if not self._synced:
            # The peer from which a newcomer got its state may have read further than this server is.
            self._answer(self._client.sync_async(self._path))
            self._synced = True
        self._changed.clear()
        try:
            data, stat = self._answer(self._client.get_async(self._path, watch=self.look))
            self._head, self._version = HEAD.decode(data), stat.version
        except NoNodeError:
            self._head, self._version = OrderLogHead(), None
            if self._answer(self._client.exists_async(self._path, watch=self.look)) is not None:
                self.look()
                return
        self._deliver()

    def _deliver(self) -> None:
        standing, delivery = self._head.standing, self._delivery
        if standing.last < delivery.last:
            delivery.lost(standing.last + 1, f"the log at {self._path} ends with order {standing.last}")
        elif self._head.first > delivery.last + 1:
            delivery.lost(self._head.first, f"the log at {self._path} begins with order {self._head.first}")
        elif self._deliver_up_to(standing.before):
            delivery.leader(standing)
            self._deliver_up_to(standing.last)

    def _deliver_up_to(self, last: int) -> bool:
        """Post orders up to a number; False if they were deleted meanwhile, and the head has to be read again."""
        known = {order.number: order for order in self._head.recent}
        while self._delivery.last < last and not self._delivery.ended:
            if not self._room(SLICE_S):
                self._refuse_overdue()
                continue
            first = self._delivery.last + 1
            numbers = range(first, min(last, first + BATCH - 1) + 1)
            asked = {n: self._client.get_async(f"{self._path}/{n}") for n in numbers if n not in known}
            try:
                found = {number: ORDER.decode(self._answer(each)[0]) for number, each in asked.items()}
            except NoNodeError:
                self.look()
                return False
            self._delivery.orders([known.get(number) or found[number] for number in numbers])
        return True

    # --- writing --------------------------------------------------------------------------------------

    def _next_job(self) -> OrderWrite | None:
        """What is to be written next; orders that wait are written together as far as they fit."""
        if self._job is None and self._waiting:
            self._job = self._waiting.popleft()
            while self._waiting and self._joins(self._job, self._waiting[0]):
                self._job = replace(self._job, orders=(self._job.orders or ()) + (self._waiting.popleft().orders or ()))
        return self._job

    @staticmethod
    def _joins(job: OrderWrite, other: OrderWrite) -> bool:
        return bool(
            job.orders
            and other.orders
            and job.term == other.term
            and job.orders[-1].number + 1 == other.orders[0].number
            and len(job.orders) + len(other.orders) <= BATCH
        )

    def _write(self) -> None:
        job = self._job
        if job is None:
            return
        if time.monotonic() >= job.until:
            self._refuse_overdue()
            return
        refusal = self._lead(job.term) if job.orders is None else self._add(job.term, job.orders)
        if refusal is not None:
            self._job = None
            self._delivery.refused(job.term, refusal)

    def _lead(self, term: int) -> str | None:
        standing = self._head.standing
        if standing.term < term:
            if self._version is None:
                self._answer(self._client.ensure_path_async(self._path.rpartition("/")[0]))
            return self._commit(replace(self._head, standing=standing.begin(term, self._node)), ())
        self._job = None
        refusal = standing.refusal(self._node, term)
        if refusal is None:
            self._delivery.repeat_leader(standing)
        return refusal

    def _add(self, term: int, orders: Sequence[Order]) -> str | None:
        standing = self._head.standing
        if refusal := standing.refusal(self._node, term):
            return refusal
        if orders[0].number <= standing.before:
            return f"order {orders[0].number} was given before term {term}"
        fresh = [order for order in orders if order.number > standing.last]
        if not fresh:
            self._job = None
            return None
        if fresh[0].number != standing.last + 1:
            return f"order {fresh[0].number} is not the next one after {standing.last}"
        most = fitting(fresh, self._keep)
        return self._commit(self._head.add(fresh[:most], self._keep), fresh[:most], rest=most < len(fresh))

    def _commit(self, head: OrderLogHead, orders: Sequence[Order], rest: bool = False) -> str | None:
        """Replace the head, if it is still the one that is known; returns why it never will be.

        The job is done if it was replaced and there is no ``rest``; else it is looked at again, with the head read.
        """
        together = self._client.transaction()
        if self._version is None:
            together.create(self._path, HEAD.encode(head))
        else:
            together.set_data(self._path, HEAD.encode(head), self._version)
        for order in orders:
            together.create(f"{self._path}/{order.number}", ORDER.encode(order))
        for number in range(self._head.first, head.first):
            together.delete(f"{self._path}/{number}")
        answers = self._answer(together.commit_async())
        failed = [each for each in answers if isinstance(each, Exception)]
        causes = [each for each in failed if not isinstance(each, (RolledBackError, RuntimeInconsistency))]
        if not failed:
            self._job = self._job if rest else None
            self._head, self._version = head, 0 if self._version is None else answers[0].version
            self._deliver()
        elif isinstance(answers[0], (BadVersionError, NodeExistsError, NoNodeError)):
            # Somebody else replaced it; the server that answers reads must have heard of that.
            self._synced = False
            self._read()
        else:
            return f"the log at {self._path} is damaged ({type((causes or failed)[0]).__name__})"
        return None

    def _refuse_overdue(self) -> None:
        late: dict[int, None] = {}
        while (job := self._job or next(iter(self._waiting), None)) is not None and job.until <= time.monotonic():
            if self._job is None:
                self._waiting.popleft()
            self._job = None
            late[job.term] = None
        for term in late:
            self._delivery.refused(term, AWAY)

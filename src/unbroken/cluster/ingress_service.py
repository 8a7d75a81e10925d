"""The ingress part of a node: its log on disk, the thread that reads the sources, and pushed rows."""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING

from unbroken.connectors.push import PushBatch
from unbroken.connectors.push_http import PushOutcome
from unbroken.connectors.push_ledger import PushLedger
from unbroken.ingress.bucketed import open_feeder
from unbroken.ingress.logfile import IngressLogFile
from unbroken.ingress.news import SourceNews
from unbroken.protocol.events import Produced, PushArrived, SourcesPolled
from unbroken.protocol.ids import ReplicaId
from unbroken.protocol.ingress import Entry
from unbroken.protocol.instructions import PollSources
from unbroken.protocol.pausing import Pause

if TYPE_CHECKING:
    from unbroken.cluster.node import Node

log = logging.getLogger(__name__)

JOB_LIMIT = 10_000
"""Entries waiting to be read from the sources; the bound on pulses in flight keeps it at a handful."""

RETRY_S = 0.5

LATER_S = 0.05
"""How soon sources are looked at again that have rows to give, if nothing else is to be done."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a disk says that will take nothing more: trying again does not help."""

PUSH_BUFFER_BYTES = 128 * 1024 * 1024
"""Pushed rows that are logged but not yet cut by a pulse; beyond it producers are asked to wait."""


def _paused(pause: Pause) -> str:
    why = f" ({pause.reason})" if pause.reason else ""
    return f"the flow is paused{why} and takes no rows until somebody says `unbroken resume`; send them again then"


class IngressService:
    """Carries out what the protocol says about the ingress log.

    Persisting happens on the node's loop (an entry is acknowledged to the leader only when it is on disk);
    reading sources and writing units happens on one thread, in log order. It goes on from what its directory holds:
    the base, the pushes that wait before it, and the entries after it, which the protocol commits again.
    """

    def __init__(self, node: Node, replica: ReplicaId, clock: Callable[[], float] = time.time) -> None:
        self._node = node
        self._clock = clock
        self.replica = replica
        self._log = IngressLogFile(node.dirs.ingress_log(replica))
        self.feeder = open_feeder(
            node.flow,
            node.programs.consumers,
            node.store,
            lambda stream, number: node.store.outbox_path(replica, stream, number),
            node.dirs.dead_letters,
            self._log.base,
            self._log.read_waiting(),
        )
        self._found = self._log.base.index
        for entry in self._log.read():
            self.feeder.persisted(entry)
            self._found = entry.index
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(JOB_LIMIT)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ingress", daemon=True)
        self._ledgers = self.feeder.ledgers()
        self._pending: dict[tuple[str, str, int], Future[None]] = {}
        self._lock = threading.Lock()
        self._news = SourceNews(node.name)

    def start(self) -> None:
        self._thread.start()

    def poll(self, step: PollSources) -> None:
        self._jobs.put(lambda: self._poll(step))

    def persist(self, entry: Entry) -> None:
        self._log.append(entry)
        self._jobs.put(lambda: self.feeder.persisted(entry))

    def commit(self, entry: Entry) -> None:
        self._jobs.put(lambda: self._commit(entry))

    def pin(self, target: Path) -> None:
        """Make ``target`` a log as this one is at this moment; called on the loop, which also appends."""
        self._log.pin(target)

    def trim(self, units: Mapping[str, int]) -> None:
        """Every unit of these sources up to the given one is with its consumers: the log before is not needed."""
        self._jobs.put(lambda: self._trim(units))

    def submit(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        """Log pushed rows on every in-sync ingress node; called by the HTTP server's threads."""
        reader = self.feeder.push_readers().get(batch.source)
        if reader is not None and batch.sign == "alive":
            # Also where the ingress is not led: it may be in the next moment.
            reader.hear(batch, int(self._clock() * 1000))
            return PushOutcome("logged", None, "heard")
        protocol = self._node.protocol
        if protocol is None or protocol.sources is None or not protocol.sources.log.leading:
            return PushOutcome("not-leader", self._leader_address(), "another node leads the ingress")
        if protocol.layout.pause is not None and not batch.sign:
            return PushOutcome("paused", None, _paused(protocol.layout.pause))
        ledger = self._ledgers.get(batch.source)
        if ledger is None:
            return PushOutcome("refused", None, f"there is no push source {batch.source!r}")
        if self.feeder.push_readers()[batch.source].buffered_bytes > PUSH_BUFFER_BYTES:
            return PushOutcome("refused", None, "more is pushed than the flow can take; send it again in a while")
        key = (batch.source, batch.producer, batch.sequence)
        with self._lock:
            offer = "new" if batch.sign else ledger.offer(batch.producer, batch.sequence)
            if offer == "duplicate":
                return PushOutcome("duplicate", None, "logged before")
            if offer == "out-of-order":
                return PushOutcome("refused", None, "a later batch of this producer is on its way already")
            future = self._pending.setdefault(key, Future())
            if offer != "pending":
                if not batch.sign:
                    ledger.begin(batch.producer, batch.sequence)
                self._node.post(PushArrived(batch.to_bytes()))
        try:
            future.result(timeout=timeout_s)
            return PushOutcome("logged", None, "logged on every in-sync ingress node")
        except (FutureTimeoutError, TimeoutError):
            self._give_up(ledger, key)
            return PushOutcome("timeout", self._leader_address(), f"not logged within {timeout_s:g} s; send it again")

    def _give_up(self, ledger: PushLedger, key: tuple[str, str, int]) -> None:
        """Forget a push that was not committed in time; if it is after all, its resend is a duplicate in the log."""
        with self._lock:
            self._pending.pop(key, None)
            ledger.reset_pending([(other[1], other[2]) for other in self._pending if other[0] == key[0]])

    def close(self) -> None:
        self._closed.set()
        self._jobs.put(None)
        self._thread.join(timeout=5)
        self._log.close()
        self.feeder.close()

    def _leader_address(self) -> str | None:
        protocol = self._node.protocol
        member = None if protocol is None else self._node.members.get(protocol.sync.leader)
        return None if member is None else member.push

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            failing = ""
            while not self._closed.is_set():
                try:
                    job()
                    break
                except Exception as error:
                    if isinstance(error, OSError) and error.errno in FULL:
                        self._node.cannot_keep(error)
                        return
                    # A source that cannot be read holds the flow up but loses nothing: the pulse is agreed.
                    if failing != repr(error):
                        failing = repr(error)
                        log.exception("a source failed; trying again")
                        self._node.tell(f"a source cannot be read on {self._node.name}, trying again: {error}")
                    self._closed.wait(RETRY_S)

    def _next_job(self) -> Callable[[], None] | None:
        """What is to be done next; sources that have rows which could not be read yet are tried from time to time."""
        again_s = RETRY_S if self.feeder.failing else LATER_S
        try:
            return self._jobs.get(timeout=again_s if self.feeder.behind else None)
        except queue.Empty:
            return self._collect

    def _collect(self) -> None:
        headers = self.feeder.collect()
        if headers:
            self._node.post(Produced(self.replica, headers[-1].pulse, headers))
        self._tell()

    def _tell(self) -> None:
        """Say what has become of sources that do not hold up the others, and so would not be missed."""
        protocol = self._node.protocol
        leading = protocol is not None and protocol.sources is not None and protocol.sources.log.leading
        unreached = self.feeder.unreached_ms() if leading else {}
        for sentence in self._news.sentences(time.monotonic(), self.feeder.troubles, unreached):
            log.warning(sentence)
            self._node.tell(sentence)

    def _poll(self, step: PollSources) -> None:
        body, final = self.feeder.poll(int(self._clock() * 1000), step.generation, step.layout, paused=step.paused)
        self._node.post(SourcesPolled(step.pulse, body, final))

    def _trim(self, units: Mapping[str, int]) -> None:
        base = self.feeder.base_after(units)
        if base is not None:
            self._log.rebase(base)

    def _commit(self, entry: Entry) -> None:
        if entry.pulse:
            headers = self.feeder.produce(entry)
            if headers:
                self._node.post(Produced(self.replica, entry.pulse, headers))
            self._tell()
            return
        batch = PushBatch.from_bytes(entry.body)
        with self._lock:
            ledger = self._ledgers[batch.source]
            verdict = "new" if batch.sign else ledger.accept(batch.producer, batch.sequence)
            future = self._pending.pop((batch.source, batch.producer, batch.sequence), None)
        if verdict != "duplicate":
            # What was in the log before this service began did not come just now.
            self.feeder.take_push(entry, int(self._clock() * 1000) if entry.index > self._found else None)
        if future is not None and not future.done():
            future.set_result(None)

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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unbroken.connectors.push.http import PushOutcome
from unbroken.connectors.push.ledger import PushLedger
from unbroken.connectors.push.source import PushBatch
from unbroken.errors import UnbrokenError
from unbroken.node.ingress.bucketed import open_feeder
from unbroken.node.ingress.feeder import Mark
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.log_writer import LogWriter
from unbroken.node.ingress.news import SourceNews
from unbroken.node.jobs import Jobs
from unbroken.protocol.events import EntriesPersisted, Produced, PushArrived, SourcesPolled
from unbroken.protocol.ingress.cut_clock import CutClock
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.ingress.pause import Pause
from unbroken.protocol.ingress.quarantine import Attempts, reason_of
from unbroken.protocol.ingress.skip import Wish, is_wish
from unbroken.protocol.instructions import PersistEntry, PollSources
from unbroken.protocol.values.ids import ReplicaId

if TYPE_CHECKING:
    from unbroken.node.node import Node

from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

JOB_LIMIT = 10_000
"""Entries waiting to be read from the sources; the bound on pulses in flight keeps it at a handful."""

RETRY_S = 0.5

LATER_S = 0.05
"""How soon sources are looked at again that have rows to give, if nothing else is to be done."""

JOB_ATTEMPTS = 5
"""How often a job may fail in the same way for a reason that lies in the data; trying for longer stops the flow."""

HOLD_S = 120.0
"""How long a hold of a source may wait for the skip that it was asked for."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a disk says that will take nothing more: trying again does not help."""

PUSH_BUFFER_BYTES = 128 * 1024 * 1024
"""Pushed rows that are logged but not yet cut by a pulse; beyond it producers are asked to wait."""


def steady_s() -> float:
    """A clock that is never set. Where the system has one, it also counts the time that a machine was asleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _paused(pause: Pause) -> str:
    why = f" ({pause.reason})" if pause.reason else ""
    return f"the flow is paused{why} and takes no rows until somebody says `unbroken resume`; send them again then"


class IngressService:
    """Carries out what the protocol says about the ingress log.

    One thread writes the log and reports what is on disk, which the protocol waits for before it acknowledges or
    commits an entry; another reads sources and writes units, in log order. It goes on from what its directory holds:
    the base, the pushes that wait before it, and the entries after it, which the protocol commits again.
    """

    def __init__(
        self,
        node: Node,
        replica: ReplicaId,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_s,
    ) -> None:
        self._node = node
        self._clock = clock
        self._steady = steady
        self._cut_clock = CutClock()
        self._clock_lock = threading.Lock()
        self.replica = replica
        self._log = IngressLogFile(node.dirs.ingress_log(replica))
        self.feeder = open_feeder(
            node.flow,
            node.programs.consumers,
            node.store,
            lambda stream, number: node.store.outbox_path(replica, stream, number),
            node.letters,
            self._log.base,
            self._log.read_waiting(),
        )
        self._found = self._log.base.index
        for entry in self._log.read():
            self.feeder.persisted(entry)
            self._found = entry.index
        self._life = 0
        self._writer = LogWriter(
            self._log,
            node.settings.durability == "sync",
            lambda count: node.post(EntriesPersisted(self._life, count)),
            node.cannot_keep,
            node.tell,
        )
        self._jobs: Jobs[Callable[[], None] | None] = Jobs(JOB_LIMIT, self._overflow)
        self._closed = threading.Event()
        self._thread = LastingThread(self._work, "ingress")
        self._ledgers = self.feeder.ledgers()
        self._pending: dict[tuple[str, str, int], Future[None]] = {}
        self._lock = threading.Lock()
        self._news = SourceNews(node.name)
        self._began_s: float | None = None
        self.set_aside = 0
        """Entries and jobs that could not be carried out, for a reason that lies in the data."""
        self._held: dict[tuple[tuple[str, int], int], float] = {}

    def start(self) -> None:
        self._writer.start()
        self._thread.start()

    def poll(self, step: PollSources) -> None:
        self._jobs.put(lambda: self._poll_anyway(step))

    def persist(self, step: PersistEntry) -> None:
        """Write an entry; what is on disk is reported by ``EntriesPersisted``."""
        self._life = step.life
        self._writer.write(step.entry)
        if step.entry.pulse:
            self._agreed(Mark.of(step.entry).cut_ms)
        self._jobs.put(lambda: self.feeder.persisted(step.entry))

    def commit(self, entry: Entry) -> None:
        self._jobs.put(lambda: self._commit(entry))

    def pin(self, target: Path) -> None:
        """Make ``target`` a log as this one is at this moment; everything that is committed is in it."""
        self._log.pin(target)

    def trim(self, units: Mapping[str, int]) -> None:
        """Every unit of these sources up to the given one is with its consumers: the log before is not needed."""
        self._jobs.put(lambda: self._trim(units))

    def submit(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        """Log pushed rows on every in-sync ingress node; called by the HTTP server's threads."""
        reader = self.feeder.push_readers().get(batch.source)
        if reader is not None and batch.sign == "alive":
            # Also where the ingress is not led: it may be in the next moment.
            reader.hear(batch, self._now_ms())
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

    def _overflow(self) -> None:
        """An entry that is dropped would be missed: the log on disk has it, and a new process goes on from there."""
        if not self._closed.is_set():
            self._node.fail(f"the ingress on {self._node.name} is {JOB_LIMIT} entries behind its log; the node ends")

    def close(self) -> None:
        self._closed.set()
        self._jobs.put(None)
        self._thread.join(timeout=5)
        self._writer.close()
        self._log.close()
        self.feeder.close()

    def _leader_address(self) -> str | None:
        protocol = self._node.protocol
        member = None if protocol is None else self._node.members.get(protocol.sync.leader)
        return None if member is None else member.push

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            self._do(job)
            self._began_s = None

    def _do(self, job: Callable[[], None]) -> None:
        """Carry out a job, if need be several times; it is dropped when it fails for a reason that lies in the data.

        All nodes have the same log and the same code, so all of them drop the same entries.
        """
        attempts, failing = Attempts(JOB_ATTEMPTS), ""
        while not self._closed.is_set():
            self._began_s = time.monotonic()
            try:
                return job()
            except BaseException as error:
                if isinstance(error, OSError) and error.errno in FULL:
                    return self._node.cannot_keep(error)
                reason = reason_of(error)
                if attempts.failed(error):
                    log.exception("a job of the ingress is set aside")
                    self.set_aside += 1
                    return self._node.tell(f"a job of the ingress on {self._node.name} is set aside: {reason}")
                if failing != reason:
                    failing = reason
                    log.exception("a job of the ingress failed; trying again")
                    self._node.tell(f"the ingress on {self._node.name} fails, trying again: {reason}")
                self._began_s = None
                self._closed.wait(RETRY_S)

    @property
    def waiting(self) -> int:
        """Jobs that wait for the thread."""
        return self._jobs.qsize()

    @property
    def log_busy_s(self) -> float:
        """For how long the disk has been at the entries that it was given last."""
        return self._writer.busy_s

    @property
    def busy_s(self) -> float:
        """For how long the thread has been in one attempt at a job; 0 if it is in none. May be called by any thread."""
        began_s = self._began_s
        return 0.0 if began_s is None else max(0.0, time.monotonic() - began_s)

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
        with self._clock_lock:
            step, leap = self._cut_clock.step(), self._cut_clock.leap()
        for sentence in self._news.sentences(time.monotonic(), self.feeder.troubles, unreached, step, leap):
            self._node.tell(sentence)
        self._release()
        for sentence in self.feeder.set_aside():
            self._node.tell(sentence)

    def _poll_anyway(self, step: PollSources) -> None:
        """Cut a pulse in any case: the protocol asks for no other one before it has this one."""
        try:
            self._poll(step)
        except BaseException as error:
            log.exception("sources cannot be cut")
            self._node.tell(f"sources cannot be cut on {self._node.name}, a pulse has no rows: {reason_of(error)}")
            self._poll(replace(step, paused=True))

    # --- the time of cuts -----------------------------------------------------------------------------

    @property
    def clock_offset_ms(self) -> float:
        """How far the clock of this machine is ahead of the time by which pulses are cut."""
        return self._cut_clock.offset_ms

    def _now_ms(self) -> int:
        with self._clock_lock:
            return int(self._cut_clock.now_ms(*self._clocks_ms(), self.feeder.last_cut_ms))

    def _next_cut_ms(self) -> int:
        with self._clock_lock:
            return self._cut_clock.cut(*self._clocks_ms(), self.feeder.last_cut_ms)

    def _agreed(self, cut_ms: int) -> None:
        with self._clock_lock:
            self._cut_clock.agreed(cut_ms, *self._clocks_ms())

    def _clocks_ms(self) -> tuple[float, float]:
        return self._clock() * 1000, self._steady() * 1000

    def _poll(self, step: PollSources) -> None:
        body, final = self.feeder.poll(self._next_cut_ms(), step.generation, step.layout, paused=step.paused)
        self._node.post(SourcesPolled(step.pulse, body, final))

    def ask(self, wish: Wish) -> str | None:
        """Log what an operator wishes; why that is not possible here, None if it is on its way."""
        protocol = self._node.protocol
        if protocol is None or protocol.sources is None or not protocol.sources.log.leading:
            return "another node leads the ingress"
        self._node.post(PushArrived(wish.to_bytes()))
        return None

    def _wished(self, entry: Entry) -> None:
        wish = Wish.from_bytes(entry.body)
        sentence = None if wish is None else self.feeder.take_wish(entry.index, wish)
        if sentence is not None:
            self._node.tell(sentence)
        self._collect()

    def _release(self) -> None:
        """An operator who asked for a hold, and not for what follows it, does not stop the source."""
        now = time.monotonic()
        self._held = {key: self._held.get(key, now) for key in self.feeder.holds().items()}
        for ((source, pulse), index), since in self._held.items():
            if now - since > HOLD_S and self.ask(Wish("release", source, pulse, index)) is None:
                self._held[(source, pulse), index] = now

    def _trim(self, units: Mapping[str, int]) -> None:
        base = self.feeder.base_after(units)
        if base is not None:
            self._log.rebase(base)
        self._node.letters.tidy()

    def _commit(self, entry: Entry) -> None:
        if entry.pulse:
            headers = self.feeder.produce(entry)
            if headers:
                self._node.post(Produced(self.replica, entry.pulse, headers))
            self._tell()
            return
        if is_wish(entry.body):
            self._wished(entry)
            return
        try:
            batch = PushBatch.from_bytes(entry.body)
            ledger = self._ledgers[batch.source]
        except (UnbrokenError, KeyError) as error:
            # The same on every node: what is in the log is the same.
            self.set_aside += 1
            self._node.tell(f"entry {entry.index} of the ingress log is set aside: {reason_of(error)}")
            return
        with self._lock:
            verdict = "new" if batch.sign else ledger.accept(batch.producer, batch.sequence)
            future = self._pending.pop((batch.source, batch.producer, batch.sequence), None)
        if verdict != "duplicate":
            # What was in the log before this service began did not come just now.
            self.feeder.take_push(entry, self._now_ms() if entry.index > self._found else None)
        if future is not None and not future.done():
            future.set_result(None)

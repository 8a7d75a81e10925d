"""The ingress part of a node: its log on disk, the worker that reads the sources, and pushed rows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from unbroken.connectors.push.http import PushOutcome
from unbroken.connectors.push.source import PushBatch
from unbroken.errors import UnbrokenError, reason_of
from unbroken.node.ingress import job_line
from unbroken.node.ingress.cut_times import CutTimes
from unbroken.node.ingress.entries import WISH, wish_of
from unbroken.node.ingress.feeder import Feeder
from unbroken.node.ingress.job_line import JobLine
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.log_writer import LogWriter
from unbroken.node.ingress.news import SourceNews
from unbroken.node.ingress.pulse_end import PulseEnd
from unbroken.node.ingress.push_desk import PushDesk
from unbroken.node.ingress.surroundings import IngressGround, IngressNode
from unbroken.node.workers import Job
from unbroken.protocol.events import EntriesPersisted, Produced, PushArrived, SourcesPolled
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.instructions import PersistEntry, PollSources
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices.ingress import EntrySetAside, IngressUnopened, SourcesUnanswered

log = logging.getLogger(__name__)

LATER_S = 0.05
"""How soon sources are looked at again that have rows to give, if nothing else is to be done."""

HOLD_S = 120.0
"""How long a hold of a source may wait for the skip that it was asked for."""

END_S = 5.0
"""How long the end of a node waits for its ingress."""


class IngressService:
    """Carries out what the protocol says about the ingress log.

    One worker writes the log and reports what is on disk, which the protocol waits for before it acknowledges or
    commits an entry; another reads sources and writes units, in log order. It continues from what its directory holds:
    the base, the pushes that wait before it, and the entries after it, which the protocol commits again.

    No instruction waits: the log is opened, replayed, trimmed and closed by the workers, and what the protocol asks
    for before the log is open is done when it is.
    """

    def __init__(self, node: IngressNode, replica: ReplicaId, ground: IngressGround) -> None:
        self._node = node
        self._ground = ground
        self._clock_s = ground.clocks.awake_s
        self.replica = replica
        self._cut_times = CutTimes(ground.clocks)
        self._began_s = self._clock_s()
        self._log: IngressLogFile | None = None
        self._feeder: Feeder | None = None
        self._pushes: PushDesk | None = None
        self._found = 0
        self._life = 0
        self._writer = LogWriter(
            ground.forced,
            lambda count: node.post(EntriesPersisted(self._life, count)),
            node.cannot_keep,
            node.tell,
            ground.disk,
            self._clock_s,
        )
        self._line = JobLine(node, ground.jobs, self._clock_s, self._collect, self._look_s)
        self._news = SourceNews(node.name)
        self._entries_set_aside = 0
        self._held: dict[tuple[tuple[str, int], int], float] = {}
        self._line.put(self._open)

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with what was asked for already; nothing is written before."""
        self._ground.jobs.start()

    def _open(self) -> None:
        """Open the log, and replay what it holds; the node cannot do without it."""
        try:
            opened = self._ground.open_log()
            feeder = self._ground.open_feeder(opened.base, opened.read_waiting())
            self._found = opened.base.index
            for entry in opened.read():
                feeder.persisted(entry)
                self._found = entry.index
        except OSError as error:
            self._line.stop()
            self._node.cannot_keep(error)
        except Exception as error:
            log.exception("the ingress cannot be opened")
            self._line.stop()
            self._node.fail(IngressUnopened(self._node.name, reason_of(error)))
        else:
            self._pushes = PushDesk(self._node, feeder.push_readers(), feeder.ledgers(), self._now_ms)
            self._log, self._feeder = opened, feeder
            self._writer.start(opened)

    def end(self, then: Job) -> None:
        """End; returns at once. ``then`` is done when nothing of it writes any longer, by the thread that ended it."""
        self._line.end(partial(self._close, then))

    def close(self) -> None:
        """End, and wait for that for a while."""
        ended = threading.Event()
        self.end(ended.set)
        ended.wait(END_S)

    def _close(self, then: Job) -> None:
        self._writer.close()
        if self._log is not None:
            self._log.close()
        if self._feeder is not None:
            self._feeder.close()
        then()
        self._ground.jobs.close(0.0)

    # --- what the protocol asks for -------------------------------------------------------------------

    def poll(self, step: PollSources) -> None:
        self._line.put(lambda: self._poll_anyway(step))

    def persist(self, step: PersistEntry) -> None:
        """Write an entry; what is on disk is reported by ``EntriesPersisted``."""
        self._life = step.life
        self._writer.write(step.entry)
        if step.entry.pulse:
            self._cut_times.agreed(PulseEnd.of(step.entry).cut_ms)
        self._line.put(lambda: self._opened.persisted(step.entry))

    def commit(self, entry: Entry) -> None:
        self._line.put(lambda: self._commit(entry))

    def trim(self, units: Mapping[str, int]) -> None:
        """Every unit of these sources up to the given one is with its consumers: the log before is not needed."""
        self._line.put(lambda: self._trim(units))

    def pin(self, target: Path) -> None:
        """Make ``target`` a log as this one is at this moment; everything that is committed is in it.

        Raises
        ------
        UnbrokenError
            If the log is not open yet.
        """
        if self._log is None:
            raise UnbrokenError("the ingress log is being opened. Ask again in a moment.")
        self._log.pin(target)

    # --- what others ask for --------------------------------------------------------------------------

    def submit(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        """Log pushed rows on every in-sync ingress node; called by the HTTP server's threads."""
        if self._pushes is None:
            return PushOutcome("refused", None, "the ingress is being opened; send it again in a moment")
        return self._pushes.submit(batch, timeout_s)

    @property
    def pushes(self) -> PushDesk | None:
        """Where rows are handed in; None until the log is open."""
        return self._pushes

    def ask(self, wish: SkipRequest) -> str | None:
        """Log what an operator wishes; why that is not possible here, None if it is on its way."""
        view = self._node.view
        if view is None or not view.leading:
            return "another node leads the ingress"
        self._node.post(PushArrived(WISH.encode(wish)))
        return None

    @property
    def feeder(self) -> Feeder | None:
        """The sources; None until the log is open."""
        return self._feeder

    @property
    def waiting(self) -> int:
        """Jobs that wait for the worker."""
        return self._line.waiting

    @property
    def set_aside(self) -> int:
        """Entries and jobs that could not be carried out, for a reason that lies in the data."""
        return self._entries_set_aside + self._line.set_aside

    @property
    def busy_s(self) -> float:
        """For how long the worker has been in one attempt at a job, or the log has not been open; 0 if neither is so.
        May be called by any thread."""
        return self._line.busy_s if self._feeder is not None else max(0.0, self._clock_s() - self._began_s)

    @property
    def log_busy_s(self) -> float:
        """For how long the disk has been at the entries that it was given last."""
        return self._writer.busy_s

    @property
    def clock_offset_ms(self) -> float:
        """How far the clock of this machine is ahead of the time by which pulses are cut."""
        return self._cut_times.offset_ms

    # --- the jobs -------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Feeder:
        assert self._feeder is not None
        return self._feeder

    def _now_ms(self) -> int:
        return self._cut_times.now_ms(self._opened.last_cut_ms)

    def _look_s(self) -> float | None:
        """When to look after sources that have rows which could not be read yet, if nothing else is to be done."""
        health = None if self._feeder is None else self._feeder.health
        if health is None or not health.behind:
            return None
        return job_line.RETRY_S if health.failing else LATER_S

    def _poll_anyway(self, step: PollSources) -> None:
        """Cut a pulse in any case: the protocol asks for no other one before it has this one."""
        try:
            self._poll(step)
        except KeyboardInterrupt:
            raise  # it means the program, not the sources
        except BaseException as error:
            log.exception("sources cannot be cut")
            self._node.tell(SourcesUnanswered(self._node.name, reason_of(error)))
            self._poll(replace(step, paused=True))

    def _poll(self, step: PollSources) -> None:
        feeder = self._opened
        cut_ms = self._cut_times.cut_ms(feeder.last_cut_ms)
        body, final = feeder.poll(cut_ms, step.generation, step.layout, paused=step.paused)
        self._node.post(SourcesPolled(step.pulse, body, final))

    def _commit(self, entry: Entry) -> None:
        if entry.pulse:
            headers = self._opened.produce(entry)
            if headers:
                self._node.post(Produced(self.replica, entry.pulse, headers))
            self._tell()
        elif WISH.begins(entry.body):
            self._wished(entry)
        else:
            self._pushed(entry)

    def _pushed(self, entry: Entry) -> None:
        assert self._pushes is not None
        try:
            batch = PushBatch.from_bytes(entry.body)
            counts = self._pushes.accept(batch)
        except (UnbrokenError, KeyError) as error:
            # The same on every node: what is in the log is the same.
            self._entries_set_aside += 1
            self._node.tell(EntrySetAside(entry.index, reason_of(error)))
            return
        if counts:
            # What was in the log before this service began did not come just now.
            self._opened.take_push(entry, self._now_ms() if entry.index > self._found else None)
        self._pushes.answer(batch)

    def _wished(self, entry: Entry) -> None:
        wish = wish_of(entry.body)
        skipped = None if wish is None else self._opened.health.take_wish(entry.index, wish)
        if skipped is not None:
            self._node.tell(skipped)
        self._collect()

    def _collect(self) -> None:
        headers = self._opened.collect()
        if headers:
            self._node.post(Produced(self.replica, headers[-1].pulse, headers))
        self._tell()

    def _tell(self) -> None:
        """Say what has become of sources that do not hold up the others, and so would not be missed."""
        view, feeder = self._node.view, self._opened
        unreached = feeder.unreached_ms() if view is not None and view.leading else {}
        clock_news = self._cut_times.news()
        for notice in self._news.notices(self._clock_s(), feeder.health.troubles, unreached, *clock_news):
            self._node.tell(notice)
        self._release()
        for aside in feeder.health.set_aside():
            self._node.tell(aside)

    def _release(self) -> None:
        """An operator who asked for a hold, and not for what follows it, does not stop the source."""
        now = self._clock_s()
        self._held = {key: self._held.get(key, now) for key in self._opened.health.holds().items()}
        for ((source, pulse), index), since in self._held.items():
            if now - since > HOLD_S and self.ask(SkipRequest("release", source, pulse, index)) is None:
                self._held[(source, pulse), index] = now

    def _trim(self, units: Mapping[str, int]) -> None:
        base = self._opened.base_after(units)
        if base is not None and self._log is not None:
            self._log.rebase(base)
        self._ground.tidy()

"""Simulated sources: how far they reach when they are asked, and what is cut from them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_writer import LogWriter
from unbroken.node.ingress.steps import LaneBase
from unbroken.node.workers import Job
from unbroken.protocol.events import EntriesPersisted, Produced, SourcesPolled
from unbroken.protocol.ingress.cut_clock import CutClock
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import CommitEntry, PersistEntry, PollSources
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content, digest_of, source_content
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.workers import VirtualWorker

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


@dataclass(frozen=True)
class Pulse:
    """What the entry of a pulse says: when it was cut, by which layout it is delivered, the rows of all sources, and
    the generation of the code whose results count for it.

    Where units are buckets of event time: from where to where each source is read (``spans``), which of them could not
    be asked, which have no more rows, how far each has come, and which may have come
    further.
    """

    cut_ms: int
    layout: int
    rows: int
    serial: int
    generation: int = 1
    spans: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    away: tuple[str, ...] = ()
    exhausted: tuple[str, ...] = ()
    closed: Mapping[str, int] = field(default_factory=dict)
    behind: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        value = asdict(self)
        if self.generation == 1:
            del value["generation"]
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def of(cls, entry: Entry) -> Pulse:
        return cls.from_bytes(entry.body)

    @classmethod
    def from_bytes(cls, body: bytes) -> Pulse:
        value = json.loads(body)
        spans = {source: (start, end) for source, (start, end) in value.pop("spans").items()}
        value |= {name: tuple(value[name]) for name in ("away", "exhausted", "behind")}
        return cls(spans=spans, **value)


@dataclass
class SourceModel:
    """Rows that all sources together have in a second, and until when there are any, or until which pulse.

    Where units are buckets of event time, some sources may have no more rows before the others (``ends``), and those
    that are ``away`` can neither be asked nor read. The rows of some are ``ahead`` of the clock by so many
    milliseconds. They do not end unless they ``may_end``.
    """

    rows_per_s: float = 2_000.0
    end_ms: float = float("inf")
    last_pulse: float = float("inf")
    ends: dict[str, float] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    ahead: dict[str, int] = field(default_factory=dict)
    may_end: Callable[[], bool] = lambda: True

    def over(self, pulse: int, now_ms: float) -> bool:
        """Whether a pulse is the last one."""
        return (now_ms >= self.end_ms or pulse >= self.last_pulse) and self.may_end()


@dataclass
class Ingress:
    """The part of a node that reads the sources: one job after the other, like the thread of a real one.

    Its log is that of a real node, written by the real `LogWriter`. ``pushed`` are the rows that were pushed since the
    last pulse, which is ``cut``. ``forced`` are the entries that the log has reported to be on disk, and ``produced``
    those of the pulses that a base can be made of.
    """

    process: NodeProcess
    replica: ReplicaId
    disk: ReplicaDisk
    cut: int = 0
    closed: bool = False
    pushed: list[bytes] = field(default_factory=list)
    forced: dict[int, Entry] = field(default_factory=dict)
    produced: deque[Entry] = field(default_factory=deque)
    _jobs: deque[PollSources | CommitEntry] = field(default_factory=deque)
    _clock: CutClock = field(default_factory=CutClock)
    _writing: deque[Entry] = field(default_factory=deque)
    _marks: list[tuple[int, Pulse]] = field(default_factory=list)
    _life: int = 0

    @classmethod
    def suits(cls, topology: Topology) -> bool:
        """Whether the sources of this flow are read this way."""
        return True

    def start(self) -> None:
        """Continue from what the disk has."""
        process, place = self.process, self.disk.log
        assert place is not None
        self.log = place.open()
        self.base = self.log.base
        self.cut = self.base.pulse
        if self.base.pulse:
            self._marks.append((self.base.index, Pulse.from_bytes(str(self.base.positions["pulse"]).encode())))
        for entry in self.log.read():
            self.forced[entry.index] = entry
            self._noted(entry)
        self._worker = VirtualWorker(process, self._force_ms)
        self._trimmer = VirtualWorker(process, self._force_ms)
        self._writer = LogWriter(True, self._persisted, process.cannot_keep, lambda _: None, self._worker)
        self._writer.start(self.log)
        self._trimmer.start()

    def _force_ms(self) -> float:
        return self.process.world.costs.force_ms * self.process.machine.disk_slowness

    def close(self) -> None:
        self._writer.close()
        self.interrupt()

    def end(self, then: Job) -> None:
        self.close()
        then()

    def interrupt(self) -> None:
        """No more is written; of what was under way some may be on disk all the same."""
        self.closed = True
        self._jobs.clear()
        for worker in (self._worker, self._trimmer):
            worker.interrupt()

    def persist(self, step: PersistEntry) -> None:
        """Write an entry with all others that wait; the loop does not wait for the disk."""
        if step.entry.pulse:
            self._clock.agreed(Pulse.of(step.entry).cut_ms, self.process.wall_ms(), self.process.clock_ms())
        self._life = step.life
        self._noted(step.entry)
        self._writing.append(step.entry)
        self._writer.write(step.entry)

    def _noted(self, entry: Entry) -> None:
        """An entry is in the log, or on its way there, and nothing follows it."""
        while self._marks and self._marks[-1][0] >= entry.index:
            self._marks.pop()
        if entry.pulse:
            self._marks.append((entry.index, Pulse.of(entry)))

    def _persisted(self, count: int) -> None:
        if self.closed:
            return
        for _ in range(count):
            entry = self._writing.popleft()
            self.forced[entry.index] = entry
        self.process.post(EntriesPersisted(self._life, count))

    def poll(self, step: PollSources) -> None:
        require(not any(isinstance(job, PollSources) for job in self._jobs), f"{self.process.name} polls twice")
        self._add(step)

    def commit(self, step: CommitEntry) -> None:
        entry = step.entry
        require(self.forced.get(entry.index) == entry, f"{self.process.name} commits what is not on its disk")
        self.process.world.agreed(self.process.name, entry)
        self._add(step)

    def trim(self, bases: Mapping[StreamId, int]) -> None:
        """The units of streams up to these are needed by nobody."""
        through, done = min([self.cut, *bases.values()]), None
        while self.produced and self.produced[0].pulse <= through:
            done = self.produced.popleft()
        if done is not None:
            self._rebase(done, {})

    def _rebase(self, entry: Entry, lanes: Mapping[str, LaneBase]) -> None:
        """Let the log begin after an entry, as soon as that is worth it."""
        base = IngressBase(
            entry.index,
            entry.pulse,
            {"pulse": entry.body.decode()},
            Pulse.of(entry).cut_ms,
            finished=entry.final,
            lanes=dict(lanes),
        )
        self.forced = {index: later for index, later in self.forced.items() if index > entry.index}
        self._marks = (
            self._marks[-1:]
            if self._marks[-1][0] <= entry.index
            else [mark for mark in self._marks if mark[0] >= entry.index]
        )
        self._trimmer.submit(lambda: self._trim(base))

    def _trim(self, base: IngressBase) -> None:
        try:
            if self.log.rebase(base):
                self.process.world.counts["bases"] += 1
        except OSError as error:
            self.process.cannot_keep(error)

    def _add(self, job: PollSources | CommitEntry) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self.process.later(self.process.world.costs.poll_ms, self._work)

    def _work(self, _: object) -> None:
        if self.closed or not self._jobs:
            return
        job = self._jobs.popleft()
        if isinstance(job, PollSources):
            self._polled(job)
        elif not job.entry.pulse:
            self.pushed.append(job.entry.body)
        else:
            self._produce(job)
        if self._jobs:
            self.process.later(self.process.world.costs.poll_ms, self._work)

    def _polled(self, job: PollSources) -> None:
        pulse, final = self._pulse(job)
        self.process.post(SourcesPolled(job.pulse, pulse.to_bytes(), final))

    def _pulse(self, job: PollSources) -> tuple[Pulse, bool]:
        """What there is to be cut, and whether it is the last."""
        world, last = self.process.world, self._last_pulse()
        last_ms = 0 if last is None else last.cut_ms
        cut_ms = self._clock.cut(self.process.wall_ms(), self.process.clock_ms(), last_ms)
        rows = int(world.sources.rows_per_s * min(cut_ms - last_ms, 10_000) / 1000)
        # Generations never go back, whichever node leads.
        generation = max(job.generation, 1 if last is None else last.generation)
        if job.paused:
            return Pulse(cut_ms, job.layout, 0, world.next_serial(), generation), False
        final = world.sources.over(job.pulse, world.kernel.now_ms)
        return Pulse(cut_ms, job.layout, rows, world.next_serial(), generation), final

    def _has_room(self) -> bool:
        """Whether units can be written; if not, the node ends."""
        try:
            self.process.disk.check_room()
        except OSError as error:
            self.process.cannot_keep(error)
            return False
        return True

    def _last_pulse(self) -> Pulse | None:
        """The newest pulse that is on the disk or on its way there, agreed on or not."""
        return self._marks[-1][1] if self._marks else None

    def _produce(self, job: CommitEntry) -> None:
        world, entry = self.process.world, job.entry
        pulse, bodies, self.pushed, self.cut = Pulse.of(entry), (entry.body, *self.pushed), [], entry.pulse
        headers: list[UnitHeader] = []
        if not self._has_room():
            return
        for stream, share in self.process.source_streams:
            content = source_content(stream, bodies, pulse.rows // share, pulse.cut_ms)
            size = content.rows * world.costs.row_bytes
            facts = (entry.pulse, entry.pulse, pulse.cut_ms, digest_of(content), size)
            header = UnitHeader(stream, *facts, final=entry.final, generation=pulse.generation, layout=pulse.layout)
            headers.append(world.write_unit(self.disk, header, content, True))
        self.produced.append(entry)
        self.process.post(Produced(self.replica, entry.pulse, tuple(headers)))


def source_streams(topology: Topology) -> list[tuple[StreamId, int]]:
    """The streams of all sources, with the number of parts that the rows of all of them are divided into."""
    return [
        (stream, max(1, len(topology.sources) * len(topology.shards(stream.consumer.part))))
        for source in topology.sources
        for stream in topology.outputs(ShardId(source, 0))
    ]


@dataclass(frozen=True)
class SourceUnit:
    """A unit of a source as it comes out without faults."""

    stream: StreamId
    content: Content
    number: int
    final: bool
    cut_ms: int
    fold: int


class CutSources(ABC):
    """The units of sources that are not cut together with every pulse, as they come out without faults."""

    @classmethod
    @abstractmethod
    def suits(cls, topology: Topology) -> bool:
        """Whether the sources of this flow are cut this way."""

    @abstractmethod
    def units(self, topology: Topology, entries: Mapping[int, Entry], rows_per_s: float) -> Iterator[SourceUnit]:
        """The units that follow from the entries of a log, in the order of each stream."""

"""Simulated sources: how far they reach when they are asked, and what is cut from them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.protocol.events import EntriesPersisted, Produced, SourcesPolled
from unbroken.protocol.ingress.cut_clock import CutClock
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import CommitEntry, PersistEntry, PollSources
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import digest_of, source_content
from unbroken_lab.sim.disk import ReplicaDisk

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


@dataclass(frozen=True)
class Pulse:
    """What the entry of a pulse says: when it was cut, by which layout it is delivered, and the rows of all sources.

    Where units are buckets of event time: from where to where each source is read (``spans``), which of them could not
    be asked, which have no more rows, and how far the first of them has come.
    """

    cut_ms: int
    layout: int
    rows: int
    serial: int
    spans: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    away: tuple[str, ...] = ()
    exhausted: tuple[str, ...] = ()
    front: int = 0

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def of(cls, entry: Entry) -> Pulse:
        return cls.from_bytes(entry.body)

    @classmethod
    def from_bytes(cls, body: bytes) -> Pulse:
        value = json.loads(body)
        spans = {source: (start, end) for source, (start, end) in value.pop("spans").items()}
        return cls(spans=spans, away=tuple(value.pop("away")), exhausted=tuple(value.pop("exhausted")), **value)


@dataclass
class SourceModel:
    """Rows that all sources together have in a second, and until when there are any.

    Where units are buckets of event time, some sources may have no more rows before the others (``ends``), and those
    that are ``away`` can neither be asked nor read.
    """

    rows_per_s: float = 2_000.0
    end_ms: float = float("inf")
    ends: dict[str, float] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)


@dataclass
class Ingress:
    """The part of a node that reads the sources: one job after the other, like the thread of a real one.

    ``pushed`` are the rows that were pushed since the last pulse, which is ``cut``. ``writing`` are entries of the log
    that are not on disk yet, of which the first ``forcing`` are on their way together.
    """

    process: NodeProcess
    replica: ReplicaId
    disk: ReplicaDisk
    cut: int = 0
    closed: bool = False
    pushed: list[bytes] = field(default_factory=list)
    writing: list[PersistEntry] = field(default_factory=list)
    forcing: int = 0
    _jobs: deque[PollSources | CommitEntry] = field(default_factory=deque)
    _clock: CutClock = field(default_factory=CutClock)

    def __post_init__(self) -> None:
        self.cut = self.disk.base_pulse

    def close(self) -> None:
        self.closed = True
        self._jobs.clear()
        self.end()

    def end(self) -> None:
        """No more is written; some of the entries that were not reported to be on disk may be there all the same."""
        for step in self.writing[: self.process.random.randint(0, len(self.writing))]:
            self.disk.persist(step.entry)
        self.writing = []

    def persist(self, step: PersistEntry) -> None:
        """Write an entry with all others that wait; the loop does not wait for the disk."""
        if step.entry.pulse:
            self._clock.agreed(Pulse.of(step.entry).cut_ms, self.process.wall_ms(), self.process.clock_ms())
        self.writing.append(step)
        if not self.forcing:
            self._force()

    def _force(self) -> None:
        self.forcing = len(self.writing)
        self.process.later(self.process.world.costs.force_ms, self._forced)

    def _forced(self, _: object) -> None:
        if self.closed:
            return
        done, self.writing = self.writing[: self.forcing], self.writing[self.forcing :]
        for step in done:
            self.disk.persist(step.entry)
        self.forcing = 0
        if self.writing:
            self._force()
        self.process.post(EntriesPersisted(done[0].life, len(done)))

    def poll(self, step: PollSources) -> None:
        require(not any(isinstance(job, PollSources) for job in self._jobs), f"{self.process.name} polls twice")
        self._add(step)

    def commit(self, step: CommitEntry) -> None:
        entry = step.entry
        require(self.disk.log.get(entry.index) == entry, f"{self.process.name} commits what is not on its disk")
        self.process.world.agreed(self.process.name, entry)
        self._add(step)

    def trim(self, bases: Mapping[StreamId, int]) -> None:
        """The units of streams up to these are needed by nobody."""
        self.disk.trim_log(min([self.cut, *bases.values()]))

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
        if job.paused:
            return Pulse(cut_ms, job.layout, 0, world.next_serial()), False
        final = world.kernel.now_ms >= world.sources.end_ms
        return Pulse(cut_ms, job.layout, rows, world.next_serial()), final

    def _last_pulse(self) -> Pulse | None:
        """The newest pulse that is on the disk or on its way there, agreed on or not."""
        log = self.disk.log | {step.entry.index: step.entry for step in self.writing}
        pulses = [index for index in log if log[index].pulse]
        body = log[max(pulses)].body if pulses else self.disk.base_body
        return Pulse.from_bytes(body) if body else None

    def _produce(self, job: CommitEntry) -> None:
        world, entry = self.process.world, job.entry
        pulse, bodies, self.pushed, self.cut = Pulse.of(entry), (entry.body, *self.pushed), [], entry.pulse
        headers: list[UnitHeader] = []
        for stream, share in world.source_streams:
            content = source_content(stream, bodies, pulse.rows // share, pulse.cut_ms)
            size = content.rows * world.costs.row_bytes
            facts = (entry.pulse, entry.pulse, pulse.cut_ms, digest_of(content), size)
            header = UnitHeader(stream, *facts, final=entry.final, layout=pulse.layout)
            headers.append(world.write_unit(self.disk, header, content, True))
        self.process.post(Produced(self.replica, entry.pulse, tuple(headers)))


def source_streams(topology: Topology) -> list[tuple[StreamId, int]]:
    """The streams of all sources, with the number of parts that the rows of all of them are divided into."""
    return [
        (stream, max(1, len(topology.sources) * len(topology.shards(stream.consumer.part))))
        for source in topology.sources
        for stream in topology.outputs(ShardId(source, 0))
    ]

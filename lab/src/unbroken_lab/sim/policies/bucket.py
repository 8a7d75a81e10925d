"""Simulated sources that are cut by event time: each goes its own way, by the rules of the real ingress.

A source has a few groups of rows in every stretch of time. They do not depend on when they are read, their event times
are out of order, and some come later than the source says that they may. What they become, which units are whole and
when, is decided by `BucketRule`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from unbroken.node.policies.bucket.rule import BucketRule, BucketState, BucketStep
from unbroken.protocol.events import Produced
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import CommitEntry, PollSources
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content, digest_of, mix
from unbroken_lab.sim.sources import CutSources, Ingress, Pulse, SourceUnit, source_streams

GRID_MS = 50
"""A source has one group of rows every so many milliseconds."""

DISORDER_MS = 150
"""How much later a row may come than one with a later time, as the sources say."""

LATEST_MS = 200
"""And how much later it may really come."""

RULE = BucketRule(size_ms=200, disorder_ms=DISORDER_MS, slack_ms=DISORDER_MS)

AGAIN_MS = 250.0
"""How often a source is asked again for rows that it did not give."""


@dataclass(frozen=True)
class Unit:
    """What a source has closed: the marks of the groups of rows in it, and how far it may be taken together."""

    number: int
    marks: tuple[int, ...]
    step: BucketStep
    fold: int

    def content(self, stream: StreamId, rows_per_group: int) -> Content:
        newest = self.step.cut_ms - mix(self.marks) % DISORDER_MS if self.marks else 0
        mark = mix(self.number, self.marks, str(stream))
        return Content(mark, len(self.marks) * rows_per_group, newest, self.step.cut_ms)


@dataclass
class Lane:
    """One source, taken step by step as the log says; up to unit ``skip`` rows from before the base are missing."""

    source: str
    state: BucketState | None = None
    skip: int = 0
    steps: deque[BucketStep] = field(default_factory=deque)
    open: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def closed(self) -> int:
        return 0 if self.state is None else RULE.closed(self.state)

    def take(self) -> list[Unit]:
        """The units that are whole with the next step."""
        step = self.steps.popleft()
        before = RULE.begin(step.cut_ms) if self.state is None else self.state
        groups = list(groups_of(self.source, step))
        times = np.array([time for time, _ in groups], dtype=np.int64)
        self.state, units = RULE.after(before, step, times)
        for unit, (_, mark) in zip(units.tolist(), groups, strict=True):
            self.open[unit] = (*self.open.get(unit, ()), mark)
        last = self.closed
        numbers = range(RULE.closed(before) + 1, last + 1)
        closed = [Unit(n, self.open.pop(n, ()), step, step.together(n, last)) for n in numbers]
        return [unit for unit in closed if unit.number > self.skip]

    def finish(self, step: BucketStep, last: int) -> list[Unit]:
        """All sources have ended: the units up to the one that says so, the same for all."""
        assert self.state is not None
        units = [Unit(number, (), step, 0) for number in range(max(self.closed, self.skip) + 1, last + 1)]
        self.state = RULE.finish(self.state, last)
        return units


def groups_of(source: str, step: BucketStep) -> Iterator[tuple[int, int]]:
    """The groups of rows that are read with a step: event time and mark of each."""
    if step.start is None:
        return
    for place in range(step.start // GRID_MS + 1, step.end // GRID_MS + 1):
        mark = mix(source, place)
        yield place * GRID_MS - mark % LATEST_MS, mark


def step_of(source: str, entry: Entry) -> BucketStep:
    """What an entry of the log says of a source."""
    pulse = Pulse.of(entry)
    start, end = pulse.spans[source]
    reachable, exhausted = source not in pulse.away, source in pulse.exhausted
    others = tuple(closed for other, closed in pulse.closed.items() if other != source)
    settled = not set(pulse.behind) - {source}
    return BucketStep(entry.pulse, pulse.cut_ms, start, end, reachable, entry.final, exhausted, others, settled)


def finished(lanes: Mapping[str, Lane], entry: Entry) -> Iterator[tuple[str, Unit, bool]]:
    """The units that follow the last entry, by source, and whether they are the last."""
    last = max(lane.closed for lane in lanes.values()) + 1
    for source, lane in lanes.items():
        for unit in lane.finish(step_of(source, entry), last):
            yield source, unit, unit.number == last


def units_of(topology: Topology, entries: Mapping[int, Entry]) -> Iterator[tuple[str, Unit, bool]]:
    """Everything that the sources close with the entries of a log, in the order of each source."""
    lanes = {source: Lane(source) for source in topology.sources}
    for index in sorted(entries):
        entry = entries[index]
        for source, lane in lanes.items() if entry.pulse else ():
            lane.steps.append(step_of(source, entry))
            yield from ((source, unit, False) for unit in lane.take())
        if entry.final:
            yield from finished(lanes, entry)


@dataclass(frozen=True)
class BucketSources(CutSources):
    """What the sources close with the entries of a log, worked out without a node."""

    @classmethod
    def suits(cls, topology: Topology) -> bool:
        return topology.bucketed

    def units(self, topology: Topology, entries: Mapping[int, Entry], rows_per_s: float) -> Iterator[SourceUnit]:
        sources = source_streams(topology)
        for source, unit, final in units_of(topology, entries):
            for stream, share in sources:
                if stream.producer.part == source:
                    content = unit.content(stream, rows_in_group(rows_per_s, share))
                    yield SourceUnit(stream, content, unit.number, final, unit.step.cut_ms, unit.fold)


def rows_in_group(rows_per_s: float, share: int) -> int:
    return int(rows_per_s * GRID_MS / 1000 / share)


@dataclass
class _Pending:
    """A pulse that some lanes have yet to take, with the states of those that have."""

    entry: Entry
    states: dict[str, BucketState] = field(default_factory=dict)


@dataclass
class BucketIngress(Ingress):
    """An ingress whose sources go their own ways, like the real ``BucketFeeder``.

    A source that is away cannot be asked, and gives no rows either that were agreed on before: its steps wait in its
    lane, on each node for itself. ``taken`` are the pulses that all lanes have taken, as what a base can be made of.
    """

    @classmethod
    def suits(cls, topology: Topology) -> bool:
        return topology.bucketed

    lanes: dict[str, Lane] = field(default_factory=dict)
    pending: dict[int, _Pending] = field(default_factory=dict)
    taken: deque[_Pending] = field(default_factory=deque)
    _asking: bool = False

    def start(self) -> None:
        super().start()
        for source in self.process.world.topology.sources:
            kept = self.base.lanes.get(source)
            state = None if kept is None else BucketState.of(kept)
            self.lanes[source] = Lane(source, state, 0 if state is None else state.top)

    def trim(self, bases: Mapping[StreamId, int]) -> None:
        least: dict[str, int] = {}
        for stream, base in bases.items():
            least[stream.producer.part] = min(base, least.get(stream.producer.part, base))
        done: _Pending | None = None
        while self.taken and all(state.top <= least[source] for source, state in self.taken[0].states.items()):
            done = self.taken.popleft()
        if done is not None:
            self._rebase(done.entry, {source: state.base() for source, state in done.states.items()})

    def _pulse(self, job: PollSources) -> tuple[Pulse, bool]:
        """How far each source can be read: one that is away, or has rows to give first, stays where it is."""
        plain, final = super()._pulse(job)
        model, last = self.process.world.sources, self._last_pulse()
        known = {source: end for source, (_, end) in last.spans.items()} if last is not None else {}
        away = [source for source, lane in self.lanes.items() if source in model.away or lane.steps]
        over = [source for source in self.lanes if source not in away and (final or self._over(source))]
        spans: dict[str, tuple[int | None, int]] = {}
        for source in self.lanes:
            start = known.get(source)
            stays = source in away or (last is not None and source in last.exhausted)
            end = max(start or 0, plain.cut_ms + model.ahead.get(source, 0))
            spans[source] = (start, start if stays and start is not None else end)
        closed = {source: lane.closed for source, lane in self.lanes.items()}
        waiting = job.pulse > self.cut + 1
        behind = tuple(source for source, lane in self.lanes.items() if waiting or lane.steps)
        cut = replace(plain, spans=spans, away=tuple(away), exhausted=tuple(over), closed=closed, behind=behind)
        return cut, final and not away

    def _over(self, source: str) -> bool:
        model = self.process.world.sources
        return self.process.world.kernel.now_ms >= model.ends.get(source, float("inf"))

    def _produce(self, job: CommitEntry) -> None:
        entry = job.entry
        self.cut = entry.pulse
        self.pending[entry.pulse] = _Pending(entry)
        for source, lane in self.lanes.items():
            lane.steps.append(step_of(source, entry))
        self._collect(None)

    def _collect(self, asking: object) -> None:
        """Take the steps of all sources that give their rows; the others are asked again."""
        if self.closed or not self._has_room():
            return
        self._asking = self._asking and asking is None
        headers: list[UnitHeader] = []
        for source, lane in self.lanes.items():
            while lane.steps and (source not in self.process.world.sources.away or lane.steps[0].empty):
                pulse = self.pending[lane.steps[0].pulse]
                for unit in lane.take():
                    headers += self._write(source, unit, pulse.entry, final=False)
                assert lane.state is not None
                pulse.states[source] = lane.state
        headers += self._advance()
        if headers:
            self.process.post(Produced(self.replica, headers[-1].pulse, tuple(headers)))
        if any(lane.steps for lane in self.lanes.values()) and not self._asking:
            self._asking = True
            self.process.later(AGAIN_MS, self._collect, True)

    def _advance(self) -> list[UnitHeader]:
        headers: list[UnitHeader] = []
        for number, pulse in list(self.pending.items()):
            if len(pulse.states) < len(self.lanes):
                break
            if pulse.entry.final:
                for source, unit, last in finished(self.lanes, pulse.entry):
                    headers += self._write(source, unit, pulse.entry, final=last)
                pulse.states = {source: lane.state for source, lane in self.lanes.items() if lane.state is not None}
            self.taken.append(self.pending.pop(number))
        return headers

    def _write(self, source: str, unit: Unit, entry: Entry, *, final: bool) -> list[UnitHeader]:
        world, layout = self.process.world, Pulse.of(entry).layout
        out: list[UnitHeader] = []
        for stream, share in self.process.source_streams:
            if stream.producer == ShardId(source, 0):
                content = unit.content(stream, rows_in_group(world.sources.rows_per_s, share))
                facts = (unit.number, unit.number, unit.step.cut_ms, digest_of(content))
                size = content.rows * world.costs.row_bytes
                header = UnitHeader(stream, *facts, size, final=final, layout=layout, fold=unit.fold)
                out.append(world.write_unit(self.disk, header, content, True))
        return out


INGRESS = BucketIngress
SOURCES = BucketSources()

"""The oracle: what the sinks of a simulated flow would hold after a run without faults.

It is worked out segment by segment from what the sources were agreed to be cut like, and what leaders have ordered,
without any of the protocol's objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.registry import offered
from unbroken.protocol.replica.cuts import TOGETHER
from unbroken.protocol.values.ids import ShardId, StreamId, segment_of
from unbroken_lab.sim.content import (
    Content,
    Folded,
    State,
    Units,
    memory_of,
    merged,
    no_rows,
    result_of,
    run_batch,
    source_content,
)
from unbroken_lab.sim.programs import ProgramModels, lane_of
from unbroken_lab.sim.sinks import Expected
from unbroken_lab.sim.sources import CutSources, Pulse, source_streams

NO_UNIT = Content(0, 0, 0, 0)
"""What code that came later did not produce before it began."""


@dataclass(frozen=True, slots=True)
class Made:
    """A unit as it comes out without faults."""

    content: Content
    pulse: int
    final: bool
    cut_ms: int
    fold: int = 0


@dataclass
class Oracle:
    """A run without faults in which the sources were cut, and leaders ordered, like this, and the state of later code
    was taken over at the same version.

    Every generation whose results were ever asked for runs from its beginning to the end.
    """

    programs: ProgramModels
    entries: Mapping[int, Entry]
    orders: Mapping[ShardId, Sequence[Mapping[StreamId, int]]]
    keep: float
    rows_per_s: float
    streams: dict[StreamId, list[Made]] = field(default_factory=dict)
    states: dict[ShardId, dict[int, State]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topologies = {g: self.programs.known[g].topology for g in sorted(self.programs.counted)}
        self.topology = self.topologies[1]

    def sinks(self) -> dict[StreamId, list[Expected]]:
        """What the sinks hold in the end."""
        self.streams = {stream: [] for topology in self.topologies.values() for stream in topology.streams}
        kinds: list[CutSources] = offered("unbroken_lab.sim.policies", "SOURCES")
        own = next((kind for kind in kinds if kind.suits(self.topology)), None)
        if own is None:
            self._cut_by_pulses()
        else:
            for unit in own.units(self.topology, self.entries, self.rows_per_s):
                made = Made(unit.content, unit.number, unit.final, unit.cut_ms, unit.fold)
                self.streams[unit.stream].append(made)
        latest: dict[str, str] = {}
        for topology in self.topologies.values():
            self.topology = topology
            for part in [part for part in topology.segments if part not in latest.values()]:
                for shard in topology.shards(part):
                    self._run_led(shard) if part in topology.led else self._run(shard, latest.get(segment_of(part)))
            latest |= {segment_of(part): part for part in topology.segments}
        if len(self.topologies) > 1:
            return self._counted()
        return {
            stream: [(stream, unit.content.mark) for unit in units]
            for stream, units in self.streams.items()
            if self.topology.is_sink(stream.consumer)
        }

    def _counted(self) -> dict[StreamId, list[Expected]]:
        """Of several generations: the results that each pulse asks for."""
        found: dict[StreamId, list[Expected]] = {lane: [] for lane in self.programs.lanes()}
        for index in sorted(self.entries):
            entry = self.entries[index]
            asked = self.topologies[Pulse.of(entry).generation] if entry.pulse else None
            for stream in () if asked is None else asked.streams:
                if asked is not None and asked.is_sink(stream.consumer):
                    found[lane_of(stream)].append((stream, self.streams[stream][entry.pulse - 1].content.mark))
        return found

    def _cut_by_pulses(self) -> None:
        pushed: list[bytes] = []
        found = (pair for topology in self.topologies.values() for pair in source_streams(topology))
        sources = list(dict(found).items())
        for index in sorted(self.entries):
            entry = self.entries[index]
            if not entry.pulse:
                pushed.append(entry.body)
                continue
            pulse, bodies, pushed = Pulse.of(entry), (entry.body, *pushed), []
            for stream, share in sources:
                content = source_content(stream, bodies, pulse.rows // share, pulse.cut_ms)
                self.streams[stream].append(Made(content, entry.pulse, entry.final, pulse.cut_ms))

    def _run_led(self, shard: ShardId) -> None:
        state: State = Folded()
        taken = dict.fromkeys(self.topology.inputs(shard), 0)
        for number, ordered in enumerate(self.orders.get(shard, ()), start=1):
            cut = dict(ordered)
            state = self._step(shard, state, {number: self._units(taken, cut)}, cut)
            taken = cut

    def _run(self, shard: ShardId, predecessor: str | None) -> None:
        """Micro-batches by pulses, some of which take several of them together. Code that came later begins with the
        state of its predecessor."""
        streams, inputs = self.streams, self.topology.inputs(shard)
        state: State = Folded()
        done = 0
        if predecessor is not None:
            origins = [found[shard] for found in self.programs.counted.values() if shard in found]
            done = origins[-1].version
            state = self.states[ShardId(predecessor, shard.index)][done]
            for stream in self._outputs(shard):
                streams[stream] += [Made(NO_UNIT, number, False, 0) for number in range(1, done + 1)]
        self.states[shard] = {done: state}
        taken = dict.fromkeys(inputs, done)
        while any(taken[stream] < len(streams[stream]) for stream in inputs):
            last = self._together(inputs, done + 1)
            batch: dict[int, Units] = {}
            for number in range(done + 1, last + 1):
                cut = {stream: _completing(streams[stream], taken[stream], number) for stream in inputs}
                batch[number] = self._units(taken, cut)
                taken = cut
            state, done = self._step(shard, state, batch, taken), last
            if len(self.topologies) > 1:
                self.states[shard][done] = state

    def _together(self, inputs: Sequence[StreamId], number: int) -> int:
        """Those pulses are taken together that the input which came last has closed at once."""
        if not self.topology.bucketed:
            return number
        firsts = [self.streams[stream][number - 1] for stream in inputs]
        latest = max(unit.cut_ms for unit in firsts)
        fold = min(unit.fold for unit in firsts if unit.cut_ms == latest)
        return max(number, min(fold, number + -number % TOGETHER))

    def _units(self, taken: Mapping[StreamId, int], cut: Mapping[StreamId, int]) -> Units:
        found = {stream: self.streams[stream][taken[stream] : unit] for stream, unit in cut.items()}
        return {stream: [unit.content for unit in units] for stream, units in found.items()}

    def _step(self, shard: ShardId, state: State, batch: Mapping[int, Units], cut: Mapping[StreamId, int]) -> State:
        topology, first, number = self.topology, min(batch), max(batch)
        after = run_batch(shard, state, batch, memory_of(topology, shard.part))
        last = [self.streams[stream][unit - 1] if unit else None for stream, unit in cut.items()]
        done = min(0 if unit is None else unit.pulse for unit in last) if shard.part in topology.led else number
        final = all(unit is not None and unit.final for unit in last)
        cut_ms, fold = max(0 if unit is None else unit.cut_ms for unit in last), number if number > first else 0
        for stream in self._outputs(shard):
            for n in range(first, number):
                self.streams[stream].append(Made(no_rows(stream, n, cut_ms), n, False, cut_ms, fold))
            content = result_of(after, stream, merged(batch), self.keep)
            self.streams[stream].append(Made(content, done, final, cut_ms, fold))
        return after

    def _outputs(self, shard: ShardId) -> list[StreamId]:
        """What a shard produces, also for readers that came later."""
        if len(self.topologies) == 1:
            return list(self.topology.outputs(shard))
        return [stream for stream in self.streams if stream.producer == shard]


def _completing(units: Sequence[Made], after: int, pulse: int) -> int:
    """The first unit that completes a pulse, or the last one there is."""
    for place in range(max(after, 1), len(units) + 1):
        if units[place - 1].pulse >= pulse:
            return place
    return len(units)

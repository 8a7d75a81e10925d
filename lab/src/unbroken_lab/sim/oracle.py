"""The oracle: what the sinks of a simulated flow would hold after a run without faults.

It is worked out segment by segment from what the sources were agreed to be cut like, and what leaders have ordered,
without any of the protocol's objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.leader.orders import Order
from unbroken.protocol.replica.cuts import TOGETHER
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken_lab.sim.buckets import rows_in_group, units_of
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
from unbroken_lab.sim.sources import Pulse, source_streams


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
    """A run without faults in which the sources were cut, and leaders ordered, like this."""

    topology: Topology
    entries: Mapping[int, Entry]
    orders: Mapping[ShardId, Sequence[Order]]
    keep: float
    rows_per_s: float
    streams: dict[StreamId, list[Made]] = field(default_factory=dict)

    def sinks(self) -> dict[StreamId, list[int]]:
        """What the sinks hold in the end."""
        topology = self.topology
        self.streams = {stream: [] for stream in topology.streams}
        if topology.bucketed:
            self._cut_by_time()
        else:
            self._cut_by_pulses()
        for part in topology.segments:
            for shard in topology.shards(part):
                self._run_led(shard) if part in topology.led else self._run(shard)
        return {
            stream: [unit.content.mark for unit in units]
            for stream, units in self.streams.items()
            if topology.is_sink(stream.consumer)
        }

    def _cut_by_pulses(self) -> None:
        pushed: list[bytes] = []
        sources = source_streams(self.topology)
        for index in sorted(self.entries):
            entry = self.entries[index]
            if not entry.pulse:
                pushed.append(entry.body)
                continue
            pulse, bodies, pushed = Pulse.of(entry), (entry.body, *pushed), []
            for stream, share in sources:
                content = source_content(stream, bodies, pulse.rows // share, pulse.cut_ms)
                self.streams[stream].append(Made(content, entry.pulse, entry.final, pulse.cut_ms))

    def _cut_by_time(self) -> None:
        sources = source_streams(self.topology)
        for source, unit, final in units_of(self.topology, self.entries):
            for stream, share in sources:
                if stream.producer.part == source:
                    content = unit.content(stream, rows_in_group(self.rows_per_s, share))
                    self.streams[stream].append(Made(content, unit.number, final, unit.step.cut_ms, unit.fold))

    def _run_led(self, shard: ShardId) -> None:
        state: State = Folded()
        taken = dict.fromkeys(self.topology.inputs(shard), 0)
        for number, order in enumerate(self.orders.get(shard, ()), start=1):
            cut = dict(order.cut)
            state = self._step(shard, state, {number: self._units(taken, cut)}, cut)
            taken = cut

    def _run(self, shard: ShardId) -> None:
        """Micro-batches by pulses, some of which take several of them together."""
        streams, inputs = self.streams, self.topology.inputs(shard)
        state: State = Folded()
        taken, done = dict.fromkeys(inputs, 0), 0
        while any(taken[stream] < len(streams[stream]) for stream in inputs):
            last = self._together(inputs, done + 1)
            batch: dict[int, Units] = {}
            for number in range(done + 1, last + 1):
                cut = {stream: _completing(streams[stream], taken[stream], number) for stream in inputs}
                batch[number] = self._units(taken, cut)
                taken = cut
            state, done = self._step(shard, state, batch, taken), last

    def _together(self, inputs: Sequence[StreamId], number: int) -> int:
        """Those pulses are taken together that the input which came last has closed at once."""
        if not self.topology.bucketed:
            return number
        firsts = [self.streams[stream][number - 1] for stream in inputs]
        latest = max(unit.cut_ms for unit in firsts)
        fold = min(unit.fold for unit in firsts if unit.cut_ms == latest)
        return max(number, min(fold, number + TOGETHER - 1))

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
        for stream in topology.outputs(shard):
            for n in range(first, number):
                self.streams[stream].append(Made(no_rows(stream, n, cut_ms), n, False, cut_ms, fold))
            content = result_of(after, stream, merged(batch), self.keep)
            self.streams[stream].append(Made(content, done, final, cut_ms, fold))
        return after


def _completing(units: Sequence[Made], after: int, pulse: int) -> int:
    """The first unit that completes a pulse, or the last one there is."""
    for place in range(max(after, 1), len(units) + 1):
        if units[place - 1].pulse >= pulse:
            return place
    return len(units)

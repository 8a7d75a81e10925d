"""Generations of code in the simulated cluster: what runs beside what, and what the sinks have to hold in the end."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from protocol.model_parts import State, memory_of, result_of, run_batch, source_unit
from unbroken.flow.program import Program, merged
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import ShardId, StreamId, part_of, segment_of
from unbroken.protocol.values.layout import Topology

Lane = tuple[str, int, ShardId]
"""What a sink takes for one stream, whichever generation produces it: segment, index of its shard, sink."""


def lane_of(stream: StreamId) -> Lane:
    return segment_of(stream.producer.part), stream.producer.index, stream.consumer


@dataclass(frozen=True)
class Origin:
    """Where the state of a shard comes from: which copy of its predecessor's, and at which version. 0: from nothing."""

    copy: int = 0
    version: int = 0


@dataclass
class Programs:
    """All generations that were ever declared. ``counted`` are those whose results were asked for, with the origins of
    their shards at that moment: from then on these cannot change any more."""

    known: dict[int, Program]
    counted: dict[int, Mapping[ShardId, Origin]] = field(default_factory=lambda: {1: {}})
    _merged: dict[tuple[int, ...], Topology] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology) -> Programs:
        return cls({1: Program(1, "flow.py", "", topology, {})})

    def topology(self, generations: tuple[int, ...]) -> Topology:
        if generations not in self._merged:
            self._merged[generations] = merged([self.known[generation] for generation in generations])
        return self._merged[generations]

    def declare(self, running: int, changed: Collection[str]) -> int:
        """A further generation: these segments have other code, and all that read from them other input."""
        generation, was = max(self.known) + 1, self.known[running].topology
        replaced = set(changed)
        for part in was.segments:  # in the order in which data passes them
            if any(segment_of(before) in replaced for before in was.producers_of(part)):
                replaced.add(segment_of(part))
        name = {part: part_of(segment_of(part), generation) for part in was.segments if segment_of(part) in replaced}
        topology = replace(
            was,
            segments={name.get(part, part): shards for part, shards in was.segments.items()},
            edges=tuple((name.get(a, a), name.get(b, b)) for a, b in was.edges),
            replicas={name.get(part, part): count for part, count in was.replicas.items()},
            strategies={name.get(part, part): strategy for part, strategy in was.strategies.items()},
            availability={name.get(part, part): how for part, how in was.availability.items()},
        )
        self.known[generation] = Program(generation, "flow.py", "", topology, {})
        return generation

    def counts(self, stream: StreamId, generation: int) -> bool:
        """Whether a sink is to be handed the units of a stream that belong to pulses of a generation."""
        return self.known[generation].topology.has(stream)

    def lanes(self) -> list[Lane]:
        topology = self.known[1].topology
        return [lane_of(stream) for stream in topology.streams if topology.is_sink(stream.consumer)]

    def reference(self, entries: Mapping[int, Entry]) -> dict[Lane, list[tuple[str, int]]]:
        """What the sinks hold after a run without faults in which the sources were cut by these entries, and the state
        of a part with other code was taken over at the same version: (part, content) of each unit."""
        run = _Run({generation: self.known[generation].topology for generation in sorted(self.counted)})
        for found in self.counted.values():
            run.origins.update(found)
        sinks: dict[Lane, list[tuple[str, int]]] = {lane: [] for lane in self.lanes()}
        pushed: list[bytes] = []
        for index in sorted(entries):
            entry = entries[index]
            if not entry.pulse:
                pushed.append(entry.body)
                continue
            units = run.pulse(entry.pulse, (entry.body, *pushed))
            pushed = []
            asked = run.topologies[generation_asked(entry)]
            for stream in asked.streams:
                if asked.is_sink(stream.consumer):
                    sinks[lane_of(stream)].append((stream.producer.part, units[stream]))
        return sinks


@dataclass
class _Run:
    """A run without faults of everything that ever counted, pulse by pulse."""

    topologies: Mapping[int, Topology]
    origins: dict[ShardId, Origin] = field(default_factory=dict)
    states: dict[ShardId, State] = field(default_factory=dict)

    def pulse(self, number: int, rows: tuple[bytes, ...]) -> dict[StreamId, int]:
        """The units of one pulse on every stream."""
        streams = {stream for topology in self.topologies.values() for stream in topology.streams}
        sources = self.topologies[1].sources
        units = {stream: source_unit(stream, rows) for stream in streams if stream.producer.part in sources}
        done: set[ShardId] = set()
        latest: dict[str, str] = {}
        for topology in self.topologies.values():
            for shard in [shard for part in topology.segments for shard in topology.shards(part)]:
                begin = self.origins.get(shard, Origin()).version
                if shard in done or number < begin:
                    continue
                done.add(shard)
                if number == begin:
                    self.states[shard] = self.states[ShardId(latest[segment_of(shard.part)], shard.index)]
                    continue
                contents = {stream: [units[stream]] for stream in topology.inputs(shard)}
                before, strategy = self.states.get(shard, 0), memory_of(topology, shard.part)
                self.states[shard] = run_batch(shard, before, {number: contents}, strategy)
                mine = [stream for stream in streams if stream.producer == shard]
                units.update((stream, result_of(self.states[shard], stream)) for stream in mine)
            latest |= {segment_of(part): part for part in topology.segments}
        return units


def pulse_body(pulse: int, generation: int, serial: int, layout: int = 0) -> bytes:
    return json.dumps({"pulse": pulse, "generation": generation, "serial": serial, "layout": layout}).encode()


def generation_asked(entry: Entry) -> int:
    """The generation whose results count for a pulse."""
    return int(json.loads(entry.body)["generation"])


def layout_asked(entry: Entry) -> int:
    """The version of the layout by which the results of a pulse are delivered."""
    return int(json.loads(entry.body)["layout"])

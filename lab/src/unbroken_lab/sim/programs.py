"""Generations of code in a simulated flow: what runs next to what, and from where the state of new code comes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from unbroken.flow.program import Program, merged
from unbroken.protocol.values.ids import ShardId, StreamId, generation_of, part_of, segment_of
from unbroken.protocol.values.layout import Topology


def lane_of(stream: StreamId) -> StreamId:
    """What a sink takes for one stream, whichever generation produces it: the stream of the first one."""
    part = stream.producer.part
    if generation_of(part) == 1:
        return stream
    return StreamId(ShardId(segment_of(part), stream.producer.index), stream.consumer)


@dataclass(frozen=True)
class Origin:
    """Where the state of a shard comes from: which copy of its predecessor's, and at which version. 0: from nothing."""

    copy: int = 0
    version: int = 0


NOTHING = Origin()


@dataclass
class ProgramModels:
    """All generations that were ever declared. ``counted`` are those whose results were asked for, with the origins of
    their shards at that moment: from then on these cannot change."""

    known: dict[int, Program]
    counted: dict[int, Mapping[ShardId, Origin]] = field(default_factory=lambda: {1: {}})
    _merged: dict[tuple[int, ...], Topology] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology) -> ProgramModels:
        return cls({1: Program(1, "flow.py", "", topology, {})})

    def topology(self, generations: tuple[int, ...]) -> Topology:
        """The flow while these generations run."""
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

    def lanes(self) -> list[StreamId]:
        """What the sinks take."""
        topology = self.known[1].topology
        return [stream for stream in topology.streams if topology.is_sink(stream.consumer)]

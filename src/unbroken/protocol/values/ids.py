"""Names of shards, replicas and streams; they are looked up all the time, so text and hash are made once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

NodeId = str

GENERATION = "@"
"""Stands between the name of a segment and the generation of the code that its part of the flow runs."""

FORK = "~"
"""Ends the name of a part whose results are tentative: those of the part without it, made without some input."""


def fork_of(part: str) -> str:
    return f"{part}{FORK}"


def home_of(part: str) -> str:
    """The part that a fork stands in for; any other part itself."""
    return part.removesuffix(FORK)


def part_of(segment: str, generation: int) -> str:
    """The name of the part that runs a segment's code of a generation; the first one is named like the segment."""
    return segment if generation == 1 else f"{segment}{GENERATION}{generation}"


def segment_of(part: str) -> str:
    """The segment whose code a part runs."""
    return home_of(part).partition(GENERATION)[0]


def generation_of(part: str) -> int:
    """The generation from which on a part's results count."""
    return int(home_of(part).partition(GENERATION)[2] or 1)


@dataclass(frozen=True, order=True)
class ShardId:
    """One partition of a part of the dataflow (source, segment or sink)."""

    part: str
    index: int

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.part, self.index))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return f"{self.part}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> ShardId:
        part, _, index = text.rpartition(".")
        return cls(part, int(index))


@dataclass(frozen=True, order=True)
class ReplicaId:
    """One running copy of a shard."""

    shard: ShardId
    index: int

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shard, self.index))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return f"{self.shard}#{self.index}"

    @classmethod
    def parse(cls, text: str) -> ReplicaId:
        shard, _, index = text.rpartition("#")
        return cls(ShardId.parse(shard), int(index))


@dataclass(frozen=True, order=True)
class StreamId:
    """What one producer shard sends to one consumer shard."""

    producer: ShardId
    consumer: ShardId

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.producer, self.consumer))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return f"{self.producer}>{self.consumer}"

    @classmethod
    def parse(cls, text: str) -> StreamId:
        return _parse_stream(text)

    @property
    def home(self) -> StreamId:
        """The stream whose place a fork's takes for a while; any other stream itself."""
        part = home_of(self.producer.part)
        return self if part == self.producer.part else StreamId(ShardId(part, self.producer.index), self.consumer)


@lru_cache(maxsize=4096)
def _parse_stream(text: str) -> StreamId:
    producer, _, consumer = text.partition(">")
    return StreamId(ShardId.parse(producer), ShardId.parse(consumer))

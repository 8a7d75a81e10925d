"""What simulated units contain, and what segments make of it: fingerprints instead of rows.

A fingerprint depends on everything that the rows of a unit would depend on, so that two units with the same one would
have the same rows. Sizes are modelled beside it, for what processing and sending them costs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from unbroken.protocol.ids import ReplicaId, ShardId, StreamId, home_of
from unbroken.protocol.layout import Topology
from unbroken.protocol.strategy import Ha, Strategy
from unbroken.protocol.units import Digest, UnitHeader

DELAY_MS = 1_000
"""How far the watermark of a simulated window stays behind its newest row."""


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of one unit: their fingerprint and number, and the event time of the newest. Those that were made
    without part of the input are ``tentative``."""

    mark: int
    rows: int
    time_ms: int
    tentative: bool = False


def mix(*parts: object) -> int:
    """A fingerprint: the same in every process, unlike ``hash``."""
    return zlib.crc32(repr(parts).encode())


def digest_of(content: Content) -> Digest:
    return Digest(content.rows, content.mark)


@dataclass(frozen=True, slots=True)
class Window:
    """What a windowed aggregation keeps: what came with units (by their newest event time) that the watermark has not
    passed by the length of the window. ``closed`` is what it passed with the last unit: the results in append mode."""

    newest: int = 0
    units: tuple[tuple[int, int], ...] = ()
    closed: tuple[tuple[int, int], ...] = ()

    @property
    def watermark(self) -> int:
        """What is in force while the next unit is processed."""
        return max(0, self.newest - DELAY_MS)

    def after(self, came: list[tuple[int, int]], horizon_ms: float) -> Window:
        """What is kept after one micro-batch of these units (time, fingerprint)."""
        limit = self.watermark - (horizon_ms - DELAY_MS)
        kept = tuple(sorted(unit for unit in (*self.units, *came) if unit[0] > limit))
        closed = tuple(sorted(unit for unit in self.units if unit[0] <= limit))
        return Window(max([self.newest, *(time for time, _ in came)]), kept, closed)


@dataclass(frozen=True, slots=True)
class Folded:
    """What a segment keeps that never forgets: one fingerprint of all of its input."""

    mark: int = 0


State = Folded | Window

Units = Mapping[StreamId, list[Content]]
"""The input of a micro-batch by stream."""


def run_batch(shard: ShardId, state: State, batch: Mapping[int, Units], strategy: Strategy) -> State:
    """The state of a shard after one more micro-batch, of one unit of each input or of several by their numbers.

    What relies on its producers forgets: everything at once, or what is older than a window.
    """
    rows = {
        number: mix(str(shard), sorted((str(stream), [c.mark for c in found]) for stream, found in units.items()))
        for number, units in batch.items()
    }
    newest = max(batch)
    if strategy.ha is not Ha.UPSTREAM:
        before = state.mark if isinstance(state, Folded) else 0
        return Folded(mix(before, rows[newest]))
    if strategy.horizon_ms == 0:
        return Folded(rows[newest])
    window = state if isinstance(state, Window) else Window()
    return window.after([(_newest_ms(batch[number]), mark) for number, mark in rows.items()], strategy.horizon_ms)


def _newest_ms(units: Units) -> int:
    return max((content.time_ms for found in units.values() for content in found), default=0)


def result_of(state: State, stream: StreamId, units: Units, keep: float) -> Content:
    """What goes out over a stream after a micro-batch: ``keep`` is the share of rows that are left."""
    seen = (state.units, state.closed) if isinstance(state, Window) else state.mark
    rows = int(sum(content.rows for found in units.values() for content in found) * keep)
    return Content(mix(seen, str(stream)), rows, _newest_ms(units))


def run_fork(shard: ShardId, state: State, units: Units, outputs: list[StreamId]) -> tuple[State, list[Content]]:
    """One micro-batch of a fork, which takes any number of units of each input: its state, and what goes out."""
    before = state.mark if isinstance(state, Folded) else mix(state)
    marks = sorted((str(stream), [c.mark for c in found]) for stream, found in units.items())
    after = Folded(mix("tentative", before, str(shard), marks))
    rows = sum(content.rows for found in units.values() for content in found)
    return after, [Content(mix(after.mark, str(stream)), rows, _newest_ms(units), tentative=True) for stream in outputs]


def source_content(stream: StreamId, bodies: tuple[bytes, ...], rows: int, cut_ms: int) -> Content:
    """What a source sends over a stream for one pulse, given the entries of the ingress log that belong to it."""
    return Content(mix(bodies, str(stream)), rows, cut_ms)


def memory_of(topology: Topology, part: str) -> Strategy:
    """How the state of a part forgets: that of one that can be built again from its recent input is a window."""
    return topology.strategy(part)


def is_fork(replica: ReplicaId) -> bool:
    return home_of(replica.shard.part) != replica.shard.part


def home_shard(fork: ReplicaId) -> ShardId:
    return ShardId(home_of(fork.shard.part), fork.shard.index)


Files = dict[tuple[StreamId, int], tuple[UnitHeader, Content]]
"""Files of units: (stream, number) to header and content."""

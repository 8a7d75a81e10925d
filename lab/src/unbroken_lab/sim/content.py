"""What simulated units contain, and what segments make of it: fingerprints instead of rows.

A fingerprint depends on everything that the rows of a unit would depend on, so that two units with the same one would
have the same rows. Sizes are modelled beside it, for what processing and sending them costs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from unbroken.protocol.values.consistency import Reconcile
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId, home_of
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.protocol.values.units import Digest, UnitHeader

DELAY_MS = 1_000
"""How far the watermark of a simulated window stays behind its newest row."""


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of one unit: their fingerprint and number, the event time of the newest, and when the sources cut them.
    Those that were made without part of the input are ``tentative``."""

    mark: int
    rows: int
    time_ms: int
    cut_ms: int
    tentative: bool = False


def mix(*parts: object) -> int:
    """A fingerprint: the same in every process, unlike ``hash``."""
    return zlib.crc32(repr(parts).encode())


def digest_of(content: Content) -> Digest:
    return Digest(content.rows, content.mark)


@dataclass(frozen=True, slots=True)
class Window:
    """What a windowed aggregation keeps: what came with units (by their newest time) that the watermark, or the time of
    the cut, has not passed by the length of the window. ``closed`` is what it passed with the last unit: the results in
    append mode."""

    newest: int = 0
    units: tuple[tuple[int, int], ...] = ()
    closed: tuple[tuple[int, int], ...] = ()

    @property
    def watermark(self) -> int:
        """What is in force while the next unit is processed."""
        return max(0, self.newest - DELAY_MS)

    def after(self, came: list[tuple[int, int]], strategy: Strategy) -> Window:
        """What is kept after one micro-batch of these units (time, fingerprint)."""
        newest = max([self.newest, *(time for time, _ in came)])
        passed = self.watermark + DELAY_MS if strategy.timed else newest
        limit = passed - strategy.horizon_ms
        kept = tuple(sorted(unit for unit in (*self.units, *came) if unit[0] > limit))
        closed = tuple(sorted(unit for unit in self.units if unit[0] <= limit))
        return Window(newest, kept, closed)


@dataclass(frozen=True, slots=True)
class Folded:
    """What a segment keeps that never forgets: one fingerprint of all of its input."""

    mark: int = 0


State = Folded | Window

Units = Mapping[StreamId, list[Content]]
"""The input of a micro-batch by stream."""


def run_batch(shard: ShardId, state: State, batch: Mapping[int, Units], strategy: Strategy) -> State:
    """The state of a shard after one more micro-batch, of one unit of each input or of several by their numbers.

    What relies on its producers forgets: everything at once, or what is older than a window. A micro-batch of several
    units is not the same as one for each of them, except in a window.
    """
    rows = {
        number: mix(str(shard), sorted((str(stream), [c.mark for c in found]) for stream, found in units.items()))
        for number, units in batch.items()
    }
    came = rows[max(rows)] if len(rows) == 1 else mix(sorted(rows.items()))
    if strategy.ha is not Ha.UPSTREAM:
        before = state.mark if isinstance(state, Folded) else 0
        return Folded(mix(before, came))
    if strategy.horizon_ms == 0:
        return Folded(came)
    window = state if isinstance(state, Window) else Window()
    time_of = newest_ms if strategy.timed else newest_cut_ms
    return window.after([(time_of(batch[number]), mark) for number, mark in rows.items()], strategy)


def memory_of(topology: Topology, part: str) -> Strategy:
    """How the state of a part forgets: that of one that can be built again from its recent input is a window."""
    how = topology.availability.get(part)
    if how is None or how.reconcile is not Reconcile.UNDO:
        return topology.strategy(part)
    return Strategy(Ha.UPSTREAM, horizon_ms=how.horizon_ms, timed=how.timed, foldable=how.foldable)


def merged(batch: Mapping[int, Units]) -> Units:
    """All units of a micro-batch."""
    if len(batch) == 1:
        return next(iter(batch.values()))
    out: dict[StreamId, list[Content]] = {}
    for _, units in sorted(batch.items()):
        for stream, found in units.items():
            out.setdefault(stream, []).extend(found)
    return out


def newest_ms(units: Units) -> int:
    return max((content.time_ms for found in units.values() for content in found), default=0)


def newest_cut_ms(units: Units) -> int:
    return max((content.cut_ms for found in units.values() for content in found), default=0)


def result_of(state: State, stream: StreamId, units: Units, keep: float) -> Content:
    """What goes out over a stream after a micro-batch: ``keep`` is the share of rows that are left."""
    seen = (state.units, state.closed) if isinstance(state, Window) else state.mark
    rows = int(sum(content.rows for found in units.values() for content in found) * keep)
    return Content(mix(seen, str(stream)), rows, newest_ms(units), newest_cut_ms(units))


def no_rows(stream: StreamId, number: int, cut_ms: int) -> Content:
    """A unit without rows, since those of several are all in the last one."""
    return Content(mix("nothing", str(stream), number), 0, 0, cut_ms)


def run_fork(shard: ShardId, state: State, units: Units, outputs: list[StreamId]) -> tuple[State, list[Content]]:
    """One micro-batch of a fork, which takes any number of units of each input: its state, and what goes out."""
    before = state.mark if isinstance(state, Folded) else mix(state)
    marks = sorted((str(stream), [c.mark for c in found]) for stream, found in units.items())
    after = Folded(mix("tentative", before, str(shard), marks))
    rows = sum(content.rows for found in units.values() for content in found)
    times = newest_ms(units), newest_cut_ms(units)
    return after, [Content(mix(after.mark, str(stream)), rows, *times, tentative=True) for stream in outputs]


DISORDER_MS = 700
"""How much older than the cut the newest row of a source's unit may be: event times go up, and not in order."""


def source_content(stream: StreamId, bodies: tuple[bytes, ...], rows: int, cut_ms: int) -> Content:
    """What a source sends over a stream for one pulse, given the entries of the ingress log that belong to it."""
    mark = mix(bodies, str(stream))
    return Content(mark, rows, cut_ms - mark % DISORDER_MS, cut_ms)


def is_fork(replica: ReplicaId) -> bool:
    return home_of(replica.shard.part) != replica.shard.part


def home_shard(fork: ReplicaId) -> ShardId:
    return ShardId(home_of(fork.shard.part), fork.shard.index)


Files = dict[tuple[StreamId, int], tuple[UnitHeader, Content]]
"""Files of units: (stream, number) to header and content."""

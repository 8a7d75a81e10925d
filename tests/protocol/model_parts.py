"""The pieces of the simulated cluster: topologies, links, a fake Spark query, the shared sink."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.sim_disk import ReplicaDisk
from unbroken.protocol.messages import Message
from unbroken.protocol.replica.cuts import Cut
from unbroken.protocol.values.consistency import Reconcile
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.protocol.values.units import Digest, UnitHeader


def mix(*parts: object) -> int:
    """A deterministic fingerprint: the same in every process, unlike ``hash``."""
    return zlib.crc32(repr(parts).encode())


def digest_of(content: int) -> Digest:
    return Digest(rows=1 + content % 7, exact=content)


# --- topologies -----------------------------------------------------------------------------------------


def chain(shards: tuple[int, ...], replicas: int = 2) -> Topology:
    """source > s0 > s1 > ... > sink, segment i with ``shards[i]`` shards."""
    names = [f"s{i}" for i in range(len(shards))]
    edges = list(zip(["source", *names], [*names, "sink"], strict=True))
    return Topology(
        sources=("source",),
        segments=dict(zip(names, shards, strict=True)),
        sinks=("sink",),
        edges=tuple(edges),
        replicas=dict.fromkeys([*names, INGRESS.part], replicas),
    )


def join(shards: int = 1, replicas: int = 2) -> Topology:
    """Two sources into one segment: a query with two source instances."""
    return Topology(
        sources=("left", "right"),
        segments={"join": shards},
        sinks=("sink",),
        edges=(("left", "join"), ("right", "join"), ("join", "sink")),
        replicas={"join": replicas, INGRESS.part: replicas},
    )


def diamond(shards: int = 1, replicas: int = 2) -> Topology:
    """source > a > (b, c) > d > sink."""
    return Topology(
        sources=("source",),
        segments={"a": 1, "b": shards, "c": 1, "d": 1},
        sinks=("sink",),
        edges=(("source", "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "sink")),
        replicas=dict.fromkeys(["a", "b", "c", "d", INGRESS.part], replicas),
    )


# --- links ----------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    """One connection made by ``client`` to ``server``: messages go there, units come back, both in order.

    One that is ``stalled`` keeps what is sent in one direction, or in both, until it flows again or is cut.
    """

    client: NodeId
    server: NodeId
    messages: deque[Message] = field(default_factory=deque)
    units: deque[tuple[ReplicaId, UnitHeader]] = field(default_factory=deque)
    alive: bool = True
    client_noticed: bool = False
    server_noticed: bool = False
    stalled: str = ""

    def carries(self, what: str) -> bool:
        """Whether there are ``messages`` or ``units`` under way that get through."""
        return bool(getattr(self, what)) and self.stalled not in (what, "both")

    def cut(self, *, late_messages: bool) -> None:
        """Break the connection. Units under way are lost; messages may still trickle in at the server."""
        self.alive = False
        self.units.clear()
        if not late_messages:
            self.messages.clear()


# --- state that forgets -----------------------------------------------------------------------------------

DELAY = 15
"""How far the watermark stays behind the newest row."""


@dataclass(frozen=True)
class Window:
    """What a windowed aggregation keeps of units with one row each: rows that the watermark has not passed by the
    length of the window. ``closed`` are those that it passed with the last unit: the results in append mode."""

    newest: int = 0
    rows: tuple[tuple[int, int], ...] = ()
    closed: tuple[tuple[int, int], ...] = ()

    def watermark(self, number: int, strategy: Strategy) -> int:
        """What is in force while unit ``number`` is processed."""
        return max(0, self.newest - DELAY) if strategy.timed else number

    def after(self, contents: Mapping[int, int], strategy: Strategy) -> Window:
        """What is kept after one micro-batch of these units, by their numbers."""
        came = [(row_time(number) if strategy.timed else number, content) for number, content in contents.items()]
        length = strategy.horizon_ms - (DELAY if strategy.timed else 0)
        limit = self.watermark(max(contents), strategy) - length
        kept = tuple(sorted(row for row in (*self.rows, *came) if row[0] > limit))
        closed = tuple(sorted(row for row in self.rows if row[0] <= limit))
        return Window(max(self.newest, *(time for time, _ in came)), kept, closed)


State = int | Window


def memory_of(topology: Topology, part: str) -> Strategy:
    """How the state of a part forgets: that of one that can be built again from its recent input is a window."""
    how = topology.availability.get(part)
    if how is None or how.reconcile is not Reconcile.UNDO:
        return topology.strategy(part)
    return Strategy(Ha.UPSTREAM, horizon_ms=how.horizon_ms, timed=how.timed, foldable=how.foldable)


def row_time(number: int) -> int:
    """Event times go up, and not in order."""
    chance = mix("time", number)
    return 10 * number + chance % 40 + (70 if chance % 6 == 0 else 0)


# --- Spark ----------------------------------------------------------------------------------------------


@dataclass
class FakeSpark:
    """One replica's query on its checkpoint: asks the gate once per source instance and round, processes, commits.

    Its state and output are a pure function of its input and its code, as the design demands of a segment.
    ``corrupt_from`` makes it break that promise from a unit on. ``consumers`` are the generations for which it writes
    units, as its node knew them when the micro-batch began.
    """

    replica: ReplicaId
    instances: tuple[str, ...]
    disk: ReplicaDisk
    ticket: int | None = None
    answers: list[int] = field(default_factory=list)
    cut: Cut = field(default_factory=dict)
    uncommitted: tuple[int, State] | None = None
    consumers: tuple[int, ...] = (1,)
    stopped: bool = False
    corrupt_from: int | None = None

    @property
    def committed(self) -> int:
        return self.disk.committed

    @property
    def can_step(self) -> bool:
        return not self.stopped and self.ticket is None

    @property
    def round_complete(self) -> bool:
        return len(self.answers) == len(self.instances)

    def answer(self, offset: int, cut: Cut, consumers: tuple[int, ...]) -> None:
        self.ticket = None
        self.answers.append(offset)
        self.cut = cut
        self.consumers = consumers

    def end_round(self) -> int | None:
        """The micro-batch to run, or None if the round brought no data. All instances must agree."""
        answers, self.answers = self.answers, []
        assert len(set(answers)) == 1, f"{self.replica}: instances of one round were told {answers}"
        assert answers[0] >= self.committed, f"{self.replica}: told {answers[0]} after {self.committed}"
        return None if answers[0] == self.committed else answers[0]

    def process(
        self,
        contents: Mapping[int, Mapping[StreamId, list[int]]],
        outputs: Sequence[StreamId],
        strategy: Strategy,
        together: bool = False,
    ) -> dict[StreamId, int]:
        """Run a micro-batch of these units, by their numbers, and write its output. All replicas take ``together``
        the same ones."""
        number = max(contents)
        allowed = together or strategy.foldable or len(contents) == 1
        assert allowed, f"{self.replica}: told to take {len(contents)} units at once"
        state = run_batch(self.replica.shard, self.disk.states[self.committed], contents, strategy)
        self.uncommitted = (number, state)
        wrong = self.corrupt_from is not None and number >= self.corrupt_from
        return {stream: result_of(state, stream, wrong) for stream in outputs}

    def commit(self) -> None:
        assert self.uncommitted is not None
        number, state = self.uncommitted
        self.disk.states[number] = state
        self.disk.cuts[number] = self.cut
        self.disk.committed, self.uncommitted = number, None

    def fail(self) -> None:
        """The query ends in the middle of whatever it does; what is not committed is forgotten."""
        self.stopped, self.ticket, self.answers, self.uncommitted = True, None, [], None


def run_batch(
    shard: ShardId, state: State, contents: Mapping[int, Mapping[StreamId, list[int]]], strategy: Strategy
) -> State:
    """The state of a shard after one more micro-batch, of one unit or several; each part has code of its own.

    What relies on its producers forgets: everything at once, or what is older than a window.
    """
    rows = {n: sorted((str(stream), content) for stream, content in unit.items()) for n, unit in contents.items()}
    if strategy.ha is not Ha.UPSTREAM:
        return mix(state, str(shard), rows[max(rows)] if len(rows) == 1 else rows)
    units = {number: mix(str(shard), unit) for number, unit in rows.items()}
    if strategy.horizon_ms == 0:
        return units[max(units)]
    return (state if isinstance(state, Window) else Window()).after(units, strategy)


def result_of(state: State, stream: StreamId, wrong: bool = False) -> int:
    seen = (state.rows, state.closed) if isinstance(state, Window) else state
    return mix(seen, str(stream), wrong)


def no_rows(stream: StreamId, number: int) -> int:
    """A unit without rows, since those of several are all in the last one."""
    return mix("nothing", str(stream), number)


def source_unit(stream: StreamId, rows: tuple[bytes, ...]) -> int:
    """What a source sends over a stream for one pulse, given the entries of the ingress log that belong to it."""
    return mix(rows, str(stream))


# --- sink -----------------------------------------------------------------------------------------------


@dataclass
class Sink:
    """A sink with its ledger: unit n of a lane is written once, after n - 1, and never changes.

    A lane is what the generations of a shard produce for the sink, one after the other.
    """

    written: dict[Hashable, list[tuple[str, int]]] = field(default_factory=dict)
    skipped: int = 0

    def write(self, lane: Hashable, number: int, part: str, content: int) -> None:
        units = self.written.setdefault(lane, [])
        assert number <= len(units) + 1, f"unit {number} of {part} reached {lane} of the sink after {len(units)}"
        if number <= len(units):
            self.skipped += 1
            known = units[number - 1]
            assert known == (part, content), f"unit {number} of {part} differs from the one of {known[0]} in the sink"
            return
        units.append((part, content))

    def through(self, lane: Hashable) -> int:
        return len(self.written.get(lane, ()))

    def done_with(self, lane: Hashable, number: int) -> None:
        """A replica lets go of a unit and all before it."""

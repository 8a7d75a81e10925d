"""The user's code by generations: what of it runs as which part of the flow, and what may change between two."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbroken.errors import Problem
from unbroken.flow import Dataflow
from unbroken.network import is_network
from unbroken.protocol.consistency import Availability
from unbroken.protocol.ids import part_of, segment_of
from unbroken.protocol.layout import Topology
from unbroken.protocol.strategy import Strategy


@dataclass(frozen=True)
class Consumer:
    """A part that reads another one's rows, split over ``shards`` by the hash of ``keys``."""

    part: str
    keys: tuple[str, ...]
    shards: int


@dataclass(frozen=True)
class Program:
    """The text of one generation, and the parts that it is to run as.

    A segment whose code is that of an earlier generation stays the part it was. ``keys`` says by which columns the rows
    of a producer are split among the shards of a consumer.
    """

    generation: int
    file: str
    text: str
    topology: Topology
    keys: Mapping[tuple[str, str], tuple[str, ...]]

    def part(self, name: str) -> str:
        """The part that runs a segment of this program; sources and sinks are parts of their own name."""
        return next((part for part in self.topology.segments if segment_of(part) == name), name)

    @classmethod
    def first(cls, flow: Dataflow, topology: Topology, file: str, text: str) -> Program:
        return cls(1, file, text, topology, _keys(flow, {}))

    def followed_by(self, flow: Dataflow, file: str, text: str, generation: int, replaced: Iterable[str]) -> Program:
        """The program after this one, in which the segments ``replaced`` have other code or other input."""
        parts = {name: self.part(name) for name in flow.segments}
        parts |= {name: part_of(name, generation) for name in replaced}
        was = self.topology
        renamed = {self.part(name): part for name, part in parts.items()}
        topology = Topology(
            sources=was.sources,
            segments={renamed[part]: shards for part, shards in was.segments.items()},
            sinks=was.sinks,
            edges=tuple((renamed.get(a, a), renamed.get(b, b)) for a, b in was.edges),
            replicas={renamed.get(part, part): count for part, count in was.replicas.items()},
            client_sinks=was.client_sinks,
            strategies={renamed[part]: strategy for part, strategy in was.strategies.items()},
            at_most_once=was.at_most_once,
            whole=was.whole,
            led=frozenset(renamed[part] for part in was.led),
            availability={renamed[part]: how for part, how in was.availability.items()},
            bucketed=was.bucketed,
            tentative_sinks=was.tentative_sinks,
        )
        return Program(generation, file, text, topology, _keys(flow, parts))

    def to_json(self) -> dict[str, Any]:
        topology = self.topology
        return {
            "generation": self.generation,
            "file": self.file,
            "text": self.text,
            "topology": {
                "sources": list(topology.sources),
                "segments": dict(topology.segments),
                "sinks": list(topology.sinks),
                "edges": [list(edge) for edge in topology.edges],
                "replicas": dict(topology.replicas),
                "client_sinks": sorted(topology.client_sinks),
                "strategies": {part: strategy.to_json() for part, strategy in topology.strategies.items()},
                "at_most_once": topology.at_most_once,
                "whole": topology.whole,
                "led": sorted(topology.led),
                "availability": {part: how.to_json() for part, how in topology.availability.items()},
                "bucketed": topology.bucketed,
                "tentative_sinks": sorted(topology.tentative_sinks),
            },
            "keys": [[producer, consumer, *columns] for (producer, consumer), columns in self.keys.items()],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Program:
        shape = value["topology"]
        topology = Topology(
            sources=tuple(shape["sources"]),
            segments=dict(shape["segments"]),
            sinks=tuple(shape["sinks"]),
            edges=tuple((producer, consumer) for producer, consumer in shape["edges"]),
            replicas=dict(shape["replicas"]),
            client_sinks=frozenset(shape["client_sinks"]),
            strategies={part: Strategy.from_json(how) for part, how in shape.get("strategies", {}).items()},
            at_most_once=bool(shape.get("at_most_once", False)),
            whole=bool(shape.get("whole", False)),
            led=frozenset(shape.get("led", ())),
            availability={part: Availability.from_json(how) for part, how in shape.get("availability", {}).items()},
            bucketed=bool(shape.get("bucketed", False)),
            tentative_sinks=frozenset(shape.get("tentative_sinks", ())),
        )
        keys = {(row[0], row[1]): tuple(row[2:]) for row in value["keys"]}
        return cls(int(value["generation"]), value["file"], value["text"], topology, keys)


def _keys(flow: Dataflow, parts: Mapping[str, str]) -> dict[tuple[str, str], tuple[str, ...]]:
    return {
        (parts.get(name, name), parts.get(segment.name, segment.name)): columns
        for segment in flow.segments.values()
        for name, columns in segment.shard_by.items()
    }


def merged(programs: Sequence[Program]) -> Topology:
    """The topology while these programs run beside each other, the one that goes first."""
    newest = programs[-1].topology
    if len(programs) == 1:
        return newest
    segments: dict[str, int] = {}
    edges: dict[tuple[str, str], None] = {}
    replicas: dict[str, int] = {}
    strategies: dict[str, Strategy] = {}
    led: frozenset[str] = frozenset()
    availability: dict[str, Availability] = {}
    for program in programs:
        segments |= program.topology.segments
        edges |= dict.fromkeys(program.topology.edges)
        replicas |= program.topology.replicas
        strategies |= program.topology.strategies
        led |= program.topology.led
        availability |= program.topology.availability
    earlier = {segment_of(part): part for part in programs[0].topology.segments}
    replaces = {
        part: earlier[segment_of(part)] for part in newest.segments if part not in programs[0].topology.segments
    }
    shape = (newest.sources, segments, newest.sinks, tuple(edges), replicas, newest.client_sinks)
    modes = (newest.at_most_once, newest.whole, led, availability, newest.bucketed, newest.tentative_sinks)
    return Topology(*shape, replaces, strategies, *modes)


def consumers(programs: Sequence[Program], part: str) -> tuple[Consumer, ...]:
    """Who reads a part's rows while these programs run."""
    topology = merged(programs)
    keys = {edge: columns for program in programs for edge, columns in program.keys.items()}
    return tuple(
        Consumer(consumer, keys.get((producer, consumer), ()), topology.segments.get(consumer, 1))
        for producer, consumer in topology.edges
        if producer == part
    )


# --- what differs between two programs --------------------------------------------------------------------


def replaced_segments(flow: Dataflow, before: str, after: str) -> list[str]:
    """The segments of ``flow`` whose code differs between two texts, and all that read from them, in their order.

    The statements of a file are compared as Python understands them, so that comments and blank lines do not count,
    and an operator network by what its operators mean. What stands outside of the functions of segments, or outside of
    the operators of a network, may be used by any of them: if it differs, all are replaced.
    """
    old, new = _pieces(before, flow), _pieces(after, flow)
    if old is None or new is None or old.get("") != new.get(""):
        return list(flow.segments)
    changed = {name for name in flow.segments if old.get(name) != new.get(name)}
    grown = True
    while grown:
        behind = {name for name, segment in flow.segments.items() if changed & set(segment.inputs)} - changed
        grown = bool(behind)
        changed |= behind
    return [name for name in flow.segments if name in changed]


def _pieces(text: str, flow: Dataflow) -> Mapping[str, Any] | None:
    """A text by the segments it declares, what belongs to none under the empty name, in a form that can be compared.

    The file that declares ``flow`` decides how the text is read; None if it cannot be read so.
    """
    if is_network(Path(flow.where.rpartition(":")[0])):
        from unbroken.network.comparison import pieces  # Not needed for flows that are written in Python.

        return pieces(text)
    try:
        return _statements(text, flow)
    except SyntaxError:
        return None


def _statements(text: str, flow: Dataflow) -> dict[str, list[str]]:
    """The statements of a file by the segment whose function they define; those of none under the empty name."""
    out: dict[str, list[str]] = {}
    functions = {segment.function.__name__: name for name, segment in flow.segments.items()}
    for statement in ast.parse(text).body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if docstring:
            continue
        name = functions.get(statement.name, "") if isinstance(statement, ast.FunctionDef) else ""
        out.setdefault(name, []).append(ast.dump(statement))
    return out


def differences(before: Dataflow, after: Dataflow) -> list[Problem]:
    """What a program that follows another must not change: everything that state, units and sinks hang on."""
    out: list[Problem] = []
    remedy = "change that with a fresh start, or upgrade without it"

    def compare(where: str, what: str, old: Any, new: Any) -> None:
        if old != new:
            out.append(Problem(where, f"{what} was {old!r} and would become {new!r}", remedy))

    if before.settings.pairs == "cluster":
        what = "with pairs='cluster' code cannot be replaced while the flow runs: that takes replicas that come alone"
        out.append(Problem(after.where, what, "stop the flow and start it afresh, or run it with pairs='partition'"))
    if "bucket" in (before.ordering, after.ordering):
        what = "the code of a flow whose units are buckets of event time cannot be replaced while it runs"
        out.append(Problem(after.where, what, "stop the flow and start it again with the other file"))
    compare(after.where, "the name of the dataflow", before.name, after.name)
    compare(after.where, "the settings", before.settings.model_dump(), after.settings.model_dump())
    compare(after.where, "the list of sources", sorted(before.sources), sorted(after.sources))
    compare(after.where, "the list of segments", sorted(before.segments), sorted(after.segments))
    compare(after.where, "the list of sinks", sorted(before.sinks), sorted(after.sinks))
    for name in sorted(set(before.sources) & set(after.sources)):
        where, old_source, new_source = after.sources[name].where, before.sources[name], after.sources[name]
        for what, values in _declared(old_source.connector, new_source.connector).items():
            compare(where, what, *values)
    for name in sorted(set(before.sinks) & set(after.sinks)):
        old_sink, new_sink = before.sinks[name], after.sinks[name]
        compare(new_sink.where, "the segment it takes", old_sink.input, new_sink.input)
        for what, values in _declared(old_sink.connector, new_sink.connector).items():
            compare(new_sink.where, what, *values)
    for name in sorted(set(before.segments) & set(after.segments)):
        old, new = before.segments[name], after.segments[name]
        for what in ("inputs", "shards"):
            compare(new.where, what, getattr(old, what), getattr(new, what))
        for what in ("ha", "replicas", "k_safety", "checkpoint_every", "state_horizon"):
            compare(new.where, what, getattr(old.redundancy, what), getattr(new.redundancy, what))
        compare(new.where, "availability", old.availability, new.availability)
        if old.shards > 1:
            compare(new.where, "shard_by", dict(old.shard_by), dict(new.shard_by))
    return out


def _declared(before: Any, after: Any) -> dict[str, tuple[str, str]]:
    """What two connectors were declared with, by name, in a form that can be compared and read."""
    found = [{"its kind": type(connector).__name__, **_attributes(connector)} for connector in (before, after)]
    names = dict.fromkeys([*found[0], *found[1]])
    return {name: (found[0].get(name, "not there"), found[1].get(name, "not there")) for name in names}


def _attributes(connector: Any) -> dict[str, str]:
    return {f"its {name.lstrip('_')}": _readable(value) for name, value in sorted(vars(connector).items())}


def _readable(value: Any) -> str:
    if inspect.isroutine(value):
        return str(value.__qualname__)
    return str(value.simpleString() if hasattr(value, "simpleString") else value)

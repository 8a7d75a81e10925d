"""The user's code by generations: what of it runs as which part of the flow, and what may change between two."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unbroken.codecs.codec import Codec
from unbroken.errors import Problem
from unbroken.flow.dataflow import Dataflow, Segment
from unbroken.flow.network import is_network
from unbroken.flow.shard_keys import ShardBy
from unbroken.protocol.registry import registered
from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.ids import part_of, segment_of
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.strategy import Strategy
from unbroken.security.secret import HIDDEN, is_secret, masked, shown

DIGEST_CHARS = 16
"""Of the digest of a declared value."""


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
    of a producer are split among the shards of a consumer, ``declared`` what a program that follows must not change.
    """

    generation: int
    file: str
    text: str
    topology: Topology
    keys: Mapping[tuple[str, str], tuple[str, ...]]
    declared: Declared | None = None

    def part(self, name: str) -> str:
        """The part that runs a segment of this program; sources and sinks are parts of their own name."""
        return next((part for part in self.topology.segments if segment_of(part) == name), name)

    def split_by(self, shard_by: Mapping[str, ShardBy]) -> Program:
        """The same with the columns that were found for segments whose authors name none."""
        found = {
            (self.part(name), self.part(segment)): columns
            for segment, inputs in shard_by.items()
            for name, columns in inputs.items()
        }
        return replace(self, keys={**self.keys, **found})

    def shard_by(self, segment: Segment) -> dict[str, tuple[str, ...]]:
        """The columns by which the inputs of a segment are split in this program."""
        edges = {name: (self.part(name), self.part(segment.name)) for name in segment.inputs}
        return {name: self.keys[edge] for name, edge in edges.items() if edge in self.keys}

    @classmethod
    def first(
        cls, flow: Dataflow, topology: Topology, file: str, text: str, declared: Declared | None = None
    ) -> Program:
        """The program that a flow begins with; ``declared`` if a node has changed what the file declares."""
        return cls(1, file, text, topology, _keys(flow, {}), declared or Declared.of(flow))

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
        # Columns that were found for the program before this one hold, because state was split by them.
        kept = {(renamed.get(a, a), renamed.get(b, b)): columns for (a, b), columns in self.keys.items()}
        return Program(generation, file, text, topology, {**kept, **_keys(flow, parts)}, Declared.of(flow))


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
    availability: dict[str, DelayBound] = {}
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
    changed = set(changed_code(flow, before, after))
    if "" in changed:
        return list(flow.segments)
    grown = True
    while grown:
        behind = {name for name, segment in flow.segments.items() if changed & set(segment.inputs)} - changed
        grown = bool(behind)
        changed |= behind
    return [name for name in flow.segments if name in changed]


def changed_code(flow: Dataflow, before: str, after: str) -> list[str]:
    """The segments of ``flow`` whose own code differs between two texts; the empty name if what belongs to none does.

    Neither text is executed.
    """
    old, new = _pieces(before, flow), _pieces(after, flow)
    if old is None or new is None:
        return [] if before == after else [""]
    return [name for name in ("", *flow.segments) if old.get(name) != new.get(name)]


def code_digest(flow: Dataflow, text: str) -> str:
    """Tells texts apart in which `changed_code` finds a difference, and no others."""
    pieces = _pieces(text, flow)
    shown = text if pieces is None else json.dumps(pieces, sort_keys=True, default=repr)
    return hashlib.sha256(shown.encode()).hexdigest()[:DIGEST_CHARS]


def _pieces(text: str, flow: Dataflow) -> Mapping[str, Any] | None:
    """A text by the segments it declares, what belongs to none under the empty name, in a form that can be compared.

    The file that declares ``flow`` decides how the text is read; None if it cannot be read so.
    """
    if is_network(Path(flow.where.rpartition(":")[0])):
        from unbroken.flow.network.comparison import pieces  # Not needed for flows that are written in Python.

        return pieces(text)
    try:
        return _statements(text, flow)
    except SyntaxError:
        return None


def declares_the_same(before: str, after: str, flow: Dataflow) -> bool:
    """Whether two texts of a Python file differ in nothing but what the functions of the segments of ``flow`` do.

    Then what they declare is the same, whatever the values that they take from their surroundings.
    """
    if is_network(Path(flow.where.rpartition(":")[0])):
        return False
    try:
        old, new = (_without_bodies(text, flow) for text in (before, after))
    except SyntaxError:
        return False
    return old == new


def _without_bodies(text: str, flow: Dataflow) -> list[str]:
    functions = {segment.function.__name__ for segment in flow.segments.values()}
    tree = ast.parse(text)
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in functions:
            statement.body = []
    return [ast.dump(statement) for statement in tree.body]


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


@dataclass(frozen=True)
class Declared:
    """What a flow declares that state, units and sinks hang on, by what it is called.

    Of each value there is a digest to compare and a text to show, without what is secret by its name. It is kept with
    the code: what an edited file changes is seen without running the code that it replaces.
    """

    flow: Mapping[str, str]
    sources: Mapping[str, Mapping[str, str]]
    segments: Mapping[str, Mapping[str, str]]
    sinks: Mapping[str, Mapping[str, str]]
    fixed: tuple[str, str] | None = None
    """Why code cannot be replaced while the flow runs, and what to do instead."""

    @classmethod
    def of(cls, flow: Dataflow) -> Declared:
        lists = {"sources": list(flow.sources), "segments": list(flow.segments), "sinks": list(flow.sinks)}
        return cls(
            flow={
                "the name of the dataflow": _said("the name of the dataflow", flow.name),
                **{f"the setting {name}": _said(name, value) for name, value in flow.settings.model_dump().items()},
                **{f"the list of {what}": _said(what, sorted(names)) for what, names in lists.items()},
            },
            sources={name: _attributes(source.connector) for name, source in flow.sources.items()},
            segments={name: _declared_segment(segment) for name, segment in flow.segments.items()},
            sinks={
                name: {"the segment it takes": _said("segment", sink.input), **_attributes(sink.connector)}
                for name, sink in flow.sinks.items()
            },
            fixed=_fixed(flow),
        )


PROGRAM = Codec(Program, "program", readable=True)


def differences(before: Declared, flow: Dataflow) -> list[Problem]:
    """What a program that follows another must not change: everything that state, units and sinks hang on."""
    out: list[Problem] = []
    remedy = "change that with a fresh start, or upgrade without it"
    after = Declared.of(flow)

    def compare(where: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        for what in dict.fromkeys([*old, *new]):
            if old.get(what) != new.get(what):
                was, would = (told(values.get(what)) for values in (old, new))
                out.append(Problem(where, f"{what} was {was} and would become {would}", remedy))

    if (fixed := before.fixed or after.fixed) is not None:
        out.append(Problem(flow.where, *fixed))
    compare(flow.where, before.flow, after.flow)
    for name in sorted(set(before.sources) & set(after.sources)):
        compare(flow.sources[name].where, before.sources[name], after.sources[name])
    for name in sorted(set(before.sinks) & set(after.sinks)):
        compare(flow.sinks[name].where, before.sinks[name], after.sinks[name])
    for name in sorted(set(before.segments) & set(after.segments)):
        # The keys of a segment with one shard split nothing, and how it gives its results is a matter of its code.
        alone = {"output_mode"} | ({"shard_by"} if told(before.segments[name].get("shards")) == "1" else set())
        old, new = (
            {what: value for what, value in segment.items() if what not in alone}
            for segment in (before.segments[name], after.segments[name])
        )
        compare(flow.segments[name].where, old, new)
    return out


def _public(name: str, value: Any) -> Any:
    """A value for people: of mappings, at any depth, what is secret by its name is hidden."""
    if isinstance(value, Mapping):
        return {key: _public(str(key), item) for key, item in shown(value).items()}
    return HIDDEN if is_secret(name) and isinstance(value, str) else value


def _fixed(flow: Dataflow) -> tuple[str, str] | None:
    asked = (flow.settings.pairs, flow.ordering, *(segment.ordering for segment in flow.segments.values()))
    return next((found for name in asked if (found := registered(name).fixed) is not None), None)


def _declared_segment(segment: Segment) -> dict[str, str]:
    values = {what: getattr(segment, what) for what in ("inputs", "shards", "availability", "output_mode")}
    for what in ("ha", "replicas", "k_safety", "checkpoint_every", "state_horizon"):
        values[what] = getattr(segment.redundancy, what)
    values["shard_by"] = dict(segment.shard_by)
    return {what: _said(what, value) for what, value in values.items()}


def _attributes(connector: Any) -> dict[str, str]:
    """What a connector was declared with."""
    found = {f"its {name.lstrip('_')}": _readable(value) for name, value in sorted(vars(connector).items())}
    found = {"its kind": type(connector).__name__, **found}
    return {what: _said(what, value) for what, value in found.items()}


def _said(what: str, value: Any) -> str:
    """A declared value to be kept: a digest that tells it from others, and how it is shown."""
    digest = hashlib.sha256(repr(value).encode()).hexdigest()[:DIGEST_CHARS]
    return digest + masked(repr(_public(what, value)))


def told(said: str | None) -> str:
    """A declared value for people."""
    return "not there" if said is None else said[DIGEST_CHARS:]


def is_said(said: str, what: str, value: Any) -> bool:
    """Whether what was kept of a declared value is that of ``value``."""
    return said == _said(what, value)


def _readable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if inspect.isroutine(value):
        return str(value.__qualname__)
    if isinstance(value, set | frozenset):
        return str(sorted(value, key=str))  # the order of a set differs between processes
    return str(value.simpleString() if hasattr(value, "simpleString") else value)

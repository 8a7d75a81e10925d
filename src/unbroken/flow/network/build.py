"""From the text of a network to the dataflow it describes, or all that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from unbroken.connectors.files.sinks import Client
from unbroken.connectors.push.source import Push
from unbroken.errors import FlowError, Problem, UnbrokenError
from unbroken.flow.dataflow import Dataflow, Redundancy, Segment
from unbroken.flow.network.base import KeyColumns, OperatorPlace
from unbroken.flow.network.document import DocumentEntry, NotYaml, Value, read_document
from unbroken.flow.network.mistakes import Mistakes
from unbroken.flow.network.parts import (
    DeclaredOperator,
    member,
    read_head,
    read_operator,
    read_sink,
    read_source,
    section,
)
from unbroken.flow.ordering import bucketed
from unbroken.flow.plan import build_topology
from unbroken.wording import choices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from unbroken.flow.dataflow import SegmentFunction

Part = TypeVar("Part")

ANY_NODES = 200
"""As many nodes as there can be: how many there are is not known while a network is read."""


def load_network(path: Path, text: str, generation: int = 1) -> Dataflow:
    """The dataflow that the text of a network describes.

    Raises
    ------
    FlowError
        With every problem that can be seen without Spark. Those that are left to `unbroken.flow.plan.build_topology`,
        such as cycles, are among them if there are others.
    """
    mistakes = Mistakes(str(path))
    try:
        document, odd = read_document(text)
    except NotYaml as error:
        mistakes.add_all([error.mistake])
        raise FlowError(mistakes.problems) from None
    mistakes.add_all(odd)
    builder = _Builder(document, mistakes, path.resolve().parent, generation)
    flow = builder.flow()
    if mistakes.problems:
        raise FlowError([*mistakes.problems, *builder.shape_problems(flow)])
    return flow


class _Builder:
    """Builds the dataflow of one document.

    Parts with mistakes are stood in for by others, so that the rest can be looked at, too.
    """

    def __init__(self, document: Value, mistakes: Mistakes, folder: Path, generation: int) -> None:
        self._document = document
        self._mistakes = mistakes
        self._folder = folder
        self._generation = generation
        self._modules: dict[Path, ModuleType] = {}
        self._sources = section(document, "sources")
        self._operators = section(document, "operators")
        self._sinks = section(document, "sinks")

    def flow(self) -> Dataflow:
        """The dataflow; it counts only if there are no mistakes."""
        name, options, settings = read_head(self._document, self._mistakes)
        line = member(self._document, "name", DocumentEntry(self._document.line, self._document)).line
        declared = self._declare(line, "", lambda: Dataflow(name, **options, **settings))
        flow = declared or Dataflow("unnamed", **options)
        flow.where = self._mistakes.where(line)
        for name, entry in self._sources.items():
            self._source(flow, name, entry)
        for name, entry in self._operators.items():
            self._operator(flow, name, entry)
        for name, entry in self._sinks.items():
            self._sink(flow, name, entry)
        return flow

    def shape_problems(self, flow: Dataflow) -> list[Problem]:
        """What the shape of a flow with mistakes shows besides them; the flow is not fit for anything afterwards."""
        if not (flow.sources and flow.segments and flow.sinks):
            return []
        known = {*flow.sources, *flow.segments}
        inputs = [*(segment.inputs for segment in flow.segments.values()), *((s.input,) for s in flow.sinks.values())]
        unsure = any(not names or not known.issuperset(names) for names in inputs)
        for name, segment in flow.segments.items():
            left = tuple(part for part in segment.inputs if part in known) or (next(iter(flow.sources)),)
            gone = set(segment.inputs) - set(left)
            shard_by = {part: columns for part, columns in segment.shard_by.items() if part not in gone}
            flow.segments[name] = replace(segment, inputs=left, shard_by=shard_by)
        for name, sink in flow.sinks.items():
            if sink.input not in flow.segments:
                flow.sinks[name] = replace(sink, input=next(iter(flow.segments)))
        if unsure:
            # What nobody seems to read may be meant by an input that is not known.
            flow.segments["?"] = Segment("?", _first, tuple(known), {}, 1, Redundancy(), "append", None, "?")
            flow.sinks["?"] = replace(next(iter(flow.sinks.values())), name="?", input="?")
        try:
            build_topology(flow, ANY_NODES)
        except FlowError as error:
            return error.problems
        return []

    def _declare(self, line: int, part: str, declare: Callable[[], Part]) -> Part | None:
        """Call a method of the dataflow; what it refuses is noted with the line of the document."""
        try:
            return declare()
        except FlowError as error:
            for problem in error.problems:
                self._mistakes.add(line, part, problem.what, problem.remedy)
            return None

    def _source(self, flow: Dataflow, name: str, entry: DocumentEntry) -> None:
        part = f"source {name}"
        connector, options = read_source(name, entry, self._mistakes)
        if connector is None or options is None:
            connector = Push("unknown string, at timestamp")
            options = {"event_time": "at"} if bucketed(flow) else {}
        source = self._declare(entry.line, part, lambda: flow.source(name, connector, **options))
        if source is not None:
            flow.sources[name] = replace(source, where=self._mistakes.where(entry.line, part))

    def _sink(self, flow: Dataflow, name: str, entry: DocumentEntry) -> None:
        part = f"sink {name}"
        inputs, connector, options = read_sink(name, entry, self._mistakes)
        self._check_inputs(name, inputs, entry, part, (self._operators,))
        line = member(entry.value, "on_refusal", entry).line
        taken = (*inputs, "")[0]
        sink = self._declare(line, part, lambda: flow.sink(name, taken, connector or Client(), **(options or {})))
        if sink is not None:
            flow.sinks[name] = replace(sink, where=self._mistakes.where(entry.line, part))

    def _operator(self, flow: Dataflow, name: str, entry: DocumentEntry) -> None:
        part = f"operator {name}"
        inputs, declared = read_operator(name, entry, self._mistakes)
        self._check_inputs(name, inputs, entry, part, (self._sources, self._operators))
        function = _first if declared is None else self._function(declared, part)
        options = {} if declared is None else self._options(declared, part)
        segment = self._declare(entry.line, part, lambda: flow.segment(*inputs, name=name, **options)(function))
        if segment is not None:
            flow.segments[name] = replace(segment, where=self._mistakes.where(entry.line, part))

    def _check_inputs(
        self,
        name: str,
        inputs: tuple[str, ...],
        entry: DocumentEntry,
        part: str,
        sections: tuple[Mapping[str, DocumentEntry], ...],
    ) -> None:
        names = [other for declared in sections for other in declared if other != name]
        line = member(entry.value, "input", entry).line
        for wanted in inputs:
            if wanted in names or wanted == name:
                continue
            if wanted in self._sources:
                remedy = "a sink takes the results of an operator: put a 'dup' between them"
                self._mistakes.add(line, part, f"its input {wanted!r} is a source", remedy)
            else:
                self._mistakes.add(line, part, f"its input {wanted!r} is not declared", choices(names, wanted))

    def _function(self, declared: DeclaredOperator, part: str) -> SegmentFunction:
        place = OperatorPlace(declared.inputs, self._folder, self._generation, self._modules)
        try:
            return declared.operator.function(place)
        except UnbrokenError as error:
            line = member(declared.entry.value, declared.kind, declared.entry).line
            self._mistakes.add(line, part, error.what, error.remedy or "correct the declaration")
            return _first

    def _options(self, declared: DeclaredOperator, part: str) -> dict[str, Any]:
        """What the segment is declared with: all that the network says, and what follows from the operator."""
        options = {"output_mode": declared.operator.default_mode(), **declared.options}
        shares = options.get("routing") is not None
        shards = options.get("replicas" if shares else "shards", 1)
        keys = declared.operator.keys(declared.inputs)
        if type(shards) is not int or shards < 2 or keys is None:
            return options
        entry = declared.entry
        if not keys:
            what = f"all rows belong together in this {declared.kind}, but there are {shards} shards"
            remedy = "use one shard, or give 'by'"
            name = "routing" if shares else "shards"
            self._mistakes.add(member(entry.value, name, entry).line, part, what, remedy)
            options |= {"shards": 1, "routing": None}
        elif options.get("routing") == "random":
            what = f"routing: random parts rows that belong together in this {declared.kind}"
            self._mistakes.add(member(entry.value, "routing", entry).line, part, what, "use routing: hashing")
        elif "shard_by" not in options:
            options["shard_by"] = {name: [key[name] for key in keys] for name in declared.inputs}
        elif not _keeps_together(options["shard_by"], keys, declared.inputs):
            allowed = ", ".join("=".join(dict.fromkeys(key.values())) for key in keys)
            what = "shard_by splits rows that belong together"
            remedy = f"leave it out, or use some of: {allowed}"
            self._mistakes.add(member(entry.value, "shard_by", entry).line, part, what, remedy)
        return options


def _keeps_together(shard_by: Any, keys: list[KeyColumns], inputs: tuple[str, ...]) -> bool:
    """Whether rows that agree in all keys are in the same shard; what plan.py refuses anyway is let pass."""
    by_input = shard_by if isinstance(shard_by, Mapping) else dict.fromkeys(inputs, shard_by)
    if set(by_input) != set(inputs) or len({len(columns) for columns in by_input.values()}) != 1:
        return True
    wanted = [{name: column.lower() for name, column in key.items()} for key in keys]
    return all(
        dict(zip(inputs, columns, strict=True)) in wanted
        for columns in zip(*([column.lower() for column in by_input[name]] for name in inputs), strict=True)
    )


def _first(*frames: DataFrame) -> DataFrame:
    """Stands in for the function of an operator that has a mistake."""
    return frames[0]

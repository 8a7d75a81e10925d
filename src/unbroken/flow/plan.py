"""From a declared dataflow to its topology, refusing what cannot work before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from unbroken.errors import FlowError, Problem
from unbroken.flow.dataflow import HA, OUTPUT_MODES, Dataflow, Segment
from unbroken.flow.delay_bounds import availability_problems, available_segments
from unbroken.flow.ordering import bucketed, led_segments, ordering_problems
from unbroken.flow.redundancy import pair_problems, redundancy_problems
from unbroken.flow.tracing import tracing_problems
from unbroken.protocol import combinations
from unbroken.protocol.registry import KERNEL
from unbroken.protocol.values.layout import INGRESS, Topology

MAX_SHARDS = 256


def build_topology(flow: Dataflow, nodes: int | None = None) -> Topology:
    """The flow's shards and streams; raises with every problem that can be seen without Spark."""
    # What else is wrong with a strategy cannot be told without the policy.
    asked = [segment.redundancy.ha for segment in flow.segments.values()]
    _refuse_missing(flow, [ha for ha in HA if ha in asked and ha not in KERNEL and not combinations.available(ha)])
    problems = [*_part_problems(flow), *_segment_problems(flow, nodes or flow.settings.nodes), *pair_problems(flow)]
    problems += [*ordering_problems(flow), *availability_problems(flow), *tracing_problems(flow.where, flow.settings)]
    order = _order(flow, problems)
    if problems:
        raise FlowError(problems)
    edges = [(name, segment.name) for segment in flow.segments.values() for name in dict.fromkeys(segment.inputs)]
    edges += [(sink.input, sink.name) for sink in flow.sinks.values()]
    strategies = {name: segment.strategy() for name, segment in flow.segments.items()}
    replicas = {name: strategy.running for name, strategy in strategies.items()}
    replicas[INGRESS.part] = max(strategy.nodes for strategy in strategies.values())
    available = available_segments(flow)
    topology = Topology(
        sources=tuple(flow.sources),
        segments={name: flow.segments[name].shards for name in order},
        sinks=tuple(flow.sinks),
        edges=tuple(edges),
        replicas=replicas,
        client_sinks=frozenset(name for name, sink in flow.sinks.items() if sink.connector.client),
        strategies=strategies,
        at_most_once=flow.settings.guarantee == "at-most-once",
        whole=flow.settings.pairs == "cluster",
        led=led_segments(flow),
        bucketed=bucketed(flow),
        availability={name: how.protocol() for name, how in available.items()},
        tentative_sinks=frozenset(
            name for name, sink in flow.sinks.items() if sink.connector.tentative and sink.input in available
        ),
    )
    _refuse_missing(flow, combinations.missing_policies(topology))
    return topology


def _refuse_missing(flow: Dataflow, policies: Sequence[str]) -> None:
    if policies:
        what = f"the dataflow asks for a policy that is not installed: {', '.join(policies)}"
        raise FlowError([Problem(flow.where, what, "install it, or declare the dataflow without it")])


def _part_problems(flow: Dataflow) -> list[Problem]:
    out: list[Problem] = []
    if not flow.sources:
        out.append(Problem(flow.where, "the dataflow has no source", "declare one: flow.source(name, ...)"))
    if not flow.segments:
        out.append(Problem(flow.where, "the dataflow has no segment", "declare one: @flow.segment(source)"))
    if not flow.sinks:
        out.append(Problem(flow.where, "the dataflow has no sink", "declare one: flow.sink(name, segment, ...)"))
    declared = [(source.where, source.connector.problems()) for source in flow.sources.values()]
    declared += [(sink.where, sink.connector.problems()) for sink in flow.sinks.values()]
    out += [flaw.at(where) for where, flaws in declared for flaw in flaws]
    for sink in flow.sinks.values():
        if sink.input not in flow.segments:
            known = ", ".join(flow.segments) or "none"
            out.append(Problem(sink.where, f"there is no segment {sink.input!r}", f"segments: {known}"))
        if flow.settings.guarantee == "exactly-once" and not sink.connector.idempotent:
            kind = type(sink.connector).__name__
            what = f"{kind} cannot tell a unit that it was given before, so guarantee='exactly-once' cannot be kept"
            remedy = "use a sink with a ledger such as Parquet, or say guarantee='at-least-once' or 'at-most-once'"
            out.append(Problem(sink.where, what, remedy))
    return out


def _segment_problems(flow: Dataflow, nodes: int) -> list[Problem]:
    out: list[Problem] = []
    known = {*flow.sources, *flow.segments}
    used = {name for segment in flow.segments.values() for name in segment.inputs}
    used |= {sink.input for sink in flow.sinks.values()}
    for segment in flow.segments.values():
        where = segment.where
        if not segment.inputs:
            out.append(Problem(where, "the segment has no input", "name a source or segment it reads"))
        for name in segment.inputs:
            if name not in known:
                out.append(Problem(where, f"its input {name!r} is not declared", f"declared: {sorted(known)}"))
        out += _range_problems(segment, nodes)
        out += _key_problems(segment)
        if segment.name not in used:
            what = "nobody reads the result of this segment"
            out.append(Problem(where, what, "connect it to a sink or another segment, or remove it"))
    for source in flow.sources.values():
        if source.name not in used:
            out.append(Problem(source.where, "no segment reads this source", "connect it or remove it"))
    return out


def _range_problems(segment: Segment, nodes: int) -> list[Problem]:
    out: list[Problem] = []
    if not _in_range(segment.shards, MAX_SHARDS):
        what = f"shards={segment.shards!r} is out of range"
        out.append(Problem(segment.where, what, f"use 1 to {MAX_SHARDS}"))
    out += redundancy_problems(segment, nodes)
    if segment.output_mode not in OUTPUT_MODES:
        what = f"output_mode={segment.output_mode!r} is not supported"
        remedy = f"use one of {OUTPUT_MODES}; 'complete' would resend the whole result in every unit"
        out.append(Problem(segment.where, what, remedy))
    return out


def _in_range(value: object, most: int) -> bool:
    """Whether a number that a user wrote is a whole one from 1 to ``most``; users write what they like."""
    return type(value) is int and 1 <= value <= most


def _key_problems(segment: Segment) -> list[Problem]:
    out: list[Problem] = []
    for name in segment.shard_by:
        if name not in segment.inputs:
            what = f"shard_by names {name!r}, which is not an input"
            out.append(Problem(segment.where, what, f"inputs: {', '.join(segment.inputs)}"))
    if _in_range(segment.shards, MAX_SHARDS) and segment.shards > 1 and segment.routing != "primary":
        missing = [name for name in segment.inputs if not segment.shard_by.get(name)]
        if missing and any(segment.shard_by.values()):
            what = f"shards={segment.shards}, but shard_by does not say how rows of {missing} are split"
            out.append(Problem(segment.where, what, "name the key columns of every input, or leave shard_by out"))
        widths = {len(columns) for columns in segment.shard_by.values()}
        if len(widths) > 1:
            what = "shard_by has different numbers of columns for different inputs"
            out.append(Problem(segment.where, what, "rows that belong together must hash alike: use equal keys"))
    return out


def _order(flow: Dataflow, problems: list[Problem]) -> list[str]:
    """Segments in the order in which data passes them."""
    graph = {name: set(segment.inputs) & set(flow.segments) for name, segment in flow.segments.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        loop = [str(name) for name in error.args[1]]
        what = f"the segments form a cycle: {' -> '.join(loop)}"
        remedy = "a dataflow has no loops; feed results back through an outside system such as files or Kafka"
        problems.append(Problem(flow.segments[loop[0]].where, what, remedy))
        return []

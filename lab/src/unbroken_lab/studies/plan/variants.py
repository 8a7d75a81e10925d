"""A flow with its segments kept available in another way: what that gives, or why it cannot be."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from unbroken.errors import FlowError, Problem, UnbrokenError
from unbroken.flow.dataflow import Dataflow, Redundancy, Segment
from unbroken.flow.plan import build_topology
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.strategy import Ha
from unbroken.quantities import milliseconds
from unbroken.spark.analysis.horizon import Horizon, Unbounded, settled, unbounded_problem
from unbroken_lab.studies.calibration.calibration import StateReach


@dataclass(frozen=True)
class Variant:
    """A flow whose ``segments`` are kept available by ``ha``: its topology, or what speaks against it."""

    ha: Ha
    segments: tuple[str, ...]
    topology: Topology | None
    problems: tuple[Problem, ...] = ()


def chosen_segments(flow: Dataflow, names: Collection[str]) -> tuple[str, ...]:
    """The segments that strategies are tried on: those that are named, or all."""
    unknown = sorted(set(names) - set(flow.segments))
    if unknown:
        known = ", ".join(flow.segments)
        raise UnbrokenError(f"flow {flow.name} has no segment {', '.join(unknown)}; its segments: {known}")
    return tuple(name for name in flow.segments if not names or name in names)


def variant(
    flow: Dataflow,
    ha: Ha,
    segments: tuple[str, ...],
    nodes: int,
    interval: int | None,
    reaches: Mapping[str, StateReach],
) -> Variant:
    """The flow with ``ha`` for some segments, on so many nodes.

    ``interval`` is the number of units between two acknowledgements, and between two checkpoints of a passive standby;
    None leaves it as the flow says.
    """
    changed = copy.copy(flow)
    changed.segments = {
        name: _kept(segment, ha, interval) if name in segments else segment for name, segment in flow.segments.items()
    }
    try:
        topology = build_topology(changed, nodes)
        horizons = _horizons(changed, reaches)
    except FlowError as error:
        return Variant(ha, segments, None, tuple(error.problems))
    # Clients are not simulated: results are taken at once, by a sink.
    topology = replace(settled(topology, horizons), client_sinks=frozenset(), bucketed=False)
    return Variant(ha, segments, topology)


def segment_order(flow: Dataflow, nodes: int) -> tuple[str, ...]:
    """The segments in the order in which data passes them; raises if the flow cannot be run however it is kept."""
    try:
        return tuple(build_topology(flow, nodes).segments)
    except FlowError:
        bare = variant(flow, Ha.NONE, tuple(flow.segments), nodes, None, {})  # too few nodes for what it says, perhaps
        if bare.topology is None:
            raise
        return tuple(bare.topology.segments)


def _kept(segment: Segment, ha: Ha, interval: int | None) -> Segment:
    asked = segment.redundancy
    backups = 0 if ha is Ha.NONE else max(1, asked.backups)
    every = (interval or asked.checkpoint_every) if ha is Ha.PASSIVE else None
    horizon = asked.state_horizon if ha is Ha.UPSTREAM else None
    return replace(segment, redundancy=Redundancy(ha.value, None, backups, every, horizon))


def _horizons(flow: Dataflow, reaches: Mapping[str, StateReach]) -> dict[str, Horizon]:
    """How far back states reach that are built again from input; raises with all that reach back without end."""
    out: dict[str, Horizon] = {}
    problems: list[Problem] = []
    for name, segment in flow.segments.items():
        if segment.redundancy.ha != Ha.UPSTREAM.value or name not in reaches:
            continue
        declared, reach = segment.redundancy.state_horizon, reaches[name]
        if declared is not None:
            out[name] = Horizon(float(milliseconds(declared)), reach.watermark, declared=True)
        elif reach.ms is None:
            problems.append(unbounded_problem(segment, Unbounded(reach.why, reach.remedy)))
        else:
            out[name] = Horizon(reach.ms, reach.timed)
    if problems:
        raise FlowError(problems)
    return out

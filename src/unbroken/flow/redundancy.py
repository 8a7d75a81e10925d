"""Which ways to keep a segment available make sense, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator

from unbroken.errors import Problem
from unbroken.flow.dataflow import HA, ROUTINGS, Dataflow, Redundancy, Segment
from unbroken.protocol.registry import POLICIES, Backups, registered
from unbroken.protocol.values.strategy import Ha
from unbroken.quantities import milliseconds

MAX_REPLICAS = 8
MAX_EVERY = 1_000


def redundancy_problems(segment: Segment, nodes: int) -> list[Problem]:
    """Everything about a segment's redundancy that cannot work, given so many nodes."""
    asked = segment.redundancy
    if asked.ha not in HA:
        return [Problem(segment.where, f"there is no ha={asked.ha!r}", f"use one of: {', '.join(HA)}")]
    numbers = [*_out_of_range(asked)]
    found = numbers or [*_contradictions(asked), *_too_few(asked, nodes), *_sharing(segment)]
    return [Problem(segment.where, what, remedy) for what, remedy in found]


def pair_problems(flow: Dataflow) -> list[Problem]:
    """What keeps a dataflow from running in whole copies, if that is asked for."""
    if not registered(flow.settings.pairs).together:
        return []
    out: list[Problem] = []
    for segment in flow.segments.values():
        if segment.redundancy.ha in HA and segment.redundancy.ha != Ha.ACTIVE.value:
            what = f"pairs='cluster' runs whole copies of the dataflow, and ha={segment.redundancy.ha!r} has none"
            out.append(Problem(segment.where, what, "leave out ha (and routing), or say pairs='partition'"))
    asked = {name: segment.redundancy for name, segment in flow.segments.items()}
    counts = {name: how.backups + 1 for name, how in asked.items() if not [*_out_of_range(how)]}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} has {count}" for name, count in counts.items())
        what = f"with pairs='cluster' a copy has one replica of each segment, but their numbers differ: {found}"
        out.append(Problem(flow.where, what, "set replicas on the dataflow only, or say pairs='partition'"))
    if flow.settings.snapshots is not None:
        what = "with pairs='cluster' a lost copy is built again from another copy, never from snapshots"
        out.append(Problem(flow.where, what, "leave out snapshots, or say pairs='partition'"))
    return out


def _out_of_range(asked: Redundancy) -> Iterator[tuple[str, str]]:
    limits = {"replicas": (1, MAX_REPLICAS), "k_safety": (0, MAX_REPLICAS - 1), "checkpoint_every": (1, MAX_EVERY)}
    for name, (least, most) in limits.items():
        value = getattr(asked, name)
        if value is not None and not (type(value) is int and least <= value <= most):
            yield f"{name}={value!r} is out of range", f"use {least} to {most}"
    if asked.state_horizon is not None:
        try:
            valid = float(milliseconds(asked.state_horizon)) > 0
        except (TypeError, ValueError):
            valid = False
        if not valid:
            what = f"state_horizon={asked.state_horizon!r} is not a length of time"
            yield what, "write for example '10s' or '5min': how far back a row can still matter"


def _contradictions(asked: Redundancy) -> Iterator[tuple[str, str]]:
    kept_by, rebuilds = registered(asked.ha).backups, registered(asked.ha).rebuilds
    if asked.replicas is not None and asked.k_safety is not None and asked.replicas != asked.k_safety + 1:
        what = f"replicas={asked.replicas} and k_safety={asked.k_safety} contradict each other"
        yield what, f"k_safety={asked.k_safety} is {asked.k_safety + 1} replicas: leave one of them out"
    elif kept_by is Backups.NONE and asked.backups > 0:
        yield f"ha={asked.ha!r} keeps no backups", "leave out replicas and k_safety, or choose another ha"
    elif asked.ha in POLICIES and asked.backups == 0:
        what = f"ha={asked.ha!r} with no backup protects nothing"
        yield what, "set k_safety=1 or more, or say ha='none'"
    if asked.checkpoint_every is not None and kept_by is not Backups.HOLD:
        what = f"checkpoint_every={asked.checkpoint_every} has no meaning with ha={asked.ha!r}"
        yield what, "only ha='passive' copies checkpoints to its backups: leave it out"
    if asked.state_horizon is not None and not rebuilds:
        what = f"state_horizon={asked.state_horizon!r} has no meaning with ha={asked.ha!r}"
        yield what, "only ha='upstream' builds state again from what producers kept: leave it out"


def _sharing(segment: Segment) -> Iterator[tuple[str, str]]:
    if segment.routing is None:
        return
    if segment.routing not in ROUTINGS:
        yield f"there is no routing={segment.routing!r}", f"use one of: {', '.join(ROUTINGS)}"
    elif segment.shards < 2:
        yield f"routing={segment.routing!r} with one replica shares nothing", "set replicas=2 or more"
    elif registered(segment.redundancy.ha).backups is Backups.PROCESS:
        what = (
            f"with routing={segment.routing!r} replicas do different things, with ha={segment.redundancy.ha!r} the same"
        )
        yield what, "leave ha out, or choose 'passive'; or leave routing out and use shards"


def _too_few(asked: Redundancy, nodes: int) -> Iterator[tuple[str, str]]:
    needed = asked.backups + 1
    if needed <= nodes:
        return
    if asked.ha == Ha.ACTIVE.value and asked.replicas is not None:
        remedy = "two replicas of a shard never share a node: start more nodes or ask for fewer replicas"
        yield f"replicas={asked.replicas}, but there are only {nodes} nodes", remedy
    else:
        what = f"ha={asked.ha!r} with {asked.backups} backups needs {needed} nodes, but there are only {nodes}"
        yield what, "start more nodes or ask for less"

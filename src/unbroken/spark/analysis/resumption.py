"""Which differences between two files keep a run from being continued with the other one.

The state on the disks of a run was split, numbered and delivered by what the file of the run declares. A file that
declares it otherwise would mix rows of two divisions without a trace: all replicas agree on the wrong results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from unbroken.errors import Flaw, Problem
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.program import Program, changed_code, is_said, told
from unbroken.protocol.combinations import used
from unbroken.protocol.registry import registered
from unbroken.protocol.values.ids import NodeId, segment_of
from unbroken.protocol.values.layout import Topology
from unbroken.spark.analysis.horizon import kept_for, readable

FRESH = "start with the file of the run, or start over with --fresh, which deletes the state"
TOGETHER = (
    "start with the file of the run and change it with `unbroken upgrade`, or stop all nodes and start all of them "
    "with the edited file"
)
UPGRADE = "start with the file of the run and change that with `unbroken upgrade`, or start over with --fresh"

SOURCE_IDENTITY = ("its kind", "its schema", "its value_schema", "its topics", "its pattern")
SINK_IDENTITY = ("its kind", "its topic", "its table")
"""Positions in a source and the units of a sink are about these. Servers, directories and limits may change: what they
lead to is the same, somewhere else."""


def conflicts(run: Program, given: Program, where: str, *, runs_given: bool) -> list[Problem]:
    """The `differences` as problems of the file that declares ``given``."""
    found = differences(run, given, runs_given=runs_given)
    return [Problem(where, f"it cannot continue the run: {flaw.what}", flaw.remedy) for flaw in found]


def differences(run: Program, given: Program, *, runs_given: bool) -> list[Flaw]:
    """What ``given``, the program of a file, declares otherwise than the program of a run that it is to continue.

    With ``runs_given`` the code of ``given`` replaces that of ``run``, and all that is known of both counts. Without,
    the code of the run stays: columns that were found for code count for nothing, those that an author wrote do.
    """
    found = [Flaw(what, FRESH) for what in _parts(run.topology, given.topology)]
    if not found:
        found += [Flaw(what, FRESH) for what in _keys(run, given, runs_given)]
        found += [Flaw(what, FRESH) for what in _strategies(run.topology, given.topology, runs_given)]
    found += [Flaw(what, FRESH) for what in _modes(run, given)]
    if run.declared is not None and given.declared is not None:
        before, after = run.declared, given.declared
        found += [Flaw(what, FRESH) for what in _declared("source", before.sources, after.sources, SOURCE_IDENTITY)]
        found += [Flaw(what, FRESH) for what in _declared("sink", before.sinks, after.sinks, SINK_IDENTITY)]
        if runs_given:
            modes = _declared("segment", before.segments, after.segments, ("output_mode",))
            found += [Flaw(what, UPGRADE) for what in modes]
    return found


def other_code(run: Program, given: Program, flow: Dataflow, users: Collection[NodeId]) -> list[Problem]:
    """What of the code of ``given``, which declares ``flow``, is not that of ``run``, which the nodes ``users`` run.

    Replicas with other code than their siblings compute other results: while a node runs the code of a run, only an
    upgrade replaces it. If none does, the code of a file does.
    """
    changed = changed_code(flow, run.text, given.text) if users else []
    if not changed:
        return []
    named = [name for name in changed if name]
    parts = [f"the code of {', '.join(named)}"] if named else []
    parts += ["statements outside of its segments, which any segment may use"] if "" in changed else []
    what = f"{' and '.join(parts)}: not the same as on {', '.join(sorted(users))}"
    return [Problem(given.file, f"it cannot continue the run: {what}", TOGETHER)]


def _parts(was: Topology, now: Topology) -> Iterator[str]:
    """The parts of the flow and how they hang together."""
    yield from _differ("the sources", sorted(was.sources), sorted(now.sources))
    yield from _differ("the segments", sorted(_shards(was)), sorted(_shards(now)))
    yield from _differ("the sinks", sorted(was.sinks), sorted(now.sinks))
    yield from _differ("the inputs", _edges(was), _edges(now))
    for name, shards in _shards(was).items():
        yield from _differ(f"the number of shards of {name}", shards, _shards(now).get(name, shards))


def _keys(run: Program, given: Program, runs_given: bool) -> Iterator[str]:
    """The columns by which rows, and so the state, are split among the shards of a segment."""
    for producer, consumer in _edges(run.topology):
        if _shards(run.topology).get(consumer, 1) == 1:
            continue  # nothing is split
        was, now = (program.keys.get((program.part(producer), program.part(consumer)), ()) for program in (run, given))
        written = _wrote_keys(run, consumer) and _wrote_keys(given, consumer)
        if runs_given or written:
            yield from _differ(
                f"the columns by which rows of {producer} are split for {consumer}", list(was), list(now)
            )


def _wrote_keys(program: Program, segment: str) -> bool:
    """Whether the author named the columns of a segment, and Spark did not have to find them."""
    said = {} if program.declared is None else program.declared.segments.get(segment, {})
    return "shard_by" in said and not is_said(said["shard_by"], "shard_by", {})


def _strategies(was: Topology, now: Topology, runs_given: bool) -> Iterator[str]:
    """What replicas hold of the state, and how much input producers have kept for it."""
    for part in was.segments:
        name = segment_of(part)
        other = next(each for each in now.segments if segment_of(each) == name)
        before, after = was.strategy(part), now.strategy(other)
        yield from _differ(f"ha of {name}", before.ha.value, after.ha.value)
        yield from _differ(f"the number of replicas of {name}", 1 + before.backups, 1 + after.backups)
        yield from _differ(f"whether the shards of {name} share the load (routing)", before.shares, after.shares)
        kept, needed = kept_for(was, part).horizon_ms, kept_for(now, other).horizon_ms
        if runs_given and needed > kept:
            much = f"only {readable(kept)}" if kept else "nothing"
            yield f"the state of {name} would reach back {readable(needed)}, and {much} of its input is kept"


def _modes(run: Program, given: Program) -> Iterator[str]:
    """What units are numbered and ordered by."""
    was, now = run.topology, given.topology
    yield from _differ("whether guarantee is 'at-most-once'", was.at_most_once, now.at_most_once)
    yield from _differ("whether pairs is 'cluster'", was.whole, now.whole)
    yield from _differ("whether units are buckets of event time", was.bucketed, now.bucketed)
    yield from _differ("the segments with ordering 'leader'", _names(was.led), _names(now.led))
    settings = [setting for name in sorted(used(was)) for setting in registered(name).settings]
    if run.declared is not None and given.declared is not None:
        named = [f"the setting {name}" for name in settings]
        yield from _compared("", run.declared.flow, given.declared.flow, named)


def _declared(
    kind: str, was: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]], counted: Iterable[str]
) -> Iterator[str]:
    for name in was:
        if name in now:
            yield from _compared(f"{kind} {name}: ", was[name], now[name], counted)


def _compared(whose: str, was: Mapping[str, str], now: Mapping[str, str], counted: Iterable[str]) -> Iterator[str]:
    """Declared values are compared by their digests: those that are shown may hide secrets."""
    for what in counted:
        if was.get(what) != now.get(what):
            yield f"{whose}{what} was {told(was.get(what))} and is {told(now.get(what))}"


def _differ(what: str, was: Any, now: Any) -> Iterator[str]:
    if was != now:
        yield f"{what}: was {was} and is {now}"


def _names(parts: Iterable[str]) -> list[str]:
    return sorted(segment_of(part) for part in parts)


def _shards(topology: Topology) -> dict[str, int]:
    return {segment_of(part): shards for part, shards in topology.segments.items()}


def _edges(topology: Topology) -> list[tuple[str, str]]:
    return sorted((segment_of(producer), segment_of(consumer)) for producer, consumer in topology.edges)

"""How far back the state of a segment reaches: what producers must keep to build it again from their units alone.

With ``ha="upstream"`` a spare begins with nothing and processes kept units again, and so does a replica that gets rid
of tentative state with ``reconcile="undo"``. It ends up with the same state if every row that can still matter is among
them. Rows stop to matter only where Spark forgets: when the watermark has passed what a row's state is kept by.

The horizon is counted from the newest row. The watermark is the delay behind that one, a window is forgotten when the
watermark reaches its end, and a row at its beginning is the length of the window older: delay and length together.
Windows of windows add up. Everything else is refused rather than guessed, because a horizon that is too short shows
only as wrong results after a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unbroken.errors import Problem
from unbroken.flow.availability import Availability
from unbroken.flow.dataflow import Segment
from unbroken.protocol.registry import registered
from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.ids import segment_of
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.strategy import STATELESS, Strategy
from unbroken.quantities import milliseconds
from unbroken.spark.analysis.event_time import DELAY, SESSION, Key, delay_ms, marked, trace
from unbroken.spark.analysis.plans import Expression, Plan, analysed, class_of, items, names_of, streaming_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PRECISION_MS = 1
"""Watermarks are whole milliseconds and rows are not: a row may be ahead of the watermark that it has set."""

DECLARE = "declare state_horizon='10min' (how far behind the newest row one can still matter)"
OTHERWISE = "choose ha='passive' or ha='active'"
RECONCILE_OTHERWISE = "choose reconcile='fork' or reconcile='redo'"
REMEDY = f"bound it with withWatermark and groupBy(window(...)), {DECLARE}, or {OTHERWISE}"

_ARBITRARY = {
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
}
_COUNTING = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset", "Tail": "tail"}
_SETS = {"Except": "subtract", "Intersect": "intersect"}


@dataclass(frozen=True)
class Horizon:
    """Rows that are ``ms`` older than the newest one do not matter any more; 0: only those of the same unit do.

    ``timed``: the age of rows is measured by the watermark, otherwise by the time of the pulses' cuts. ``declared`` by
    the author, about code that may do more than the plan shows.
    """

    ms: float
    timed: bool
    declared: bool = False


@dataclass(frozen=True)
class Unbounded:
    """Why nothing can be said about how far back the state reaches, and what can be done about it."""

    why: str
    remedy: str = REMEDY


SEVERAL_WATERMARKS = Unbounded(
    "it has several watermarks, and the slowest one does not tell how far ahead the rows of the others are",
    f"unite the inputs before one withWatermark, {DECLARE}, or {OTHERWISE}",
)


def find_horizon(frame: DataFrame) -> Horizon | Unbounded:
    """How far back the state of a streaming DataFrame's query reaches, as its plan shows it."""
    nodes = list(streaming_nodes(analysed(frame)))
    watermarks = [node for node in nodes if class_of(node) == "EventTimeWatermark"]
    found = [state for node in nodes if (state := _keyed(node) or _unkeyed(node)) is not None]
    if not found:
        return Horizon(STATELESS, timed=bool(watermarks))
    operators = [state for state in found if isinstance(state, _Operator)]
    endless = [state for state in found if isinstance(state, Unbounded)]
    endless += [reason for operator in operators if (reason := _endless(operator)) is not None]
    if endless:
        return endless[0]
    if len(watermarks) > 1:
        return SEVERAL_WATERMARKS
    traced = [_key_of(operator) for operator in operators]
    unseen = [key for key in traced if isinstance(key, Unbounded)]
    if unseen:
        return unseen[0]
    delay = next(delay_ms(column) for column in items(watermarks[0].output()) if marked(column, DELAY))
    return Horizon(float(delay + _length_ms([key for key in traced if isinstance(key, Key)])), timed=True)


def has_watermark(frame: DataFrame) -> bool:
    return any(class_of(node) == "EventTimeWatermark" for node in streaming_nodes(analysed(frame)))


def is_rebuilt(segment: Segment) -> bool:
    """Whether a segment's state may have to be built again from recent input, so that its horizon must be known."""
    return registered(segment.redundancy.ha).rebuilds or _undone(segment) is not None


def horizon_of(segment: Segment, frame: DataFrame) -> Horizon | Unbounded:
    """The horizon of a segment: what its author promises, otherwise what its plan shows."""
    undone = _undone(segment)
    declared = segment.redundancy.state_horizon if undone is None else undone.state_horizon
    if declared is None:
        return find_horizon(frame)
    return Horizon(float(milliseconds(declared)), has_watermark(frame), declared=True)


def _undone(segment: Segment) -> Availability | None:
    asked = segment.availability
    return asked if isinstance(asked, Availability) and registered(asked.reconcile).rebuilds else None


def unbounded_problem(segment: Segment, found: Unbounded) -> Problem:
    if _undone(segment) is None:
        what = f"ha='upstream' builds lost state again from recent input, but {found.why}"
        return Problem(segment.where, what, found.remedy)
    what = f"reconcile='undo' builds state again from recent input, but {found.why}"
    return Problem(segment.where, what, found.remedy.replace(OTHERWISE, RECONCILE_OTHERWISE))


def settled(topology: Topology, horizons: Mapping[str, Horizon]) -> Topology:
    """The topology with the horizons that Spark has been asked for."""
    strategies, availability = dict(topology.strategies), dict(topology.availability)
    for part in topology.segments:
        found = horizons.get(segment_of(part))
        if found is None:
            continue
        foldable = found.timed and not found.declared
        strategy, how = topology.strategies.get(part), topology.availability.get(part)
        if strategy is not None and strategy.rebuilt:
            strategies[part] = replace(strategy, horizon_ms=found.ms, timed=found.timed, foldable=foldable)
        if how is not None and how.rebuilt:
            availability[part] = replace(how, horizon_ms=found.ms, timed=found.timed, foldable=foldable)
    return replace(topology, strategies=strategies, availability=availability)


def kept_for(topology: Topology, part: str) -> Strategy | DelayBound:
    """What says how much of its input is kept for a part whose state is built again from it."""
    how = topology.availability.get(part)
    return how if how is not None and how.rebuilt else topology.strategy(part)


def reaches_further(kept: Strategy | DelayBound, found: Horizon) -> str | None:
    """What state with the horizon ``found`` needs that is not ``kept``; None if nothing is missing."""
    if found.ms == STATELESS == kept.horizon_ms:
        return None
    if found.ms > kept.horizon_ms:
        much = f"only {readable(kept.horizon_ms)}" if kept.horizon_ms else "nothing"
        return f"its state would reach back {readable(found.ms)}, and {much} of its input is kept"
    if found.timed != kept.timed:
        return f"its state would be forgotten by {_clock(found.timed)} instead of {_clock(kept.timed)}"
    return None


def readable(ms: float) -> str:
    """A length of time in the largest unit that does not make it a fraction."""
    for unit, length in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= length and ms % length == 0:
            return f"{ms / length:.0f} {unit}"
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"


def _clock(timed: bool) -> str:
    return "the watermark" if timed else "the time of cuts"


# --- operators that keep state ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operator:
    """An operator that keeps state for each value of ``keys`` of the rows of ``below``."""

    name: str
    keys: tuple[Expression, ...]
    below: Plan


def _keyed(node: Plan) -> _Operator | None:
    name = class_of(node)
    if name == "Aggregate":
        keys = items(node.groupingExpressions())
        return _Operator(f"groupBy({names_of(keys)})", tuple(keys), node.child())
    if name == "Deduplicate":
        keys = items(node.keys())
        return _Operator(f"dropDuplicates({names_of(keys)})", tuple(keys), node.child())
    if name == "Distinct":
        return _Operator("distinct()", tuple(items(node.output())), node.child())
    return None


def _unkeyed(node: Plan) -> Unbounded | None:
    """State of which the plan does not show when it is forgotten."""
    name = class_of(node)
    if name == "DeduplicateWithinWatermark":
        return _within_watermark(node)
    if name in _ARBITRARY:
        why = f"only the function of {_ARBITRARY[name]} knows how long it keeps its state"
        return Unbounded(why, f"{DECLARE}, or {OTHERWISE}")
    if name in _COUNTING:
        return Unbounded(f"{_COUNTING[name]} counts all rows since the beginning", OTHERWISE)
    if name in _SETS:
        return Unbounded(f"{_SETS[name]} remembers all rows since the beginning", f"{DECLARE}, or {OTHERWISE}")
    streams = [child for child in items(node.children()) if child.isStreaming()]
    if len(streams) > 1 and name != "Union":
        why = "how long a join of streams keeps rows depends on its condition and on how far its inputs are apart"
        remedy = (
            "declare state_horizon='10min' (the watermark's delay, how far apart in time two rows may be that have to "
            "meet, and how far one input may be ahead of the other, together)"
        )
        return Unbounded(why, f"{remedy}, or {OTHERWISE}")
    if any(query.isStreaming() for query in items(node.subqueries())):
        return Unbounded("a subquery reads a stream", f"{DECLARE}, or {OTHERWISE}")
    return None


def _within_watermark(node: Plan) -> Unbounded:
    """A copy is dropped only if the row before it was remembered, which depends on the one before that, and so on."""
    delay = max((delay_ms(column) for column in items(node.child().output()) if marked(column, DELAY)), default=0)
    keys = names_of(items(node.keys()))
    why = (
        f"whether dropDuplicatesWithinWatermark({keys}) remembers a row depends on which it remembered before, "
        "however long ago, if more and more copies of it come"
    )
    remedy = (
        "if copies are never further apart than the watermark's delay, declare "
        f"state_horizon='{2 * delay + PRECISION_MS}ms', just more than twice that delay; "
        f"otherwise add the event time to dropDuplicates, or {OTHERWISE}"
    )
    return Unbounded(why, remedy)


def _endless(operator: _Operator) -> Unbounded | None:
    """Why an operator never forgets, if it does not."""
    columns = _timed(operator)
    if not columns:
        return Unbounded(f"{operator.name} keeps its state for ever: no column with a watermark is among its keys")
    if any(marked(column, SESSION) for column in columns):
        why = f"a session of {operator.name} goes on for as long as rows keep coming"
        return Unbounded(why, f"use window(...) instead, {DECLARE}, or {OTHERWISE}")
    return None


def _key_of(operator: _Operator) -> Key | Unbounded:
    """The event time by which an operator forgets; of several the one that reaches back furthest."""
    known: list[Key] = []
    for column in _timed(operator):
        key, name = trace(column, operator.below), column.name()
        if key is None:
            why = f"the plan does not show how {name} of {operator.name} comes from the column with the watermark"
            return Unbounded(why, f"group by window(...) of that column, {DECLARE}, or {OTHERWISE}")
        if key.nullable:
            why = f"{operator.name} would keep rows without a time in {name} for ever"
            return Unbounded(why, f"leave them out with .where('{name} IS NOT NULL'), {DECLARE}, or {OTHERWISE}")
        known.append(key)
    return replace(max(known, key=lambda key: key.span_us), whole=all(key.whole for key in known))


def _timed(operator: _Operator) -> list[Expression]:
    return [key for key in operator.keys if marked(key, DELAY)]


def _length_ms(keys: list[Key]) -> int:
    """Each operator passes on rows that are as old as its state, so the spans add up."""
    micros = sum(key.span_us for key in keys)
    exact = micros > 0 and all(key.whole for key in keys)
    return -(-micros // 1000) + (0 if exact else PRECISION_MS)

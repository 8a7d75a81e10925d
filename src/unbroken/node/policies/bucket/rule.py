"""Event-time buckets: which unit a row of a source belongs to, and when a unit has all of its rows."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.codecs.codec import Codec
from unbroken.data.rows.budget import BAD_ROWS
from unbroken.data.rows.parsed import BadRow
from unbroken.errors import require
from unbroken.flow.dataflow import Dataflow
from unbroken.node.ingress.steps import LaneBase, Step, Tally
from unbroken.quantities import milliseconds

TOLERANCE_MS = 60_000
"""How far ahead of the ingress's clock a row may be. Clocks of producers differ by less; a row of next year would close
every bucket before it, and make all rows that are right come late."""

UNITS_PER_STEP = 10_000
"""Units that one entry of the log closes at most for a source. Event time that jumps by a day makes ten times as many,
most of them empty; they are not all made in one go."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BucketStep(Step):
    """What an entry of the ingress log says of a source that is cut by its event time.

    One that is ``exhausted`` has no more rows than were read. ``others`` has the last
    unit that each other source had closed before this entry; if they are not ``settled``, it may have been a later one.
    """

    exhausted: bool = False
    others: tuple[int, ...] = ()
    settled: bool = True

    @property
    def front(self) -> int:
        """A unit that another source had come to; it only matters to a source that has ended."""
        return max(self.others, default=0)

    def together(self, unit: int, last: int) -> int:
        """How far a micro-batch may go that begins with ``unit``, of units up to ``last`` that this step closes.

        All inputs have to have what a micro-batch takes. So it goes no further than any source that had come to
        ``unit`` before: there is more of that only later, and nobody waits for it. A source that had not come so far
        closes ``unit`` later, or with the same entry, and then says itself how far a micro-batch may go.
        """
        return min([last, *(closed for closed in self.others if closed >= unit)]) if self.settled else unit


@dataclass(frozen=True)
class BucketState(Tally):
    """How far a source has come, after some entry of the log.

    There will be no row before ``boundary_ms``, or it is late. ``newest_ms`` is the latest event time of any row (None:
    there was none yet), first seen at ``seen_ms``; before the first row, the event time ``clock_ms`` goes with the
    first entry, which was cut at ``began_ms``. ``top`` is the last unit that has a row or is closed, ``ended`` says
    that no row will follow. Rows are counted: all that were taken, those that were bad, those that were late.
    """

    origin_ms: int
    boundary_ms: int
    clock_ms: int
    began_ms: int
    newest_ms: int | None = None
    seen_ms: int = 0
    top: int = 0
    ended: bool = False

    def base(self) -> LaneBase:
        return LaneBase(self.top, BUCKET_STATE.encode(self).decode())

    @classmethod
    def of(cls, base: LaneBase) -> BucketState:
        return BUCKET_STATE.decode(base.state.encode())

    def silent_ms(self, cut_ms: int) -> int:
        """The event time at ``cut_ms`` of a source that has had no rows lately, because there were none."""
        if self.newest_ms is None:
            return self.clock_ms + cut_ms - self.began_ms
        return self.newest_ms + cut_ms - self.seen_ms


BUCKET_STATE = Codec(BucketState, "bucket-state", readable=True)


@dataclass(frozen=True)
class BucketRule:
    """How the rows of one source are put into units: those of unit b have event times from ``origin + (b - 1) * size``
    to before ``origin + b * size``.

    Everything follows from the steps in the log and the rows that were read, so that all nodes make the same units,
    whenever they get to read them. A unit is closed when the boundary has reached its end. The boundary follows the
    newest row, ``disorder_ms`` behind it; while there are no rows, though the source can be asked, it goes on with the
    clock; while the source cannot be asked, it stays. So a source that is silent holds nobody up, and one that has
    failed does.

    ``slack_ms`` is the largest disorder of all sources of the flow: unless the user gives an origin, the first bucket
    is the one that was open so long before the first entry.

    Invariants: the boundary never goes back. A row belongs to the unit of its time or, if that is closed, to the first
    one that is not; no row is put into a closed unit.
    """

    size_ms: int
    disorder_ms: int = 0
    origin_ms: int | None = None
    slack_ms: int = 0

    def begin(self, cut_ms: int) -> BucketState:
        """The state before the first entry, which was cut at ``cut_ms``."""
        if self.origin_ms is not None:
            return BucketState(self.origin_ms, self.origin_ms, self.origin_ms, cut_ms)
        origin = (cut_ms - self.slack_ms) // self.size_ms * self.size_ms
        return BucketState(origin, origin, cut_ms, cut_ms)

    def closed(self, state: BucketState) -> int:
        """The last unit that has all of its rows."""
        return (state.boundary_ms - state.origin_ms) // self.size_ms

    def after(self, state: BucketState, step: BucketStep, times: Ints) -> tuple[BucketState, Ints]:
        """The state after ``step``, with which rows of these event times came; and the unit of each of them."""
        closed = self.closed(state)
        own = (times - state.origin_ms) // self.size_ms + 1
        units = np.maximum(own, closed + 1)
        newest, seen = state.newest_ms, state.seen_ms
        top = state.top
        if len(times):
            latest = int(times.max())
            newest, seen = (latest, step.cut_ms) if newest is None or latest > newest else (newest, seen)
            top = max(top, int(units.max()))
        grown = replace(
            state,
            newest_ms=newest,
            seen_ms=seen,
            top=top,
            ended=state.ended or step.exhausted,
            rows=state.rows + len(times),
            late_rows=state.late_rows + int(np.count_nonzero(own <= closed)),
        )
        boundary = max(state.boundary_ms, self._reached(grown, step, bool(len(times))))
        if not step.final:
            boundary = min(boundary, max(state.boundary_ms, self._end(state, closed + UNITS_PER_STEP)))
        moved = replace(grown, boundary_ms=boundary)
        return replace(moved, top=max(top, self.closed(moved))), units

    def finish(self, state: BucketState, last: int) -> BucketState:
        """The state of a source after the last entry, when the flow ends with unit ``last``."""
        require(last > self.closed(state) >= state.top, f"a flow cannot end with bucket {last} after {state}")
        return replace(state, boundary_ms=self._end(state, last), top=last)

    def _reached(self, state: BucketState, step: BucketStep, came: bool) -> int:
        """The boundary that this step alone would give."""
        if state.ended:
            # Nothing holds its rows back. From then on it keeps up with the clock, and with the sources that go on.
            ahead = [] if step.final else [state.silent_ms(step.cut_ms), self._end(state, step.front)]
            return max([self._end(state, state.top), *ahead])
        if not step.reachable:
            return state.boundary_ms
        newest = state.newest_ms
        return (newest if came and newest is not None else state.silent_ms(step.cut_ms)) - self.disorder_ms

    def _end(self, state: BucketState, unit: int) -> int:
        return state.origin_ms + unit * self.size_ms


def rules_of(flow: Dataflow) -> dict[str, BucketRule]:
    """The rule of each source of a bucketed flow."""
    origin = flow.settings.bucket_origin
    disorders = {name: math.ceil(milliseconds(source.disorder)) for name, source in flow.sources.items()}
    slack = max(disorders.values(), default=0)
    size = int(flow.settings.bucket)
    return {name: BucketRule(size, disorder, origin, slack) for name, disorder in disorders.items()}


# --- rows -------------------------------------------------------------------------------------------------


def screened(table: pa.Table, column: str, cut_ms: int) -> tuple[pa.Table, Ints, tuple[BadRow, ...]]:
    """The rows whose event time can be used, these times in milliseconds, and the first of the other rows."""
    times = table.column(column)
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    missing = np.asarray(micros.is_null().to_numpy(), bool)
    millis: Ints = np.asarray(micros.fill_null(0).to_numpy(), np.int64) // 1000
    early = ~missing & (millis > cut_ms + TOLERANCE_MS)
    wrong = missing | early
    if not wrong.any():
        return table, millis, ()
    reasons = {
        True: f"{column} is null, so the row has no event time",
        False: f"{column} is more than {TOLERANCE_MS // 1000} s after the time at which the row was read",
    }
    places = np.flatnonzero(wrong)[:BAD_ROWS]
    bad = tuple(
        BadRow(json.dumps(row, default=str), reasons[bool(missing[place])], f"row {place}")
        for place, row in zip(places, table.take(pa.array(places)).to_pylist(), strict=True)
    )
    return table.filter(pa.array(~wrong)), millis[~wrong], bad


def by_unit(table: pa.Table, units: Ints) -> dict[int, pa.Table]:
    """The rows of each unit, in the order in which they came."""
    if not len(units):
        return {}
    if units.min() == units.max():
        return {int(units[0]): table}
    order = np.argsort(units, kind="stable")
    ordered, sorted_units = table.take(pa.array(order)), units[order]
    firsts = np.flatnonzero(np.diff(sorted_units, prepend=sorted_units[0] - 1))
    ends = [*firsts[1:], len(units)]
    return {
        int(sorted_units[first]): ordered.slice(int(first), int(end - first))
        for first, end in zip(firsts, ends, strict=True)
    }

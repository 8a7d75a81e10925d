"""One source that is cut by its event time: rows wait until their bucket closes."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from unbroken.connectors.base import SourceReader
from unbroken.data.rows.parsed import Rows
from unbroken.errors import require
from unbroken.node.ingress.calls import Calls
from unbroken.node.ingress.lanes import Closing, Lane, Open
from unbroken.node.ingress.steps import Step
from unbroken.node.policies.bucket.rule import BucketRule, BucketState, BucketStep, by_unit, screened


class BucketLane(Lane):
    """A source whose units are buckets of event time: rows wait until their bucket closes.

    After a start from a base, units up to ``skip`` are not made again: rows from before the base would be missing in
    them, and they are with all consumers.

    Invariant: ``open`` holds every row of settled steps whose unit is not closed, except those from before the base.
    """

    def __init__(
        self,
        reader: SourceReader,
        schema: pa.Schema,
        event_time: str,
        rule: BucketRule,
        calls: Calls,
        state: BucketState | None = None,
        done: int = 0,
    ) -> None:
        super().__init__(reader, schema, calls, done)
        self.rule = rule
        self.state = state
        self._event_time = event_time
        self._skip = 0 if state is None else state.top
        self._open: Open = {}

    @property
    def tally(self) -> BucketState | None:
        return self.state

    @property
    def closed(self) -> int:
        return 0 if self.state is None else self.rule.closed(self.state)

    def finish(self, last: int) -> tuple[BucketState, tuple[tuple[int, pa.Table], ...]]:
        """The state after the end of the flow with unit ``last``, and the units up to that, all of them empty."""
        assert self.state is not None
        require(not self._open, f"rows are left after the end: {sorted(self._open)}")
        empty = self._schema.empty_table()
        units = tuple((unit, empty) for unit in range(max(self.closed, self._skip) + 1, last + 1))
        return self.rule.finish(self.state, last), units

    def _closing(self, step: Step, rows: Rows) -> Closing:
        assert isinstance(step, BucketStep)
        table, times, bad = screened(rows.table, self._event_time, step.cut_ms)
        before = self.rule.begin(step.cut_ms) if self.state is None else self.state
        after, units = self.rule.after(before, step, times)
        rejected = rows.rejected + rows.table.num_rows - table.num_rows
        state = replace(after, bad_rows=after.bad_rows + rejected)
        held = dict(self._open)
        for unit, piece in by_unit(table, units).items():
            held[unit] = (*held.get(unit, ()), piece)
        closed = range(self.rule.closed(before) + 1, self.rule.closed(state) + 1)
        made = tuple((unit, self._table(held.pop(unit, ()))) for unit in closed)
        letters = Rows(self._schema.empty_table(), (*rows.bad, *bad), rejected).letters
        return Closing(step, state, held, tuple(each for each in made if each[0] > self._skip), letters)

    def _settled(self, closing: Closing) -> None:
        assert isinstance(closing.state, BucketState)
        self.state = closing.state
        self._open = closing.open

    def _table(self, pieces: tuple[pa.Table, ...]) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *pieces]).combine_chunks()

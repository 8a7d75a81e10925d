"""One source of a bucketed flow: what is to be read of it, and the rows that wait for their bucket to close."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from unbroken.connectors.base import BadRow, Cut, Position, Rows, SourceReader
from unbroken.errors import require
from unbroken.ingress.buckets import BucketRule, BucketState, Step, by_unit, screened
from unbroken.ingress.calls import Calls

T = TypeVar("T")

Open = Mapping[int, tuple[pa.Table, ...]]
"""Rows by the unit they belong to, in the order in which they were read."""


class Deadline:
    """The time by which whoever is waited for has to be done, shared by all of them."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())


@dataclass(frozen=True)
class Closing:
    """What a step makes of a lane: its state and open rows afterwards, and the units that are whole with it."""

    step: Step
    state: BucketState
    open: Open
    units: tuple[tuple[int, pa.Table], ...]
    bad: tuple[BadRow, ...]


class Lane:
    """The steps of one source, taken one after the other, each when its rows can be read.

    The owner asks for the next ``closing``, writes what it has, and then says that it is ``settled``: if writing fails,
    the same closing can be had again. A read that fails, or does not come to an end, leaves the steps where they are.
    What comes out does not depend on that: a step makes the same whenever it is taken.

    After a start from a base, units up to ``skip`` are not made again: rows from before the base would be missing in
    them, and they are with all consumers.

    Invariants: ``steps`` are those that are not settled, in the order of the log. ``open`` holds every row of settled
    steps whose unit is not closed, except those from before the base.
    """

    def __init__(
        self,
        reader: SourceReader,
        schema: pa.Schema,
        event_time: str,
        rule: BucketRule,
        calls: Calls,
        state: BucketState | None = None,
    ) -> None:
        self.reader = reader
        self.rule = rule
        self.state = state
        self.steps: deque[Step] = deque()
        self.trouble = ""
        self.failed = False
        self._schema = schema
        self._event_time = event_time
        self._calls = calls
        self._skip = 0 if state is None else state.top
        self._open: Open = {}
        self._rows: Future[Rows] | None = None
        self._cut: Future[Cut] | None = None
        self._late = False

    @property
    def closed(self) -> int:
        return 0 if self.state is None else self.rule.closed(self.state)

    # --- cutting --------------------------------------------------------------------------------------

    def ask_cut(self, position: Position | None, now_ms: int) -> None:
        """Ask the source how far it can be read, unless it has yet to answer something else."""
        if not self.steps and (self._cut is None or self._cut.done()):
            self._cut = self._calls.ask(lambda: self.reader.poll(position, now_ms))

    def cut(self, position: Position | None, deadline: Deadline) -> Cut:
        """The answer. A source that does not give one in time cannot be reached, and stays where it is."""
        away = Cut(position, reachable=False)
        if self._cut is None or self.steps:
            return away
        if not self._come(self._cut, deadline):
            self.trouble = "it does not say how far it can be read"
            return away
        answer, self._cut = self._cut, None
        if self._has_failed(answer):
            return away
        found = answer.result()
        self.trouble = "" if found.reachable else found.why
        return found

    # --- reading --------------------------------------------------------------------------------------

    def ask_rows(self) -> None:
        """Ask for the rows of the next step."""
        if self.steps and not self.steps[0].empty and self._rows is None:
            step = self.steps[0]
            self._rows = self._calls.ask(lambda: self.reader.read(step.start, step.end))

    def closing(self, deadline: Deadline) -> Closing | None:
        """What the next step makes of this lane; None if there is none, or its rows cannot be had at this moment."""
        if not self.steps:
            return None
        if self.steps[0].empty:
            return self._closing(self.steps[0], Rows(self._schema.empty_table()))
        self.ask_rows()
        assert self._rows is not None
        if not self._come(self._rows, deadline):
            self.trouble = "it does not give its rows"
            return None
        if self._has_failed(self._rows):
            self._rows = None
            return None
        return self._closing(self.steps[0], self._rows.result())

    def settle(self, closing: Closing) -> None:
        """All that the closing has is written."""
        require(self.steps[0] == closing.step, "a lane settles a step that is not its next")
        self.steps.popleft()
        self._rows = None
        self.state = closing.state
        self._open = closing.open

    def finish(self, last: int) -> tuple[BucketState, tuple[tuple[int, pa.Table], ...]]:
        """The state after the end of the flow with unit ``last``, and the units up to that, all of them empty."""
        assert self.state is not None
        require(not self._open, f"rows are left after the end: {sorted(self._open)}")
        empty = self._schema.empty_table()
        units = tuple((unit, empty) for unit in range(max(self.closed, self._skip) + 1, last + 1))
        return self.rule.finish(self.state, last), units

    def close(self) -> None:
        self._calls.close()
        self.reader.close()

    def _closing(self, step: Step, rows: Rows) -> Closing:
        table, times, bad = screened(rows.table, self._event_time, step.cut_ms)
        before = self.rule.begin(step.cut_ms) if self.state is None else self.state
        after, units = self.rule.after(before, step, times)
        state = replace(after, bad_rows=after.bad_rows + len(rows.bad) + len(bad))
        held = dict(self._open)
        for unit, piece in by_unit(table, units).items():
            held[unit] = (*held.get(unit, ()), piece)
        closed = range(self.rule.closed(before) + 1, self.rule.closed(state) + 1)
        made = tuple((unit, self._table(held.pop(unit, ()))) for unit in closed)
        return Closing(step, state, held, tuple(each for each in made if each[0] > self._skip), (*rows.bad, *bad))

    def _table(self, pieces: tuple[pa.Table, ...]) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *pieces]).combine_chunks()

    def _come(self, future: Future[T], deadline: Deadline) -> bool:
        """Whether an answer is there; one that was not there in time is not waited for again."""
        if not future.done() and not self._late:
            wait([future], timeout=deadline.left_s)
        self._late = not future.done()
        return not self._late

    def _has_failed(self, answer: Future[T]) -> bool:
        error = answer.exception()
        self.failed = error is not None
        self.trouble = "" if error is None else str(error) or type(error).__name__
        return self.failed

"""One source of a flow: what is to be read of it, one step after the other, whatever happens to the others."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from unbroken.connectors.base import Cut, Position, SourceReader
from unbroken.connectors.failures import is_passing
from unbroken.data.rows.parsed import BadRow, Rows
from unbroken.errors import reason_of, require
from unbroken.node.ingress.calls import Calls
from unbroken.node.ingress.steps import Step, Tally
from unbroken.protocol.ingress.quarantine import Attempts
from unbroken.protocol.ingress.skip import Holds

T = TypeVar("T")

Open = Mapping[int, tuple[pa.Table, ...]]
"""Rows by the unit they belong to, in the order in which they were read."""

ATTEMPTS = 3
"""How often the rows of a step may fail in the same way, for a reason that lies in them, before they are set aside.
More than once, because only what repeats itself can be trusted to happen on every node."""


class Deadline:
    """The time by which whoever is waited for has to be done, shared by all of them."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())


@dataclass(frozen=True)
class Closing:
    """What a step makes of a lane: its state and open rows afterwards, and the units that are whole with it.

    With ``spoiled``, units of an earlier attempt may have been written in part, and none of them was given out.
    """

    step: Step
    state: Tally
    open: Open
    units: tuple[tuple[int, pa.Table], ...]
    bad: tuple[BadRow, ...]
    spoiled: bool = False


class Lane(ABC):
    """The steps of one source, taken one after the other, each when its rows can be read.

    The owner asks for the next ``closing``, writes what it has, and then says that it is ``settled``: if writing fails,
    the same closing can be had again. A read that fails, or does not come to an end, leaves the steps where they are.
    The result does not depend on that: a step makes the same whenever it is taken.

    Rows that cannot be taken for a reason that lies in them are set aside after some attempts, the same on every node:
    the step then has no rows, and one bad row that names the positions. So it is with a step that is ``skipped``.

    Invariants: ``steps`` are those that are not settled, in the order of the log; ``since`` is when the first of them
    became the first, by the clock of its calls. ``done`` is the pulse of the last step that is settled.
    """

    def __init__(self, reader: SourceReader, schema: pa.Schema, calls: Calls, done: int = 0) -> None:
        self.reader = reader
        self.steps: deque[Step] = deque()
        self.trouble = ""
        self.failed = False
        self.since = 0.0
        self.holds = Holds()
        self.done = done
        self.aside: list[str] = []
        self._schema = schema
        self._calls = calls
        self._rows: Future[Rows] | None = None
        self._cut: Future[Cut] | None = None
        self._asked_s = 0.0
        self._late = False
        self._attempts = Attempts(ATTEMPTS, is_passing)
        self._spoiled: str | None = None
        self._barren = False

    def add(self, step: Step) -> None:
        if not self.steps:
            self.since = self._calls.clock_s()
        self.steps.append(step)

    @property
    def stuck_s(self) -> float:
        """For how long the next step has been waiting; 0 if there is none."""
        return max(0.0, self._calls.clock_s() - self.since) if self.steps else 0.0

    # --- cutting --------------------------------------------------------------------------------------

    def ask_cut(self, position: Position | None, now_ms: int) -> None:
        """Ask the source how far it can be read, unless it has yet to answer something else."""
        if not self.steps and (self._cut is None or self._cut.done()):
            self._asked_s = self._calls.clock_s()
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
        if self.steps and not self.steps[0].empty and self._rows is None and self._wanted:
            step = self.steps[0]
            self._rows = self._calls.ask(lambda: self.reader.read(step.start, step.end))

    @property
    def _wanted(self) -> bool:
        """Whether the rows of the next step are to be read."""
        pulse = self.steps[0].pulse
        return self._spoiled is None and not self.holds.held(pulse) and pulse not in self.holds.skipped

    def closing(self, deadline: Deadline) -> Closing | None:
        """What the next step makes of this lane; None if there is none, or its rows cannot be had at this moment."""
        if not self.steps:
            return None
        step = self.steps[0]
        if step.pulse in self.holds.skipped:
            return self._made(step, self._nothing(SKIPPED))
        if self._spoiled is not None:
            return self._made(step, self._nothing(self._spoiled))
        if step.empty:
            return self._made(step, Rows(self._schema.empty_table()))
        if self.holds.held(step.pulse):
            self.trouble = "an operator is about to skip its rows"
            return None
        self.ask_rows()
        assert self._rows is not None
        if not self._come(self._rows, deadline):
            self.trouble = "it does not give its rows"
            return None
        answer = self._rows
        if self._has_failed(answer):
            self._rows = None
            error = answer.exception()
            assert error is not None
            return self.closing(deadline) if self.refuse(error) else None
        try:
            return self._closing(step, answer.result())
        except Exception as error:
            if is_passing(error):
                raise
            return self.closing(deadline) if self.refuse(error) else None

    def _made(self, step: Step, rows: Rows) -> Closing:
        found = self._closing(step, rows)
        if self._barren:
            found = replace(found, units=tuple((unit, table.slice(0, 0)) for unit, table in found.units))
        return replace(found, spoiled=self._spoiled is not None)

    def refuse(self, error: BaseException) -> bool:
        """The rows of the next step could not be read, or not be made into units; whether they are set aside now."""
        self.failed = True
        self.trouble = reason_of(error)
        if not self._attempts.failed(error):
            return False
        # If that does not help, the rows that wait for their unit since earlier steps are set aside, too.
        self._barren = self._spoiled is not None
        self._spoiled = self._attempts.reason
        self._attempts = Attempts(ATTEMPTS, is_passing)
        self.aside.append(self._spoiled)
        return True

    def settle(self, closing: Closing) -> None:
        """All that the closing has is written."""
        require(self.steps[0] == closing.step, "a lane settles a step that is not its next")
        self.steps.popleft()
        self.since = self._calls.clock_s()
        self._rows = None
        self._attempts, self._spoiled, self._barren = Attempts(ATTEMPTS, is_passing), None, False
        self.done = closing.step.pulse
        self.holds.done(self.done)
        self._settled(closing)

    def renew(self, reader: SourceReader, calls: Calls) -> None:
        """Read with another reader from now on: a call to the one before may never come to an end."""
        self._calls.close()
        self.reader, self._calls = reader, calls
        self._rows = self._cut = None
        self._late = False

    @property
    def hangs(self) -> bool:
        """Whether the source has yet to come back with rows."""
        rows = self._rows
        return rows is not None and not rows.done()

    @property
    def asking_s(self) -> float:
        """For how long the source has not said how far it can be read; 0 if it is not being asked."""
        cut = self._cut
        return 0.0 if cut is None or cut.done() else max(0.0, self._calls.clock_s() - self._asked_s)

    def close(self) -> None:
        self._calls.close()
        self.reader.close()

    @property
    @abstractmethod
    def tally(self) -> Tally | None:
        """What was taken so far."""

    @abstractmethod
    def _closing(self, step: Step, rows: Rows) -> Closing:
        """What a step makes of this lane, given its rows."""

    @abstractmethod
    def _settled(self, closing: Closing) -> None:
        """The closing is written and counts."""

    def _nothing(self, why: str) -> Rows:
        step = self.steps[0]
        positions = f"positions {step.start!r} to {step.end!r}"
        # In the place of the rows, too, which has room for more: those of a source of many files are long.
        bad = BadRow(positions, f"all rows of a pulse are set aside: {why}", f"pulse {step.pulse}, {positions}")
        return Rows(self._schema.empty_table(), (bad,))

    def _come(self, future: Future[T], deadline: Deadline) -> bool:
        """Whether an answer is there; one that was not there in time is not waited for again."""
        if not future.done() and not self._late:
            self._calls.wait(future, deadline.left_s)
        self._late = not future.done()
        return not self._late

    def _has_failed(self, answer: Future[T]) -> bool:
        error = answer.exception()
        self.failed = error is not None
        self.trouble = "" if error is None else reason_of(error)
        return self.failed


SKIPPED = "an operator has skipped them"


class PulseLane(Lane):
    """A source whose rows of a pulse are a unit, with the pulse's number."""

    def __init__(self, reader: SourceReader, schema: pa.Schema, calls: Calls, done: int = 0) -> None:
        super().__init__(reader, schema, calls, done)
        self._tally = Tally()

    @property
    def tally(self) -> Tally:
        return self._tally

    def _closing(self, step: Step, rows: Rows) -> Closing:
        tally = Tally(rows=self._tally.rows + rows.table.num_rows, bad_rows=self._tally.bad_rows + rows.rejected)
        return Closing(step, tally, {}, ((step.pulse, rows.table),), rows.letters)

    def _settled(self, closing: Closing) -> None:
        self._tally = closing.state

"""A source that makes its rows itself: for demonstrations, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.data.rows.fit import fit
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import Flaw, Unfit
from unbroken.quantities import is_number, number_problems, shown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RowFunction = Callable[[int, int, int], pa.Table]


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    """What a generator makes that is given no function: the numbers of its rows, in a column ``n``."""
    return pa.table({"n": np.arange(start, stop, dtype=np.int64)})


NUMBERS = "n long"


class Generator(SourceConnector):
    """Rows numbered 0, 1, 2, ... made by a function of their numbers; without one, the numbers themselves.

    Parameters
    ----------
    function
        ``function(start, stop, seed)`` makes rows ``start`` to ``stop - 1``. It must be a pure function:
        every ingress node calls it, and again after a failure, for ranges cut anywhere.
        `unbroken.data.randomness` has random numbers that obey this. Without it, there is one column ``n``
        with the number of the row.
    schema
        The columns that the function makes; needed with a function.
    rate
        Rows per second from the first pulse on; None: ``batch_rows`` with every pulse.
    seed
        Handed to the function.
    limit
        The number of rows after which the source ends; None: never.
    max_rows_per_pulse
        After a standstill the rows that are due come in several pulses of at most this size.
    batch_rows
        Rows of each pulse, where there is no ``rate``.

    Examples
    --------
    >>> Generator(rate=100)
    >>> def clicks(start, stop, seed):
    ...     rows = np.arange(start, stop)
    ...     return pa.table({"user": integers(seed, rows, "user", 0, 1000), "n": rows})
    >>> Generator(clicks, schema="user long, n long", rate=5_000)
    """

    def __init__(
        self,
        function: RowFunction | None = None,
        *,
        schema: str | StructType | None = None,
        rate: float | None,
        seed: int = 0,
        limit: int | None = None,
        batch_rows: int = 50_000,
        max_rows_per_pulse: int = 1_000_000,
    ) -> None:
        self._schema = parse_schema(NUMBERS if schema is None else schema)
        self._both = (function is None) == (schema is None)
        self.function = numbers if function is None else function
        self.rate = rate
        self.seed = seed
        self.limit = limit
        self.batch_rows = batch_rows
        self.max_rows_per_pulse = max_rows_per_pulse

    @property
    def schema(self) -> StructType:
        return self._schema

    def problems(self) -> list[Flaw]:
        found = []
        if not self._both:
            found.append(Flaw("The function and the schema of a generator belong together", "give both, or neither"))
        if not callable(self.function):
            found.append(Flaw(f"The generator got {self.function!r}", "give it a function of (start, stop, seed)"))
        if self.rate is not None and not (is_number(self.rate) and self.rate > 0):
            found.append(Flaw(f"The rate is {shown(self.rate)}", "give rows per second above 0, or None for no limit"))
        if self.limit is not None and not (is_number(self.limit) and self.limit >= 0):
            found.append(Flaw(f"The limit is {shown(self.limit)}", "give a number of rows, or None for no end"))
        return found + number_problems(self, ("batch_rows", "max_rows_per_pulse"))

    def open(self) -> GeneratorReader:
        return GeneratorReader(self)


class GeneratorReader(SourceReader):
    """The position is ``{"start_ms": t, "row": n}``: rows are counted from time t, and n of them are out."""

    def __init__(self, source: Generator) -> None:
        self._source = source
        self._arrow = arrow_schema(source.schema)

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        start_ms, row = (now_ms, 0) if position is None else (int(position["start_ms"]), int(position["row"]))
        source = self._source
        passed_s = max(0, now_ms - start_ms) / 1000
        due = row + source.batch_rows if source.rate is None else int(source.rate * passed_s)
        if source.limit is not None:
            due = min(due, source.limit)
        # A clock that was set back must not take rows back.
        due = max(row, min(due, row + source.max_rows_per_pulse))
        exhausted = source.limit is not None and due >= source.limit
        return Cut({"start_ms": start_ms, "row": due}, exhausted)

    def read(self, start: Position | None, end: Position) -> Rows:
        first = 0 if start is None else int(start["row"])
        stop = int(end["row"])
        if first >= stop:
            return Rows(self._arrow.empty_table())
        name = getattr(self._source.function, "__name__", "the generator function")
        table = self._source.function(first, stop, self._source.seed)
        if not isinstance(table, pa.Table):
            raise Unfit(f"{name} returned {type(table).__name__}; it must return a pyarrow.Table.")
        if table.num_rows != stop - first:
            raise Unfit(f"{name} made {table.num_rows} rows for {first} to {stop}; it must make {stop - first}.")
        try:
            return Rows(fit(table, self._arrow, exact_names=True))
        except ValueError as error:
            raise Unfit(
                f"What {name} made does not fit the schema of the generator: {error}. Change one of them."
            ) from None

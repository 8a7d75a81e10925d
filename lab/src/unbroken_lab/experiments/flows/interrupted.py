"""A source that can be disconnected without being stopped, and what its rows give: for `unbroken bench consistency`.

Row ``n`` comes at a time that follows from ``n`` alone, whether anybody reads it or not. While a file exists nobody
reaches the source; when that is removed, everything that was missed can be read by its position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.data.rows.fit import fit
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import Flaw

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SOURCES = 3
KEYS = 500
WINDOW_MS = 5_000
"""Length of the windows of the results."""

VALUES = 1_009
"""Values of rows are below this number; a prime, so that the rows of a key have all of them."""

SCHEMA = "at timestamp, k long, v long, number long"
MOST_ROWS = 500_000
"""Rows that one pulse takes at most; those of a minute at the highest rate that a small machine carries."""

Ints = npt.NDArray[np.int64]
Result = tuple[int, ...]
"""Of a key in a window: the number of rows of each source so far, and the sum of their values."""


@dataclass(frozen=True)
class Stream:
    """The rows of one source: ``rate`` of them each second, row 0 at ``begin_ms``, with ``keys`` in turn."""

    begin_ms: int
    rate: int
    source: int = 0
    keys: int = KEYS

    def due(self, time_ms: int) -> int:
        """How many rows came before a time."""
        return max(0, -((self.begin_ms - time_ms) * self.rate // 1000))

    def times_us(self, numbers: Ints) -> Ints:
        return self.begin_ms * 1000 + numbers * 1_000_000 // self.rate

    def values(self, numbers: Ints) -> Ints:
        return (numbers * 31 + self.source) % VALUES

    def rows(self, start: int, stop: int) -> pa.Table:
        numbers = np.arange(start, stop, dtype=np.int64)
        times = pa.array(self.times_us(numbers), pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        return pa.table({"at": times, "k": numbers % self.keys, "v": self.values(numbers), "number": numbers})


class InterruptedSource(SourceConnector):
    """A stream that nobody reaches while the file ``switch`` exists."""

    def __init__(self, stream: Stream, switch: str | None = None) -> None:
        self.stream = stream
        self.switch = switch

    @property
    def schema(self) -> StructType:
        return parse_schema(SCHEMA)

    def problems(self) -> list[Flaw]:
        return [] if self.stream.rate > 0 else [Flaw(f"The rate is {self.stream.rate}", "give rows per second above 0")]

    def open(self) -> InterruptedReader:
        return InterruptedReader(self)


class InterruptedReader(SourceReader):
    """The position is the number of the next row; the first poll begins with the row of that moment."""

    def __init__(self, source: InterruptedSource) -> None:
        self._stream = source.stream
        self._switch = None if source.switch is None else Path(source.switch)
        self._arrow = arrow_schema(source.schema)

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        if self._switch is not None and self._switch.exists():
            return Cut(position, reachable=False)
        due = self._stream.due(now_ms)
        # A clock that was set back must not take rows back.
        return Cut(due if position is None else max(int(position), min(due, int(position) + MOST_ROWS)))

    def read(self, start: Position | None, end: Position) -> Rows:
        if start is None or end is None or int(start) >= int(end):
            return Rows(self._arrow.empty_table())
        return Rows(fit(self._stream.rows(int(start), int(end)), self._arrow, exact_names=True))


# --- what has to come of it ---------------------------------------------------------------------------


def expected(
    streams: tuple[Stream, ...], begin_ms: int, end_ms: int, window_ms: int = WINDOW_MS
) -> dict[tuple[int, int], Result]:
    """The results of the unit with all rows from ``begin_ms`` to before ``end_ms``, by window and key.

    Results are given for keys that have rows in the unit, and count from the beginning of the window.
    """
    out: dict[tuple[int, int], Result] = {}
    keys = max(stream.keys for stream in streams)
    for start_ms in range(begin_ms // window_ms * window_ms, end_ms, window_ms):
        stop_ms = min(end_ms, start_ms + window_ms)
        counts: list[Ints] = []
        total = np.zeros(keys, np.int64)
        touched = np.zeros(keys, bool)
        for stream in streams:
            numbers = np.arange(stream.due(start_ms), stream.due(stop_ms), dtype=np.int64)
            counts.append(np.bincount(numbers % stream.keys, minlength=keys).astype(np.int64))
            np.add.at(total, numbers % stream.keys, stream.values(numbers))
            touched[numbers[numbers >= stream.due(max(begin_ms, start_ms))] % stream.keys] = True
        for key in np.flatnonzero(touched).tolist():
            out[start_ms, key] = (*(int(count[key]) for count in counts), int(total[key]))
    return out


@dataclass(frozen=True)
class ResultMistakes:
    """Results of stable units that are not what they have to be: missing, of other values, or too many."""

    lost: int = 0
    wrong: int = 0
    duplicated: int = 0

    def __add__(self, other: ResultMistakes) -> ResultMistakes:
        return ResultMistakes(self.lost + other.lost, self.wrong + other.wrong, self.duplicated + other.duplicated)


def compare(table: pa.Table, wanted: Mapping[tuple[int, int], Result]) -> ResultMistakes:
    """The results of a unit (``w, k``, the rows of each source, the sum of values) beside those it has to have."""
    columns = ["w", "k", *(f"n{source}" for source in range(SOURCES)), "total"]
    rows = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    found: dict[tuple[int, int], Result] = {(row[0], row[1]): row[2:] for row in rows}
    missing = sum(place not in found for place in wanted)
    other = sum(found[place] != values for place, values in wanted.items() if place in found)
    unknown = sum(place not in wanted for place in found)
    return ResultMistakes(missing, other, unknown + len(rows) - len(found))

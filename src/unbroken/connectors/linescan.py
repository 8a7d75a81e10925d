"""Reads line-based text in big vectorised pieces, and line by line only where a piece is refused.

Every line that is not blank becomes a row or a bad row, in order. How a format reads a piece, and one line,
is given by a `LineFormat`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.connectors.base import BadRow, Rows

RAW_CHARS = 10_000
"""A bad row is kept to be looked at by a person; what is longer is no longer looked at."""

PIECE_BYTES = 4 << 20  # Large enough to be read at full speed, small enough to be read again when refused.
RUN_LINES = 500  # Balances the cost of starting the vectorised reader against that of reading lines singly.

MANY_LINES = 10_000  # Bounds what is held as Python values at a time.

Bools = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]


def bad_row(raw: bytes, reason: str, origin: str) -> BadRow:
    """A bad row with its text cut to `RAW_CHARS`."""
    text = raw[: 4 * RAW_CHARS].decode("utf-8", errors="backslashreplace")
    return BadRow(text[:RAW_CHARS], reason, origin)


@dataclass(frozen=True)
class Lines:
    """Where the lines of a text are; line ``i`` is ``data[starts[i]:ends[i]]``, without its line break."""

    data: bytes
    starts: Offsets
    ends: Offsets
    first_number: int

    @classmethod
    def of(cls, data: bytes, first_number: int = 1) -> Lines:
        buffer = np.frombuffer(data, np.uint8)
        breaks = np.flatnonzero(buffer == ord("\n")).astype(np.int64)
        last = [] if not data or data.endswith(b"\n") else [len(data)]
        ends = np.concatenate([breaks, np.array(last, np.int64)])
        starts = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1] + 1])
        # The break may be "\r\n".
        returns = (ends > starts) & (buffer[np.maximum(ends, 1) - 1] == ord("\r")) if len(ends) else ends > 0
        return cls(data, starts, ends - returns, first_number)

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, i: int) -> bytes:
        return self.data[self.starts[i] : self.ends[i]]

    def piece(self, start: int, stop: int) -> bytes:
        return self.data[self.starts[start] : self.ends[stop - 1]]


class LineFormat(ABC):
    """How one format is read."""

    schema: pa.Schema

    @abstractmethod
    def tidy(self, lines: Lines) -> Bools:
        """Which lines may be given to `read_piece` at all; the others are read one by one."""

    @abstractmethod
    def read_piece(self, piece: bytes, rows: int) -> pa.Table:
        """The ``rows`` rows of a piece whose lines are all tidy or blank; ValueError if any line is wrong."""

    @abstractmethod
    def read_lines(self, lines: list[bytes]) -> tuple[pa.Table, dict[int, str]]:
        """The rows of the lines that are right, in order, and why the others are not, by their index.

        A line may also count as blank and be in neither.
        """


def scan(lines: Lines, form: LineFormat, origin: str, max_line_bytes: int) -> Rows:
    """All rows of ``lines`` in their order, and the bad ones with ``origin`` and line number."""
    table, reasons = scan_indexed(lines, form, max_line_bytes)
    # Cut before copying: a line may be as large as the whole text.
    ends = np.minimum(lines.ends, lines.starts + 4 * RAW_CHARS)
    bad = (
        bad_row(lines.data[lines.starts[i] : ends[i]], reason, f"{origin}:{lines.first_number + i}")
        for i, reason in reasons.items()
    )
    return Rows(table, tuple(bad))


def scan_indexed(lines: Lines, form: LineFormat, max_line_bytes: int) -> tuple[pa.Table, dict[int, str]]:
    """All rows of ``lines`` in their order, and why the other lines are bad, by their index, in order.

    Blank lines are in neither.
    """
    return _Scan(lines, form, max_line_bytes).run()


class _Scan:
    def __init__(self, lines: Lines, form: LineFormat, max_line_bytes: int) -> None:
        self._lines = lines
        self._form = form
        self._max = max_line_bytes
        lengths = lines.ends - lines.starts
        self._blank = lengths == 0
        self._long = lengths > max_line_bytes
        self._filled = np.concatenate([np.zeros(1, np.int64), np.cumsum(~self._blank)])
        self._tables: list[pa.Table] = []
        self._bad: dict[int, str] = {}

    def run(self) -> tuple[pa.Table, dict[int, str]]:
        fast = (self._form.tidy(self._lines) | self._blank) & ~self._long
        edges = np.flatnonzero(np.diff(fast)) + 1
        bounds = [0, *edges.tolist(), len(fast)] if len(fast) else []
        for start, stop in pairwise(bounds):
            if fast[start]:
                self._in_pieces(start, stop)
            else:
                self._one_by_one(start, stop)
        empty = self._form.schema.empty_table()
        table = pa.concat_tables([empty, *self._tables]) if self._tables else empty
        return table, self._bad

    def _in_pieces(self, start: int, stop: int) -> None:
        while start < stop:
            limit = self._lines.starts[start] + PIECE_BYTES
            end = max(start + 1, min(stop, int(np.searchsorted(self._lines.ends, limit, "right"))))
            self._piece(start, end)
            start = end

    def _piece(self, start: int, stop: int) -> None:
        """Read lines [start, stop) at once; if that is refused, in short runs; line by line where those are too."""
        if self._at_once(start, stop):
            return
        for first in range(start, stop, RUN_LINES):
            end = min(first + RUN_LINES, stop)
            if not self._at_once(first, end):
                self._one_by_one(first, end)

    def _at_once(self, start: int, stop: int) -> bool:
        rows = int(self._filled[stop] - self._filled[start])
        try:
            if rows:
                self._tables.append(self._form.read_piece(self._lines.piece(start, stop), rows))
        except (ValueError, NotImplementedError):
            return False
        return True

    def _one_by_one(self, start: int, stop: int) -> None:
        numbers = [i for i in range(start, stop) if not self._blank[i] and not self._long[i]]
        reasons = {
            i: f"the line is {self._lines.ends[i] - self._lines.starts[i]} bytes long, more than {self._max}"
            for i in range(start, stop)
            if self._long[i]
        }
        for at in range(0, len(numbers), MANY_LINES):
            part = numbers[at : at + MANY_LINES]
            table, wrong = self._form.read_lines([self._lines.line(i) for i in part])
            if table.num_rows:
                self._tables.append(table)
            reasons.update({part[j]: reason for j, reason in wrong.items()})
        self._bad.update(sorted(reasons.items()))

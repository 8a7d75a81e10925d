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
from unbroken.connectors.budget import BAD_ROWS, RAW_CHARS, by_environment, first_line

PIECE_BYTES = 4 << 20  # Large enough to be read at full speed, small enough to be read again when refused.
RUN_LINES = 500  # Balances the cost of starting the vectorised reader against that of reading lines singly.

FEW_RUNS = 8
RUN_WORTH_LINES = 500
"""Runs of lines that are read at once, beyond a few, have to have so many lines on average: beginning one costs about
what it costs to read so many one by one."""

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

    def some(self, numbers: Offsets) -> list[bytes]:
        starts, ends = self.starts[numbers].tolist(), self.ends[numbers].tolist()
        return [self.data[start:end] for start, end in zip(starts, ends, strict=True)]

    def piece(self, start: int, stop: int) -> bytes:
        return self.data[self.starts[start] : self.ends[stop - 1]]


class LineFormat(ABC):
    """How one format is read."""

    schema: pa.Schema

    sifts: bool = False
    """Whether `read_lines` takes many lines about as fast as `read_piece`, so that a refused piece goes there whole."""

    @abstractmethod
    def tidy(self, lines: Lines) -> Bools:
        """Which lines may be given to `read_piece` at all; the others are read one by one."""

    @abstractmethod
    def hopeless(self, lines: Lines) -> Bools:
        """Which lines, of those that are not blank, are seen to be wrong at a glance. They are not read at all."""

    @abstractmethod
    def read_piece(self, piece: bytes, rows: int) -> pa.Table:
        """The ``rows`` rows of a piece whose lines are all tidy or blank; an exception if any line is wrong."""

    @abstractmethod
    def read_lines(self, lines: list[bytes]) -> tuple[pa.Table, list[int]]:
        """The rows of the lines that are right, in order, and the indices of those that are wrong.

        A line may also count as blank and be in neither.
        """

    @abstractmethod
    def reason(self, line: bytes) -> str:
        """Why a line is wrong; asked only for the few that are kept."""


def scan(lines: Lines, form: LineFormat, origin: str, max_line_bytes: int) -> Rows:
    """All rows of ``lines`` in their order, and the bad ones with ``origin`` and line number."""
    table, wrong = scan_indexed(lines, form, max_line_bytes)
    bad = []
    for i in wrong[:BAD_ROWS].tolist():
        # Cut before copying: a line may be as large as the whole text.
        raw = lines.data[lines.starts[i] : min(lines.ends[i], lines.starts[i] + 4 * RAW_CHARS)]
        reason = why(lines, i, form, max_line_bytes)
        bad.append(bad_row(raw, reason, f"{origin}:{lines.first_number + i}"))
    return Rows(table, tuple(bad), len(wrong))


def why(lines: Lines, i: int, form: LineFormat, max_line_bytes: int) -> str:
    """Why line ``i`` is wrong."""
    size = int(lines.ends[i] - lines.starts[i])
    if size > max_line_bytes:
        return f"the line is {size} bytes long, more than {max_line_bytes}"
    try:
        return form.reason(lines.line(i))
    except Exception as error:
        if by_environment(error):
            raise
        return f"cannot be read: {type(error).__name__}: {first_line(error)}"


def scan_indexed(lines: Lines, form: LineFormat, max_line_bytes: int) -> tuple[pa.Table, Offsets]:
    """All rows of ``lines`` in their order, and the indices of the lines that are wrong, in order.

    Blank lines are in neither. Whatever a format raises is due to some line, which is then wrong; the same line is so
    on all nodes.
    """
    return _Scan(lines, form, max_line_bytes).run()


class _Scan:
    def __init__(self, lines: Lines, form: LineFormat, max_line_bytes: int) -> None:
        self._lines = lines
        self._form = form
        lengths = lines.ends - lines.starts
        self._blank = lengths == 0
        self._hopeless = (lengths > max_line_bytes) | (form.hopeless(lines) & ~self._blank)
        self._filled = np.concatenate([np.zeros(1, np.int64), np.cumsum(~self._blank)])
        self._tables: list[pa.Table] = []
        self._wrong = self._hopeless.copy()

    def run(self) -> tuple[pa.Table, Offsets]:
        fast = (self._form.tidy(self._lines) | self._blank) & ~self._hopeless
        edges = np.flatnonzero(np.diff(fast)) + 1
        bounds = [0, *edges.tolist(), len(fast)] if len(fast) else []
        if len(bounds) > FEW_RUNS + len(fast) // RUN_WORTH_LINES:
            # Right and wrong lines take turns: what it costs to begin a run would come to more than the lines do.
            self._one_by_one(0, len(fast))
            bounds = []
        for start, stop in pairwise(bounds):
            if fast[start]:
                self._in_pieces(start, stop)
            else:
                self._one_by_one(start, stop)
        empty = self._form.schema.empty_table()
        table = pa.concat_tables([empty, *self._tables]) if self._tables else empty
        return table, np.flatnonzero(self._wrong).astype(np.int64)

    def _in_pieces(self, start: int, stop: int) -> None:
        while start < stop:
            limit = self._lines.starts[start] + PIECE_BYTES
            end = max(start + 1, min(stop, int(np.searchsorted(self._lines.ends, limit, "right"))))
            self._piece(start, end)
            start = end

    def _piece(self, start: int, stop: int) -> None:
        """Read lines [start, stop) at once; if that is refused, in short runs; line by line where those are, too."""
        if self._at_once(start, stop):
            return
        dense = self._form.sifts
        for first in range(start, stop, stop - start if dense else RUN_LINES):
            end = stop if self._form.sifts else min(first + RUN_LINES, stop)
            # Where most lines are wrong, reading the next ones at once is a vain attempt.
            if dense or not self._at_once(first, end):
                self._one_by_one(first, end)
                dense = 2 * int(self._wrong[first:end].sum()) > end - first
            else:
                dense = False

    def _at_once(self, start: int, stop: int) -> bool:
        rows = int(self._filled[stop] - self._filled[start])
        try:
            if rows:
                self._tables.append(self._form.read_piece(self._lines.piece(start, stop), rows))
        except Exception as error:
            if by_environment(error):
                raise
            return False
        return True

    def _one_by_one(self, start: int, stop: int) -> None:
        numbers = start + np.flatnonzero(~(self._blank[start:stop] | self._hopeless[start:stop]))
        for at in range(0, len(numbers), MANY_LINES):
            self._read(numbers[at : at + MANY_LINES])

    def _read(self, numbers: Offsets) -> None:
        try:
            table, wrong = self._form.read_lines(self._lines.some(numbers))
        except Exception as error:
            if by_environment(error):
                raise
            # No format is expected to do this; the line that makes it is found, and the others are kept.
            if len(numbers) == 1:
                self._wrong[numbers] = True
                return
            self._read(numbers[: len(numbers) // 2])
            self._read(numbers[len(numbers) // 2 :])
            return
        if table.num_rows:
            self._tables.append(table)
        self._wrong[numbers[wrong]] = True

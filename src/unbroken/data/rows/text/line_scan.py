"""Reads line-based text in big vectorised pieces, and line by line only what the vectorised reader refuses.

Every line that is not blank becomes a row or a bad row, in order. How a format reads a piece, and one line,
is given by a `LineFormat`. A piece that is refused is sifted by the pattern of its format: lines that are seen to be
wrong are set aside, and the others are read at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.rows.budget import BAD_ROWS, RAW_CHARS, by_environment, first_line
from unbroken.data.rows.parsed import BadRow, Rows
from unbroken.data.rows.text.line_pattern import LinePattern, Sifted

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

    def some(self, numbers: Offsets) -> list[bytes]:
        starts, ends = self.starts[numbers].tolist(), self.ends[numbers].tolist()
        return [self.data[start:end] for start, end in zip(starts, ends, strict=True)]

    def piece(self, start: int, stop: int) -> bytes:
        return self.data[self.starts[start] : self.ends[stop - 1]]

    def texts(self, start: int, stop: int) -> pa.Array:
        """The lines [start, stop) as an array that shares their memory, with what is between them at their ends."""
        end = self.starts[stop] if stop < len(self) else len(self.data)
        offsets = np.append(self.starts[start:stop], end)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), stop - start, buffers)


class LineFormat(ABC):
    """How one format is read."""

    schema: pa.Schema

    sifts: bool = False
    """Whether `read_lines` takes many lines about as fast as `read_piece`, so that a refused piece goes there whole."""

    def pattern(self) -> LinePattern | None:
        """Sorts the lines of a refused piece, if there is one. Lines that it calls likely may go to `read_piece`."""
        return None

    def blank(self, lines: Lines) -> Bools:
        """Which lines are neither rows nor wrong."""
        return np.asarray(lines.ends == lines.starts, np.bool_)

    @abstractmethod
    def tidy(self, lines: Lines) -> Bools:
        """Which lines may be given to `read_piece` without a closer look."""

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
    return why_line(lines.line(i), form)


def why_line(line: bytes, form: LineFormat) -> str:
    """Why a line that is not too long is wrong."""
    try:
        return form.reason(line)
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
        long = lengths > max_line_bytes
        self._blank = form.blank(lines) & ~long
        self._wrong = long | (form.hopeless(lines) & ~self._blank)
        # Lines of no length may stay in a piece.
        self._filled = ~(self._blank | self._wrong)
        self._in_the_way = ~self._filled & (lengths > 0)
        self._tidy = form.tidy(lines)
        self._tables: list[pa.Table] = []

    def run(self) -> tuple[pa.Table, Offsets]:
        start, count = 0, len(self._lines)
        while start < count:
            limit = self._lines.starts[start] + PIECE_BYTES
            stop = max(start + 1, min(count, int(np.searchsorted(self._lines.ends, limit, "right"))))
            self._piece(start, stop)
            start = stop
        empty = self._form.schema.empty_table()
        table = pa.concat_tables([empty, *self._tables]) if self._tables else empty
        return table, np.flatnonzero(self._wrong).astype(np.int64)

    def _piece(self, start: int, stop: int) -> None:
        """Read lines [start, stop) at once; if that is refused, those that the pattern of the format calls likely."""
        filled = self._filled[start:stop]
        numbers = start + np.flatnonzero(filled)
        if not len(numbers):
            return
        tidy = self._tidy[numbers]
        texts: pa.Array | None = None
        if tidy.all():
            if self._in_the_way[start:stop].any():
                texts = self._lines.texts(start, stop).filter(pa.array(filled))
                piece = _joined(texts)
            else:
                piece = self._lines.piece(start, stop)
            table = self._at_once(piece, len(numbers))
            if table is not None:
                self._tables.append(table)
                return
        pattern = self._form.pattern()
        if pattern is None or not pattern.pays(len(numbers)):
            self._sorted(numbers, Sifted(tidy, ~tidy), refused=bool(tidy.all()))
            return
        if texts is None:
            texts = self._lines.texts(start, stop).filter(pa.array(filled))
        sifted = pattern.sift(texts)
        self._wrong[numbers[~(sifted.likely | sifted.odd)]] = True
        likely = texts.filter(pa.array(sifted.likely))
        table = self._at_once(_joined(likely), len(likely)) if len(likely) else None
        if table is not None and not sifted.odd.any():
            self._tables.append(table)
        else:
            self._sorted(numbers, sifted, refused=True, likely=table)

    def _sorted(self, numbers: Offsets, sifted: Sifted, *, refused: bool, likely: pa.Table | None = None) -> None:
        """Read odd lines singly and likely ones, unless this is their table, in runs; the rows are in order."""
        parts = _Parts()
        many = numbers[sifted.likely]
        if likely is not None:
            parts.add(many, likely)
        elif self._form.sifts:
            self._singly(many, parts)
        else:
            self._in_runs(many, parts, refused)
        self._singly(numbers[sifted.odd], parts)
        table = parts.table()
        if table is not None:
            self._tables.append(table)

    def _in_runs(self, numbers: Offsets, parts: _Parts, refused: bool) -> None:
        # Where most lines are wrong, reading the next ones at once is a vain attempt.
        dense = refused and len(numbers) <= RUN_LINES
        for at in range(0, len(numbers), RUN_LINES):
            run = numbers[at : at + RUN_LINES]
            table = None if dense else self._at_once(b"\n".join(self._lines.some(run)), len(run))
            if table is not None:
                parts.add(run, table)
                continue
            self._singly(run, parts)
            dense = 2 * int(self._wrong[run].sum()) > len(run)

    def _at_once(self, piece: bytes, rows: int) -> pa.Table | None:
        """The rows of a piece; none if it is refused."""
        try:
            return self._form.read_piece(piece, rows)
        except Exception as error:
            if by_environment(error):
                raise
            return None

    def _singly(self, numbers: Offsets, parts: _Parts) -> None:
        for at in range(0, len(numbers), MANY_LINES):
            self._read(numbers[at : at + MANY_LINES], parts)

    def _read(self, numbers: Offsets, parts: _Parts) -> None:
        try:
            table, wrong = self._form.read_lines(self._lines.some(numbers))
        except Exception as error:
            if by_environment(error):
                raise
            # No format is expected to do this; the line that makes it is found, and the others are kept.
            if len(numbers) == 1:
                self._wrong[numbers] = True
                return
            self._read(numbers[: len(numbers) // 2], parts)
            self._read(numbers[len(numbers) // 2 :], parts)
            return
        self._wrong[numbers[wrong]] = True
        parts.add(numbers[~self._wrong[numbers]], table)


class _Parts:
    """Tables whose rows are those of some lines, put in the order of the lines."""

    def __init__(self) -> None:
        self._numbers: list[Offsets] = []
        self._tables: list[pa.Table] = []

    def add(self, numbers: Offsets, table: pa.Table) -> None:
        assert table.num_rows == len(numbers), "a line is a row, wrong or blank"
        if len(numbers):
            self._numbers.append(numbers)
            self._tables.append(table)

    def table(self) -> pa.Table | None:
        if not self._tables:
            return None
        table = pa.concat_tables(self._tables)
        numbers = np.concatenate(self._numbers)
        if (np.diff(numbers) > 0).all():
            return table
        return table.take(pa.array(np.argsort(numbers)))


def _joined(texts: pa.Array) -> bytes:
    """One text of all lines."""
    _, offsets, data = texts.buffers()
    if data is None:
        return b""
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return bytes(data[int(bounds[0]) : int(bounds[-1])])

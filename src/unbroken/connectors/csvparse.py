"""Rows from CSV, one record per line.

The rules: values are separated by commas and may be put in double quotes, a quote within them doubled; a line
break within a value is not supported, because one forgotten quote would then swallow the rest of the file.
An empty value is null, ``""`` the empty string. Times are ISO-8601 or epoch milliseconds, binary is base64,
booleans are true or false.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv

from unbroken.connectors.base import Rows
from unbroken.connectors.linescan import Bools, LineFormat, Lines, bad_row, scan
from unbroken.connectors.rowparse import bytes_from_base64
from unbroken.connectors.texttime import times_from_text

_NOISE = re.compile(r"^(In CSV column #\d+: |CSV parse error: )?(Row #\d+: )?(CSV conversion error )?")


def csv_can_hold(kind: pa.DataType) -> bool:
    """Whether a CSV column can have this type."""
    return not pa.types.is_nested(kind)


def parse_csv(data: bytes, schema: pa.Schema, origin: str, max_line_bytes: int, *, header: bool) -> Rows:
    """The rows of a CSV text in order; bad ones are set aside.

    With ``header`` the first line names the columns, which may come in any order: those that the schema does
    not have are ignored and missing ones are null. A header that has none of the schema's columns, or one of
    them twice, makes the whole text one bad row. Without it every line must have exactly the schema's
    columns.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    names: Sequence[str] = schema.names
    first_number = 1
    if header and data:
        line, _, data = data.partition(b"\n")
        first_number = 2
        try:
            names = _header(line, schema, max_line_bytes)
        except ValueError as error:
            return Rows(schema.empty_table(), (bad_row(line, str(error), f"{origin}:1"),))
    return scan(Lines.of(data, first_number), CsvFormat(schema, names), origin, max_line_bytes)


def _header(line: bytes, schema: pa.Schema, max_line_bytes: int) -> list[str]:
    if len(line) > max_line_bytes:
        raise ValueError(f"the header is longer than {max_line_bytes} bytes; the file was left out")
    try:
        names = next(csv.reader([line.decode().rstrip("\r")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"the header cannot be read ({error}); the file was left out") from None
    names = [name.strip() for name in names]
    known = [name for name in names if name in schema.names]
    if not known:
        raise ValueError(
            f"the header has none of the columns {', '.join(schema.names)}; the file was left out "
            f"(say header=False if files have none)"
        )
    if len(set(known)) != len(known):
        raise ValueError("the header names a column twice; the file was left out")
    return names


class CsvFormat(LineFormat):
    """Reads pieces, and single lines as pieces of one line, with Arrow's CSV reader.

    Whether a line is right then cannot depend on its neighbours.
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        self.schema = schema
        # Columns that are not asked for may have any name, even one that comes twice.
        self._names = [name if name in schema.names else f"\x00{i}" for i, name in enumerate(names)]
        self._options = pyarrow.csv.ConvertOptions(
            column_types={field.name: _wire_type(field.type) for field in schema},
            include_columns=schema.names,
            include_missing_columns=True,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
        )

    def tidy(self, lines: Lines) -> Bools:
        """Lines without a bare carriage return, which Arrow's reader takes for a line break."""
        tidy = np.ones(len(lines), np.bool_)
        if b"\r" in lines.data:
            buffer = np.frombuffer(lines.data, np.uint8)
            returns = np.flatnonzero(buffer == ord("\r"))
            owners = np.searchsorted(lines.starts, returns, "right") - 1
            tidy[owners[returns < lines.ends[owners]]] = False
        return tidy

    def read_piece(self, piece: bytes, rows: int) -> pa.Table:
        # An unclosed quote swallows line breaks. The last line is put in twice so that this shows in the
        # number of rows even if it is the last line that does not close.
        last = piece.rstrip(b"\r\n").rpartition(b"\n")[2]
        table = self._read(piece + b"\n" + last + b"\n")
        if table.num_rows != rows + 1:
            raise ValueError("a quoted value does not end on its line")
        table.validate(full=True)  # The reader lets decimals pass that have too many digits.
        return self._finished(table.slice(0, rows))

    def read_lines(self, lines: list[bytes]) -> tuple[pa.Table, dict[int, str]]:
        tables = [self.schema.empty_table()]
        wrong: dict[int, str] = {}
        likely: list[int] = []
        for i, line in enumerate(lines):
            reason = self._plainly_wrong(line)
            if reason is None:
                likely.append(i)
            else:
                wrong[i] = reason
        self._halve(lines, likely, tables, wrong)
        return pa.concat_tables(tables), wrong

    def _plainly_wrong(self, line: bytes) -> str | None:
        """What can be seen without Arrow's reader, for which a single line takes long."""
        if b"\r" in line:
            return "a carriage return within the line"
        columns = line.count(b",") + 1
        if b'"' not in line and columns != len(self._names):
            return f"Expected {len(self._names)} columns, got {columns}"
        return None

    def _halve(self, lines: list[bytes], which: list[int], tables: list[pa.Table], wrong: dict[int, str]) -> None:
        """Find the wrong ones among the lines ``which`` by reading ever smaller parts of them."""
        if not which:
            return
        try:
            tables.append(self.read_piece(b"\n".join(lines[i] for i in which), len(which)))
        except ValueError as error:
            if len(which) == 1:
                wrong[which[0]] = _NOISE.sub("", str(error).partition("\n")[0])[:500]
                return
            middle = len(which) // 2
            self._halve(lines, which[:middle], tables, wrong)
            self._halve(lines, which[middle:], tables, wrong)

    def _read(self, data: bytes) -> pa.Table:
        options = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._names)
        return pyarrow.csv.read_csv(pa.BufferReader(data), read_options=options, convert_options=self._options)

    def _finished(self, table: pa.Table) -> pa.Table:
        columns = []
        for field, column in zip(self.schema, table.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ValueError(f"column {field.name!r} must not be empty")
            columns.append(_finished_column(column, field))
        return pa.Table.from_arrays(columns, schema=self.schema)


def _wire_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_binary(kind) else kind


def _finished_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    try:
        if pa.types.is_timestamp(field.type):
            return pa.chunked_array([times_from_text(array, field.type, digits_are_millis=True)])
        return pa.chunked_array([bytes_from_base64(array, field.type)])
    except ValueError as error:
        raise ValueError(f"column {field.name!r}: {error}") from None

"""Rows from JSON lines, for files and for pushed rows alike.

The rules: a row is one JSON object on one line. Fields that the schema does not have are ignored, missing
ones are null. A value of another type is a bad row: no number is made of a string, no integer of 1.5. Strings
stand for times (ISO-8601; an integer is epoch milliseconds), dates, decimals (numbers will do as well) and,
in base64, binary values. Maps are objects.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from unbroken.connectors.base import Rows
from unbroken.connectors.jsonvalue import convert_row, load_object
from unbroken.connectors.linescan import Bools, LineFormat, Lines, scan
from unbroken.connectors.texttime import dates_from_text, times_from_millis, times_from_text

# Arrow's reader takes several values on one line, and one that is null can end the process.
_STRAY_NULL = re.compile(rb"\}[ \t\r]*null")
_BLANK = b" \t\r"


def parse_json_lines(data: bytes, schema: pa.Schema, origin: str, max_line_bytes: int) -> Rows:
    """The rows of ``data``, which holds one JSON object per line, in order; bad ones are set aside.

    Every line that is not blank becomes one row of the table or one bad row with origin ``origin:line``. The
    result depends on the arguments only.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    return scan(Lines.of(data), _json_format(schema), origin, max_line_bytes)


@lru_cache(maxsize=64)
def _json_format(schema: pa.Schema) -> JsonFormat:
    return JsonFormat(schema)


class JsonFormat(LineFormat):
    """Reads pieces with Arrow's JSON reader and single lines with Python's.

    Arrow's reader knows neither dates, binary, maps nor epoch times: a top-level column of such a type is
    read as what JSON has for it and converted afterwards; schemas with maps, or with such types inside of
    structs and arrays, are always read line by line.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._vectorised = all(_readable(field) for field in schema)
        self._times = [field.name for field in schema if pa.types.is_timestamp(field.type)]

    def tidy(self, lines: Lines) -> Bools:
        """Lines that begin with ``{`` and end with ``}``: no value can then reach over a line's end."""
        if not self._vectorised or not lines.data:
            return np.zeros(len(lines), np.bool_)
        buffer = np.frombuffer(lines.data, np.uint8)
        first = buffer[np.minimum(lines.starts, len(buffer) - 1)]
        last = buffer[np.maximum(lines.ends, 1) - 1]
        return np.asarray((first == ord("{")) & (last == ord("}")) & (lines.ends > lines.starts), np.bool_)

    def read_piece(self, piece: bytes, rows: int) -> pa.Table:
        piece.decode()  # Arrow's reader does not check that strings are UTF-8.
        if _STRAY_NULL.search(piece):
            raise ValueError("possibly several values on a line")
        table = pyarrow.json.read_json(
            pa.BufferReader(piece),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(piece) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=self._wire_schema(piece), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != rows:
            raise ValueError("several values on a line")
        table.validate(full=True)  # The reader lets decimals pass that have too many digits.
        return self._finished(table)

    def read_lines(self, lines: list[bytes]) -> tuple[pa.Table, dict[int, str]]:
        rows: list[list[Any]] = []
        wrong: dict[int, str] = {}
        for i, line in enumerate(lines):
            if not line.strip(_BLANK):
                continue
            try:
                rows.append(convert_row(load_object(line), self.schema))
            except ValueError as error:
                wrong[i] = str(error)
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(self.schema)]
        return pa.Table.from_arrays(columns, schema=self.schema), wrong

    def _wire_schema(self, piece: bytes) -> pa.Schema:
        """What Arrow's reader is to look for; whether times are numbers is seen from the first row."""
        sample: dict[str, Any] = {}
        if self._times:
            sample = load_object(piece.lstrip(b"\r\n").split(b"\n", 1)[0])
        return pa.schema([_wire_field(field, sample.get(field.name)) for field in self.schema])

    def _finished(self, table: pa.Table) -> pa.Table:
        columns: list[pa.ChunkedArray] = []
        for field, column in zip(self.schema, table.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ValueError(f"field {field.name!r} must not be null or missing")
            columns.append(_finished_column(column, field.type))
        return pa.Table.from_arrays(columns, schema=self.schema)


def _readable(field: pa.Field) -> bool:
    kind = field.type
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind) or _plain(kind))


def _plain(kind: pa.DataType) -> bool:
    """Whether Arrow's reader reads the type by the rules of this module, at any depth."""
    if pa.types.is_list(kind):
        return kind.value_field.nullable and _plain(kind.value_type)
    if pa.types.is_struct(kind):
        # Of a required field within a struct, the reader would not notice that it is missing.
        return all(field.nullable and _plain(field.type) for field in kind)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_decimal(kind)
    )


def _wire_field(field: pa.Field, sample: Any) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind):
        kind = pa.int64() if isinstance(sample, int) else pa.string()
    elif pa.types.is_date(kind) or pa.types.is_binary(kind):
        kind = pa.string()
    return pa.field(field.name, kind)


def _finished_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    if pa.types.is_timestamp(kind):
        if pa.types.is_integer(array.type):
            return pa.chunked_array([times_from_millis(array, kind)])
        return pa.chunked_array([times_from_text(array, kind, digits_are_millis=False)])
    if pa.types.is_binary(kind):
        return pa.chunked_array([bytes_from_base64(array, kind)])
    return pa.chunked_array([dates_from_text(array)])


def bytes_from_base64(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode base64; ValueError if any text is not base64."""
    try:
        values = [None if v is None else base64.b64decode(v, validate=True) for v in texts.to_pylist()]
    except binascii.Error:
        raise ValueError("a binary value is not base64") from None
    return pa.array(values, kind)

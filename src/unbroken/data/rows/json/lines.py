"""Rows from JSON lines, for files and for pushed rows alike.

The rules: a row is one JSON object on one line. Fields that the schema does not have are ignored, missing
ones are null. A value of another type is a bad row: no number is made of a string, no integer of 1.5. Strings
stand for times (ISO-8601; an integer is epoch milliseconds), dates, decimals (numbers will do as well) and,
in base64, binary values. Maps are objects.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from unbroken.data.rows.budget import MAX_DEPTH
from unbroken.data.rows.json.pattern import pattern_of
from unbroken.data.rows.json.value import RowReader, load_object
from unbroken.data.rows.parsed import Rows
from unbroken.data.rows.text.line_pattern import LinePattern, matching_among
from unbroken.data.rows.text.line_scan import Bools, LineFormat, Lines, scan
from unbroken.data.rows.values.decimals import decimals_from_text, safe_in_json
from unbroken.data.rows.values.times import dates_from_text, times_from_millis, times_from_text

# Arrow's reader takes several values on one line, and one that is null can end the process.
_STRAY_NULL = re.compile(rb"\}[ \t\r]*null")
_BLANK = b" \t\r"
_SPACES = np.frombuffer(_BLANK, np.uint8)
_OPENING = np.frombuffer(b"{ \t\r", np.uint8)
_CLOSING = np.frombuffer(b"} \t\r", np.uint8)


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

    Arrow's reader knows neither dates, binary, maps nor epoch times, and its decimals are not always safe: a column
    of such a type is read as what JSON has for it and converted afterwards; schemas with maps, or with such types
    inside of arrays, are always read line by line.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        self._rows = RowReader(schema)
        decimals, others = (set(_names(schema, decimal=wanted)) for wanted in (True, False))
        # Where both kinds share a name, text cannot tell them apart.
        self._vectorised = all(_readable(field) for field in schema) and not decimals & others
        self._quoting = _quoting(decimals) if decimals and self._vectorised else None
        self._scale = max(_scales(schema), default=0)

    def pattern(self) -> LinePattern | None:
        return self._pattern

    @cached_property
    def _pattern(self) -> LinePattern | None:
        return pattern_of(self.schema) if self._vectorised else None

    def blank(self, lines: Lines) -> Bools:
        """Lines of white space only."""
        blank = lines.ends == lines.starts
        if lines.data:
            first, _ = _ends(lines)
            blank |= matching_among(lines.texts(0, len(lines)), np.isin(first, _SPACES) & ~blank, r"^[ \t\r\n]*$")
        return np.asarray(blank, np.bool_)

    def tidy(self, lines: Lines) -> Bools:
        """Lines that begin with ``{`` and end with ``}``, so that no value can reach over a line's end, and are not
        nested deeply."""
        if not self._vectorised or not lines.data:
            return np.zeros(len(lines), np.bool_)
        first, last = _ends(lines)
        tidy = (first == ord("{")) & (last == ord("}")) & (lines.ends > lines.starts)
        # Each of these lines has one bracket at least.
        if lines.data.count(b"[") + lines.data.count(b"{") >= int(tidy.sum()) + MAX_DEPTH:
            buffer = np.frombuffer(lines.data, np.uint8)
            opening = np.flatnonzero((buffer == ord("[")) | (buffer == ord("{")))
            counts = np.searchsorted(opening, lines.ends) - np.searchsorted(opening, lines.starts)
            tidy &= counts <= MAX_DEPTH
        return np.asarray(tidy, np.bool_)

    def hopeless(self, lines: Lines) -> Bools:
        """Lines that cannot be an object, because they begin or end with something else."""
        if not lines.data:
            return np.zeros(len(lines), np.bool_)
        first, last = _ends(lines)
        return np.asarray(~np.isin(first, _OPENING) | ~np.isin(last, _CLOSING), np.bool_)

    def read_piece(self, piece: bytes, rows: int) -> pa.Table:
        piece.decode()  # Arrow's reader does not check that strings are UTF-8.
        if _STRAY_NULL.search(piece):
            raise ValueError("possibly several values on a line")
        text = None if self._quoting is None else pa.array([piece], pa.string())
        unsafe = text is not None and not safe_in_json(text, self._scale)
        wire = self._wire_schema(piece, decimals_as_text=unsafe)
        if unsafe:
            piece = pc.replace_substring_regex(text, self._quoting, r'\1"\2"')[0].as_buffer()
        table = pyarrow.json.read_json(
            pa.BufferReader(piece),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(piece) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != rows:
            raise ValueError("several values on a line")
        return self._finished(table)

    def read_lines(self, lines: list[bytes]) -> tuple[pa.Table, list[int]]:
        rows: list[list[Any]] = []
        wrong: list[int] = []
        read = self._rows.row
        for i, line in enumerate(lines):
            if not line.strip(_BLANK):
                continue
            try:
                rows.append(read(load_object(line)))
            except ValueError:
                wrong.append(i)
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(self.schema)]
        return pa.Table.from_arrays(columns, schema=self.schema), wrong

    def reason(self, line: bytes) -> str:
        try:
            value = load_object(line)
            self._rows.explain(value)
            for item, field in zip(self._rows.row(value), self.schema, strict=True):
                pa.array([item], field.type)
        except ValueError as error:
            return str(error)
        return "cannot be read"

    def _wire_schema(self, piece: bytes, *, decimals_as_text: bool) -> pa.Schema:
        """What Arrow's reader is to look for; whether times are numbers is seen from the first row."""
        sample: dict[str, Any] = {}
        if self._times:
            sample = load_object(piece.lstrip(b"\r\n").split(b"\n", 1)[0])
        return pa.schema(
            [pa.field(f.name, _wire_type(f.type, decimals_as_text, sample.get(f.name))) for f in self.schema]
        )

    def _finished(self, table: pa.Table) -> pa.Table:
        columns: list[pa.ChunkedArray] = []
        for field, column in zip(self.schema, table.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ValueError(f"field {field.name!r} must not be null or missing")
            columns.append(pa.chunked_array([_finished_array(_one_array(column), field.type)]))
        return pa.Table.from_arrays(columns, schema=self.schema)


def _ends(lines: Lines) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The first and the last character of each line, if it has any."""
    buffer = np.frombuffer(lines.data, np.uint8)
    return buffer[np.minimum(lines.starts, len(buffer) - 1)], buffer[np.maximum(lines.ends, 1) - 1]


def _readable(field: pa.Field) -> bool:
    kind = field.type
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind) or _plain(kind))


def _plain(kind: pa.DataType) -> bool:
    """Whether Arrow's reader reads the type by the rules of this module, at any depth."""
    if pa.types.is_list(kind):
        # Decimals in an array may be numbers, which are put in quotes only where they follow a name.
        return kind.value_field.nullable and not pa.types.is_decimal(kind.value_type) and _plain(kind.value_type)
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


def _names(fields: Any, *, decimal: bool) -> Iterator[str]:
    """The names of all fields that are decimals, or of all that are not, at any depth."""
    for field in fields:
        kind = field.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        if bool(pa.types.is_decimal(kind)) == decimal:
            yield field.name
        if pa.types.is_struct(kind):
            yield from _names(kind, decimal=decimal)


def _scales(fields: Iterable[pa.Field]) -> Iterator[int]:
    """The scales of all decimals in these fields, at any depth."""
    for field in fields:
        if pa.types.is_decimal(field.type):
            yield int(field.type.scale)
        yield from _scales(field.type.field(i) for i in range(field.type.num_fields))


def _quoting(names: set[str]) -> str:
    """Finds the numbers that follow one of these names as a key.

    With the quotes that are put around them, Arrow's reader takes them for text and leaves them as they are written.
    A quote that follows a bracket, a comma or white space begins or ends a string, and one that ends it is followed by
    no name. Where a name is written with escapes, nothing is found: the reader then refuses the number, and the lines
    are read one by one.
    """
    keys = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in sorted(names))
    number = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
    return r"([{, \t](?:" + keys + r")[ \t]*:[ \t]*)(" + number + ")"


def _wire_type(kind: pa.DataType, decimals_as_text: bool, sample: Any = None) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64() if isinstance(sample, int) else pa.string()
    if pa.types.is_date(kind) or pa.types.is_binary(kind) or (pa.types.is_decimal(kind) and decimals_as_text):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_wire_type(kind.value_type, decimals_as_text))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _wire_type(field.type, decimals_as_text)) for field in kind])
    return kind


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _finished_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of the wire type as one of ``kind``; ValueError if any value is wrong."""
    if array.type == kind:
        array.validate(full=True)
        if _infinite(array):
            raise ValueError("a number is infinite; whether it was written so is seen line by line")
        return array
    if pa.types.is_timestamp(kind):
        if pa.types.is_integer(array.type):
            return times_from_millis(array, kind)
        return times_from_text(array, kind, digits_are_millis=False)
    if pa.types.is_binary(kind):
        return bytes_from_base64(array, kind)
    if pa.types.is_decimal(kind):
        decimals, wrong = decimals_from_text(array, kind)
        if wrong.any():
            raise ValueError("a value is not a decimal that fits")
        return decimals
    if pa.types.is_struct(kind):
        children = [_finished_array(array.field(i), field.type) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        values = _finished_array(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, kind, mask=array.is_null())
    return dates_from_text(array)


def _infinite(array: pa.Array) -> bool:
    """Whether there is an infinite number: Arrow's reader also makes it of very many digits."""
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_list(array.type):
        return _infinite(array.values)
    return pa.types.is_struct(array.type) and any(_infinite(array.field(i)) for i in range(array.type.num_fields))


def bytes_from_base64(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode base64; ValueError if any text is not base64."""
    try:
        values = [None if v is None else base64.b64decode(v, validate=True) for v in texts.to_pylist()]
    except binascii.Error:
        raise ValueError("a binary value is not base64") from None
    return pa.array(values, kind)

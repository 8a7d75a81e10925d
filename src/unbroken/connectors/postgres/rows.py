"""Arrow columns as PostgreSQL takes them: which type a column has there, and rows as the CSV of its COPY.

Everything is done by columns in Arrow; only nested values, which become JSON, are touched one by one in Python.
"""

from __future__ import annotations

import binascii
import io
import json
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.types as pt

from unbroken.data.rows.json.output import in_years, json_values
from unbroken.errors import Unfit

BATCH_ROWS = 16_384
"""Rows that are held as CSV at a time, about 1 MB."""

LAST_YEAR = 32_767
"""The last year that Arrow can show; PostgreSQL has more. Times after it, and before the year 1, are null."""

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.null(): "text",
}

_INTEGERS = ("int2", "int4", "int8", "numeric")
_STRICT = frozenset(
    (*_INTEGERS, "float4", "float8", "bool", "date", "timestamp", "timestamptz", "time", "timetz", "interval", "bytea")
)
"""Types that text is not put into. Into all others (enums, uuid, inet, citext...) it is, by their own rules."""

_TAKES: dict[str, tuple[str, ...]] = {
    "boolean": ("bool",),
    "smallint": _INTEGERS,
    "integer": _INTEGERS[1:],
    "bigint": _INTEGERS[2:],
    "numeric": ("numeric",),
    "real": ("float4", "float8"),
    "double precision": ("float8",),
    "bytea": ("bytea",),
    "date": ("date",),
    "timestamp with time zone": ("timestamptz",),
    "timestamp": ("timestamp",),
    "time": ("time",),
    "interval": ("interval",),
    "jsonb": ("jsonb", "json", "text", "varchar"),
}
"""The types of existing columns, by PostgreSQL's own names, that hold every value of a result's column unchanged."""


def sql_type(field: pa.Field) -> str:
    """The type of the column that is created for a result's column."""
    kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pt.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pt.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp"
    for matches, name in (
        (_is_text, "text"),
        (_is_bytes, "bytea"),
        (pt.is_date, "date"),
        (pt.is_time, "time"),
        (pt.is_duration, "interval"),
        (pt.is_nested, "jsonb"),
    ):
        if matches(kind):
            return name
    raise Unfit(f"Column {field.name!r} is of type {kind}, for which PostgreSQL has none; cast it in the segment.")


def takes(column_type: str, field: pa.Field) -> bool:
    """Whether an existing column of ``column_type`` (such as int8) holds every value of a result's column unchanged."""
    own = sql_type(field).partition("(")[0]
    if own == "text":
        return column_type not in _STRICT or column_type == "bytea"
    return column_type in _TAKES[own]


def copy_data(table: pa.Table, column_types: Mapping[str, str]) -> Iterator[bytes]:
    """The rows of ``table`` as CSV for COPY, some thousand at a time.

    Text is in quotes and null is nothing at all, so an empty text stays one. ``column_types`` has PostgreSQL's names of
    the types of the columns they go to.
    """
    options = pa_csv.WriteOptions(include_header=False, batch_size=BATCH_ROWS)
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        columns = [
            _rendered(column, column_types[name])
            for name, column in zip(table.column_names, batch.columns, strict=True)
        ]
        out = io.BytesIO()
        pa_csv.write_csv(pa.RecordBatch.from_arrays(columns, names=table.column_names), out, options)
        yield out.getvalue()


def unfit_text(table: pa.Table) -> list[str]:
    """The columns with text that PostgreSQL has no place for: U+0000, or bytes that are not UTF-8."""
    found = []
    for field in table.schema:
        column = table[field.name]
        if pt.is_nested(field.type):
            texts = [json.dumps(value, default=str) for value in json_values(column)]
            unfit = any("\\u0000" in text for text in texts)
        elif _is_text(field.type):
            unfit = not _is_utf8(column) or bool(pc.any(pc.match_substring(column, "\0")).as_py())
        else:
            unfit = False
        if unfit:
            found.append(field.name)
    return found


def _rendered(column: pa.Array, column_type: str) -> pa.Array:
    """The column as something that Arrow's CSV shows in the way PostgreSQL reads it."""
    kind = column.type
    if pt.is_dictionary(kind):
        return _rendered(column.dictionary_decode(), column_type)
    if pt.is_null(kind):
        return column.cast(pa.string())
    if pt.is_float16(kind):
        return column.cast(pa.float32())
    if pt.is_timestamp(kind):
        # In UTC, which is the session's zone, and without saying so: Arrow takes 30 times as long to show a zone.
        shown = in_years(column, 1, LAST_YEAR)
        return shown.cast(pa.timestamp("us", kind.tz and "UTC"), safe=False).cast(pa.timestamp("us"))
    if pt.is_time(kind):
        return column.cast(pa.time64("us"), safe=False)
    if pt.is_date(kind):
        return in_years(column, 1, LAST_YEAR).cast(pa.date32(), safe=False)
    if pt.is_duration(kind):
        micros = column.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(micros, "microseconds", " ")
    if _is_bytes(kind) or (_is_text(kind) and column_type == "bytea"):
        return _hexadecimal(column)
    if pt.is_nested(kind):
        encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str).encode
        values = json_values(pa.chunked_array([column]))
        return pa.array([None if value is None else encode(value) for value in values], pa.string())
    return column.cast(pa.large_string()) if _is_text(kind) else column


def _hexadecimal(column: pa.Array) -> pa.Array:
    """Bytes as PostgreSQL's ``\\x6162``. The digits of all values are made at once: each value has two per byte."""
    values = column.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    digits = b"" if data is None else binascii.hexlify(memoryview(data)[starts[0] : starts[-1]])
    places = pa.py_buffer(np.ascontiguousarray((starts - starts[0]) * 2))
    texts = pa.LargeStringArray.from_buffers(len(values), places, pa.py_buffer(digits))
    marked = pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), texts, pa.scalar("", pa.large_string()))
    return pc.if_else(values.is_valid(), marked, pa.scalar(None, pa.large_string()))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)
    )


def _is_utf8(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True

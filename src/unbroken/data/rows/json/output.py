"""Arrow tables as JSON lines.

Times are ISO-8601, binary is base64, decimals are strings (a JSON number would lose digits in most readers), durations
are microseconds. What JSON or ISO-8601 has no word for is null: NaN, the infinities, and times before the year 1 or
after 9999. Every table can be written: values are rendered by Arrow, column by column, also those within nested ones.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

SLICE_ROWS = 10_000  # Bounds what is held as Python values at a time.


def json_lines(table: pa.Table) -> Iterator[bytes]:
    """The rows of ``table``, some thousand lines at a time."""
    names = table.column_names
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    for start in range(0, table.num_rows, SLICE_ROWS):
        part = table.slice(start, SLICE_ROWS)
        columns = [json_values(column) for column in part.columns]
        rows = zip(*columns, strict=True)
        yield "".join(encode(dict(zip(names, row, strict=True))) + "\n" for row in rows).encode()


def json_values(column: pa.ChunkedArray) -> list[Any]:
    """What stands for each value of a column in JSON, as Python values."""
    return [value for chunk in column.chunks for value in _values(chunk)]


def in_years(column: pa.Array, first: int, last: int) -> pa.Array:
    """A column of dates or timestamps in which those outside of these years are null."""
    kind = column.type
    per_day = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
    scale = 1 if kind == pa.date32() else per_day["ms" if kind == pa.date64() else kind.unit]
    bounds = [(dt.date(first, 1, 1).toordinal() - _EPOCH) * scale, _days_before(last + 1) * scale - 1]
    raw = column.view(pa.int32() if kind == pa.date32() else pa.int64())
    limits = [pa.scalar(max(-(2**63), min(bound, 2**63 - 1)), pa.int64()) for bound in bounds]
    wide = raw.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(wide, limits[0]), pc.less_equal(wide, limits[1]))
    return pc.if_else(inside, column, pa.scalar(None, kind))


_EPOCH = dt.date(1970, 1, 1).toordinal()


def _days_before(year: int) -> int:
    """Days from 1970 to the beginning of a year, also of one that Python has no date for."""
    rounds, rest = divmod(year - 1, 400)
    return rounds * 146_097 + dt.date(rest + 1, 1, 1).toordinal() - _EPOCH


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pt.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if pt.is_struct(kind):
        return _structs(column)
    if pt.is_map(kind):
        return _maps(column)
    if pt.is_nested(kind) and hasattr(kind, "value_type"):
        return _lists(column if pt.is_list(kind) or pt.is_large_list(kind) else column.cast(pa.list_(kind.value_type)))
    if _is_bytes(kind):
        return [None if value is None else base64.b64encode(value).decode("ascii") for value in column.to_pylist()]
    return _rendered(column)


def _rendered(column: pa.Array) -> list[Any]:
    """Values that are not nested."""
    kind = column.type
    if pt.is_timestamp(kind):
        utc = in_years(column, 1, 9999).cast(pa.timestamp(kind.unit, "UTC"))
        return list(pc.strftime(utc, format="%Y-%m-%dT%H:%M:%S" + ("Z" if kind.tz else "")).to_pylist())
    if pt.is_date(kind):
        return list(in_years(column, 1, 9999).cast(pa.string()).to_pylist())
    if pt.is_decimal(kind) or pt.is_time(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pt.is_duration(kind):
        return list(column.cast(pa.duration("us"), safe=False).cast(pa.int64()).to_pylist())
    if pt.is_floating(kind):
        # Widened first, so that a float32 is written as the number it holds.
        wide = column.cast(pa.float64())
        return list(pc.if_else(pc.is_finite(wide), wide, pa.scalar(None, pa.float64())).to_pylist())
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_null(kind):
        return list(column.to_pylist())
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return _texts(column)
    return [None if value is None else str(value) for value in column.to_pylist()]


def _texts(column: pa.Array) -> list[Any]:
    """Texts; bytes in them that are not UTF-8 are replaced."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode(errors="replace") for value in raw]


def _structs(column: pa.Array) -> list[Any]:
    names = [field.name for field in column.type]
    fields = [_values(field) for field in column.flatten()]
    rows = zip(*fields, strict=True) if fields else (() for _ in range(len(column)))
    valid = column.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]


def _lists(column: pa.Array) -> list[Any]:
    offsets = column.offsets.to_pylist()
    items = _values(column.values.slice(offsets[0], offsets[-1] - offsets[0]))
    return _cut(column, items, offsets)


def _maps(column: pa.Array) -> list[Any]:
    offsets = column.offsets.to_pylist()
    place = (offsets[0], offsets[-1] - offsets[0])
    keys, items = _values(column.keys.slice(*place)), _values(column.items.slice(*place))
    pairs = [*zip(map(_key, keys), items, strict=True)]
    return [None if entry is None else dict(entry) for entry in _cut(column, pairs, offsets)]


def _cut(column: pa.Array, items: list[Any], offsets: list[int]) -> list[Any]:
    """The items of each entry of a column, None for one that is null."""
    first, valid = offsets[0], column.is_valid().to_pylist()
    spans = zip(offsets[:-1], offsets[1:], valid, strict=True)
    return [items[start - first : end - first] if there else None for start, end, there in spans]


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)
    )


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)

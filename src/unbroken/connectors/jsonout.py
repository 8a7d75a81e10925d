"""Arrow tables as JSON lines.

Times are ISO-8601, binary is base64, decimals are strings (a JSON number would lose digits in most readers), and
NaN and the infinities, for which JSON has no word, are null.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
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
    kind = column.type
    if pt.is_dictionary(kind):
        return json_values(column.cast(kind.value_type))
    if pt.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        utc = column.cast(pa.timestamp(kind.unit, "UTC"))
        texts = pc.strftime(utc, format="%Y-%m-%dT%H:%M:%S" + zone)
    elif pt.is_date(kind) or pt.is_decimal(kind):
        texts = column.cast(pa.string())
    elif pt.is_floating(kind):
        # Widened first, so that a float32 is written as the number it holds.
        wide = column.cast(pa.float64())
        texts = pc.if_else(pc.is_finite(wide), wide, pa.scalar(None, pa.float64()))
    elif pt.is_nested(kind) or _is_bytes(kind):
        return [_plain(value, kind) for value in column.to_pylist()]
    else:
        texts = column
    return list(texts.to_pylist())


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value within a nested column."""
    if value is None:
        return None
    if pt.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pt.is_map(kind):
        return {_key(key): _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(_plain(key, pa.null()))

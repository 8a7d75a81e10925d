"""Dates and times that Arrow and Parquet can hold, but neither Python nor most databases: found, at any depth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.data.rows.values.times import YEAR_1_MS, YEAR_9999_MS

Bools = npt.NDArray[np.bool_]

REASON = "a date or time lies outside of the years 1 to 9999"

_PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
_DAY_MS = 86_400_000


def outside(table: pa.Table) -> Bools:
    """Which rows have a date or a time outside of the years 1 to 9999."""
    found = np.zeros(table.num_rows, np.bool_)
    for column in table.columns:
        if not _temporal(column.type):
            continue
        start = 0
        for chunk in column.chunks:
            found[start : start + len(chunk)] |= _outside(chunk)
            start += len(chunk)
    return found


def _temporal(kind: pa.DataType) -> bool:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return True
    return any(_temporal(kind.field(i).type) for i in range(kind.num_fields))


def _outside(array: pa.Array) -> Bools:
    kind = array.type
    if not _temporal(kind):
        return np.zeros(len(array), np.bool_)
    if pa.types.is_struct(kind):
        # Unlike `field`, this leaves out what lies under a null.
        return np.asarray(np.logical_or.reduce([_outside(child) for child in array.flatten()]), np.bool_)
    if pa.types.is_map(kind):
        entries = pa.ListArray.from_arrays(
            array.offsets, pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
        )
        return _any_item(entries if not array.null_count else _masked(entries, array))
    if pa.types.is_nested(kind):
        return _any_item(array)
    least, most = _bounds(kind)
    numbers = array.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    beyond = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
    return np.asarray(beyond.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def _masked(entries: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), entries, pa.scalar(None, entries.type))


def _any_item(lists: pa.Array) -> Bools:
    found = np.zeros(len(lists), np.bool_)
    wrong = _outside(lists.flatten())
    if wrong.any():
        found[np.asarray(pc.list_parent_indices(lists))[wrong]] = True
    return found


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_date32(kind):
        return YEAR_1_MS // _DAY_MS, YEAR_9999_MS // _DAY_MS
    times, parts = _PER_MS["ms" if pa.types.is_date64(kind) else kind.unit]
    limit = 2**63 - 1
    least, most = YEAR_1_MS * parts // times, (YEAR_9999_MS + 1) * parts // times - 1
    return max(least, -limit), min(most, limit)

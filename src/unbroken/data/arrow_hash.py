"""A 64-bit hash for every row of an Arrow table, vectorised with numpy.

It serves digests of units that never pass through Spark, and has to be equal only between Python processes.
Equal rows have equal hashes however the table is cut into chunks or slices, and whatever an unused buffer
position under a null holds. The loops below go over columns, nested levels and the words of one block, never
over rows, and long strings cost no more per byte than short ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.murmur import byte_slices, decode, float_bits, hash_slices, is_bytes, validity
from unbroken.errors import UnbrokenError

Hashes64 = npt.NDArray[np.uint64]
Longs = npt.NDArray[np.int64]

# Strings are hashed in blocks of this many bytes that are then summed up, each weighted by its place: eight
# words per block keep the loop over word positions short even for a row of many megabytes.
_BLOCK = 32
_SEEDS = (0x3C6EF372, 0x9E3779B9)
_NULL = np.uint64(0x6A09E667F3BCC909)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def row_hashes(table: pa.Table) -> Hashes64:
    """One hash per row, over all columns in the order of the schema.

    Raises
    ------
    UnbrokenError
        If a column has a type that is not hashed here; it names the column.
    """
    hashes: Hashes64 = np.full(table.num_rows, table.num_columns, np.uint64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        parts = [_hash_array(name, chunk) for chunk in column.chunks]
        values = np.concatenate(parts) if parts else np.empty(0, np.uint64)
        hashes = _chain(hashes, values)
    return hashes


def is_collection(kind: pa.DataType) -> bool:
    """Whether each value of a type is a sequence of values."""
    types = pa.types
    return bool(
        types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_map(kind)
    )


def as_list(array: pa.Array) -> pa.Array:
    """A map as a list of its entries and a fixed-size list as a list: forms that Arrow can flatten."""
    kind = array.type
    if pa.types.is_map(kind):
        return array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pa.types.is_fixed_size_list(kind):
        return array.cast(pa.large_list(kind.value_field))
    return array


def _mix(values: Hashes64) -> Hashes64:
    values = (values ^ (values >> np.uint64(30))) * _M1
    values = (values ^ (values >> np.uint64(27))) * _M2
    return values ^ (values >> np.uint64(31))


def _chain(hashes: Hashes64, values: Hashes64) -> Hashes64:
    """Hashes that depend on both in this order."""
    return _mix(hashes * _STEP + values + _STEP)


def _hash_array(name: str, array: pa.Array) -> Hashes64:
    array = decode(array)
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL, np.uint64)
    if is_bytes(kind):
        hashes = _hash_bytes(array)
    elif pa.types.is_struct(kind):
        hashes = np.full(len(array), kind.num_fields, np.uint64)
        for child in array.flatten():
            hashes = _chain(hashes, _hash_array(name, child))
    elif is_collection(kind):
        hashes = _hash_lists(name, as_list(array))
    else:
        hashes = _hash_fixed(name, array)
    if array.null_count:
        hashes = np.where(validity(array), hashes, _NULL)
    return hashes


def _hash_fixed(name: str, array: pa.Array) -> Hashes64:
    kind = array.type
    if pa.types.is_boolean(kind):
        return _mix(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64) + _STEP)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _mix(float_bits(array).astype(np.uint64) + _STEP)
    try:
        width = kind.bit_width
    except ValueError:
        width = 0
    if width % 8 or not width or (width > 64 and width % 64) or pa.types.is_nested(kind):
        raise UnbrokenError(
            f"column '{name}' holds type {kind}, of which no digest can be made: "
            "cast it to a string, a number, a timestamp or a list or struct of these"
        )
    dtype = np.dtype(f"u{min(width, 64) // 8}")
    words: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], dtype) if len(array) else np.empty(0, dtype)
    per_row = max(1, width // 64)
    words = words[array.offset * per_row : (array.offset + len(array)) * per_row].reshape(-1, per_row)
    hashes = _mix(words[:, 0].astype(np.uint64) + _STEP)
    for column in range(1, per_row):
        hashes = _chain(hashes, words[:, column])
    return hashes


def _hash_bytes(array: pa.Array) -> Hashes64:
    data, starts, lengths = byte_slices(array)
    counts = (lengths + _BLOCK - 1) // _BLOCK
    places = _places(counts)
    block_starts = np.repeat(starts, counts) + places * _BLOCK
    block_lengths = np.minimum(np.repeat(lengths, counts) - places * _BLOCK, _BLOCK)
    high, low = (
        hash_slices(data, block_starts, block_lengths, np.full(len(places), seed, np.uint32)) for seed in _SEEDS
    )
    blocks = (high.astype(np.uint64) << np.uint64(32)) | low
    return _chain(lengths.astype(np.uint64), _sums(_chain(places.astype(np.uint64), blocks), counts))


def _hash_lists(name: str, array: pa.Array) -> Hashes64:
    counts = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    items = _chain(_places(counts).astype(np.uint64), _hash_array(name, array.flatten()))
    return _chain(counts.astype(np.uint64), _sums(items, counts))


def _places(counts: Longs) -> Longs:
    """0, 1, ... within each group, for groups of these sizes one after another."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)


def _sums(values: Hashes64, counts: Longs) -> Hashes64:
    """The sum of each group; wrap-around makes differences of running sums exact."""
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    ends = np.cumsum(counts)
    sums: Hashes64 = running[ends] - running[ends - counts]
    return sums

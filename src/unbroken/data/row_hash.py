"""A 64-bit hash for every value of an Arrow column, vectorised with numpy: the only hash of rows there is.

The shard of a row follows from the hashes of its keys, and the digest of a unit from those of all its columns. It has
to be equal only between Python processes. Equal values have equal hashes however the table is cut into chunks or
slices, whatever an unused buffer position under a null holds, and whether they are encoded as dictionary, view or with
long offsets. The loops below go over columns, nested levels and the words of one block, never over rows, and long
strings cost no more per byte than short ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.errors import UnbrokenError

Hashes = npt.NDArray[np.uint64]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Strings are hashed in blocks of this many bytes that are then summed up, each weighted by its place: few words per
# block keep the loop over word positions short even for a row of many megabytes.
_BLOCK = 128
_WORD = 8
_KEPT = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], np.uint64)
"""The bits of a word of which so many bytes belong to the value."""

_NULL = np.uint64(0x6A09E667F3BCC909)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def hash_column(name: str, column: pa.ChunkedArray, *, exact: bool = True) -> Hashes:
    """One hash per value of a column.

    Unless it is to be ``exact``, of floating-point values at any depth only matters whether they are null, NaN or
    infinite: those that were computed may differ in their last bits.

    Raises
    ------
    UnbrokenError
        If the column has a type that is not hashed here; it names the column.
    """
    parts = [_hash_array(name, chunk, exact) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def chain(hashes: Hashes, values: Hashes) -> Hashes:
    """Hashes that depend on both in this order."""
    return _mix(hashes * _STEP + values + _STEP)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a type is stored as offsets and bytes (or can be cast to that)."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or kind in (pa.string_view(), pa.binary_view())
    )


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


def _mix(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * _M1
    values = (values ^ (values >> np.uint64(27))) * _M2
    return values ^ (values >> np.uint64(31))


def _decoded(array: pa.Array) -> pa.Array:
    """The values of a dictionary-encoded or extension array; any other array as it is."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _validity(array: pa.Array) -> Bools:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _hash_array(name: str, array: pa.Array, exact: bool) -> Hashes:
    array = _decoded(array)
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL, np.uint64)
    if is_bytes(kind):
        hashes = _hash_bytes(array)
    elif pa.types.is_struct(kind):
        hashes = np.full(len(array), kind.num_fields, np.uint64)
        for child in array.flatten():
            hashes = chain(hashes, _hash_array(name, child, exact))
    elif is_collection(kind):
        hashes = _hash_lists(name, as_list(array), exact, ordered=not pa.types.is_map(kind))
    else:
        hashes = _hash_fixed(name, array, exact)
    if array.null_count:
        hashes = np.where(_validity(array), hashes, _NULL)
    return hashes


def _hash_fixed(name: str, array: pa.Array, exact: bool) -> Hashes:
    kind = array.type
    if pa.types.is_boolean(kind):
        return _mix(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64) + _STEP)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _mix((_float_bits(array) if exact else _float_class(array)) + _STEP)
    if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        array = array.cast(pa.timestamp("us", kind.tz))
    try:
        width = kind.bit_width
    except ValueError:
        width = 0
    if width % 8 or not width or (width > 64 and width % 64) or pa.types.is_nested(kind):
        raise UnbrokenError(
            f"column '{name}' holds type {kind}, of which no digest can be made: "
            "cast it to a string, a number, a timestamp or a list or struct of these"
        )
    per_row = max(1, width // 64)
    words = _fixed(array, np.dtype(f"u{min(width, 64) // 8}"), per_row).reshape(-1, per_row)
    hashes = _mix(words[:, 0].astype(np.uint64) + _STEP)
    for column in range(1, per_row):
        hashes = chain(hashes, words[:, column])
    return hashes


def _fixed(array: pa.Array, dtype: npt.DTypeLike, per_row: int = 1) -> npt.NDArray[Any]:
    """The values of an array as they are stored; those of nulls are anything."""
    buffer = array.buffers()[1]
    if buffer is None:  # Arrow omits an empty one
        return np.empty(0, dtype)
    values = np.frombuffer(buffer, dtype, buffer.size // np.dtype(dtype).itemsize)
    return values[array.offset * per_row : (array.offset + len(array)) * per_row]


def _floats(array: pa.Array) -> npt.NDArray[Any]:
    return _fixed(array, np.float64 if pa.types.is_float64(array.type) else np.float32)


def _float_bits(array: pa.Array) -> Hashes:
    """The bits of floating-point values with one zero and one NaN."""
    values = _floats(array).copy()
    values[values == 0] = 0
    values[np.isnan(values)] = np.nan
    bits: npt.NDArray[Any] = values.view(f"u{values.itemsize}")
    return bits.astype(np.uint64)


def _float_class(array: pa.Array) -> Hashes:
    """0 for a finite value; NaN and the infinities have a number each."""
    values = _floats(array)
    found: Hashes = np.isnan(values) + np.uint64(2) * (values == np.inf) + np.uint64(3) * (values == -np.inf)
    return found


def _byte_slices(array: pa.Array) -> tuple[npt.NDArray[np.uint8], Longs, Longs]:
    """The bytes of a string or binary array, and where each row starts and how long it is.

    A null row has length 0 whatever its offsets say.
    """
    if array.type in (pa.string_view(), pa.binary_view()) or pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if len(array) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[~_validity(array)] = 0
    buffer = array.buffers()[2]  # Arrow omits an empty one
    data = np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0], lengths


def _hash_bytes(array: pa.Array) -> Hashes:
    data, starts, lengths = _byte_slices(array)
    if not len(lengths):
        return np.empty(0, np.uint64)
    if int(lengths.max()) <= _BLOCK:
        return chain(lengths.astype(np.uint64), _hash_blocks(data, starts, lengths))
    counts = (lengths + _BLOCK - 1) // _BLOCK
    places = _places(counts)
    block_starts = np.repeat(starts, counts) + places * _BLOCK
    block_lengths = np.minimum(np.repeat(lengths, counts) - places * _BLOCK, _BLOCK)
    blocks = _hash_blocks(data, block_starts, block_lengths)
    # The first block counts as it is: a short string has the same hash next to long ones and without them.
    weighted = np.where(places, chain(places.astype(np.uint64), blocks), blocks)
    return chain(lengths.astype(np.uint64), _sums(weighted, counts))


def _hash_blocks(data: npt.NDArray[np.uint8], starts: Longs, lengths: Longs) -> Hashes:
    """Hash ``data[start : start + length]`` for every block; an empty one has the hash 0.

    Blocks are taken from longest to shortest, so that those which still have a word at some position are a prefix: the
    work is proportional to the bytes hashed. Bytes of a word that belong to the next value are masked.
    """
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    # A word of eight bytes from any byte on.
    words: Hashes = np.ndarray((len(padded) - _WORD + 1,), np.dtype("<u8"), padded, 0, (1,))
    counts = ((lengths + _WORD - 1) // _WORD).astype(np.uint8)
    order = np.argsort(np.uint8(255) - counts, kind="stable")
    starts, lengths, counts = starts[order], lengths[order], counts[order]
    found = np.zeros(len(order), np.uint64)
    active = int(np.count_nonzero(counts))
    for position in range(int(counts[0])):
        word = words[starts[:active] + _WORD * position]
        longer = int(np.count_nonzero(counts[:active] > position + 1))
        word[longer:] &= _KEPT[lengths[longer:active] - _WORD * position]
        word ^= found[:active]
        word += _STEP
        word *= _M1
        word ^= word >> np.uint64(29)
        found[:active] = word
        active = longer
    hashes = np.empty_like(found)
    hashes[order] = found
    return hashes


def _hash_lists(name: str, array: pa.Array, exact: bool, *, ordered: bool) -> Hashes:
    """Of lists the order counts. Replicas may hold the entries of a map in different order."""
    counts = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    items = _hash_array(name, array.flatten(), exact)
    places = _places(counts).astype(np.uint64) if ordered else np.zeros(len(items), np.uint64)
    return chain(counts.astype(np.uint64), _sums(chain(places, items), counts))


def _places(counts: Longs) -> Longs:
    """0, 1, ... within each group, for groups of these sizes one after another."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)


def _sums(values: Hashes, counts: Longs) -> Hashes:
    """The sum of each group; wrap-around makes differences of running sums exact."""
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    ends = np.cumsum(counts)
    sums: Hashes = running[ends] - running[ends - counts]
    return sums

"""Spark's Murmur3 hash on Arrow columns, vectorised with numpy.

Spark decides where a row goes with ``hash(...)``: Murmur3 x86_32, seed 42, with the hash of one column as
the seed of the next and nulls leaving it as it is. Its variant for strings and binaries differs from the
textbook one: the bytes after the last whole 4-byte word are mixed in one by one, as signed integers.
Everything here gives bit for bit what Spark gives, so that Python and Spark agree on the shard of a row.

No function touches rows one by one: fixed-width columns are hashed in one sweep, byte columns in one sweep
per 4-byte word position, over the rows that still have such a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.errors import UnbrokenError

Hashes = npt.NDArray[np.uint32]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SPARK_SEED = 42

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_FIVE = np.uint32(5)
_N = np.uint32(0xE6546B64)
_F1 = np.uint32(0x85EBCA6B)
_F2 = np.uint32(0xC2B2AE35)

# Spark keeps decimals up to this many digits in a long and hashes that long.
_LONG_DECIMAL_DIGITS = 18


def _rotl(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _mix(seeds: Hashes, words: Hashes) -> Hashes:
    return _rotl(seeds ^ (_rotl(words * _C1, 15) * _C2), 13) * _FIVE + _N


def _finish(hashes: Hashes, lengths: Hashes | np.uint32) -> Hashes:
    h = hashes ^ lengths
    h = (h ^ (h >> np.uint32(16))) * _F1
    h = (h ^ (h >> np.uint32(13))) * _F2
    return h ^ (h >> np.uint32(16))


def hash_ints(words: Hashes, seeds: Hashes) -> Hashes:
    """Hash 32-bit values, given as their bits."""
    return _finish(_mix(seeds, words), np.uint32(4))


def hash_longs(values: npt.NDArray[np.uint64], seeds: Hashes) -> Hashes:
    """Hash 64-bit values, given as their bits."""
    low = values.astype(np.uint32)
    high = (values >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, low), high), np.uint32(8))


def hash_slices(data: npt.NDArray[np.uint8], starts: Longs, lengths: Longs, seeds: Hashes) -> Hashes:
    """Hash ``data[start : start + length]`` for every row.

    Rows are taken from longest to shortest, so that the rows which still have a word at some position are
    a prefix: the work is proportional to the bytes hashed, not to rows times the longest string.
    """
    if len(starts) == 0:
        return seeds.copy()
    order = np.argsort(-lengths, kind="stable")
    starts, lengths, hashes = starts[order], lengths[order], seeds[order]
    words = lengths >> 2
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    for position in range(int(words[0])):
        active = int(np.searchsorted(-words, -position, side="left"))
        at = starts[:active] + 4 * position
        word = padded[at].astype(np.uint32)
        for byte in (1, 2, 3):
            word |= padded[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes[:active] = _mix(hashes[:active], word)
    tails = lengths & 3
    for byte in range(3):
        rows = np.flatnonzero(tails > byte)
        signed = padded[starts[rows] + 4 * words[rows] + byte].view(np.int8)
        hashes[rows] = _mix(hashes[rows], signed.astype(np.int32).view(np.uint32))
    result = np.empty_like(hashes)
    result[order] = _finish(hashes, lengths.astype(np.uint32))
    return result


def _buffer(array: pa.Array, index: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """One buffer of an Arrow array as numpy; a missing buffer (Arrow omits empty ones) as an empty array."""
    buffer = array.buffers()[index]
    if buffer is None:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, count=buffer.size // np.dtype(dtype).itemsize)


def byte_slices(array: pa.Array) -> tuple[npt.NDArray[np.uint8], Longs, Longs]:
    """The bytes of a string or binary array, and where each row starts and how long it is.

    A null row has length 0 whatever its offsets say.
    """
    if array.type in (pa.string_view(), pa.binary_view()) or pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if len(array) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = _buffer(array, 1, np.int64 if large else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[~validity(array)] = 0
    data = _buffer(array, 2, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0], lengths


def validity(array: pa.Array) -> Bools:
    """True where the array has a value."""
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def float_bits(array: pa.Array) -> npt.NDArray[Any]:
    """The bits of a float array with one zero and one NaN, as Spark hashes them; nulls have any bits."""
    wide = pa.types.is_float64(array.type)
    values = _fixed(array, np.float64 if wide else np.float32).copy()
    values[values == 0] = 0
    values[np.isnan(values)] = np.nan
    bits: npt.NDArray[Any] = values.view(np.uint64 if wide else np.uint32)
    return bits


def _fixed(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    values = _buffer(array, 1, dtype)
    return values[array.offset : array.offset + len(array)]


def decode(array: pa.Array) -> pa.Array:
    """The values of a dictionary-encoded or extension array; any other array as it is."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def hash_array(name: str, array: pa.Array, seeds: Hashes) -> Hashes:
    """Hash one column as Spark does, with the hashes so far as seeds.

    Raises
    ------
    UnbrokenError
        If Spark's hash of this type cannot be reproduced here; it names the column ``name``.
    """
    array = decode(array)
    kind = array.type
    types = pa.types
    if types.is_null(kind):
        return seeds
    if types.is_boolean(kind):
        bits = array.fill_null(False).to_numpy(zero_copy_only=False)
        hashes = hash_ints(bits.astype(np.uint32), seeds)
    elif types.is_signed_integer(kind) and kind.bit_width < 64:
        values = _fixed(array, kind.to_pandas_dtype())
        hashes = hash_ints(values.astype(np.int32).view(np.uint32), seeds)
    elif types.is_date32(kind):
        hashes = hash_ints(_fixed(array, np.uint32), seeds)
    elif types.is_int64(kind) or (types.is_timestamp(kind) and kind.unit != "ns"):
        if types.is_timestamp(kind) and kind.unit != "us":
            array = array.cast(pa.timestamp("us", kind.tz))
        hashes = hash_longs(_fixed(array, np.uint64), seeds)
    elif types.is_float32(kind):
        hashes = hash_ints(float_bits(array), seeds)
    elif types.is_float64(kind):
        hashes = hash_longs(float_bits(array), seeds)
    elif types.is_decimal128(kind) and kind.precision <= _LONG_DECIMAL_DIGITS:
        low_halves = _buffer(array, 1, np.uint64)[::2]
        hashes = hash_longs(low_halves[array.offset : array.offset + len(array)], seeds)
    elif is_bytes(kind):
        hashes = hash_slices(*byte_slices(array), seeds)
    else:
        raise UnbrokenError(
            f"column '{name}' has type {kind}, which cannot be a key: "
            "cast it to a string, an integer, a date or timestamp('us') before it is used as a key"
        )
    if array.null_count:
        hashes = np.where(validity(array), hashes, seeds)
    return hashes


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

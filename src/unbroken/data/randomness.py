"""Random numbers that are a function of their position.

A generator must give the same rows whenever and wherever a range is read again, so its numbers are drawn by
counting, not from a running state: each is a hash of seed, salt and row number. Salts tell the columns of one
row apart.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from unbroken.errors import UnbrokenError

RandomWords = npt.NDArray[np.uint64]
Index = npt.NDArray[np.integer] | range
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 0xFFFFFFFFFFFFFFFF


def words(seed: int, index: Index, salt: int | str) -> RandomWords:
    """64 random bits for each position of ``index``."""
    key = zlib.crc32(salt.encode()) + (1 << 32) if isinstance(salt, str) else salt
    start = _mix(np.array([seed & _MASK], np.uint64) + _GOLDEN)
    start = _mix(start ^ np.array([key & _MASK], np.uint64)) + _GOLDEN
    rows = np.asarray(index).astype(np.int64).view(np.uint64)
    # Two rounds: a single one leaves the streams of neighbouring seeds shifted copies of each other.
    return _mix(_mix(rows * _GOLDEN + start) + start)


def uniform(seed: int, index: Index, salt: int | str) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each position of ``index``.

    Examples
    --------
    >>> float(uniform(7, np.arange(1000), "price").mean().round(1))
    0.5
    """
    return (words(seed, index, salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(seed: int, index: Index, salt: int | str, low: int, high: int) -> npt.NDArray[np.int64]:
    """An integer in [low, high) for each position of ``index``."""
    if not low < high or high - low > 1 << 32:
        raise UnbrokenError(
            f"integers from {low} to {high} cannot be drawn", "low must be below high, at most 2**32 apart"
        )
    # Multiply-shift on 32 bits: exact integer arithmetic, hence the same everywhere.
    drawn = ((words(seed, index, salt) >> np.uint64(32)) * np.uint64(high - low)) >> np.uint64(32)
    return drawn.astype(np.int64) + np.int64(low)


def _mix(x: RandomWords) -> RandomWords:
    """The finalizer of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

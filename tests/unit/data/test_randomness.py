"""Random numbers depend on their position only, and look random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.data.randomness import integers, uniform, words
from unbroken.errors import UnbrokenError

SEEDS = st.integers(-(2**70), 2**70)


@given(SEEDS, st.integers(0, 2**40), st.integers(0, 60), st.integers(0, 60), st.text(max_size=5))
def test_any_piece_of_a_range_has_the_numbers_of_the_whole(seed: int, start: int, a: int, b: int, salt: str) -> None:
    whole = uniform(seed, np.arange(start, start + a + b), salt)
    first = uniform(seed, np.arange(start, start + a), salt)
    rest = uniform(seed, np.arange(start + a, start + a + b), salt)
    assert np.array_equal(whole, np.concatenate([first, rest]))
    assert ((whole >= 0) & (whole < 1)).all()


@given(SEEDS, st.integers(-(2**40), 2**40), st.integers(1, 2**32))
def test_integers_stay_in_their_range(seed: int, low: int, width: int) -> None:
    drawn = integers(seed, range(200), "n", low, low + width)
    assert drawn.dtype == np.int64 and drawn.min() >= low and drawn.max() < low + width


def test_numbers_are_fixed_for_ever() -> None:
    # A release that changed them would make replicas of different versions diverge.
    assert words(1, range(3), "a").tolist() == words(1, np.array([0, 1, 2], np.int32), "a").tolist()
    assert integers(42, range(6), "user", 0, 1000).tolist() == [577, 546, 239, 3, 657, 672]


def test_numbers_are_spread_evenly_and_independent() -> None:
    rows = np.arange(100_000)
    streams = [uniform(seed, rows, salt) for seed in (0, 1, 2) for salt in (0, 1, "a", "b")]
    for stream in streams:
        counts, _ = np.histogram(stream, bins=20, range=(0, 1))
        assert abs(counts - 5000).max() < 400
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(streams) - np.eye(len(streams))).max() < 0.02


def test_impossible_ranges_are_explained() -> None:
    for low, high in ((5, 5), (6, 5), (0, 2**33)):
        with pytest.raises(UnbrokenError, match="low must be below high"):
            integers(0, range(3), 0, low, high)

"""The rows that a campaign's flow reads, and what must come out of it, computed without Spark.

Where pulses cut the stream of rows is decided while the flow runs, and every way to cut it is right. The results
tell it themselves: ``newest`` is the largest row number of a group so far, and every row belongs to a group, so the
largest one in a unit is the last row of its pulse. Everything else in the results follows from these cuts and the seed:
a row that is lost, doubled or counted in another pulse changes a number from there on to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from unbroken.data.randomness import integers

SCHEMA = "k int, v long"
RATE = 1_000
"""Rows per second: enough for every group to change in nearly every pulse, and little work for the machine."""

KEYS = 211
GROUPS = 16
COLUMNS = ("g", "updates", "seen", "weight", "newest", "cut_ms")

Row = tuple[int, ...]
"""The values of ``COLUMNS``."""


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    """Rows ``start`` to ``stop - 1``: a random key, and the number of the row."""
    index = np.arange(start, stop, dtype=np.int64)
    return pa.table({"k": pa.array(integers(seed, index, "k", 0, KEYS), pa.int32()), "v": index})


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a unit in an order that does not depend on Spark."""
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    return sorted(zip(*columns, strict=True))


def cuts_of(units: Iterable[Sequence[Row]]) -> list[int]:
    """Where each pulse ends (the first row behind it), given the rows of all units in order."""
    cuts: list[int] = []
    newest = COLUMNS.index("newest")
    for rows in units:
        before = cuts[-1] if cuts else 0
        cuts.append(max((row[newest] + 1 for row in rows), default=before))
    return cuts


def expected_units(seed: int, cuts: Sequence[int], cut_times_ms: Sequence[int]) -> list[list[Row]]:
    """The rows of every unit if pulse b ends before row ``cuts[b]`` and was cut at ``cut_times_ms[b]``."""
    keys = numbers(0, max(cuts, default=0), seed).column("k").to_numpy().astype(np.int64)
    reference = _Reference()
    start = 0
    out: list[list[Row]] = []
    for stop, cut_ms in zip(cuts, cut_times_ms, strict=True):
        # A cut that goes back is a fault of the results; the comparison will show it.
        out.append(reference.pulse(keys, start, stop, cut_ms) if stop > start else [])
        start = max(start, stop)
    return out


class _Reference:
    """The two aggregations of the flow, fed pulse by pulse."""

    def __init__(self) -> None:
        # Per key, as the first segment has it.
        self._n = np.zeros(KEYS, np.int64)
        self._total = np.zeros(KEYS, np.int64)
        # Per group, as the second segment has it.
        self._updates = np.zeros(GROUPS, np.int64)
        self._seen = np.zeros(GROUPS, np.int64)
        self._weight = np.zeros(GROUPS, np.int64)
        self._newest = np.full(GROUPS, -1, np.int64)

    def pulse(self, keys: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, stop: int, cut_ms: int) -> list[Row]:
        """Take rows ``start`` to ``stop - 1`` in; the groups that change."""
        index = np.arange(start, stop, dtype=np.int64)
        rows = keys[start:stop]
        np.add.at(self._n, rows, 1)
        np.add.at(self._total, rows, index)
        np.maximum.at(self._newest, rows % GROUPS, index)
        changed = np.unique(rows)
        np.add.at(self._updates, changed % GROUPS, 1)
        np.add.at(self._seen, changed % GROUPS, self._n[changed])
        np.add.at(self._weight, changed % GROUPS, self._total[changed])
        return [
            (g, int(self._updates[g]), int(self._seen[g]), int(self._weight[g]), int(self._newest[g]), cut_ms)
            for g in np.unique(changed % GROUPS).tolist()
        ]

"""The events of `unbroken bench peers`, the same for every system, and what has to be the result of them.

Event ``i`` is due ``i / rate`` seconds after a fixed time, whatever becomes of the system that processes it: it waits
in the source while a system is down, as in a log. Every ``KEYS`` events have each key once, so that a count of a key
says which events it covers, and with them how old each of them was when its result came. Nothing but results has to be
looked at for that, and no system has to carry times along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

KEYS = 10_000
STEP = 7_919
"""Has no divisor in common with ``KEYS``, so that keys come once in each round, in an order that looks random."""

FACTOR, MODULUS = 7_368_787, 1_000_003
"""Values are spread as if at random, so that maximums keep changing for a while."""

SCHEMA = "k long, v long"

PLACE = np.argsort((np.arange(KEYS, dtype=np.int64) * STEP) % KEYS)
"""Where in a round each key comes."""


@dataclass(frozen=True)
class Load:
    """Events from the time ``began_ms`` (since the epoch) on, ``rows`` in all."""

    rate: int
    rows: int
    began_ms: float

    @property
    def ended_ms(self) -> float:
        """When the last event is due."""
        return self.began_ms + 1000 * self.rows / self.rate

    def due_ms(self, index: Any) -> Any:
        """When an event is due; also for an array of them."""
        return self.began_ms + 1000 * index / self.rate


def make_rows(start: int, stop: int, seed: int = 0) -> pa.Table:
    """Events ``start`` to ``stop - 1``."""
    index = np.arange(start, stop, dtype=np.int64)
    return pa.table({"k": (index * STEP) % KEYS, "v": (index * FACTOR) % MODULUS})


def index_of(keys: Any, counts: Any) -> Any:
    """The event that made the count of a key this large."""
    return (np.asarray(counts) - 1) * KEYS + PLACE[np.asarray(keys)]


def expected_counts(rows: int) -> Any:
    """The number of events of each key among the first ``rows``."""
    return (rows - PLACE + KEYS - 1) // KEYS


def expected_tops(rows: int) -> Any:
    """The largest value of each key among the first ``rows``; -1 for a key without events."""
    index = np.arange(rows, dtype=np.int64)
    tops = np.full(KEYS, -1, dtype=np.int64)
    np.maximum.at(tops, (index * STEP) % KEYS, (index * FACTOR) % MODULUS)
    return tops

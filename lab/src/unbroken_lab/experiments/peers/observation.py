"""What is seen of a system from outside: which result came when, and so how old every event was when it was counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unbroken_lab.experiments.parameters.events import KEYS, Load, expected_counts, expected_tops, index_of


def _zeros() -> Any:
    return np.zeros(KEYS, dtype=np.int64)


@dataclass
class Observation:
    """Takes results in the order in which they come; one thread may add to it while others look.

    A result is a key's count and maximum so far. The first result that has a count of at least n for a key is the one
    that covers the key's n-th event: it may cover several, and all of them have waited for it. A count that is not
    larger than one seen before says nothing new; it is ``repeated``.
    """

    load: Load
    highest: Any = field(default_factory=_zeros)
    """The largest count of each key so far, and below the count and the maximum that came last."""
    counts: Any = field(default_factory=_zeros)
    tops: Any = field(default_factory=_zeros)
    repeated: int = 0
    _arrivals: list[tuple[float, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, arrived_ms: float, keys: Any, counts: Any, tops: Any) -> None:
        keys, counts = np.asarray(keys, dtype=np.int64), np.asarray(counts, dtype=np.int64)
        if not len(keys):
            return
        with self._lock:
            before = self.highest.copy()
            np.maximum.at(self.highest, keys, counts)
            grown = np.flatnonzero(self.highest > before)
            fresh = self.highest[grown] - before[grown]
            self.repeated += int((counts <= before[keys]).sum())
            # Of several values that are assigned to the same place the last one stays.
            self.counts[keys] = counts
            self.tops[keys] = np.asarray(tops, dtype=np.int64)
            if len(grown):
                each = np.repeat(grown, fresh)
                within = np.arange(len(each)) - np.repeat(np.cumsum(fresh) - fresh, fresh)
                self._arrivals.append((arrived_ms, index_of(each, before[each] + 1 + within)))

    def complete(self) -> bool:
        """Whether every event has been counted."""
        with self._lock:
            return bool((self.highest >= expected_counts(self.load.rows)).all())

    def counted(self) -> int:
        """Events that are in a result."""
        with self._lock:
            return int(self.highest.sum())

    def last_ms(self) -> float | None:
        """When the last result came that said something new."""
        with self._lock:
            return self._arrivals[-1][0] if self._arrivals else None

    def arrivals(self) -> Any:
        """When results came that said something new."""
        with self._lock:
            return np.array([at for at, _ in self._arrivals])

    def events(self) -> tuple[Any, Any]:
        """When each counted event was due, and how old it was when its result came; in ms, in the order of arrival."""
        with self._lock:
            arrivals = list(self._arrivals)
        if not arrivals:
            return np.empty(0), np.empty(0)
        due_ms = self.load.due_ms(np.concatenate([index for _, index in arrivals]))
        arrived_ms = np.repeat([at for at, _ in arrivals], [len(index) for _, index in arrivals])
        return due_ms, arrived_ms - due_ms

    def lost(self) -> int:
        """Events that are missing in the counts that came last."""
        return int(np.maximum(expected_counts(self.load.rows) - self.counts, 0).sum())

    def duplicated(self) -> int:
        """Events that the counts that came last have too many."""
        return int(np.maximum(self.counts - expected_counts(self.load.rows), 0).sum())

    def wrong(self) -> int:
        """Keys with the right count and another maximum than they should have."""
        right = self.counts == expected_counts(self.load.rows)
        return int((right & (self.counts > 0) & (self.tops != expected_tops(self.load.rows))).sum())

"""What is measured of a run: latency and gaps of the results before and after the kill."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

FAULT_WINDOW_MS = 5_000
"""The gap at the fault is looked for in this time after the kill."""


@dataclass(frozen=True)
class ArrivalSample:
    """The arrival of one unit of results at the subscriber."""

    pulse: int
    rows: int
    cut_ms: int
    arrived_ms: float

    @property
    def latency_ms(self) -> float:
        """The age of the newest row in the unit when it arrived."""
        return self.arrived_ms - self.cut_ms


@dataclass(frozen=True)
class DemoSchedule:
    """What happens when, in seconds after the first pulse.

    The first micro-batches of a query take seconds until Java has compiled them, so nothing is measured
    before ``warm_s``. The rest is split evenly by the kill.
    """

    warm_s: float
    kill_s: float
    end_s: float

    @classmethod
    def of(cls, seconds: float) -> DemoSchedule:
        warm_s = min(30.0, 0.4 * seconds)
        return cls(warm_s, (warm_s + seconds) / 2, seconds)


@dataclass(frozen=True)
class Spread:
    """Percentiles of the latencies of a stretch of time; None where there were no results."""

    p50: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, samples: Sequence[ArrivalSample]) -> Spread:
        if not samples:
            return cls(None, None, None)
        values = np.array([sample.latency_ms for sample in samples])
        return cls(*(round(float(np.percentile(values, q)), 1) for q in (50, 99, 100)))


@dataclass(frozen=True)
class Measures:
    """The figures of a run. ``before`` ends and ``after`` starts with the kill."""

    pulse_ms: float | None
    before: Spread
    after: Spread
    gap_before_ms: float | None
    gap_fault_ms: float | None

    @property
    def latency_bound_ms(self) -> float | None:
        """The largest latency that a masked failure may cause."""
        if self.before.p99 is None or self.pulse_ms is None:
            return None
        return self.before.p99 + self.pulse_ms

    @property
    def gap_bound_ms(self) -> float | None:
        """The longest gap that a masked failure may cause."""
        return None if self.pulse_ms is None else 2 * self.pulse_ms

    @property
    def latency_masked(self) -> bool:
        return _within(self.after.max, self.latency_bound_ms)

    @property
    def gap_masked(self) -> bool:
        return _within(self.gap_fault_ms, self.gap_bound_ms)


def measure(samples: Sequence[ArrivalSample], warm_ms: float, kill_ms: float) -> Measures:
    """The figures of a run that was warm at ``warm_ms`` and lost a node at ``kill_ms`` (times of the clock)."""
    samples = sorted(samples, key=lambda sample: sample.arrived_ms)
    before = [sample for sample in samples if warm_ms <= sample.arrived_ms < kill_ms]
    after = [sample for sample in samples if sample.arrived_ms >= kill_ms]
    cuts = np.diff(sorted(sample.cut_ms for sample in before))
    at_fault = [
        second.arrived_ms - first.arrived_ms
        for first, second in pairwise(samples)
        if second.arrived_ms > kill_ms and first.arrived_ms < kill_ms + FAULT_WINDOW_MS
    ]
    return Measures(
        pulse_ms=round(float(np.median(cuts)), 1) if len(cuts) else None,
        before=Spread.of(before),
        after=Spread.of(after),
        gap_before_ms=_largest(np.diff([sample.arrived_ms for sample in before])),
        gap_fault_ms=_largest(at_fault),
    )


def write_timeline(path: Path, samples: Sequence[ArrivalSample], start_ms: float) -> None:
    """One line per unit of results, in the order of arrival."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrived_s", "pulse", "rows", "latency_ms"])
        for sample in sorted(samples, key=lambda sample: sample.arrived_ms):
            arrived_s = f"{(sample.arrived_ms - start_ms) / 1000:.3f}"
            writer.writerow([arrived_s, sample.pulse, sample.rows, f"{sample.latency_ms:.1f}"])


def _largest(values: Any) -> float | None:
    return round(float(max(values)), 1) if len(values) else None


def _within(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value <= bound

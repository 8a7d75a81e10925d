"""What is made of a run of `unbroken bench consistency`: pure functions of arrivals and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.observation.figures import spread

CONFIRMED = 3
"""Stable units in a row that come as soon as before the failure, to count as caught up."""

BEST = ("process/process", "fork")
"""What is to keep the bound whatever happens: the policies and the way to put the past right."""

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """Which stretch of event time each pulse is: the one up to ``end_ms(pulse)``, ``bucket_ms`` long.

    Rows come at their event times, so that this is also when they came to the source.
    """

    origin_ms: int
    bucket_ms: int

    @classmethod
    def of(cls, pulse: int, newest_ms: int, bucket_ms: int) -> Grid:
        """The grid in which the newest row of ``pulse`` is of this time; buckets begin at multiples of their length."""
        return cls((newest_ms // bucket_ms + 1 - pulse) * bucket_ms, bucket_ms)

    def end_ms(self, pulse: int) -> int:
        return self.origin_ms + pulse * self.bucket_ms


@dataclass(frozen=True)
class ResultArrival:
    """A unit of results that was given to the subscriber at ``at_ms``.

    It covers the pulses after ``since`` up to ``pulse``. ``correction``: tentative results of its pulse came before.
    """

    pulse: int
    since: int
    stable: bool
    rows: int
    at_ms: float
    correction: bool = False

    def sample(self, grid: Grid) -> ArrivalSample:
        """The same as everywhere: its latency is the age of its newest row."""
        return ArrivalSample(self.pulse, self.rows, grid.end_ms(self.pulse), self.at_ms)


@dataclass(frozen=True)
class Failure:
    """A time in which an input was missing, the quiet time before it, and the time in which it was watched afterwards.

    ``planned_s`` is how long it was to be. All others in ms since the epoch.
    """

    planned_s: float
    quiet_ms: float
    began_ms: float
    healed_ms: float
    done_ms: float


Arrivals = Sequence[ResultArrival]


def between(arrivals: Arrivals, begin_ms: float, end_ms: float) -> list[ResultArrival]:
    return [arrival for arrival in arrivals if begin_ms <= arrival.at_ms < end_ms]


def delays(arrivals: Arrivals, grid: Grid, begin_ms: float, end_ms: float) -> dict[int, float]:
    """For each pulse whose first result, tentative or stable, came in this time: how old its newest row was then."""
    first: dict[int, float] = {}
    for arrival in sorted(arrivals, key=lambda one: one.at_ms):
        for pulse in range(arrival.since + 1, arrival.pulse + 1):
            first.setdefault(pulse, arrival.at_ms)
    return {pulse: at_ms - grid.end_ms(pulse) for pulse, at_ms in first.items() if begin_ms <= at_ms < end_ms}


def usual_ms(arrivals: Arrivals, grid: Grid, begin_ms: float, end_ms: float) -> float:
    """The largest latency of stable units in a quiet time, and a bucket more: later ones are not as usual."""
    quiet = [one.sample(grid).latency_ms for one in between(arrivals, begin_ms, end_ms) if one.stable]
    return max(quiet, default=0.0) + grid.bucket_ms


def caught_up_ms(arrivals: Arrivals, grid: Grid, since_ms: float, latency_ms: float) -> float | None:
    """When the first of ``CONFIRMED`` stable units in a row came that were not later than ``latency_ms``."""
    stable = [arrival for arrival in arrivals if arrival.stable and arrival.at_ms >= since_ms]
    for begin in range(len(stable) - CONFIRMED + 1):
        if all(one.sample(grid).latency_ms <= latency_ms for one in stable[begin : begin + CONFIRMED]):
            return stable[begin].at_ms
    return None


def replaced_ms(arrivals: Arrivals, since_ms: float) -> float | None:
    """When the last tentative result was replaced; None if there was none, or it was not."""
    reach = stable = 0
    found: float | None = None
    for arrival in arrivals:
        uncertain = reach > stable
        if arrival.stable:
            stable = max(stable, arrival.pulse)
        else:
            reach = max(reach, arrival.pulse)
        if uncertain and reach <= stable and arrival.at_ms >= since_ms:
            found = arrival.at_ms
    return found if reach <= stable else None


def figures(arrivals: Arrivals, grid: Grid, failure: Failure, max_delay_ms: float) -> dict[str, Any]:
    """What one failure did to the results."""
    quiet_ms, began_ms, healed_ms, done_ms = failure.quiet_ms, failure.began_ms, failure.healed_ms, failure.done_ms
    inorder = sorted(arrivals, key=lambda one: one.at_ms)
    since = between(inorder, began_ms, done_ms)
    tentative = [one for one in since if not one.stable]
    before = [one.sample(grid) for one in between(inorder, quiet_ms, began_ms) if one.stable]
    known_ms = delays(inorder, grid, began_ms, done_ms).values()
    delay_ms = round(max(known_ms), 1) if known_ms else None
    caught = caught_up_ms(since, grid, healed_ms, usual_ms(inorder, grid, quiet_ms, began_ms))
    replaced = replaced_ms(since, healed_ms)
    # Nothing tentative: only catching up is left. Something that was not replaced: it is not over.
    over = caught if not tentative else None if caught is None or replaced is None else max(caught, replaced)
    return {
        "lasted_s": _seconds(began_ms, healed_ms),
        "delay_new_ms": delay_ms,
        "delay_oldest_ms": None if delay_ms is None else round(delay_ms + grid.bucket_ms, 1),
        "below_max_delay": None if delay_ms is None else delay_ms < max_delay_ms,
        "tentative_rows": sum(one.rows for one in tentative),
        "tentative_units": len(tentative),
        "tentative_units_after": sum(one.at_ms >= healed_ms for one in tentative),
        "corrections": sum(one.correction for one in since),
        "reconciliation_s": _seconds(healed_ms, over),
        "caught_up_s": _seconds(healed_ms, caught),
        "replaced_s": _seconds(healed_ms, replaced),
        "latency_ms": {"before": spread(before)},
    }


def micro_batches(known: Iterable[Mapping[str, float]]) -> dict[str, float | None]:
    """Percentiles of how long micro-batches took, without the time in which they waited for input."""
    times = [each.get("triggerExecution", 0.0) - each.get("latestOffset", 0.0) for each in known]
    if not times:
        return {"p50": None, "p99": None, "max": None}
    return {name: round(float(np.percentile(times, q)), 1) for name, q in (("p50", 50), ("p99", 99), ("max", 100))}


def _seconds(begin_ms: float, end_ms: float | None) -> float | None:
    return None if end_ms is None else round((end_ms - begin_ms) / 1000, 3)

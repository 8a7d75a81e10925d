"""What is made of a run: pure functions of what was observed and of the time of the kill."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import Row
from unbroken_lab.experiments.peers.observation import Observation

FAULT_S = 5.0
"""What begins within this time after the kill counts as caused by it."""

CALM_S = 3.0
"""Events of so many seconds have to be as quick as before, for all to be as before."""

SLACK = 2.0
LEAST_MS = 200.0
"""As quick as before: within twice the 99th percentile before the kill, or within this."""

POINT_S = 0.25
"""One point of the picture for the events of so much time."""


@dataclass(frozen=True)
class Figures:
    """The figures of one system.

    Latency is that of events: from the time at which an event was due until a result that counts it was seen. The gap
    is the longest time without a result that says something new. ``normal_s`` is how long after the kill events were
    due that are counted as quickly as before again; None: not within the run.
    """

    p50_ms: float
    p99_ms: float
    gap_before_ms: float
    fault_max_ms: float
    fault_gap_ms: float
    normal_s: float | None
    lost: int
    duplicated: int
    wrong: int
    repeated: int
    cpu_s: float
    cores: float

    def to_row(self) -> Row:
        return asdict(self)


def figures_of(
    seen: Observation, warm_ms: float, killed_ms: float, cpu_s: float = 0.0, measured_s: float = 0.0
) -> Figures:
    due_ms, age_ms = seen.events()
    arrivals = seen.arrivals()
    came_ms = due_ms + age_ms
    before = age_ms[(came_ms >= warm_ms) & (came_ms < killed_ms)]
    if not len(before) or not (came_ms >= killed_ms).any():
        raise UnbrokenError("no results came in the time before the kill, or none after it; measure for longer")
    p50, p99 = (float(np.percentile(before, q)) for q in (50, 99))
    normal_s = back_to_normal_s(due_ms, age_ms, killed_ms, max(SLACK * p99, LEAST_MS), FAULT_S * 1000)
    until_ms = killed_ms + 1000 * max(FAULT_S, normal_s or 0.0)
    struck = age_ms[(came_ms >= killed_ms) & (due_ms < until_ms)]
    return Figures(
        p50_ms=round(p50, 1),
        p99_ms=round(p99, 1),
        gap_before_ms=_longest(arrivals[(arrivals >= warm_ms) & (arrivals < killed_ms)]),
        fault_max_ms=round(float(struck.max()), 1),
        fault_gap_ms=fault_gap_ms(arrivals, killed_ms),
        normal_s=normal_s,
        lost=seen.lost(),
        duplicated=seen.duplicated(),
        wrong=seen.wrong(),
        repeated=seen.repeated,
        cpu_s=cpu_s,
        cores=round(cpu_s / measured_s, 3) if measured_s else 0.0,
    )


def fault_gap_ms(arrivals: Any, killed_ms: float) -> float:
    """The longest time between two arrivals that ends after the kill and begins within ``FAULT_S`` after it."""
    begin, end = arrivals[:-1], arrivals[1:]
    struck = (end > killed_ms) & (begin < killed_ms + FAULT_S * 1000)
    return round(float((end - begin)[struck].max(initial=0.0)), 1)


def back_to_normal_s(
    due_ms: Any, age_ms: Any, killed_ms: float, bound_ms: float, struck_ms: float = 0.0
) -> float | None:
    """The first time after the kill from which on the events due in ``CALM_S`` seconds are all within the bound.

    What the kill does may show later, but less than ``struck_ms`` after it: calm that ends before is none.
    """
    since = (due_ms >= killed_ms) if len(due_ms) else np.zeros(0, dtype=bool)
    order = np.argsort(due_ms[since], kind="stable")
    due, late = due_ms[since][order], age_ms[since][order] > bound_ms
    if not len(due):
        return None
    # Calm begins with the kill or right after a late event, and lasts until the next late one or the end of the run.
    begins = np.concatenate([[killed_ms], due[late]])
    ends = np.concatenate([due[late], [due[-1]]])
    calm = np.flatnonzero((ends - begins >= CALM_S * 1000) & (ends >= killed_ms + struck_ms))
    return round(float(begins[calm[0]] - killed_ms) / 1000, 2) if len(calm) else None


def course(seen: Observation, killed_ms: float) -> list[Row]:
    """The largest and the median latency of the events of each quarter of a second, in the order in which they were
    due; times are seconds since the kill."""
    due_ms, age_ms = seen.events()
    if not len(due_ms):
        return []
    place = np.floor((due_ms - killed_ms) / 1000 / POINT_S).astype(np.int64)
    order = np.argsort(place, kind="stable")
    numbers, begins = np.unique(place[order], return_index=True)
    return [
        {
            "at_s": round(float(number) * POINT_S, 3),
            "events": len(ages),
            "latency_ms": round(float(np.median(ages)), 1),
            "latency_max_ms": round(float(ages.max()), 1),
        }
        for number, ages in zip(numbers, np.split(age_ms[order], begins[1:]), strict=True)
    ]


def _longest(arrivals: Any) -> float:
    return round(float(np.diff(arrivals).max(initial=0.0)), 1)

"""What is made of a run of `unbroken bench strategies`: pure functions of counters, arrivals and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.demo.measure import Sample
from unbroken_lab.experiments.delivery import PURPOSES, Reading
from unbroken_lab.experiments.figures import Phases, Samples, gap

UNDETECTED = frozenset({Ha.ACTIVE.value, Ha.NONE.value})
"""Strategies in which nothing waits for a failure to be detected: others have computed the results anyway, or the node
is started again by whoever killed it."""

CONFIRMED = 3
"""Units in a row whose latency is as before the kill, to count as fully recovered."""

OVERHEAD_AIM = 0.1
"""Upstream backup should cost at most this part of what active replicas cost, in bytes."""

GAP_AIM = 1 / 3
"""Passive standby and upstream backup should be back in at most this part of the time that plain Spark takes."""

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Recovery:
    """When a loss was noticed, results came again, and came as soon as before; ms since the epoch, None: never.

    The latency of a unit is that of its newest row, as everywhere; what has piled up comes with the first units after
    the loss, so that it is as before as soon as they are through.
    """

    killed_ms: float
    detected_ms: float | None
    resumed_ms: float | None
    recovered_ms: float | None

    @classmethod
    def of(cls, samples: Iterable[Sample], killed_ms: float, detected_ms: float | None) -> Recovery:
        phases = Phases.of(samples, killed_ms, float("inf"))
        since = killed_ms if detected_ms is None else detected_ms
        newest = max((sample.pulse for sample in phases.before), default=0)
        fresh = [s for s in phases.during if s.arrived_ms >= since and s.pulse > newest]
        resumed_ms = fresh[0].arrived_ms if fresh else None
        usual_ms = max((sample.latency_ms for sample in phases.before), default=0.0)
        return cls(killed_ms, detected_ms, resumed_ms, _settled(fresh, usual_ms))

    def to_json(self) -> dict[str, Any]:
        def since(begin_ms: float | None, end_ms: float | None) -> float | None:
            return None if begin_ms is None or end_ms is None else round((end_ms - begin_ms) / 1000, 3)

        return {
            "detection_s": since(self.killed_ms, self.detected_ms),
            "partial_s": {
                "from_kill": since(self.killed_ms, self.resumed_ms),
                "from_detection": since(self.detected_ms, self.resumed_ms),
            },
            "full_s": {
                "from_kill": since(self.killed_ms, self.recovered_ms),
                "from_detection": since(self.detected_ms, self.recovered_ms),
            },
        }


def spent(first: Reading, last: Reading) -> dict[str, int]:
    """Bytes by purpose between two readings of the nodes' counters, and all of them together."""
    used = {purpose: last.traffic.get(purpose, 0) - first.traffic.get(purpose, 0) for purpose in PURPOSES}
    if min(used.values()) < 0:
        raise UnbrokenError("the counters went back: a node or a link was begun anew in the quiet time; try again")
    return {**used, "total": sum(used.values())}


def first_notice(history: Iterable[Mapping[str, Any]], killed_ms: float, about: Sequence[str]) -> float | None:
    """When the first sentence after the kill was written that names one of those that it is ``about``."""
    times = [
        float(entry["time_ms"])
        for entry in history
        # Entries have whole milliseconds.
        if entry["time_ms"] >= int(killed_ms) and any(name in str(entry["sentence"]) for name in about)
    ]
    return max(min(times), killed_ms) if times else None


def told_since(history: Iterable[Mapping[str, Any]], killed_ms: float) -> list[str]:
    """What was told from the kill on, each with the seconds after it."""
    return [
        f"{max(0.0, entry['time_ms'] - killed_ms) / 1000:.2f} s, {entry['node']}: {entry['sentence']}"
        for entry in history
        if entry["time_ms"] >= int(killed_ms)
    ]


def gaps(samples: Samples, killed_ms: float) -> dict[str, float]:
    """The longest time between two results, in the steady time before the kill and from then to the end."""
    phases = Phases.of(samples, killed_ms, float("inf"))
    return {"before": gap(phases.before), "after": gap([*phases.before[-1:], *phases.during])}


def missing_units(numbers: Iterable[int]) -> int:
    """Units that did not come between the first and the last that did."""
    known = set(numbers)
    return max(known) - min(known) + 1 - len(known) if known else 0


def ratios(runs: Sequence[Run], restart_gap_ms: float | None) -> dict[str, Any]:
    """Strategies beside each other and beside a restart of plain Spark, for each interval; None: it cannot be told."""
    overhead = _by_interval(runs, "upstream", "active", _overheads)
    pulses = _by_interval(runs, "active", "active", lambda run, _: _ratio(run["gap_ms"]["after"], run["pulse_ms"]))
    restart = {
        name: _by_interval(runs, name, name, lambda run, _: _ratio(run["gap_ms"]["after"], restart_gap_ms))
        for name in ("passive", "upstream")
    }
    return {
        "overhead_upstream_to_active": overhead,
        "gap_to_plain_restart": restart,
        "gap_active_to_pulse": pulses,
        "aims": {"overhead_upstream_to_active": OVERHEAD_AIM, "gap_to_plain_restart": round(GAP_AIM, 3)},
        "met": {
            "overhead_upstream_to_active": _met(overhead.values(), OVERHEAD_AIM),
            "gap_to_plain_restart": _met([v for values in restart.values() for v in values.values()], GAP_AIM),
        },
    }


def _by_interval(
    runs: Sequence[Run], one: str, other: str, compare: Callable[[Run, Run], float | None]
) -> dict[str, float | None]:
    """Two strategies compared, for each interval at which both were measured."""
    done = {(str(run["strategy"]), int(run["interval"])): run for run in runs if "error" not in run}
    return {
        str(interval): compare(run, done[other, interval])
        for (name, interval), run in sorted(done.items())
        if name == one and (other, interval) in done
    }


def _overheads(one: Run, other: Run) -> float | None:
    return _ratio(one["overhead"], other["overhead"])


def _settled(samples: Samples, usual_ms: float) -> float | None:
    """When the first of ``CONFIRMED`` units in a row came that were not later than usual."""
    for begin in range(len(samples) - CONFIRMED + 1):
        if all(sample.latency_ms <= usual_ms for sample in samples[begin : begin + CONFIRMED]):
            return samples[begin].arrived_ms
    return None


def _ratio(value: float | None, to: float | None) -> float | None:
    return None if value is None or not to else round(value / to, 4)


def _met(values: Iterable[float | None], aim: float) -> bool | None:
    """Whether all that was measured is within the aim; None if nothing was."""
    known = [value for value in values if value is not None]
    return all(value <= aim for value in known) if known else None

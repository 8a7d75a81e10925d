"""What is made of a run of `unbroken bench strategies`: pure functions of counters, arrivals and notices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unbroken.observe.notices import line_of
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.experiment import ReportClaim, Rows, aimed, number, ratio_of, seen
from unbroken_lab.experiments.observation.figures import Phases, Samples, gap

UNDETECTED = frozenset({Ha.ACTIVE.value, Ha.NONE.value})
"""Strategies in which nothing waits for a failure to be detected: others have computed the results anyway, or the node
is restarted by the experiment that killed it."""

CONFIRMED = 3
"""Units in a row whose latency is as before the kill, to count as fully recovered."""

OVERHEAD_AIM = 0.1
"""Upstream backup should cost at most this part of what active replicas cost, in bytes."""

GAP_AIM = 1 / 3
"""Passive standby and upstream backup should be back in at most this part of the time that plain Spark takes."""

PLAIN = "plain Spark, restarted"
"""What all strategies are compared with."""

GAP = "gap_ms.after"


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
    def of(cls, samples: Iterable[ArrivalSample], killed_ms: float, detected_ms: float | None) -> Recovery:
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


def first_notice(history: Iterable[Reported], killed_ms: float, about: Sequence[str]) -> float | None:
    """When the first notice after the kill was reported that names one of those that it is ``about``."""
    times = [
        float(reported.time_ms)
        for reported in history
        # Reports have whole milliseconds.
        if reported.time_ms >= int(killed_ms) and not reported.notice.names().isdisjoint(about)
    ]
    return max(min(times), killed_ms) if times else None


def told_since(history: Iterable[Reported], killed_ms: float) -> list[str]:
    """What was reported from the kill on, each with the seconds after it."""
    return [
        f"{max(0.0, reported.time_ms - killed_ms) / 1000:.2f} s, {line_of(reported)}"
        for reported in history
        if reported.time_ms >= int(killed_ms)
    ]


def gaps(samples: Samples, killed_ms: float) -> dict[str, float]:
    """The longest time between two results, in the steady time before the kill and from then to the end."""
    phases = Phases.of(samples, killed_ms, float("inf"))
    return {"before": gap(phases.before), "after": gap([*phases.before[-1:], *phases.during])}


def missing_units(numbers: Iterable[int]) -> int:
    """Units that did not come between the first and the last that did."""
    known = set(numbers)
    return max(known) - min(known) + 1 - len(known) if known else 0


def strategy_claims(rows: Rows) -> list[ReportClaim]:
    """Strategies beside each other and beside a restart of plain Spark, for each interval that was measured."""
    done = {(str(row["strategy"]), str(row["interval"])): row for row in rows}
    restart_ms = next((number(row, GAP) for (name, _), row in done.items() if name == PLAIN), None)
    out: list[ReportClaim] = []
    for (name, interval), row in done.items():
        every = f"every {interval} units"
        active = done.get((Ha.ACTIVE.value, interval))
        if name == Ha.UPSTREAM.value and active is not None:
            ratio = ratio_of(number(row, "overhead"), number(active, "overhead"))
            what, aim = f"overhead of upstream for each of active, {every}", f"at most {OVERHEAD_AIM:g}"
            out.append(aimed(what, aim, ratio, lambda value: value <= OVERHEAD_AIM))
        if name == Ha.ACTIVE.value:
            ratio = ratio_of(number(row, GAP), number(row, "pulse_ms"))
            out.append(seen(f"gap of active in pulses, {every}", "unknown" if ratio is None else f"{ratio:.2f}"))
        if name in (Ha.PASSIVE.value, Ha.UPSTREAM.value):
            ratio = ratio_of(number(row, GAP), restart_ms)
            what, aim = f"gap of {name} for each of a restart of plain Spark, {every}", f"at most {GAP_AIM:.3f}"
            out.append(aimed(what, aim, ratio, lambda value: value <= GAP_AIM))
    return out


def _settled(samples: Samples, usual_ms: float) -> float | None:
    """When the first of ``CONFIRMED`` units in a row came that were not later than usual."""
    for begin in range(len(samples) - CONFIRMED + 1):
        if all(sample.latency_ms <= usual_ms for sample in samples[begin : begin + CONFIRMED]):
            return samples[begin].arrived_ms
    return None

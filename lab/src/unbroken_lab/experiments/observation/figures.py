"""What is made of the results of a run that lost a node: pure functions of samples and readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from unbroken_lab.demo.measure import ArrivalSample, Spread

STEADY_S = 15.0
"""Time before the kill in which everything is as usual, to compare with."""

Samples = Sequence[ArrivalSample]


@dataclass(frozen=True)
class Phases:
    """The results that came in the steady time before the kill, from the kill until redundancy was back, and later."""

    before: Samples
    during: Samples
    after: Samples

    @classmethod
    def of(cls, samples: Iterable[ArrivalSample], killed_ms: float, restored_ms: float) -> Phases:
        inorder = sorted(samples, key=lambda sample: sample.arrived_ms)
        return cls(
            [s for s in inorder if killed_ms - STEADY_S * 1000 <= s.arrived_ms < killed_ms],
            [s for s in inorder if killed_ms <= s.arrived_ms <= restored_ms],
            [s for s in inorder if s.arrived_ms > restored_ms],
        )


def judge(samples: Iterable[ArrivalSample], killed_ms: float, restored_ms: float) -> dict[str, Any]:
    """Latency before the kill, from the kill until redundancy is back, and afterwards; and the longest silence."""
    phases = Phases.of(samples, killed_ms, restored_ms)
    return {
        "pulse_ms": pulse(phases.before),
        "latency_ms": {
            "before": spread(phases.before),
            "during": spread(phases.during),
            "after": spread(phases.after),
        },
        "gap_ms": {"before": gap(phases.before), "during": gap([*phases.before[-1:], *phases.during])},
    }


def compare_shards(
    by_shard: Mapping[int, Samples], shards: Iterable[int], killed_ms: float, restored_ms: float
) -> dict[str, Any]:
    """How much later the results of some shards were while redundancy came back than in the steady time before.

    ``within_a_pulse`` says whether neither the 99th percentile nor the largest latency grew by more than one pulse of
    the steady time: a result that is late by less does not delay the next one.
    """
    chosen = sorted(shards)
    phases = Phases.of((s for shard in chosen for s in by_shard.get(shard, ())), killed_ms, restored_ms)
    pulse_ms = pulse(phases.before)
    before, during = Spread.of(phases.before), Spread.of(phases.during)
    change = {"p99": _change(before.p99, during.p99), "max": _change(before.max, during.max)}
    known = [value for value in change.values() if value is not None]
    single = [Phases.of(by_shard.get(shard, ()), killed_ms, restored_ms) for shard in chosen]
    return {
        "latency_ms": {"before": asdict(before), "during": asdict(during)},
        "change_ms": change,
        "pulse_ms": {"before": pulse_ms, "during": pulse(phases.during)},
        "gap_ms": {
            "before": max((gap(one.before) for one in single), default=0.0),
            "during": max((gap([*one.before[-1:], *one.during]) for one in single), default=0.0),
        },
        "within_a_pulse": len(known) == len(change) and max(known) <= pulse_ms,
    }


def pulse(samples: Samples) -> float:
    """The median time between two cuts; the units of a pulse have the same cut, whatever their shard."""
    cuts = np.diff(sorted({sample.cut_ms for sample in samples}))
    return round(float(np.median(cuts)), 1) if len(cuts) else 0.0


def spread(samples: Samples) -> dict[str, float | None]:
    return asdict(Spread.of(samples))


def gap(samples: Samples) -> float:
    """The longest time between two arrivals."""
    times = sorted(sample.arrived_ms for sample in samples)
    return round(max((b - a for a, b in pairwise(times)), default=0.0), 1)


def _change(before: float | None, during: float | None) -> float | None:
    return None if before is None or during is None else round(during - before, 1)

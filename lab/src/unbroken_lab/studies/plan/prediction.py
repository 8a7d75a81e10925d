"""What is asked about a flow, and what its strategies come to: values, and the figures that follow from them."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from unbroken.errors import Problem, UnbrokenError
from unbroken.observe.status.traffic import overhead
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.experiments.observation.usage import PURPOSES
from unbroken_lab.sim.exposure import Exposure
from unbroken_lab.studies.calibration.calibration import Calibration
from unbroken_lab.studies.reliability.reliability import HOURS_PER_YEAR

QUIET_MS = 18_000.0
"""Simulated time of a run in which bytes are counted and nothing happens."""

MOST_NODES = 100
MOST_INTERVAL = 1_000


@dataclass(frozen=True)
class LinkCapacity:
    """Between any two nodes."""

    bytes_per_s: float
    latency_ms: float


@dataclass(frozen=True)
class Question:
    """What is asked about a flow.

    ``rate`` is the number of rows per second of all sources together. ``mttf_h`` is the time after which a machine
    fails, ``mttr_h`` that after which one is back. ``segments`` are those whose ``ha`` is to be chosen; none: all.
    """

    rate: float
    nodes: int
    link: LinkCapacity
    mttf_h: float = 720.0
    mttr_h: float = 1 / 6
    interval: int | None = None
    segments: tuple[str, ...] = ()
    runs: int = 4
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("rate", "mttf_h", "mttr_h"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UnbrokenError(f"{name} is {getattr(self, name)}: it has to be more than nothing")
        if not 1 <= self.nodes <= MOST_NODES:
            raise UnbrokenError(f"{self.nodes} nodes: give a number from 1 to {MOST_NODES}")
        if self.interval is not None and not 1 <= self.interval <= MOST_INTERVAL:
            raise UnbrokenError(f"an interval of {self.interval} units: give a number from 1 to {MOST_INTERVAL}")
        if self.runs < 1:
            raise UnbrokenError(f"{self.runs} runs tell nothing; give 1 or more")


@dataclass(frozen=True)
class PredictedRun:
    """One run: bytes of the quiet time by purpose, and what followed the kill of ``node``. Times are in seconds.

    None: it did not come within the time that was looked at.
    """

    node: NodeId
    bytes: dict[str, int]
    latency_ms: float
    detection_s: float | None
    partial_s: float | None
    full_s: float | None
    gap_before_s: float
    gap_s: float
    redundant_s: float | None


@dataclass(frozen=True)
class Prediction:
    """What one strategy comes to. Without ``runs`` the flow cannot use it, and ``problems`` say why.

    ``hosts`` are the nodes whose loss is noticed: those that work for the chosen segments, whether or not there were
    enough runs to kill each of them.
    """

    ha: Ha
    segments: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    runs: tuple[PredictedRun, ...] = ()
    hosts: tuple[NodeId, ...] = ()
    exposure: Exposure | None = None
    repair_h: float | None = None
    question: Question | None = None

    @property
    def possible(self) -> bool:
        return bool(self.runs)

    @property
    def bytes(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for run in self.runs:
            total.update(run.bytes)
        return {purpose: total[purpose] for purpose in PURPOSES}

    @property
    def overhead(self) -> float | None:
        """Bytes for availability per byte of data; None where nothing is sent between nodes."""
        return overhead(self.bytes)

    @property
    def bytes_per_s(self) -> dict[str, float]:
        """Bytes by purpose in a second, on average."""
        return {purpose: count / len(self.runs) / (QUIET_MS / 1000) for purpose, count in self.bytes.items()}

    @property
    def interruption_s(self) -> float | None:
        """How much longer than usual there are no results when a node is lost; with ``none``, until it is back."""
        if not self.runs or any(run.partial_s is None for run in self.runs):
            return None
        mean = statistics.mean(max(0.0, run.gap_s - run.gap_before_s) for run in self.runs)
        waits = self.question.mttr_h * 3600 if self.ha is Ha.NONE and self.question is not None else 0.0
        return mean + waits

    @property
    def mttf_h(self) -> float | None:
        """Mean time until more is lost than the strategy covers; None: longer than can be told."""
        if self.exposure is None or self.repair_h is None or self.question is None:
            return None
        return self.exposure.mean_hours(self.question.mttf_h, self.repair_h)

    @property
    def missing_s_per_year(self) -> float | None:
        """Seconds without results in a year: nodes that are lost one by one, and losses that are not covered."""
        interruption = self.interruption_s
        if interruption is None or self.question is None:
            return None
        single = HOURS_PER_YEAR / self.question.mttf_h * len(self.hosts) * interruption
        beyond = 0.0 if self.mttf_h is None or self.ha is Ha.NONE else HOURS_PER_YEAR / self.mttf_h
        return single + beyond * self.question.mttr_h * 3600

    def median(self, figure: str) -> float | None:
        values = [getattr(run, figure) for run in self.runs]
        return None if not values or None in values else float(statistics.median(values))

    def worst(self, figure: str) -> float | None:
        values = [getattr(run, figure) for run in self.runs]
        return None if not values or None in values else float(max(values))

    def to_json(self) -> dict[str, Any]:
        if not self.possible:
            reasons = [{"where": p.where, "what": p.what, "remedy": p.remedy} for p in self.problems]
            return {"ha": self.ha.value, "possible": False, "problems": reasons}
        assert self.exposure is not None
        return {
            "ha": self.ha.value,
            "possible": True,
            "overhead": self.overhead,
            "bytes_per_s": {purpose: round(count, 1) for purpose, count in self.bytes_per_s.items()},
            "latency_ms": _rounded(self.median("latency_ms"), 1),
            "detection_s": _rounded(self.median("detection_s")),
            "partial_s": _rounded(self.median("partial_s")),
            "full_s": _rounded(self.median("full_s")),
            "gap_s": {"before": _rounded(self.median("gap_before_s")), "after": _rounded(self.median("gap_s"))},
            "worst_gap_s": _rounded(self.worst("gap_s")),
            "redundant_s": _rounded(self.median("redundant_s")),
            "deadly": list(self.exposure.deadly),
            "hosts": list(self.hosts),
            "repair_h": self.repair_h,
            "mttf_h": self.mttf_h,
            "missing_s_per_year": _rounded(self.missing_s_per_year, 1),
            "runs": [{**vars(run), "bytes": run.bytes} for run in self.runs],
        }


@dataclass(frozen=True)
class StrategyComparison:
    """The strategies beside each other, for one flow and one question."""

    flow: str
    question: Question
    calibration: Calibration
    predictions: tuple[Prediction, ...]
    segments: tuple[str, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def of(self, ha: Ha) -> Prediction:
        return next(found for found in self.predictions if found.ha is ha)

    def to_json(self) -> dict[str, Any]:
        asked = {**vars(self.question), "link": vars(self.question.link), "segments": list(self.segments)}
        return {
            "flow": self.flow,
            "question": asked,
            "notes": list(self.notes),
            "strategies": [prediction.to_json() for prediction in self.predictions],
            "calibration": self.calibration.to_json(),
        }


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)

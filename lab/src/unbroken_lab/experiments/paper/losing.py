"""What experiments in which a node is lost have in common: how long a run takes, and the row that is kept of it."""

from __future__ import annotations

from typing import Any

from unbroken_lab.experiments.experiment import Row, Size
from unbroken_lab.experiments.observation.losses import Loss
from unbroken_lab.experiments.recovery.strategies import Trial

RATE = 2_000


def trial_of(strategy: str, interval: int, loss: Loss, size: Size) -> Trial:
    """A run of little more than a minute, or one that is as short as it can be."""
    trial = Trial(strategy, interval, RATE, loss, start_s=15.0, warm_s=15.0, quiet_s=12.0)
    return trial.shortened() if size.quick else trial


def row_of(figures: dict[str, Any]) -> Row:
    """The figures of a run as one row: times in seconds from the loss, and what it cost before that."""
    spread = figures["latency_ms"]["before"]
    return {
        "overhead": figures["overhead"],
        "cpu_cores": figures["cpu_cores"],
        "pulse_s": _seconds(figures["pulse_ms"]),
        "p50_s": _seconds(spread["p50"]),
        "p99_s": _seconds(spread["p99"]),
        "detected_s": figures["detection_s"],
        "resumed_s": figures["partial_s"]["from_kill"],
        "recovered_s": figures["full_s"]["from_kill"],
        "recovered_from_detection_s": figures["full_s"]["from_detection"],
        "gap_s": _seconds(figures["gap_ms"]["after"]),
        "gap_before_s": _seconds(figures["gap_ms"]["before"]),
        "lost": figures["lost"],
        "duplicated": figures["duplicated"],
        "missing_units": figures["missing_units"],
        "controlled": figures["controlled"],
    }


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms / 1000, 3)

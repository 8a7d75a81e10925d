"""The picture of a run: output rate and latency over time, with the kill marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unbroken_lab.demo.measure import ArrivalSample, DemoSchedule, Measures

RATE_COLOR, LATENCY_COLOR, KILL_COLOR, QUIET = "#1f6f8b", "#5b4b8a", "#c0392b", "#8a8a8a"
BIN_S = 1.0


def draw(
    path: Path,
    title: str,
    samples: Sequence[ArrivalSample],
    start_ms: float,
    schedule: DemoSchedule,
    killed: tuple[str, float] | None,
    measures: Measures,
) -> None:
    """Write the picture; ``killed`` is the node and the second of its kill."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    samples = sorted(samples, key=lambda sample: sample.arrived_ms)
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(10, 6), layout="constrained")
    try:
        figure.suptitle(title, fontsize=12)
        _draw_rate(upper, samples, start_ms, schedule)
        _draw_latency(lower, samples, start_ms, schedule, measures)
        for axes in (upper, lower):
            _decorate(axes, schedule, killed)
        upper.annotate(
            "warm-up, not measured", (schedule.warm_s / 2, 0.06), xycoords=("data", "axes fraction"),
            ha="center", fontsize=8, color=QUIET,
        )  # fmt: skip
        if killed is not None:
            name, second = killed
            upper.annotate(
                f" {name} killed", (second, 0.06), xycoords=("data", "axes fraction"), fontsize=9, color=KILL_COLOR
            )
        figure.savefig(path, dpi=130)
    finally:
        plt.close(figure)


def output_rate(samples: Sequence[ArrivalSample], start_ms: float) -> tuple[list[float], list[float]]:
    """Rows per second in bins of a second.

    The rows of a unit are spread over the time since the unit before, so that bins and pulses of about the
    same length make no pattern, and a gap shows as a gap.
    """
    if len(samples) < 2:
        return [], []
    arrived = np.array([(sample.arrived_ms - start_ms) / 1000 for sample in samples])
    total = np.cumsum([sample.rows for sample in samples])
    edges = np.arange(np.ceil(arrived[0]), arrived[-1], BIN_S)
    rates = np.diff(np.interp(edges, arrived, total)) / BIN_S
    return [float(x) for x in edges[:-1] + BIN_S / 2], [float(x) for x in rates]


def _draw_rate(axes: Any, samples: Sequence[ArrivalSample], start_ms: float, schedule: DemoSchedule) -> None:
    seconds, rates = output_rate(samples, start_ms)
    axes.plot(seconds, rates, color=RATE_COLOR, linewidth=1.6)
    measured = [rate for second, rate in zip(seconds, rates, strict=True) if second >= schedule.warm_s]
    axes.set_ylim(0, 1.5 * max(measured or rates or [1.0]))
    axes.set_ylabel("results per second")


def _draw_latency(
    axes: Any, samples: Sequence[ArrivalSample], start_ms: float, schedule: DemoSchedule, measures: Measures
) -> None:
    seconds = [(sample.arrived_ms - start_ms) / 1000 for sample in samples]
    latencies = [sample.latency_ms for sample in samples]
    axes.plot(seconds, latencies, ".", color=LATENCY_COLOR, markersize=5, label="one unit of results")
    bound = measures.latency_bound_ms
    if bound is not None:
        axes.axhline(bound, color=QUIET, linewidth=1, linestyle="--", label="p99 before + one pulse")
    measured = [value for second, value in zip(seconds, latencies, strict=True) if second >= schedule.warm_s]
    axes.set_ylim(0, 1.3 * max([*(measured or latencies or [1.0]), bound or 0.0]))
    axes.set_ylabel("latency in ms")
    axes.set_xlabel("seconds since the first packet")
    axes.legend(loc="upper right", fontsize=8, frameon=False)


def _decorate(axes: Any, schedule: DemoSchedule, killed: tuple[str, float] | None) -> None:
    axes.axvspan(0, schedule.warm_s, color="#eeeeee", zorder=0)
    axes.set_xlim(0, schedule.end_s + 1)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if killed is not None:
        axes.axvline(killed[1], color=KILL_COLOR, linewidth=1.4)

"""Experiments of Hwang et al. from three sides, formula, paper and simulation, as lines, a CSV file and a picture.

All of it works without any result, too: formulas beside what the paper states.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken_lab.studies.hwang.model import Approach, CaseRange, Measure
from unbroken_lab.studies.hwang.paper import PaperPoint
from unbroken_lab.studies.hwang.study import MeasuredMean, Sweep

COLORS = {
    Approach.PASSIVE: "#c0392b",
    Approach.ACTIVE: "#5b4b8a",
    Approach.UPSTREAM: "#1f6f8b",
    Approach.AMNESIA: "#8a8a8a",
}
NEUTRAL = "#333333"
MARKERS = {Approach.PASSIVE: "s", Approach.ACTIVE: "^", Approach.UPSTREAM: "o", Approach.AMNESIA: "d"}
"""Approaches differ in more than color, as their points often coincide."""

BROKEN = ((0.98, 1.18), (0.0, 0.1))
"""The ranges of overheads over the interval that there are: two approaches copy all tuples, one does not."""

AXES = {
    Measure.OVERHEAD.value: "bytes for availability per byte of tuples",
    Measure.PARTIAL_RECOVERY.value: "partial recovery in ms",
    Measure.FULL_RECOVERY.value: "full recovery in ms",
    Measure.DELAY.value: "delay of a tuple in ms",
    Measure.BANDWIDTH.value: "bandwidth, relative to upstream backup on 4 nodes",
    "interval_ms": "interval between checkpoints or trimming messages in ms",
    "time_ms": "ms since the failure",
    "boxes": "operators per node",
}
"""What the axes say, where the name of what varies is not enough."""


@dataclass(frozen=True)
class ComparedPoint:
    """One point of an experiment from all sides; None where a side has nothing to say."""

    approach: Approach
    measure: Measure
    x: float
    formula: CaseRange | None = None
    paper: PaperPoint | None = None
    result: MeasuredMean | None = None


def lines_of(experiment: Sweep, results: Iterable[MeasuredMean] = ()) -> list[ComparedPoint]:
    """Every point of the experiment, with or without a result; a result that belongs to no point is an error."""
    found = {(result.approach, result.measure, result.x): result for result in results}
    points = [(a, m, x) for m in experiment.measures for a in experiment.approaches for x in experiment.over]
    lines = [ComparedPoint(*at, experiment.formula(*at), experiment.paper(*at), found.pop(at, None)) for at in points]
    if experiment.varies == "time_ms":
        return lines + [ComparedPoint(*at, result=result) for at, result in found.items()]
    for approach, measure, x in found:
        raise UnbrokenError(f"{experiment.name} has no point for {approach}, {measure} at {experiment.varies} = {x}")
    return lines


def write_csv(path: Path, experiment: Sweep, results: Iterable[MeasuredMean] = ()) -> None:
    """One line per point. Empty fields: no formula, nothing stated by the paper (``paper_how`` says why), no result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                *("figure", "approach", "measure", experiment.varies, "formula_low", "formula_high"),
                *("paper", "paper_upper", "paper_how", "mean", "low", "high", "runs"),
            ]
        )
        for line in lines_of(experiment, results):
            formula = (None, None) if line.formula is None else (line.formula.low, line.formula.high)
            paper = (None,) * 3 if line.paper is None else (line.paper.value, line.paper.upper, line.paper.how)
            result = line.result
            got = (None,) * 4 if result is None else (result.mean, result.low, result.high, result.runs)
            point = (experiment.figure, line.approach.value, line.measure.value, line.x)
            writer.writerow([*point, *formula, *paper, *got])


def draw(path: Path, experiment: Sweep, results: Iterable[MeasuredMean] = ()) -> None:
    """A panel per measure: formulas as lines (a band between two cases), the paper as crosses, results as dots.

    Overheads over the interval leave out the range in which there is none, as the paper does. Of two measures there is
    a third panel with the one over the other. The course of a failure is one panel, of delays, without the time before
    its detection. Only what the paper gives a value for is marked; points that it draws are not guessed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = lines_of(experiment, results)
    course = experiment.varies == "time_ms"
    measures = experiment.measures[:1] if course else experiment.measures
    both = len(measures) == 2
    panels = len(measures) + both
    figure = plt.figure(figsize=(1.5 + 5.5 * panels, 5), layout="constrained")
    try:
        grid = figure.add_gridspec(1, panels)
        figure.suptitle(f"{experiment.figure}: {experiment.title}", fontsize=12)
        for place, measure in enumerate(measures):
            of_measure = [line for line in lines if line.measure is measure]
            if course:
                _draw_course(figure, grid[place], experiment, of_measure)
            else:
                _draw_measure(figure, grid[place], experiment, of_measure)
        if both:
            axes = figure.add_subplot(grid[panels - 1])
            for approach in experiment.approaches:
                _draw_plane(axes, [line for line in lines if line.approach is approach], *measures)
            _decorate(axes, measures[1].value, measures[0].value)
            axes.set_xlim(left=0)
        columns = len(experiment.approaches) if panels == 1 else 6
        handles = _legend(experiment)[:3] if course else _legend(experiment)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, format="png")
    finally:
        plt.close(figure)


def _draw_measure(figure: Any, where: Any, experiment: Sweep, lines: Sequence[ComparedPoint]) -> None:
    measure = lines[0].measure
    ranges = BROKEN if measure is Measure.OVERHEAD and experiment.varies == "interval_ms" else ((None, None),)
    parts = where.subgridspec(len(ranges), 1, hspace=0.06)
    margin = (max(experiment.over) - min(experiment.over)) / 20
    for place, (low, high) in enumerate(ranges):
        axes = figure.add_subplot(parts[place])
        for approach in experiment.approaches:
            _draw_over_x(axes, [line for line in lines if line.approach is approach])
        _decorate(axes, experiment.varies, measure.value)
        axes.set_xlim(min(experiment.over) - margin, max(experiment.over) + margin)
        if low is not None:
            axes.set_ylim(low, high)
        if place + 1 < len(ranges):
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
            axes.spines["bottom"].set_visible(False)
            axes.set_ylabel("")
        elif len(ranges) > 1:
            axes.yaxis.set_label_coords(-0.11, 1.05)


def _draw_course(figure: Any, where: Any, experiment: Sweep, lines: Sequence[ComparedPoint]) -> None:
    """Delays before a failure and after its detection, side by side on one scale."""
    detected = experiment.parameters.detection_ms
    parts = where.subgridspec(1, 2, width_ratios=(1, 3), wspace=0.05)
    before = figure.add_subplot(parts[0])
    after = figure.add_subplot(parts[1], sharey=before)
    for axes, (low, high) in ((before, (-25.0, 10.0)), (after, (detected - 2, detected + 28))):
        for approach in experiment.approaches:
            got = [line.result for line in lines if line.approach is approach and line.result is not None]
            got.sort(key=lambda result: result.x)
            shown = [result for result in got if low - 10 <= result.x <= high + 10]
            style = {"color": COLORS[approach], "marker": MARKERS[approach], "markersize": 6, "fillstyle": "none"}
            axes.plot([r.x for r in shown], [r.mean for r in shown], linewidth=0.8, **style)
        axes.set_xlim(low, high)
        _decorate(axes, experiment.varies, Measure.DELAY.value)
    top = 1.08 * max((line.result.mean for line in lines if line.result is not None), default=1.0)
    before.set_ylim(0, top)
    after.axvline(detected, color=NEUTRAL, linewidth=1, linestyle=":")
    after.text(detected + 0.3, top * 0.98, "detected", color=NEUTRAL, fontsize=9, va="top")
    after.set_ylabel("")
    after.tick_params(labelleft=False)
    after.spines["left"].set_visible(False)
    before.set_xlabel("")


def _decorate(axes: Any, x: str, y: str) -> None:
    axes.set_ylim(bottom=0)
    axes.set_xlabel(AXES.get(x, x))
    axes.set_ylabel(AXES.get(y, y))
    axes.grid(color="#e3e3e3", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_over_x(axes: Any, lines: Sequence[ComparedPoint]) -> None:
    color = COLORS[lines[0].approach]
    known = [(line.x, line.formula) for line in lines if line.formula is not None]
    xs, low, high = [x for x, _ in known], [span.low for _, span in known], [span.high for _, span in known]
    if low != high:
        axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
    for values in (low, high):
        axes.plot(xs, values, "_-", color=color, linewidth=1.5, markersize=12 if len(xs) == 1 else 0)
    stated = [(line.x, line.paper.value) for line in lines if line.paper and line.paper.x is not None]
    axes.plot([x for x, value in stated if value is not None], [v for _, v in stated if v is not None], "x",
              color=color, markersize=8)  # fmt: skip
    got = [line.result for line in lines if line.result is not None]
    errors = [[result.mean - result.low for result in got], [result.high - result.mean for result in got]]
    marker = MARKERS[lines[0].approach]
    axes.errorbar(
        [r.x for r in got], [r.mean for r in got], yerr=errors, fmt=marker, color=color, markersize=5, capsize=3
    )


def _draw_plane(axes: Any, lines: Sequence[ComparedPoint], first: Measure, second: Measure) -> None:
    """One measure over another: points with the same value of what varies belong together."""
    by_x = {(line.measure, line.x): line for line in lines}
    together = [(line, by_x[second, line.x]) for line in lines if line.measure is first]
    approach = lines[0].approach
    formulas = [(u.formula.high, v.formula.high) for v, u in together if v.formula and u.formula]
    results = [(u.result.mean, v.result.mean) for v, u in together if v.result and u.result]
    papers = [(u.paper, v.paper) for v, u in together if v.paper and u.paper]
    stated = [(u.value, v.value) for u, v in papers if u.x is not None and v.x is not None and u.value and v.value]
    for points, style in ((formulas, "-"), (stated, "x"), (results, MARKERS[approach])):
        xs, ys = [u for u, _ in points], [v for _, v in points]
        axes.plot(xs, ys, style, color=COLORS[approach], linewidth=1.5, markersize=5)


def _legend(experiment: Sweep) -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        *(
            Line2D([], [], color=COLORS[a], marker=MARKERS[a], linestyle="", label=a.value)
            for a in experiment.approaches
        ),
        Line2D([], [], color=NEUTRAL, linewidth=1.5, label="formula"),
        Line2D([], [], color=NEUTRAL, marker="x", linestyle="", label="stated in the paper"),
        Line2D([], [], color=NEUTRAL, marker="|", markersize=10, linestyle="", label="simulated, 95 %"),
    ]

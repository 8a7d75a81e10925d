"""What the experiments of Borealis have in common: an input that is missing for a while, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.consistency.consistency import measure_case
from unbroken_lab.experiments.consistency.settings import ConsistencySettings, HandlingCase
from unbroken_lab.experiments.experiment import ERROR, ReportClaim, Row, Rows, Say, Size, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DELAY_S = 3.0
ALPHA = 0.9
"""As in the paper: results wait for 2.7 s, and are to come within 3 s."""

RATE = 4_500
QUICK_RATE = 900

STYLES = ("o-", "s--", "^-.", "D:", "v-", "P--")
COLORS = ("#1f6f8b", "#c98a2b", "#5b4b8a", "#4b8a5b", "#c0392b", "#8a8a8a")


def settings_of(size: Size, durations: Sequence[float], **changes: Any) -> ConsistencySettings:
    """What the experiments share, with what one of them does otherwise; a quick run has one short failure."""
    usual: dict[str, Any] = {"max_delay_ms": MAX_DELAY_S * 1000, "alpha": ALPHA, "rate": RATE, "quiet_s": 6.0}
    quick: dict[str, Any] = {"max_delay_ms": 1_500.0, "rate": QUICK_RATE, "warm_s": 12.0, "quiet_s": 3.0}
    chosen = {**usual, **changes, **quick} if size.quick else {**usual, **changes}
    return ConsistencySettings(durations=(5.0,) if size.quick else tuple(durations), **chosen)


def fail_inputs(case: HandlingCase, settings: ConsistencySettings, say: Say) -> Rows:
    """One row for each failure of a run; those that follow one that could not be measured have its error."""
    runs = measure_case(case, settings, say)
    if all(ERROR in run for run in runs):
        raise UnbrokenError(str(runs[0][ERROR]))
    return [row_of(run, settings) for run in runs]


def row_of(run: Mapping[str, Any], settings: ConsistencySettings) -> Row:
    """What one failure did, with times in seconds."""
    if ERROR in run:
        return {"duration_s": run["duration_s"], ERROR: run[ERROR]}
    quiet_s = run["watched_s"]["quiet"]
    return {
        "duration_s": run["duration_s"],
        "max_delay_s": settings.max_delay_ms / 1000,
        "wait_s": round(settings.alpha * settings.max_delay_ms / 1000, 3),
        "delay_new_s": _seconds(run["delay_new_ms"]),
        "tentative_rows": run["tentative_rows"],
        "tentative_units": run["tentative_units"],
        "tentative_units_after": run["tentative_units_after"],
        "corrections": run["corrections"],
        "reconciliation_s": run["reconciliation_s"],
        "p50_s": _seconds(run["latency_ms"]["before"]["p50"]),
        "quiet_cores": round(run["cpu_s"]["quiet"] / quiet_s, 3) if quiet_s else None,
        "wrong": run["lost"] + run["wrong"] + run["duplicated"] + run["missing_units"],
    }


def draw_lines(
    axes: Axes, rows: Rows, series: Mapping[str, Mapping[str, Any]], x: str, y: str, *, label: str, below: str = ""
) -> None:
    """A line for each of ``series``: the rows that have its values, by two of their columns."""
    for place, (name, wanted) in enumerate(series.items()):
        points = points_of(rows, wanted, x, y)
        if points:
            style, color = STYLES[place % len(STYLES)], COLORS[place % len(COLORS)]
            axes.plot(*zip(*points, strict=True), style, color=color, label=name, markersize=5)
    axes.set_ylabel(label)
    axes.set_xlabel(below)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def points_of(rows: Rows, wanted: Mapping[str, Any], x: str, y: str) -> list[tuple[float, float]]:
    """The two columns of the rows that have these values, where both are known, by the first of them."""
    found = []
    for row in rows:
        one, other = number(row, x), number(row, y)
        if one is not None and other is not None and all(same(row.get(key), value) for key, value in wanted.items()):
            found.append((one, other))
    return sorted(found)


def same(value: Any, other: Any) -> bool:
    """Whether two values of a column are the same; in a file all of them are text."""
    if isinstance(other, str) or value in (None, ""):
        return bool(value == other)
    return float(value) == float(other)


def draw_pair(figure: Figure, rows: Rows, series: Mapping[str, Mapping[str, Any]], x: str, below: str) -> Axes:
    """The delay of new results above, the number of tentative ones below; the upper axes."""
    upper: Axes = figure.add_subplot(2, 1, 1)
    lower: Axes = figure.add_subplot(2, 1, 2, sharex=upper)
    upper.tick_params(labelbottom=False)
    draw_lines(upper, rows, series, x, "delay_new_s", label="largest delay of\nnew results in s")
    draw_lines(lower, rows, series, x, "tentative_rows", label="tentative rows", below=below)
    upper.legend(fontsize=7, frameon=False, ncols=2)
    return upper


def correctness(rows: Rows) -> ReportClaim:
    wrong = sum(number(row, "wrong") or 0 for row in rows)
    what = f"stable results of {len(rows)} failures that were lost, wrong or duplicated"
    return ReportClaim(what, "0", f"{wrong:,.0f}", wrong == 0)


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms / 1000, 3)

"""The strategies of a plan beside each other: as a table and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from unbroken.protocol.values.strategy import Ha
from unbroken_lab.studies.plan.prediction import Prediction, StrategyComparison
from unbroken_lab.studies.reliability.reliability import HOURS_PER_YEAR, spoken

COLORS = {
    Ha.ACTIVE: "#1f6f8b",
    Ha.ACTIVE_STANDBY: "#5aa0b5",
    Ha.PASSIVE: "#5b4b8a",
    Ha.UPSTREAM: "#3c8d5a",
    Ha.NONE: "#8a8a8a",
}

NOTICED_S = 0.5
"""Shorter interruptions are not worth a word beside pulses of half a second."""


def report_of(plan: StrategyComparison) -> Group:
    """What the command prints."""
    parts: list[Any] = [table_of(plan), *(Text(f"  {line}") for line in obstacles(plan))]
    parts += [Text(f"  note: {note}", style="yellow") for note in plan.notes]
    return Group(*parts)


def table_of(plan: StrategyComparison) -> Table:
    asked = plan.question
    what = f"{plan.flow} ({', '.join(plan.segments)}): {asked.rate:,.0f} rows/s on {asked.nodes} nodes"
    where = f"{_rate(asked.link.bytes_per_s * 8)}, {asked.link.latency_ms:g} ms"
    table = Table(title=f"{what}, links of {where}", title_justify="left")
    table.add_column("ha", no_wrap=True, min_width=max(len(ha.value) for ha in Ha))
    for name in ("overhead", "for it", "latency", "noticed", "results", "as before", "without", "redundant", "MTTF"):
        table.add_column(name, justify="right")
    table.add_column("missing a year", justify="right")
    table.add_column("beaten by")
    for found in plan.predictions:
        if not found.possible:
            table.add_row(found.ha.value, Text("not possible, see below", style="dim"))
            continue
        per_s = found.bytes_per_s
        table.add_row(
            found.ha.value,
            _number(found.overhead),
            f"{_rate(sum(per_s.values()) - per_s['data'], 'B')}",
            f"{found.median('latency_ms'):,.0f} ms",
            _seconds(found.median("detection_s")),
            _seconds(found.median("partial_s")),
            _seconds(found.median("full_s")),
            _seconds(found.median("gap_s")),
            _seconds(found.median("redundant_s")),
            lasting(found),
            _seconds(found.missing_s_per_year),
            "" if (better := beaten_by(plan, found)) is None else better.ha.value,
        )
    table.caption = (
        "overhead: bytes for availability per byte of data. Times from the kill of a node, medians: until it is "
        "noticed, until results come, until they come as soon as before; the longest time without results; until "
        f"everything is redundant again. A machine fails every {spoken(asked.mttf_h)} and is back after "
        f"{spoken(asked.mttr_h)}; MTTF: until more is lost than is covered. "
        "Beaten by: one that costs fewer bytes, interrupts less and lasts no shorter."
    )
    table.caption_justify = "left"
    return table


def obstacles(plan: StrategyComparison) -> list[str]:
    """Why the flow cannot use a strategy, and the remedy for each reason."""
    return [
        f"{found.ha.value}: not possible: {problem.what} ({_part(problem.where)}) -> {problem.remedy}"
        for found in plan.predictions
        for problem in found.problems
        if not found.possible
    ]


def beaten_by(plan: StrategyComparison, found: Prediction) -> Prediction | None:
    """A strategy that costs less bytes, interrupts less and lasts longer, by more than chance does."""
    if found.ha is Ha.NONE:
        return None
    for other in plan.predictions:
        if other is found or not other.possible or other.interruption_s is None or found.interruption_s is None:
            continue
        cheaper = (other.overhead or 0.0) < 0.9 * (found.overhead or 0.0)
        sooner = other.interruption_s < 0.9 * found.interruption_s
        longer = (other.mttf_h or float("inf")) >= (found.mttf_h or float("inf"))
        if cheaper and sooner and longer:
            return other
    return None


# --- the picture --------------------------------------------------------------------------------------------


def draw(path: Path, plan: StrategyComparison) -> None:
    """Overhead, interruption and mean time to failure of each strategy, beside each other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    asked, count = plan.question, len(plan.predictions)
    layout = ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.06)
    figure, panels = plt.subplots(1, 3, figsize=(13.5, 1.7 + 0.55 * count), sharey=True, layout=layout)
    try:
        for axes, panel in zip(panels, PANELS, strict=True):
            _draw_panel(axes, plan, panel)
        panels[0].set_yticks(range(count), [found.ha.value for found in plan.predictions])
        panels[0].set_ylim(count - 0.5, -0.5)
        link = f"{_rate(asked.link.bytes_per_s * 8)}, {asked.link.latency_ms:g} ms"
        title = f"{plan.flow}: {asked.rate:,.0f} rows/s on {asked.nodes} nodes, links of {link}"
        figure.suptitle(f"{title}; ha= of {', '.join(plan.segments)}", x=0.012, ha="left", fontsize=13)
        fails = f"a machine fails every {spoken(asked.mttf_h)} and is back after {spoken(asked.mttr_h)}"
        figure.supxlabel(f"predicted; {fails}; scales are logarithmic", fontsize=9, color="#777777")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, format="png")
    finally:
        plt.close(figure)


@dataclass(frozen=True)
class Panel:
    """One measure: its value for a strategy and in words, the least that is told apart, and marks for the scale."""

    title: str
    value: Callable[[Prediction], float | None]
    text: Callable[[float], str]
    least: float
    marks: Mapping[float, str]


PANELS = (
    Panel(
        "bytes for availability per byte of data",
        lambda found: found.overhead,
        lambda value: _number(value),
        1e-4,
        {0.001: "0.001", 0.01: "0.01", 0.1: "0.1", 1.0: "1", 10.0: "10"},
    ),
    Panel(
        "longer without results when a node is lost",
        lambda found: found.interruption_s,
        lambda value: _duration(value),
        0.3,
        {1.0: "1 s", 10.0: "10 s", 60.0: "1 min", 600.0: "10 min", 3600.0: "1 h", 86400.0: "1 day"},
    ),
    Panel(
        "mean time to a loss that is not covered",
        lambda found: found.mttf_h,
        lambda value: spoken(value),
        1.0,
        {24.0: "1 day", 730.0: "1 month", HOURS_PER_YEAR: "1 year", 1e2 * HOURS_PER_YEAR: "100 years"}
        | {1e4 * HOURS_PER_YEAR: "10,000 years", 1e6 * HOURS_PER_YEAR: "1e6 years"},
    ),
)


def _draw_panel(axes: Any, plan: StrategyComparison, panel: Panel) -> None:
    values = {found.ha: panel.value(found) for found in plan.predictions if found.possible}
    known = [max(panel.least, value) for value in values.values() if value is not None]
    low, high = (min(known) / 4, max(known) * 2) if known else (panel.least, panel.least * 100)
    marks = {at: text for at, text in panel.marks.items() if low <= at <= high}
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** 0.4)  # room for words behind the last point
    axes.set_xticks(list(marks), list(marks.values()))
    axes.minorticks_off()
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)  # words of the first panel go on over the others
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#cccccc")
    axes.tick_params(axis="both", length=0, labelsize=9, labelcolor="#555555")
    axes.tick_params(axis="y", labelsize=11, labelcolor="#222222")
    axes.set_title(panel.title, fontsize=10.5, loc="left", color="#222222")
    for place, found in enumerate(plan.predictions):
        if not found.possible:
            _draw_reason(axes, found, low, place, panel is PANELS[0])
            continue
        value = values[found.ha]
        at = low if value is None else max(panel.least, value)
        axes.hlines(place, low, at, color=COLORS[found.ha], linewidth=2.5, alpha=0.35)
        axes.plot([at], [place], "o", color=COLORS[found.ha], markersize=10, clip_on=False)
        axes.annotate(
            "-" if value is None else panel.text(value), (at, place), xytext=(10, 0), textcoords="offset points",
            va="center", fontsize=10.5, color="#222222",
        )  # fmt: skip


def _draw_reason(axes: Any, found: Prediction, low: float, place: int, first: bool) -> None:
    """Why a strategy cannot be used, across all panels."""
    if not first:
        return
    reason = textwrap.shorten("; ".join(p.what for p in found.problems), 150, placeholder=" …")
    words = axes.annotate(
        f"not possible: {reason}", (low, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9.5,
        color="#8a8a8a", style="italic", annotation_clip=False, zorder=5,
    )  # fmt: skip
    words.set_in_layout(False)


# --- words --------------------------------------------------------------------------------------------------


def lasting(found: Prediction) -> str:
    """The mean time until more is lost than is covered."""
    return "more than three nodes at once" if found.mttf_h is None else spoken(found.mttf_h)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if value < 0.01 else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _duration(seconds: float) -> str:
    return "not noticed" if seconds < NOTICED_S else _seconds(seconds)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s" if value < 100 else spoken(value / 3600)


def _rate(per_s: float, unit: str = "bit") -> str:
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if per_s >= size:
            return f"{per_s / size:.3g} {prefix}{unit}/s"
    return f"{per_s:.3g} {unit}/s"


def _part(where: str) -> str:
    """The part of a flow that a problem is about, without its file."""
    return where.rpartition(", ")[2]

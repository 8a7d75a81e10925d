"""Bars of the figures of rows: a group of them for each value of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unbroken_lab.experiments.experiment import Rows, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#1f6f8b", "#c98a2b", "#5b4b8a", "#4b8a5b", "#c0392b", "#8a8a8a")
ROOM = 0.8
"""Of the distance between two groups, the part that is filled with bars."""


def draw_bars(
    axes: Axes, rows: Rows, group: str | Sequence[str], figures: Mapping[str, str], label: str, divisor: float = 1.0
) -> None:
    """A bar for each of ``figures`` (column and name in the legend) of every row, under what its ``group`` says."""
    columns = (group,) if isinstance(group, str) else group
    groups = ["\n".join(str(row[column]) for column in columns) for row in rows]
    width = ROOM / len(figures)
    for place, (figure, name) in enumerate(figures.items()):
        known = [(spot, value) for spot, row in enumerate(rows) if (value := number(row, figure)) is not None]
        spots = [spot + (place - (len(figures) - 1) / 2) * width for spot, _ in known]
        axes.bar(spots, [value / divisor for _, value in known], width, color=COLORS[place % len(COLORS)], label=name)
    axes.set_xticks(range(len(groups)), groups, fontsize=7)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    if any(figures.values()):
        axes.legend(fontsize=7, frameon=False)

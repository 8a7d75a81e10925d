"""Box plots of latencies as Rosinosky et al. draw them: quartiles, and whiskers from the 1st to the 99th percentile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from unbroken_lab.experiments.experiment import Row, Rows, Value, chosen, number
from unbroken_lab.experiments.parameters.ways import color_of, name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOM = 0.8
"""Of the distance between two groups, the part that is filled with boxes."""


def draw_boxes(
    axes: Axes, rows: Rows, group: str, series: str, name: Callable[[str], str] = name_of, prefix: str = ""
) -> None:
    """One box for each row with figures; those with the same ``group`` beside each other, coloured by ``series``."""
    from matplotlib.patches import Patch

    drawn = [row for row in rows if number(row, f"{prefix}p50_ms") is not None]
    groups, kinds = distinct(drawn, group), distinct(drawn, series)
    width = ROOM / max(1, len(kinds))
    for row in drawn:
        place, kind = groups.index(str(row[group])), kinds.index(str(row[series]))
        at = place + (kind + 0.5) * width - ROOM / 2
        axes.bxp(
            [box_of(row, prefix)],
            positions=[at],
            widths=width * 0.8,
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": colour(kinds[kind], kind), "alpha": 0.7},
            medianprops={"color": "black"},
        )
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.5, max(1, len(groups)) - 0.5)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(handles=[Patch(color=colour(kind, at), label=name(kind)) for at, kind in enumerate(kinds)], fontsize=8)


def box_of(row: Row, prefix: str = "") -> dict[str, Any]:
    """A row's percentiles in the words of matplotlib."""
    whole = {"whislo": "p1", "q1": "p25", "med": "p50", "q3": "p75", "whishi": "p99"}
    return {name: number(row, f"{prefix}{figure}_ms") for name, figure in whole.items()}


def distinct(rows: Rows, column: str) -> list[str]:
    """The values of a column as text, in the order in which they come."""
    return list(dict.fromkeys(str(row[column]) for row in rows))


def colour(kind: str, place: int) -> str:
    known = color_of(kind)
    return f"C{place}" if known == "black" else known


def figure_of(rows: Rows, figure: str, **columns: Value) -> float | None:
    """A figure of the one row with these values, if there is one."""
    found: Sequence[Row] = chosen(rows, **columns)
    return number(found[0], figure) if found else None


def ratio(value: float | None, to: float | None) -> str:
    """How many times something is something else, as text."""
    return "unknown" if value is None or not to else f"{value / to:.2f}"


def shown(value: float | None, unit: str = "ms", digits: int = 0) -> str:
    return "unknown" if value is None else f"{value:,.{digits}f} {unit}"

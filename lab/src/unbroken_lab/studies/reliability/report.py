"""Formula, exact solution and simulation beside each other, as rows, a table, a CSV file and a picture."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from unbroken_lab.studies.reliability.losses import Estimate, simulate
from unbroken_lab.studies.reliability.reliability import (
    HOURS_PER_YEAR,
    Machines,
    Pairing,
    chance_in_a_year,
    deadly_pairs,
    exact_hours,
    formula_hours,
    paper_hours,
    spoken,
    too_short_by,
)

AGREEMENT = 0.05
"""The formula is taken to hold where it is at most this far from the simulation."""

COLORS = {
    Pairing.PROCESS: "#8a8a8a",
    Pairing.CLUSTER: "#c0392b",
    Pairing.PARTITION: "#5b4b8a",
    Pairing.CHAINED: "#1f6f8b",
}

TITLES = {
    Pairing.PROCESS: "process pair (2 nodes)",
    Pairing.CLUSTER: "cluster pairs",
    Pairing.PARTITION: "partition pairs",
    Pairing.CHAINED: "partition pairs, chained",
}


@dataclass(frozen=True)
class LossRow:
    """Mean time to loss of one kind of pairs on so many nodes, found in four ways.

    ``paper_h`` and ``exact_h`` are None where there is no such answer (chained declustering).
    """

    pairs: Pairing
    machines: Machines
    paper_h: float | None
    formula_h: float
    exact_h: float | None
    simulated: Estimate

    @property
    def off(self) -> float:
        """What the formula is off the exact solution, or the simulation where there is none; 0.05: 5 % too long."""
        return self.formula_h / (self.exact_h or self.simulated.hours) - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs.value,
            "nodes": self.machines.nodes,
            "mttf_h": self.machines.mttf_h,
            "mttr_h": self.machines.repair_h(self.pairs),
            "deadly_pairs": deadly_pairs(self.pairs, self.machines.nodes),
            "paper_h": self.paper_h,
            "formula_h": self.formula_h,
            "exact_h": self.exact_h,
            "simulated": asdict(self.simulated),
            "formula_off": self.off,
            "formula_too_short_by_at_most": too_short_by(self.pairs, self.machines),
            "formula_holds": abs(self.off) <= AGREEMENT,
            "chance_in_a_year": chance_in_a_year(self.simulated.hours),
        }


def rows_of(
    machines: Machines, nodes: Sequence[int], kinds: Iterable[Pairing], runs: int | None = None, seed: int = 1
) -> list[LossRow]:
    """A row for each kind and number of nodes, and one for a process pair, which always has two nodes."""
    rows = []
    for pairs in kinds:
        for count in [2] if pairs is Pairing.PROCESS else nodes:
            these = replace(machines, nodes=count)
            found = simulate(pairs, these, runs, seed)
            known = paper_hours(pairs, these), formula_hours(pairs, these), exact_hours(pairs, these)
            rows.append(LossRow(pairs, these, *known, found))
    return rows


def table_of(rows: Sequence[LossRow]) -> Table:
    """What the command prints."""
    machines = rows[0].machines
    every, after = spoken(machines.mttf_h), spoken(machines.mttr_h)
    title = f"mean time to loss; a node fails every {every} and is redundant again after {after}"
    table = Table(title=title, title_justify="left")
    table.add_column("pairs")
    for name in ("nodes", "deadly pairs", "paper", "formula", "exact", "simulated", "95 %", "formula off", "in a year"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.pairs.value,
            f"{row.machines.nodes:,}",
            f"{deadly_pairs(row.pairs, row.machines.nodes):,}",
            "" if row.paper_h is None else spoken(row.paper_h),
            spoken(row.formula_h),
            "" if row.exact_h is None else spoken(row.exact_h),
            spoken(row.simulated.hours),
            f"±{row.simulated.half_width:.1%}",
            f"{row.off:+.1%}",
            _percent(chance_in_a_year(row.simulated.hours)),
        )
    return table


def write_csv(path: Path, rows: Sequence[LossRow]) -> None:
    """One line per row; the simulation's fields begin with ``simulated_``."""
    lines = []
    for row in rows:
        line = row.to_json()
        line |= {f"simulated_{key}": value for key, value in line.pop("simulated").items()}
        lines.append(line)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def draw(path: Path, rows: Sequence[LossRow]) -> None:
    """Mean time to loss over the number of nodes: lines from the formula, points from the simulation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    machines = rows[0].machines
    most = max(10, *(row.machines.nodes for row in rows))
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    try:
        for pairs in dict.fromkeys(row.pairs for row in rows):
            _draw_kind(axes, pairs, [row for row in rows if row.pairs is pairs], most)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(1.8, most * 1.25)
        axes.set_ylim(top=axes.get_ylim()[1] * 5)
        axes.set_xlabel("nodes")
        axes.set_ylabel("mean time to loss in years")
        axes.grid(color="#e3e3e3", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.plot([], [], color="#333333", linewidth=1.5, label="formula")
        axes.plot([], [], color="#333333", linewidth=1.5, linestyle=":", label="exact")
        axes.errorbar([], [], yerr=[], fmt="o", color="#333333", markersize=5, capsize=3, label="simulated, 95 %")
        axes.legend(loc="lower left", fontsize=9, frameon=False)
        axes.set_title(
            f"A node fails every {spoken(machines.mttf_h)}, redundancy is back after {spoken(machines.mttr_h)}",
            fontsize=12,
            loc="left",
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, format="png")
    finally:
        plt.close(figure)


def _draw_kind(axes: Any, pairs: Pairing, rows: Sequence[LossRow], most: int) -> None:
    color, machines = COLORS[pairs], rows[0].machines
    counts = sorted({3, *(2 * round(count / 2) for count in np.geomspace(2, most, 60))})
    if pairs is not Pairing.CHAINED:
        counts.remove(3)
    if pairs is Pairing.PROCESS:
        axes.axhline(rows[0].formula_h / HOURS_PER_YEAR, color=color, linewidth=1.5)
        end, at = rows[0].formula_h, float(most) ** 0.5
    else:
        hours = [formula_hours(pairs, replace(machines, nodes=count)) for count in counts]
        axes.plot(counts, [value / HOURS_PER_YEAR for value in hours], color=color, linewidth=1.5)
        exact = [exact_hours(pairs, replace(machines, nodes=count)) for count in counts]
        known = [(count, value / HOURS_PER_YEAR) for count, value in zip(counts, exact, strict=True) if value]
        if pairs is not Pairing.CHAINED:
            axes.plot(*zip(*known, strict=True), color=color, linewidth=1.5, linestyle=":")
        at = float(most) ** 0.85
        end = formula_hours(pairs, replace(machines, nodes=2 * max(1, round(at / 2))))
    above = pairs in (Pairing.PROCESS, Pairing.PARTITION)
    axes.annotate(
        TITLES[pairs], (at, end / HOURS_PER_YEAR), xytext=(6, 6) if above else (-6, -6), textcoords="offset points",
        ha="left" if above else "right", va="bottom" if above else "top", color=color, fontsize=10,
    )  # fmt: skip
    values = np.array([row.simulated.hours for row in rows]) / HOURS_PER_YEAR
    errors = np.array([[r.simulated.hours - r.simulated.low_h, r.simulated.high_h - r.simulated.hours] for r in rows])
    axes.errorbar(
        [row.machines.nodes for row in rows], values, yerr=errors.T / HOURS_PER_YEAR,
        fmt="o", color=color, markersize=5, capsize=3,
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{share:.2g}" if share < 1e-4 else f"{share:.2%}"

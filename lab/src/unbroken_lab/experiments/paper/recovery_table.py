"""What each kind of failure does to the results with each way to keep a segment available: one run for each pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Say,
    Size,
    number,
    seen,
)
from unbroken_lab.experiments.observation.losses import AWAY_S, Loss
from unbroken_lab.experiments.paper.losing import RATE, row_of, trial_of
from unbroken_lab.experiments.recovery.strategies import QUICK_RATE, STRATEGIES, measure_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = tuple(loss.value for loss in Loss)
COLORS = ("#1f6f8b", "#5b4b8a", "#4b8a5b", "#c98a2b")


class RecoveryTable(Experiment):
    """Failures by strategies: the longest time without results, and what was lost or came twice."""

    name = "recovery-table"
    title = "Failures and what becomes of the results, by strategy"
    source = "after the strategies of Hwang et al., 2003"
    columns: ClassVar = (
        ReportColumn("failure", "failure"),
        ReportColumn("strategy", "strategy"),
        ReportColumn("gap_s", "longest time without results", " s", 2),
        ReportColumn("gap_before_s", "before", " s", 2),
        ReportColumn("resumed_s", "results again", " s", 2),
        ReportColumn("recovered_s", "as before", " s", 2),
        ReportColumn("lost", "lost", digits=0),
        ReportColumn("duplicated", "duplicated", digits=0),
    )
    caption = (
        "The longest time without results is that of the whole run after the failure, the time in which lost replicas "
        'are rebuilt included. "Results again" and "as before" count from the failure, until the first result after it '
        'and until results come as quickly as before; "-" if they did not until the end of the run.'
    )

    def scale(self, size: Size) -> str:
        rate = QUICK_RATE if size.quick else RATE
        return (
            f"Three nodes on one machine, {rate:,} rows/s, the node with the measured segment is lost once in a run; "
            f"one that is frozen, or has lost its links to nodes, ZooKeeper and clients, stays so for {AWAY_S:g} s"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"failure": Loss.KILL.value, "strategy": "active-standby"}]
        return [{"failure": loss, "strategy": strategy} for loss in LOSSES for strategy in STRATEGIES]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        trial = trial_of(str(case["strategy"]), 1, Loss(str(case["failure"])), size)
        return [row_of(measure_loss(trial, say))]

    def draw(self, rows: Rows, figure: Figure) -> None:
        axes = figure.subplots()
        strategies = [name for name in STRATEGIES if any(row["strategy"] == name for row in rows)]
        width = 0.8 / len(LOSSES)
        for place, loss in enumerate(LOSSES):
            found = {str(row["strategy"]): number(row, "gap_s") for row in rows if row["failure"] == loss}
            spots = [spot for spot, name in enumerate(strategies) if found.get(name) is not None]
            heights = [found[strategies[spot]] or 0.0 for spot in spots]
            bars = axes.bar(
                [spot + (place - (len(LOSSES) - 1) / 2) * width for spot in spots], heights, width, color=COLORS[place]
            )
            bars.set_label(loss)
            axes.bar_label(bars, fmt="%.1f", fontsize=7)
        usual = [value for row in rows if (value := number(row, "gap_before_s")) is not None]
        if usual:
            axes.axhline(max(usual), color="0.5", linestyle="--", linewidth=1, label="longest before the failure")
        axes.set_xticks(range(len(strategies)), strategies)
        axes.set_ylabel("longest time without results in s")
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        lost, duplicated = (sum(number(row, name) or 0 for row in rows) for name in ("lost", "duplicated"))
        out = [seen(f"rows in {len(rows)} runs", f"{lost:,.0f} lost, {duplicated:,.0f} duplicated")]
        for loss in LOSSES:
            gaps = {str(row["strategy"]): number(row, "gap_s") for row in rows if row["failure"] == loss}
            known = [f"{gap:.1f} s with {name}" for name, gap in gaps.items() if gap is not None]
            if known:
                out.append(seen(f"longest time without results after {loss}", ", ".join(known)))
        return out

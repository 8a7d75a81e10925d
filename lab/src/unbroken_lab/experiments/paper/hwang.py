"""Figure 11 of Hwang et al. on the real system: bytes for availability against the time to recover, for each strategy.

A point is a run with one interval between acknowledgements (or checkpoints), in which the node of the measured segment
is killed. The simulator draws the same figure from the paper's own model; here Spark does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from unbroken_lab.experiments.experiment import Experiment, PaperValue, ReportClaim, Row, Rows, Say, Size, number, seen
from unbroken_lab.experiments.observation.losses import Loss
from unbroken_lab.experiments.paper.losing import RATE, row_of, trial_of
from unbroken_lab.experiments.recovery.strategies import PULSE_MS, QUICK_RATE, measure_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRATEGIES = ("active-standby", "passive", "upstream")
"""Those of the paper; ``active`` is what Unbroken does by default, and is measured once for comparison."""

INTERVALS = (1, 4, 16)
"""Units between two acknowledgements: the communication interval of the paper, in pulses."""

STYLES = {
    "active": ("#8a8a8a", "s"),
    "active-standby": ("#1f6f8b", "o"),
    "passive": ("#c98a2b", "^"),
    "upstream": ("#5b4b8a", "D"),
}


class Tradeoff(Experiment):
    """Overhead against full recovery time, one point per interval."""

    name = "hwang-fig11"
    title = "Bytes for availability against time to recover"
    source = "Hwang et al., 2003, Figure 11"
    paper: ClassVar = (
        PaperValue("overhead of active standby and passive standby", "100% to 110%"),
        PaperValue("overhead of upstream backup", "below 10%; about 95% less than the others"),
        PaperValue("full recovery: active standby, passive standby, upstream backup", "about 8, 11 and 12 ms"),
        PaperValue("the same with the detection of the failure", "108 to 112 ms"),
        PaperValue("interval of upstream backup from 40 to 80 ms", "overhead 2% to 1%, recovery 12.5 to 14 ms"),
    )

    def scale(self, size: Size) -> str:
        return (
            f"Paper: simulated tuples, intervals of milliseconds. Here: {QUICK_RATE if size.quick else RATE:,} rows/s "
            f"in units of {PULSE_MS} ms, intervals of 1 to {max(INTERVALS)} units, three nodes on one machine"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"strategy": "upstream", "interval": 1}]
        active: Row = {"strategy": "active", "interval": INTERVALS[0]}
        others: list[Row] = [{"strategy": name, "interval": every} for name in STRATEGIES for every in INTERVALS]
        return [active, *others]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        interval = int(number(case, "interval") or 1)
        return [row_of(measure_loss(trial_of(str(case["strategy"]), interval, Loss.KILL, size), say))]

    def draw(self, rows: Rows, figure: Figure) -> None:
        axes = figure.subplots()
        for strategy, (color, marker) in STYLES.items():
            points = _points(rows, strategy)
            if not points:
                continue
            axes.plot(*zip(*[(x, y) for _, x, y in points], strict=True), color=color, marker=marker, label=strategy)
            for interval, x, y in points:
                axes.annotate(f" {interval:g}", (x, y), fontsize=7, color=color, va="bottom")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds from the kill until results come as soon as before")
        axes.set_ylabel("bytes for availability, % of those for data")
        axes.legend(title="strategy (points: units per interval)", fontsize=8, title_fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = []
        for strategy in STYLES:
            points = _points(rows, strategy)
            if points:
                overheads, times = [y for _, _, y in points], [x for _, x, _ in points]
                intervals = ", ".join(f"{interval:g}" for interval, _, _ in points)
                here = f"overhead {_range(overheads, '%')}, full recovery {_range(times, ' s')} after the kill"
                out.append(seen(f"{strategy}, intervals of {intervals} units", here))
        lost = sum((number(row, "lost") or 0) + (number(row, "duplicated") or 0) for row in rows)
        out.append(seen(f"rows lost or duplicated in {len(rows)} runs", f"{lost:,.0f}"))
        return [*out, *_comparisons(rows)]


def _comparisons(rows: Rows) -> list[ReportClaim]:
    means = {name: [_mean([point[place] for point in _points(rows, name)]) for place in (1, 2)] for name in STRATEGIES}
    (active_s, active), (passive_s, passive), (upstream_s, upstream) = (means[name] for name in STRATEGIES)
    out = []
    if active and upstream is not None:
        saved = 1 - upstream / active
        what = "bytes of active standby that upstream backup saves"
        out.append(ReportClaim(what, "about 95%", f"{saved:.1%}", saved >= 0.9))
    if active_s and upstream_s:
        times = upstream_s / active_s
        what = "full recovery of upstream backup by that of active standby, from the kill on"
        out.append(ReportClaim(what, "112 ms / 108 ms, with the detection", f"{times:.1f}", 1 <= times <= 2))
    if passive_s and upstream_s:
        times = upstream_s / passive_s
        what = "full recovery of upstream backup by that of passive standby"
        out.append(ReportClaim(what, "12 ms / 11 ms", f"{times:.2f}", 1 <= times <= 1.5))
    if active and passive is not None:
        what = "bytes of passive standby by those of active standby"
        out.append(ReportClaim(what, "about 1", f"{passive / active:.2f}", passive / active >= 0.9))
    by_interval = _points(rows, "upstream")
    if len(by_interval) > 1 and by_interval[0][2]:
        (few, _, most), (many, _, least) = by_interval[0], by_interval[-1]
        what = f"overhead of upstream backup with {many / few:g} times the interval"
        agrees = least / most <= 1.5 * few / many
        out.append(ReportClaim(what, f"{few / many:.2f} of it", f"{least / most:.1f} of it", agrees))
    return out


def _points(rows: Rows, strategy: str) -> list[tuple[float, float, float]]:
    """Interval, full recovery time and overhead in percent of each run that has both."""
    found = []
    for row in rows:
        time_s, overhead = number(row, "recovered_s"), number(row, "overhead")
        if row["strategy"] == strategy and time_s is not None and overhead is not None:
            found.append((number(row, "interval") or 0.0, time_s, overhead * 100))
    return sorted(found)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _range(values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    digits = 2 if high < 10 else 1
    return f"{low:.{digits}f}{unit}" if low == high else f"{low:.{digits}f} to {high:.{digits}f}{unit}"

"""Figure 11 of Hwang et al. on the real system: bytes for availability against the time to recover, for each strategy.

A point is a run with one interval between acknowledgements (or checkpoints), in which the node of the measured segment
is killed. The simulator draws the same figure from the paper's own model; here Spark does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from unbroken_lab.experiments.losses import Loss
from unbroken_lab.experiments.paper.experiment import Experiment, PaperValue, Row, Rows, Say, Size, compared, number
from unbroken_lab.experiments.paper.losing import QUICK_RATE, RATE, row_of, trial_of
from unbroken_lab.experiments.strategies import PULSE_MS, measure_loss

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

    def findings(self, rows: Rows) -> Sequence[str]:
        out = []
        for strategy in STYLES:
            points = _points(rows, strategy)
            if points:
                overheads, times = [y for _, _, y in points], [x for _, x, _ in points]
                out.append(
                    f"{strategy}: overhead {_range(overheads, '%')}, full recovery {_range(times, ' s')} after the "
                    f"kill with {', '.join(f'{interval:g}' for interval, _, _ in points)} units per interval."
                )
        lost = sum((number(row, "lost") or 0) + (number(row, "duplicated") or 0) for row in rows)
        out.append(f"{lost:,.0f} rows were lost or came twice in {len(rows)} runs.")
        return [*out, *_comparisons(rows)]


def _comparisons(rows: Rows) -> list[str]:
    means = {name: [_mean([point[place] for point in _points(rows, name)]) for place in (1, 2)] for name in STRATEGIES}
    (active_s, active), (passive_s, passive), (upstream_s, upstream) = (means[name] for name in STRATEGIES)
    out = []
    if active and upstream is not None:
        saved = 1 - upstream / active
        out.append(
            compared(
                saved >= 0.9,
                f"upstream backup saves {saved:.1%} of the bytes of active standby (about 95%).",
                "Acknowledgements are part of what links send in any case.",
            )
        )
    if active_s and upstream_s:
        out.append(
            compared(
                1 <= upstream_s / active_s <= 2,
                f"upstream backup takes {upstream_s / active_s:.1f} times as long as active standby, from the kill on "
                "(112 ms there beside 108, with the detection).",
                "A standby's query runs; for upstream backup one is started, which takes seconds, and is given again "
                "what the state follows from. There nothing has to be started.",
            )
        )
    if passive_s and upstream_s:
        out.append(
            compared(
                1 <= upstream_s / passive_s <= 1.5,
                f"upstream backup takes {upstream_s / passive_s:.2f} times as long as passive standby (12 ms beside 11 "
                "there).",
                "Both start a query; how much is processed again depends on the interval and on the horizon.",
            )
        )
    if active and passive is not None:
        out.append(
            compared(
                passive / active >= 0.9,
                f"passive standby sends {passive / active:.2f} of the bytes of active standby (about the same there).",
                "Its checkpoints hold the tuples of all queues there; here they hold the changes of a small state.",
            )
        )
    by_interval = _points(rows, "upstream")
    if len(by_interval) > 1 and by_interval[0][2]:
        (few, _, most), (many, _, least) = by_interval[0], by_interval[-1]
        out.append(
            compared(
                least / most <= 1.5 * few / many,
                f"upstream backup: with {many / few:g} times the interval overhead is {least / most:.1f} of what it "
                "was (there it is halved when the interval is doubled).",
                "Acknowledgements are a small part of so few bytes; most are what every link says of itself.",
            )
        )
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

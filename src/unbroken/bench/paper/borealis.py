"""Experiments of Balazinska et al. (Borealis) with one node: an input is missing, and results go on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken.bench.consistency import measure_quiet
from unbroken.bench.consistency_settings import PAIRS, Case
from unbroken.bench.paper.experiment import Experiment, PaperValue, Row, Rows, Say, Size, compared, number
from unbroken.bench.paper.missing_input import (
    ALPHA,
    MAX_DELAY_S,
    RATE,
    correctness,
    draw_lines,
    draw_pair,
    fail_inputs,
    points_of,
    settings_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECONCILE = "fork"
"""How the past is put right, where that is not what is measured: the second version of the paper's node."""


class Waiting(Experiment):
    """How long missing input is waited for: what that does to the delay, and to the number of tentative results."""

    name = "borealis-fig9"
    title = "Waiting longer for missing input"
    source = "Balazinska et al., 2005, Figure 9"
    paper: ClassVar = (
        PaperValue("failure, time waited", "5 s; 0.5 to 6 s"),
        PaperValue("largest delay, both ways", "grows linearly with the time waited"),
        PaperValue(
            "tentative tuples, Process", "about those of the whole failure while 4 s or less are waited: a step"
        ),
        PaperValue("tentative tuples, Delay", "fewer, in proportion to the time waited"),
    )
    failure_s: ClassVar = 5.0
    waits_s: ClassVar = (1.0, 2.0, 4.0, 6.0)
    ways: ClassVar[Mapping[str, str]] = {"Process": "process/process", "Delay": "delay/process"}

    def scale(self, size: Size) -> str:
        return (
            "Paper: 3,000 tuples/s, a join, checkpoint and redo, means of three runs. Here: 3,000 rows/s, counts in "
            "windows, one run each, 2 nodes on one machine; results are given in buckets of 0.5 s"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"policy": "delay/process", "waited_s": 1.35}]
        return [{"policy": policy, "waited_s": wait} for policy in self.ways.values() for wait in self.waits_s]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        max_delay_ms = round((number(case, "waited_s") or 0.0) / ALPHA * 1000)
        settings = settings_of(size, (self.failure_s,), rate=3_000, max_delay_ms=max_delay_ms)
        return fail_inputs(Case(str(case["policy"]), RECONCILE), settings, say)

    def draw(self, rows: Rows, figure: Figure) -> None:
        series = {name: {"policy": policy} for name, policy in self.ways.items()}
        draw_pair(figure, rows, series, "waited_s", "seconds that missing input is waited for")

    def findings(self, rows: Rows) -> Sequence[str]:
        out = [correctness(rows)]
        tentative = {}
        for name, policy in self.ways.items():
            delays = points_of(rows, {"policy": policy}, "waited_s", "delay_new_s")
            tentative[name] = points_of(rows, {"policy": policy}, "waited_s", "tentative_rows")
            short = [(wait, delay) for wait, delay in delays if wait < self.failure_s]
            if short:
                extra = [delay - wait for wait, delay in short]
                what = f"{name}: the delay is the time waited and {min(extra):.2f} to {max(extra):.2f} s more."
                out.append(compared(max(extra) < 1.0, what))
        process, delay = (dict(tentative[name]) for name in self.ways)
        for wait, count in process.items():
            if wait in delay:
                out.append(
                    f"Waiting {wait:g} s: {count:,.0f} tentative rows with Process, {delay[wait]:,.0f} with Delay."
                )
        saved = [process[wait] - delay[wait] for wait in process if wait in delay and wait < self.failure_s]
        if saved:
            out.append(
                compared(min(saved) > 0, "Delay gives fewer tentative rows than Process wherever there are any.")
            )
        masked = [count for points in tentative.values() for wait, count in points if wait > self.failure_s]
        if masked:
            out.append(compared(not any(masked), "a failure that is shorter than the wait gives nothing tentative."))
        return out


class Policies(Experiment):
    """What is done with new input while some is missing, and while results are put right, by the length of failures."""

    name = "borealis-fig10"
    title = "Policies for new input, by the length of the failure"
    source = "Balazinska et al., 2005, Figure 10"
    paper: ClassVar = (
        PaperValue("failures, rate, bound X, time waited", "up to 60 s, 4,500 tuples/s, 3 s, 2.7 s"),
        PaperValue("tentative tuples of failures below 2.7 s", "none with any policy"),
        PaperValue("Process & Process", "always within the bound, most tentative tuples"),
        PaperValue("Delay & Suspend", "breaks the bound for failures longer than 3 s"),
        PaperValue("Process & Delay, Delay & Delay", "fewer tentative tuples, still within the bound"),
    )
    failures_s: ClassVar = (2.0, 6.0, 20.0)

    def scale(self, size: Size) -> str:
        return (
            f"Paper: failures up to 60 s, a join, checkpoint and redo. Here: up to {max(self.failures_s):g} s, "
            f"{RATE:,} rows/s, counts in windows, a fork of the query, one run each, 2 nodes on one machine"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"policy": PAIRS[0]}] if size.quick else [{"policy": policy} for policy in PAIRS]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        return fail_inputs(Case(str(case["policy"]), RECONCILE), settings_of(size, self.failures_s), say)

    def draw(self, rows: Rows, figure: Figure) -> None:
        series = {policy: {"policy": policy} for policy in PAIRS}
        upper = draw_pair(figure, rows, series, "duration_s", "length of the failure in s")
        upper.axhline(MAX_DELAY_S, color="0.5", linestyle=":", linewidth=1)
        upper.annotate("bound", (0.0, MAX_DELAY_S), xycoords=("axes fraction", "data"), fontsize=7, va="bottom")

    def findings(self, rows: Rows) -> Sequence[str]:
        out = [correctness(rows)]
        longest = {}
        for policy in PAIRS:
            delays = points_of(rows, {"policy": policy}, "duration_s", "delay_new_s")
            counts = points_of(rows, {"policy": policy}, "duration_s", "tentative_rows")
            if delays and counts:
                longest[policy] = (max(delay for _, delay in delays), counts[-1][1])
                told = ", ".join(f"{delay:.2f} s after {duration:g} s" for duration, delay in delays)
                out.append(
                    f"{policy}: largest delay {told}; {counts[-1][1]:,.0f} tentative rows with the longest failure."
                )
        short = [count for row in rows if (number(row, "duration_s") or 9.0) < ALPHA * MAX_DELAY_S
                 and (count := number(row, "tentative_rows")) is not None]  # fmt: skip
        if short:
            out.append(compared(not any(short), "failures that are shorter than the wait give nothing tentative."))
        return [*out, *_policy_findings(longest)]


def _policy_findings(longest: Mapping[str, tuple[float, float]]) -> list[str]:
    """What was found of each policy: its largest delay, and the tentative rows of its longest failure."""
    out = []
    best, worst = longest.get("process/process"), longest.get("delay/suspend")
    if best:
        kept = best[0] < MAX_DELAY_S
        out.append(
            compared(kept, f"process/process {'keeps' if kept else 'breaks'} the bound: {best[0]:.2f} s at most.")
        )
        others = [count for policy, (_, count) in longest.items() if policy != "process/process"]
        if others:
            most = best[1] >= max(others)
            what = f"process/process gives {'the most' if most else 'not the most'} tentative rows: {best[1]:,.0f} "
            out.append(compared(most, f"{what}beside {min(others):,.0f} to {max(others):,.0f}."))
    if worst:
        broken = worst[0] >= MAX_DELAY_S
        out.append(compared(broken, f"delay/suspend {'breaks' if broken else 'keeps'} the bound: {worst[0]:.2f} s."))
    return out


class BucketSize(Experiment):
    """How long rows are on their way while nothing fails, for buckets of different size."""

    name = "borealis-table3"
    title = "What it costs to put rows in order: delay by the size of buckets"
    source = "Balazinska et al., 2005, Table 3"
    paper: ClassVar = (
        PaperValue("measured", "mean delay of nine runs of 20 s for each size of buckets"),
        PaperValue("delay", "grows linearly with the size of the buckets"),
    )
    buckets_ms: ClassVar = (100, 250, 500, 1_000, 2_000)

    def scale(self, size: Size) -> str:
        return f"Paper: nine runs of 20 s. Here: one run of 20 s each, {RATE:,} rows/s, 2 nodes on one machine"

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"bucket_ms": 500}] if size.quick else [{"bucket_ms": bucket} for bucket in self.buckets_ms]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        bucket_ms = int(number(case, "bucket_ms") or 0)
        settings = settings_of(size, (1.0,), bucket_ms=bucket_ms, policies=("process/process",), warm_s=20.0)
        return [measure_quiet(settings, size.of(20.0, 5.0), say)]

    def draw(self, rows: Rows, figure: Figure) -> None:
        axes = figure.subplots()
        everything: dict[str, dict[str, Any]] = {"all rows": {}}
        draw_lines(
            axes, rows, everything, "bucket_ms", "mean_ms", label="mean delay in ms", below="size of a bucket in ms"
        )
        points = points_of(rows, {}, "bucket_ms", "newest_mean_ms")
        if points:
            axes.plot(
                *zip(*points, strict=True), "s--", color="#c98a2b", label="newest row of each bucket", markersize=5
            )
        fit = line_of(points_of(rows, {}, "bucket_ms", "mean_ms"))
        if fit:
            ends = [0.0, max(bucket for bucket, _ in points_of(rows, {}, "bucket_ms", "mean_ms"))]
            axes.plot(ends, [fit[0] + fit[1] * end for end in ends], ":", color="0.6", label="straight line")
        axes.set_xlim(left=0)
        axes.legend(fontsize=8, frameon=False)

    def findings(self, rows: Rows) -> Sequence[str]:
        points = points_of(rows, {}, "bucket_ms", "mean_ms")
        out = [f"Buckets of {bucket:g} ms: rows are {mean:,.0f} ms old on average." for bucket, mean in points]
        fit = line_of(points)
        if fit:
            begin, slope, error = fit
            what = (
                f"the delay is about {begin:,.0f} ms and {slope:.2f} times the size of a bucket, at most {error:,.0f} "
            )
            out.append(compared(slope > 0.25 and error < 0.25 * points[-1][1], f"{what}ms from that line."))
        return out


def line_of(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """Beginning and slope of the straight line through points, and the largest distance of one from it."""
    if len(points) < 3:
        return None
    import numpy as np

    x, y = (np.array(values) for values in zip(*points, strict=True))
    slope, begin = np.polyfit(x, y, 1)
    return float(begin), float(slope), float(np.abs(begin + slope * x - y).max())

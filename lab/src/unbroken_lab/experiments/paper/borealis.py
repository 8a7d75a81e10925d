"""Experiments of Balazinska et al. (Borealis) with one node: an input is missing, and results go on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken_lab.experiments.consistency.consistency import measure_quiet
from unbroken_lab.experiments.consistency.settings import PAIRS, HandlingCase
from unbroken_lab.experiments.experiment import Experiment, PaperValue, ReportClaim, Row, Rows, Say, Size, number, seen
from unbroken_lab.experiments.paper.missing_input import (
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
    ways: ClassVar[Mapping[str, str]] = {"Process": "process/suspend", "Delay": "delay/suspend"}

    def scale(self, size: Size) -> str:
        return (
            "Paper: 3,000 tuples/s, a join, checkpoint and redo, means of three runs. Here: 3,000 rows/s, counts in "
            "windows, one run each, 2 nodes on one machine; results are given in buckets of 0.5 s"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"policy": "delay/suspend", "waited_s": 1.35}]
        return [{"policy": policy, "waited_s": wait} for policy in self.ways.values() for wait in self.waits_s]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        max_delay_ms = round((number(case, "waited_s") or 0.0) / ALPHA * 1000)
        settings = settings_of(size, (self.failure_s,), rate=3_000, max_delay_ms=max_delay_ms)
        return fail_inputs(HandlingCase(str(case["policy"]), RECONCILE), settings, say)

    def draw(self, rows: Rows, figure: Figure) -> None:
        series = {name: {"policy": policy} for name, policy in self.ways.items()}
        draw_pair(figure, rows, series, "waited_s", "seconds that missing input is waited for")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = [correctness(rows)]
        tentative = {}
        for name, policy in self.ways.items():
            delays = points_of(rows, {"policy": policy}, "waited_s", "delay_new_s")
            tentative[name] = points_of(rows, {"policy": policy}, "waited_s", "tentative_rows")
            fit = line_of([(wait, delay) for wait, delay in delays if wait < self.failure_s])
            if fit:
                begin, slope, error = fit
                here = f"{slope:.2f} s, from {begin:.2f} s on, at most {error:.2f} s from that line"
                agrees = 0.7 <= slope <= 1.3 and error < 0.5
                out.append(
                    ReportClaim(f"{name}: growth of the delay for each second waited", "1 s, linear", here, agrees)
                )
        process, delay = (dict(tentative[name]) for name in self.ways)
        out.extend(self._by_wait(process, delay))
        for wait, count in process.items():
            if wait in delay:
                what = f"tentative rows when {wait:g} s are waited, Process and Delay"
                out.append(seen(what, f"{count:,.0f}, {delay[wait]:,.0f}"))
        saved = [process[wait] - delay[wait] for wait in process if wait in delay and wait < self.failure_s]
        if saved:
            fewer = sum(count > 0 for count in saved)
            what = "waits with which Delay gives fewer tentative rows than Process"
            out.append(ReportClaim(what, "all", f"{fewer} of {len(saved)}", fewer == len(saved)))
        masked = [count for points in tentative.values() for wait, count in points if wait > self.failure_s]
        if masked:
            what = "tentative rows of a failure that is shorter than the wait"
            out.append(ReportClaim(what, "0", f"{max(masked):,.0f}", not any(masked)))
        return out

    def _by_wait(self, process: Mapping[float, float], delay: Mapping[float, float]) -> list[ReportClaim]:
        """A step with Process, and with Delay less and less: what the paper draws of tentative results."""
        short = [wait for wait in sorted(process) if wait < self.failure_s and wait in delay]
        if len(short) < 2:
            return []
        level, falling = [process[wait] for wait in short], [delay[wait] for wait in short]
        waits = f"waits of {short[0]:g} to {short[-1]:g} s"
        return [
            ReportClaim(
                f"Process: tentative rows with {waits}",
                "the same",
                f"{min(level):,.0f} to {max(level):,.0f}",
                min(level) >= 0.75 * max(level),
            ),
            ReportClaim(
                f"Delay: tentative rows with {waits}",
                "fewer with every longer wait",
                ", ".join(f"{count:,.0f}" for count in falling),
                all(after < before for before, after in pairwise(falling)),
            ),
        ]


class NewInputPolicies(Experiment):
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
        return fail_inputs(HandlingCase(str(case["policy"]), RECONCILE), settings_of(size, self.failures_s), say)

    def draw(self, rows: Rows, figure: Figure) -> None:
        series = {policy: {"policy": policy} for policy in PAIRS}
        upper = draw_pair(figure, rows, series, "duration_s", "length of the failure in s")
        upper.axhline(MAX_DELAY_S, color="0.5", linestyle=":", linewidth=1)
        upper.annotate("bound", (0.0, MAX_DELAY_S), xycoords=("axes fraction", "data"), fontsize=7, va="bottom")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = [correctness(rows)]
        longest = {}
        for policy in PAIRS:
            delays = points_of(rows, {"policy": policy}, "duration_s", "delay_new_s")
            counts = points_of(rows, {"policy": policy}, "duration_s", "tentative_rows")
            if delays and counts:
                longest[policy] = (max(delay for _, delay in delays), counts[-1][1])
                told = ", ".join(f"{delay:.2f} s after {duration:g} s" for duration, delay in delays)
                out.append(seen(f"{policy}: largest delay", told))
                out.append(seen(f"{policy}: tentative rows of the longest failure", f"{counts[-1][1]:,.0f}"))
        short = [count for row in rows if (number(row, "duration_s") or 9.0) < ALPHA * MAX_DELAY_S
                 and (count := number(row, "tentative_rows")) is not None]  # fmt: skip
        if short:
            what = "tentative rows of failures that are shorter than the wait"
            out.append(ReportClaim(what, "0", f"{max(short):,.0f}", not any(short)))
        return [*out, *_policy_claims(longest)]


def _policy_claims(longest: Mapping[str, tuple[float, float]]) -> list[ReportClaim]:
    """What was found of each policy: its largest delay, and the tentative rows of its longest failure."""
    out = []
    for policy, (delay_s, _) in longest.items():
        breaks, there = delay_s >= MAX_DELAY_S, policy.endswith("/suspend")
        paper = f"{'above' if there else 'below'} {MAX_DELAY_S:g} s"
        out.append(
            ReportClaim(f"{policy}: largest delay against the bound", paper, f"{delay_s:.2f} s", breaks == there)
        )
    best = longest.get("process/process")
    fewer = {policy: count for policy, (_, count) in longest.items() if policy in FEWER}
    if best:
        alpha_s = ALPHA * MAX_DELAY_S
        what = "process/process: largest delay against the time waited"
        out.append(ReportClaim(what, f"below {alpha_s:.1f} s", f"{best[0]:.2f} s", best[0] < alpha_s))
        for policy, count in fewer.items():
            what = f"{policy}: tentative rows of the longest failure against process/process"
            out.append(ReportClaim(what, "fewer", f"{count:,.0f} against {best[1]:,.0f}", count < best[1]))
    return out


FEWER = ("process/delay", "delay/process", "delay/delay")
"""With these the paper saves tentative tuples and keeps the bound."""


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

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        points = points_of(rows, {}, "bucket_ms", "mean_ms")
        newest = dict(points_of(rows, {}, "bucket_ms", "newest_mean_ms"))
        out = [
            seen(
                f"buckets of {bucket:g} ms: mean age of rows",
                f"{mean:,.0f} ms, of which {newest.get(bucket, mean):,.0f} ms is measured with the newest row of each "
                "and half a bucket is computed",
            )
            for bucket, mean in points
        ]
        fit = line_of(points)
        if fit:
            begin, slope, error = fit
            here = f"{begin:,.0f} ms + {slope:.2f} times the size, at most {error:,.0f} ms from that line"
            grows = all(after > before for (_, before), (_, after) in pairwise(points))
            out.append(ReportClaim("delay by the size of buckets", "grows with every step", here, grows and slope > 0))
        return out


def line_of(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """Beginning and slope of the straight line through points, and the largest distance of one from it."""
    if len(points) < 3:
        return None
    import numpy as np

    x, y = (np.array(values) for values in zip(*points, strict=True))
    slope, begin = np.polyfit(x, y, 1)
    return float(begin), float(slope), float(np.abs(begin + slope * x - y).max())

"""The monitoring application of Rosinosky et al.: does every notification come within 2 s, also when a node is lost?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from unbroken.client import Result
from unbroken.protocol.values.ids import ShardId
from unbroken_lab.experiments.experiment import (
    Experiment,
    PaperValue,
    ReportClaim,
    Row,
    Rows,
    Say,
    Size,
    chosen,
    number,
    seen,
)
from unbroken_lab.experiments.paper.rosinosky.boxes import distinct, shown
from unbroken_lab.experiments.paper.rosinosky.faulted import Plan, Target, before_and_after, measure_fault
from unbroken_lab.experiments.paper.rosinosky.faults import draw_course, logarithmic, mark_kill
from unbroken_lab.experiments.paper.rosinosky.mib import SOURCE
from unbroken_lab.experiments.paper.rosinosky.numbered import NumberedReader
from unbroken_lab.experiments.parameters.cloud import PASSING, NotificationVerdict, Numbers, coded
from unbroken_lab.experiments.parameters.ways import LEADER, NONE, PASSIVE, PULSE, name_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOW = "cloud.py"
PULSE_MS = 800
NODES = 2
OBJECTIVE_MS = 2_000
"""What the operator of the application asks for."""

WARM_S = 40.0
"""Until Spark's code for two joins is compiled, every micro-batch takes less than the one before."""

JUDGED_S = 5
"""Results of the newest events may be under way when it is looked at; those that are older than this have to be there.
"""

MEASURED = ShardId("notified", 0)


@dataclass
class MonitoringReader(NumberedReader):
    """Also keeps which notifications came."""

    codes: list[Numbers] = field(default_factory=list)

    def take(self, result: Result) -> None:
        super().take(result)
        n, m, action = (result.table[name].to_numpy() for name in ("n", "m", "action"))
        self.codes.append(coded(n, m, action))

    def verdict(self, rate: int) -> NotificationVerdict:
        """Whether what came is what a computation without Spark and without faults gives."""
        came = np.concatenate([np.empty(0, np.int64), *self.codes])
        return NotificationVerdict.of(came, max(0, self.due() - JUDGED_S * rate), rate)


class Monitoring(Experiment):
    """One run for each rate and configuration, in which a node with a replica of the last segment is killed."""

    name = "saas"
    title = "Notifications of a monitoring application while a node is killed"
    source = f"{SOURCE}, Fig. 15 and 16"
    paper = (
        PaperValue("objective", "2 s from an event to its notification"),
        PaperValue("passive replication", "more than a minute without results"),
        PaperValue("heartbeats (LiveRobin), and loss of a follower (not run here)", "below 2 s throughout"),
        PaperValue("loss of the leader (KaZoo)", "higher for a short time, below 2 s"),
    )
    rates = (1_000, 5_000)

    def scale(self, size: Size) -> str:
        return (
            f"{NODES} nodes, so that what is lost is not built again, as in the paper; filters, joins and "
            "notifications in one segment, because more queries do not fit on two cores; 1 shard (the paper: 2 of the "
            "last task); "
            f"filters let {PASSING:.0%} of the events pass (the paper does not say how many); pulses of {PULSE_MS} ms "
            "or more"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"rate": 1_000, "way": PULSE}]
        return [{"rate": rate, "way": way} for rate in self.rates for way in (PASSIVE, LEADER, PULSE)]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        way, rate = str(case["way"]), int(number(case, "rate") or 0)
        load = {"WAY": way, "RATE": rate, "NODES": NODES}
        target, plan = Target(MEASURED, way == LEADER), Plan.of(size, way, WARM_S)
        found = measure_fault(FLOW, load, plan, PULSE_MS, target, say, restart=way == NONE, read=MonitoringReader)
        for sentence in found.story:
            say(f"  {sentence}")
        assert isinstance(found.reader, MonitoringReader)
        whole = {**found.gaps(), **asdict(found.reader.verdict(rate)), "node": found.node, "killed": LEADER}
        return [{**row, **whole} for row in found.rows("rows", rate)]

    def draw(self, rows: Rows, figure: Figure) -> None:
        rates = distinct(rows, "rate")
        panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
        for axes, rate in zip(panels, rates, strict=True):
            for way in distinct(rows, "way"):
                draw_course(axes, chosen(rows, rate=rate, way=way), "p99_ms", way, LEADER)
            mark_kill(axes)
            axes.axhline(OBJECTIVE_MS, color="black", linestyle=":", linewidth=1)
            axes.set_title(f"{int(rate):,} events/s", fontsize=9)
            logarithmic(axes, chosen(rows, rate=rate))
            axes.set_xlabel("seconds after the kill")
        panels[0].set_ylabel("latency, p99 (ms)")
        panels[0].legend(fontsize=8)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = []
        for rate in distinct(rows, "rate"):
            for way in distinct(chosen(rows, rate=rate), "way"):
                of = chosen(rows, rate=rate, way=way)
                before, after = before_and_after(of, "p99_ms")
                usual, worst = max(before, default=None), max(after, default=None)
                kept = worst is not None and worst < OBJECTIVE_MS
                whole = {name: number(of[0], name) or 0 for name in ("expected", "lost", "duplicated", "wrong")}
                place = f"{int(rate):,} events/s, {name_of(way)}"
                here = f"{shown(usual)} before the kill, {shown(worst)} from it on"
                paper = "missed" if way == PASSIVE else "kept"
                what = f"{place}: objective of 2 s for the p99 of a second"
                out.append(ReportClaim(what, paper, here, kept == (way != PASSIVE)))
                gap, gap_before = (shown(number(of[0], name)) for name in ("gap_ms", "gap_before_ms"))
                out.append(seen(f"{place}: longest time without results", f"{gap} ({gap_before} before the kill)"))
                told = ", ".join(f"{whole[name]:,.0f} {name}" for name in ("lost", "duplicated", "wrong"))
                out.append(seen(f"{place}: {whole['expected']:,.0f} notifications", told))
        return out

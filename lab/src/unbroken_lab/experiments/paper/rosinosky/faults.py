"""A node is killed under a chain of three segments: tail latency, processor time and bytes around it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np

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
from unbroken_lab.experiments.paper.rosinosky.boxes import distinct, ratio, shown
from unbroken_lab.experiments.paper.rosinosky.faulted import FOLLOWER, Plan, Target, before_and_after, measure_fault
from unbroken_lab.experiments.paper.rosinosky.mib import CLUSTER, IDENTITY, RATE, SOURCE
from unbroken_lab.experiments.parameters.ways import LEADER, NONE, PASSIVE, PULSE, UNORDERED, color_of, name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTH = 3
NODES = 4
PULSE_MS = 1_000
MEASURED = ShardId("step2", 0)
"""The segment in the middle. On four nodes its two replicas are on nodes that have no part in the sources, as the
killed task managers of the paper have none."""

AT_KILL_S = 5
"""Seconds from the kill on in which its loss would be seen; then replicas that were lost begin to be built again."""

UNSEEN_MS = PULSE_MS / 4
"""Growth of the tail that is no more than what one second differs from another."""

SINGLE_MS = 1_000
"""How late single rows are in the paper when the leader is lost."""

FOR_ALL_MS = 60_000
"""How late rows are in the paper with passive replication."""

ANY = "replica"
SILENT_S = 3
"""Seconds without results that are shown as a gap; pulses alone leave out every other second."""


class Faults(Experiment):
    """One run for each configuration, in which a node with a replica of the middle segment is killed."""

    name = "faults"
    title = "A node is killed under three segments in a row"
    source = f"{SOURCE}, Fig. 14"
    paper = (
        PaperValue("passive replication", "latencies of more than 60 s"),
        PaperValue("loss of the leader (KaZoo)", "single latencies of up to about 1 s"),
        PaperValue("loss of a follower, or of any replica with heartbeats (LiveRobin)", "not to be seen"),
        PaperValue("network, active replicas to none", "4 times: two send everything to two"),
        PaperValue("processor time", "most with the leader (KaZoo), which also needs Kafka"),
    )

    def scale(self, size: Size) -> str:
        return f"{NODES} nodes, 1 shard per segment, {RATE:,} rows/s, pulses of {PULSE_MS:,} ms ({CLUSTER})"

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"way": PULSE, "killed": ANY}]
        return [
            {"way": NONE, "killed": ANY},
            {"way": PASSIVE, "killed": ANY},
            {"way": UNORDERED, "killed": ANY},
            {"way": LEADER, "killed": LEADER},
            {"way": LEADER, "killed": FOLLOWER},
            {"way": PULSE, "killed": ANY},
        ]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        way = str(case["way"])
        load = {"WAY": way, "LENGTH": LENGTH, "NODES": NODES, "RATE": RATE}
        target = Target(MEASURED, way == LEADER, str(case["killed"]))
        found = measure_fault(IDENTITY, load, Plan.of(size, way), PULSE_MS, target, say, restart=way == NONE)
        rows, due = found.reader.rows(), found.reader.due()
        for sentence in found.story:
            say(f"  {sentence}")
        whole = {**found.gaps(), "due": due, "lost": rows.missing(due), "duplicated": rows.repeated, "node": found.node}
        return [{**row, **whole} for row in found.rows("rows", RATE)]

    def draw(self, rows: Rows, figure: Figure) -> None:
        figure.set_size_inches(8, 7.5)
        tail, cores, sent = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
        for case in kinds(rows):
            of = chosen(rows, way=case[0], killed=case[1])
            draw_course(tail, of, "p99_ms", *case)
            draw_course(cores, of, "cpu_cores", *case)
            draw_course(sent, of, "bytes_per_s", *case, unit=1e6)
        mark_kill(tail, cores, sent)
        logarithmic(tail, rows)
        tail.set_ylabel("latency, p99 (ms)")
        cores.set_ylabel("cores")
        sent.set_ylabel("MB/s")
        sent.set_xlabel("seconds after the kill")
        tail.legend(fontsize=8, ncols=2)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = []
        base = chosen(rows, way=NONE)
        for way, killed in kinds(rows):
            of = chosen(rows, way=way, killed=killed)
            before, after = before_and_after(of, "p99_ms")
            cores, sent = _usual(of, "cpu_cores"), _usual(of, "bytes_per_s")
            beside = ""
            if base and way != NONE:
                beside = (
                    f" ({ratio(cores, _usual(base, 'cpu_cores'))} and {ratio(sent, _usual(base, 'bytes_per_s'))} times "
                    "those without replication)"
                )
            here = (
                f"p99 of a second {shown(_median(before))} before the kill, {shown(max(after, default=None))} at most "
                f"from it on; {shown(number(of[0], 'gap_ms'))} without results "
                f"({shown(number(of[0], 'gap_before_ms'))} before); {shown(cores, 'cores', 2)} and "
                f"{shown(None if sent is None else sent / 1e6, 'MB/s', 2)}{beside}"
            )
            lost, due, twice = (number(of[0], name) or 0 for name in ("lost", "due", "duplicated"))
            out.append(seen(case_name(way, killed), here))
            rows_here = f"{lost:,.0f} of {due:,.0f} lost, {twice:,.0f} duplicated"
            out.append(seen(f"{case_name(way, killed)}: rows", rows_here))
        return [*out, *_masked(rows), *_costs(rows)]


def _masked(rows: Rows) -> list[ReportClaim]:
    """Whether the kill is to be seen in the tail at once, and what is to be seen of it later."""
    out = []
    for way, killed in kinds(rows):
        of = chosen(rows, way=way, killed=killed)
        before, after = before_and_after(of, "p99_ms")
        at_once = [value for row in of if (value := number(row, "p99_ms")) and 0 <= int(row["second"] or 0) < AT_KILL_S]
        if not before or not after or way in (UNORDERED, NONE):
            continue
        name, usual = case_name(way, killed), max(before)
        if way == PASSIVE:
            paper, here = f"above {FOR_ALL_MS:,} ms", f"{max(after):,.0f} ms"
            out.append(ReportClaim(f"{name}: latest row after the kill", paper, here, max(after) > FOR_ALL_MS))
            continue
        if not at_once:
            continue
        grown, later = max(at_once) - usual, max(after) - usual
        led = way == LEADER and killed == LEADER
        bound, paper = (SINGLE_MS, "single rows up to about 1 s") if led else (UNSEEN_MS, "not to be seen")
        out.append(ReportClaim(f"{name}: growth of p99 at the kill", paper, f"{grown:+,.0f} ms", grown <= bound))
        what = f"{name}: growth of p99 later, while redundancy is restored"
        out.append(ReportClaim(what, "nothing is restored", f"{later:+,.0f} ms", later <= UNSEEN_MS))
    return out


def _costs(rows: Rows) -> list[ReportClaim]:
    """Processor time and bytes of the configurations with two active replicas, beside those of none."""
    base = _usual(chosen(rows, way=NONE), "bytes_per_s")
    sent = [_usual(chosen(rows, way=way), "bytes_per_s") for way in (LEADER, PULSE)]
    out = []
    known = [value / base for value in sent if value is not None and base]
    if known:
        here = f"{min(known):.1f} to {max(known):.1f}"
        out.append(ReportClaim("bytes with active replicas by those without", "4", here, min(known) >= 3.5))
    cores = {way: _usual(chosen(rows, way=way), "cpu_cores") for way in (LEADER, PULSE)}
    leader, pulse = cores[LEADER], cores[PULSE]
    if leader is not None and pulse is not None:
        here = f"{leader:.2f} against {pulse:.2f}"
        out.append(ReportClaim("cores with a leader against pulses", "most with the leader", here, leader > pulse))
    return out


def kinds(rows: Rows) -> list[tuple[str, str]]:
    """The cases there are rows of."""
    return [(way, killed) for way in distinct(rows, "way") for killed in distinct(chosen(rows, way=way), "killed")]


def case_name(way: str, killed: str) -> str:
    return f"{name_of(way)}, {killed} killed" if way == LEADER else name_of(way)


def draw_course(axes: Axes, rows: Rows, figure: str, way: str, killed: str, unit: float = 1.0) -> None:
    """A line over the seconds around the kill; seconds without a value are passed over."""
    points = [(number(row, "second"), number(row, figure)) for row in rows]
    known = [(second + 0.5, value / unit) for second, value in points if second is not None and value is not None]
    # A line is broken where nothing came for a while.
    silent = [(one, nan) for (one, _), (other, _) in pairwise(known) if other - one > SILENT_S]
    known = sorted([*known, *silent], key=lambda point: (point[0], isnan(point[1])))
    axes.plot(
        [second for second, _ in known],
        [value for _, value in known],
        color=color_of(way),
        linestyle="--" if killed == FOLLOWER else "-",
        marker=".",
        markersize=3,
        linewidth=1.2,
        label=case_name(way, killed),
    )


def mark_kill(*panels: Axes) -> None:
    for axes in panels:
        axes.axvline(0, color="red", linewidth=0.8)
        axes.grid(alpha=0.3)


def logarithmic(axes: Axes, rows: Rows) -> None:
    """Scale latencies of very different sizes; without any there is nothing to scale."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    if any(number(row, "p99_ms") for row in rows):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _usual(rows: Rows, figure: str) -> float | None:
    """What is used before the kill; bytes go out with every pulse, so that single seconds say little."""
    before = before_and_after(rows, figure)[0]
    return float(np.mean(before)) if before else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None

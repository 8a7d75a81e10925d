"""`unbroken bench peers`: Unbroken, Spark and Flink on the same events, each with a process that is killed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import (
    ERROR,
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Size,
    number,
    parameter,
    parted,
    seen,
)
from unbroken_lab.experiments.observation.observed import Say
from unbroken_lab.experiments.peers.figures import course, figures_of
from unbroken_lab.experiments.peers.flink.cluster import EagerFlink, FlinkCluster, TunedFlink
from unbroken_lab.experiments.peers.peer import Peer
from unbroken_lab.experiments.peers.replicas import Replicas
from unbroken_lab.experiments.peers.schedule import PeerSchedule, run_system
from unbroken_lab.experiments.peers.spark.cluster import SparkCluster
from unbroken_lab.experiments.peers.spark.restart import RestartedSpark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PEERS: Mapping[str, type[Peer]] = {
    peer.name: peer for peer in (Replicas, RestartedSpark, SparkCluster, FlinkCluster, TunedFlink, EagerFlink)
}
SYSTEMS = tuple(PEERS)
UNBROKEN = Replicas.name
SECONDS, QUICK_SECONDS = 80.0, 20.0
SHORTEST_S = 10.0
RATE = 5_000
GAP_AIM = 1 / 20
"""Unbroken's gap at the kill for each second of gap of those that stop and start again."""

COLORS = {"unbroken": "tab:green", "spark": "tab:red", "spark-cluster": "tab:orange"}
COLORS |= {"flink": "tab:blue", "flink-tuned": "tab:cyan", "flink-eager": "tab:purple"}


@dataclass(frozen=True)
class PeerComparison(Experiment):
    """One case for each system. Its rows: one with the figures, and the course of the latency in the others, which have
    the column ``at_s``."""

    name = "peers"
    title = "A process is killed: Unbroken and its peers"
    source = "unbroken bench peers"
    columns: ClassVar = (
        ReportColumn("system", "system"),
        ReportColumn("p50_ms", "p50", " ms", 0),
        ReportColumn("p99_ms", "p99", " ms", 0),
        ReportColumn("fault_max_ms", "largest", " s", 2, 1000),
        ReportColumn("fault_gap_ms", "gap", " s", 2, 1000),
        ReportColumn("normal_s", "as before", " s", 1),
        ReportColumn("lost", "lost", digits=0),
        ReportColumn("duplicated", "dupl.", digits=0),
        ReportColumn("repeated", "again", digits=0),
        ReportColumn("cores", "cores", digits=2),
    )
    caption = (
        "p50, p99: latency of events before the kill; largest, gap: latency and time without results at the kill; as "
        "before: seconds after the kill; again: results that came twice; cores: of processor time in the measured time."
    )

    systems: str = parameter(",".join(SYSTEMS), "Systems to measure.")
    rate: int = parameter(RATE, "Events per second.")
    seconds: float | None = parameter(
        None, f"Length of the stream of events for each system.  [default: {SECONDS:g}]", float
    )

    def __post_init__(self) -> None:
        parted(self.systems, SYSTEMS, "system")
        if self.rate < 1:
            raise UnbrokenError(f"a rate of {self.rate} events per second cannot be measured; give 1 or more")
        if self.seconds is not None and self.seconds < SHORTEST_S:
            raise UnbrokenError(f"{self.seconds:g} s are too short to be measured; give {SHORTEST_S:g} or more")

    def scale(self, size: Size) -> str:
        cores = os.cpu_count()
        events = f"{self.rate:,} events/s, running count and maximum of 10,000 keys"
        return f"{events}; all processes of a system on one machine with {cores} cores, one system after the other"

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"system": name} for name in parted(self.systems, SYSTEMS, "system")]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        peer = PEERS[str(case["system"])]
        seconds = self.seconds or size.of(SECONDS, QUICK_SECONDS)
        run = run_system(peer, self.rate, PeerSchedule.of(seconds), say)
        figures = figures_of(run.observation, run.warm_ms, run.killed_ms, run.cpu_s, run.measured_s)
        say(
            f"{peer.title}: {figures.fault_gap_ms / 1000:.2f} s without results, largest latency "
            f"{figures.fault_max_ms / 1000:.2f} s, lost {figures.lost}, duplicated {figures.duplicated}"
        )
        return [{"killed": run.killed, **figures.to_row()}, *course(run.observation, run.killed_ms)]

    def draw(self, rows: Rows, figure: Figure) -> None:
        axes = figure.subplots()
        for name in dict.fromkeys(str(row["system"]) for row in rows):
            points = [row for row in rows if row["system"] == name and number(row, "at_s") is not None]
            times = [number(row, "at_s") or 0.0 for row in points]
            largest = [number(row, "latency_max_ms") or 0.0 for row in points]
            axes.plot(times, largest, label=PEERS[name].title, color=COLORS[name], linewidth=1.2)
        warm = [row for row in rows if number(row, "at_s") is not None and (number(row, "at_s") or 0) >= SHOWN_S]
        if warm:
            axes.set_xlim(SHOWN_S, max(number(row, "at_s") or 0 for row in warm))
        axes.axvline(0, color="0.3", linestyle="--", linewidth=1)
        axes.annotate(
            "kill -9", (0, 1), xycoords=("data", "axes fraction"), xytext=(3, -10), textcoords="offset points"
        )
        axes.set_yscale("log")
        axes.set_xlabel("time at which an event was due, in seconds after the kill")
        axes.set_ylabel("latency of the event in ms\n(largest of each quarter of a second)")
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize=8, loc="upper right")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        """Every system, and Unbroken against the others; the aims of this project stand where a paper would."""
        found = summaries(rows)
        out = [claim for row in found.values() for claim in _system_claims(row)]
        ours = found.get(UNBROKEN)
        if ours is None:
            return out
        gap = number(ours, "fault_gap_ms") or 0.0
        for name in ("spark", "flink"):
            other = number(found[name], "fault_gap_ms") if name in found else None
            if other:
                what = f"Unbroken's gap by that of {PEERS[name].title}"
                out.append(ReportClaim(what, f"aim: at most {GAP_AIM:g}", f"{gap / other:.3f}", gap <= GAP_AIM * other))
        largest = number(ours, "fault_max_ms") or 0.0
        for kind, aimed in ((TunedFlink, True), (EagerFlink, False)):
            other = number(found[kind.name], "fault_max_ms") if kind.name in found else None
            if other:
                what = f"Unbroken's largest latency at the kill by that of {kind.title}"
                here = f"{largest / other:.2f} ({largest / 1000:.2f} s / {other / 1000:.2f} s)"
                out.append(ReportClaim(what, "aim: below 1" if aimed else "", here, largest < other if aimed else None))
        return out

    def lines(self, rows: Rows) -> Rows:
        failed = [row for row in rows if row.get(ERROR)]
        return [*summaries(rows).values(), *failed]


SHOWN_S = -15.0
"""The picture begins so long before the kill, when every system is warm."""


def summaries(rows: Rows) -> dict[str, Row]:
    """The row with the figures of each system."""
    return {str(row["system"]): row for row in rows if number(row, "p50_ms") is not None}


def _system_claims(row: Row) -> list[ReportClaim]:
    title, normal = PEERS[str(row["system"])].title, number(row, "normal_s")
    gap, largest = ((number(row, name) or 0) / 1000 for name in ("fault_gap_ms", "fault_max_ms"))
    return [
        seen(
            f"{title}: latency before the kill",
            f"p50 {number(row, 'p50_ms'):.0f} ms, p99 {number(row, 'p99_ms'):.0f} ms",
        ),
        seen(f"{title}: gap and largest latency at the kill", f"{gap:.2f} s, {largest:.2f} s"),
        seen(f"{title}: as before after", "not within the run" if normal is None else f"{normal:.1f} s"),
        seen(
            f"{title}: rows lost, duplicated; cores",
            f"{number(row, 'lost') or 0:.0f}, {number(row, 'duplicated') or 0:.0f}; {number(row, 'cores'):.2f}",
        ),
    ]

"""`unbroken bench peers`: Unbroken, Spark and Flink on the same events, each with a process that is killed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.observed import Say
from unbroken_lab.experiments.paper.experiment import ERROR, Experiment, Row, Rows, Size, number
from unbroken_lab.experiments.peers.figures import course, figures_of
from unbroken_lab.experiments.peers.flink import EagerFlink, FlinkCluster, TunedFlink
from unbroken_lab.experiments.peers.peer import Peer
from unbroken_lab.experiments.peers.replicas import Replicas
from unbroken_lab.experiments.peers.schedule import Schedule, run_system
from unbroken_lab.experiments.peers.spark_cluster import SparkCluster
from unbroken_lab.experiments.peers.spark_restart import RestartedSpark

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
class PeersSettings:
    """What to measure; a system takes about half a minute more than ``seconds``."""

    systems: Sequence[str] = SYSTEMS
    rate: int = RATE
    seconds: float | None = None
    """None: as long as the size of the run says."""

    @classmethod
    def parse(cls, systems: str, rate: int, seconds: float | None) -> PeersSettings:
        """Settings as they are written on the command line."""
        names = [name.strip() for name in systems.split(",") if name.strip()]
        unknown = sorted(set(names) - set(SYSTEMS))
        if unknown or not names:
            said = f"there is no system {', '.join(unknown)}" if unknown else "no system was named"
            raise UnbrokenError(f"{said}; use some of: {','.join(SYSTEMS)}")
        if rate < 1:
            raise UnbrokenError(f"a rate of {rate} events per second cannot be measured; give 1 or more")
        if seconds is not None and seconds < SHORTEST_S:
            raise UnbrokenError(f"{seconds:g} s are too short to be measured; give {SHORTEST_S:g} or more")
        return cls(tuple(dict.fromkeys(names)), rate, seconds)


class Peers(Experiment):
    """One case for each system. Its rows: one with the figures, and the course of the latency in the others, which have
    the column ``at_s``."""

    name = "peers"
    title = "A process is killed: Unbroken and its peers"
    source = "unbroken bench peers"

    def __init__(self, settings: PeersSettings | None = None) -> None:
        self.settings = settings or PeersSettings()

    def scale(self, size: Size) -> str:
        cores = os.cpu_count()
        events = f"{self.settings.rate:,} events/s, running count and maximum of 10,000 keys"
        return f"{events}; all processes of a system on one machine with {cores} cores, one system after the other"

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"system": name} for name in self.settings.systems]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        peer = PEERS[str(case["system"])]
        seconds = self.settings.seconds or size.of(SECONDS, QUICK_SECONDS)
        run = run_system(peer, self.settings.rate, Schedule.of(seconds), say)
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

    def findings(self, rows: Rows) -> Sequence[str]:
        found = summaries(rows)
        said = [_sentence(row) for row in found.values()]
        ours = found.get(UNBROKEN)
        if ours is None:
            return said
        gap = number(ours, "fault_gap_ms") or 0.0
        for name in ("spark", "flink"):
            other = number(found[name], "fault_gap_ms") if name in found else None
            if other:
                verdict = "met" if gap <= GAP_AIM * other else "not met"
                said.append(
                    f"Unbroken's gap is {gap / other:.3f} of that of {PEERS[name].title} "
                    f"(aim: at most {GAP_AIM:g}, {verdict})."
                )
        largest = number(ours, "fault_max_ms") or 0.0
        for kind, aim in ((TunedFlink, "; aim: below 1, {}"), (EagerFlink, "")):
            other = number(found[kind.name], "fault_max_ms") if kind.name in found else None
            if other:
                judged = aim.format("met" if largest < other else "not met")
                said.append(
                    f"Unbroken's largest latency at the kill is {largest / other:.2f} of that of {kind.title} "
                    f"({largest / 1000:.2f} s beside {other / 1000:.2f} s{judged})."
                )
        return said


SHOWN_S = -15.0
"""The picture begins so long before the kill, when every system is warm."""


def summaries(rows: Rows) -> dict[str, Row]:
    """The row with the figures of each system."""
    return {str(row["system"]): row for row in rows if number(row, "p50_ms") is not None}


def peers_table(rows: Rows) -> Table:
    """One line for each system that could be measured."""
    table = Table(title="A process is killed", caption=CAPTION)
    table.add_column("system", no_wrap=True)
    for column in ("p50", "p99", "largest", "gap", "as before", "lost", "dupl.", "again", "cores"):
        table.add_column(column, justify="right")
    for name, row in summaries(rows).items():
        table.add_row(
            name,
            *(_shown(row, column, 1, "ms", 0) for column in ("p50_ms", "p99_ms")),
            *(_shown(row, column, 1000, "s", 2) for column in ("fault_max_ms", "fault_gap_ms")),
            _shown(row, "normal_s", 1, "s", 1),
            *(f"{number(row, column) or 0:,.0f}" for column in ("lost", "duplicated", "repeated")),
            _shown(row, "cores", 1, "", 2),
        )
    return table


CAPTION = (
    "p50, p99: latency of events before the kill; largest, gap: latency and time without results at the kill; "
    "as before: seconds after the kill; again: results that came twice; cores: of processor time in the measured time"
)


def peers_json(rows: Rows) -> dict[str, Any]:
    """The figures of each system, or why there are none."""
    hidden = {"system", "at_s", "events", "latency_ms", "latency_max_ms", ERROR}
    systems: dict[str, Any] = {
        name: {key: value for key, value in row.items() if key not in hidden} for name, row in summaries(rows).items()
    }
    systems.update({str(row["system"]): {ERROR: row[ERROR]} for row in rows if row.get(ERROR)})
    return systems


def _sentence(row: Row) -> str:
    normal = number(row, "normal_s")
    back = "not as before within the run" if normal is None else f"as before after {normal:.1f} s"
    return (
        f"{PEERS[str(row['system'])].title}: p50 {number(row, 'p50_ms'):.0f} ms and p99 {number(row, 'p99_ms'):.0f} ms "
        f"before the kill; then a gap of {(number(row, 'fault_gap_ms') or 0) / 1000:.2f} s, largest latency "
        f"{(number(row, 'fault_max_ms') or 0) / 1000:.2f} s, {back}; lost {number(row, 'lost') or 0:.0f}, "
        f"duplicated {number(row, 'duplicated') or 0:.0f}; {number(row, 'cores'):.2f} cores."
    )


def _shown(row: Row, column: str, divisor: float, unit: str, digits: int) -> str:
    value = number(row, column)
    return "-" if value is None else f"{value / divisor:.{digits}f} {unit}".rstrip()

"""What a run is judged by: every result against the reference, the figures, and the files that show them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unbroken.errors import UnbrokenError
from unbroken.observe.status.node import DivergedUnit
from unbroken_lab.demo.chart import draw
from unbroken_lab.demo.measure import ArrivalSample, DemoSchedule, Measures, measure, write_timeline
from unbroken_lab.demo.packets import Packets
from unbroken_lab.demo.reference import (
    DeliveredUnit,
    PulseSpan,
    RowsVerdict,
    compare,
    expected_rows,
    read_parquet,
    read_pulses,
)

SOURCE = "packets"


@dataclass(frozen=True)
class Setting:
    """What was run."""

    rate: int
    seconds: int
    nodes: int
    replicas: int
    seed: int
    schedule: DemoSchedule

    @property
    def limit(self) -> int:
        return self.rate * self.seconds


@dataclass
class Recording:
    """What was seen while the flow ran. ``start_ms`` is the first pulse, ``kill_ms`` the (planned) kill."""

    start_ms: float | None = None
    kill_ms: float | None = None
    killed: str | None = None
    samples: list[ArrivalSample] = field(default_factory=list)
    units: list[DeliveredUnit] = field(default_factory=list)
    divergences: tuple[DivergedUnit, ...] = ()


@dataclass(frozen=True)
class DemoOutcome:
    """Everything known about a run at its end."""

    setting: Setting
    rows_in: int
    rows_out: int
    table: RowsVerdict
    live: RowsVerdict
    divergences: int
    measures: Measures
    killed: str | None

    @property
    def exact(self) -> bool:
        """Whether both outputs hold every result once, as it should be, and no replicas differed."""
        return self.table.exact and self.live.exact and self.divergences == 0

    @property
    def lost(self) -> int:
        return self.table.lost + self.live.lost

    @property
    def duplicated(self) -> int:
        return self.table.duplicated + self.live.duplicated

    @property
    def wrong(self) -> int:
        return self.table.wrong + self.live.wrong

    def to_json(self) -> dict[str, Any]:
        """``lost`` and ``duplicated`` are sums over both outputs; a wrong row counts as lost, as the right
        one never came."""
        figures = self.measures
        before, after = figures.before, figures.after
        return {
            "pulse_ms": figures.pulse_ms,
            "rate_per_s": self.setting.rate,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "lost": self.lost + self.wrong,
            "duplicated": self.duplicated,
            "divergences": self.divergences,
            "latency_ms": {
                "before": {"p50": before.p50, "p99": before.p99},
                "after": {"p50": after.p50, "p99": after.p99, "max": after.max},
            },
            "output_gap_ms": {"before_max": figures.gap_before_ms, "fault": figures.gap_fault_ms},
            "nodes": self.setting.nodes,
            "replicas": self.setting.replicas,
            "killed": self.killed,
            "cores": os.cpu_count(),
            "seconds": self.setting.seconds,
        }


def evaluate(setting: Setting, recording: Recording, state: Path, results: Path) -> DemoOutcome:
    """Hold both outputs against the reference and compute the figures."""
    spans = longest_log(_ingress_logs(state, recording.killed), SOURCE)
    rows_in = spans[-1].stop if spans else 0
    packets = Packets(setting.rate)(0, setting.limit, setting.seed)
    expected = expected_rows(packets, with_rest(spans, setting.limit))
    delivered = read_parquet(results)
    start_ms = recording.start_ms or 0.0
    kill_ms = recording.kill_ms or start_ms + setting.schedule.kill_s * 1000
    return DemoOutcome(
        setting=setting,
        rows_in=rows_in,
        rows_out=sum(unit.table.num_rows for unit in delivered),
        table=compare(expected, delivered),
        live=compare(expected, recording.units),
        divergences=len(recording.divergences),
        measures=measure(recording.samples, start_ms + setting.schedule.warm_s * 1000, kill_ms),
        killed=recording.killed,
    )


def longest_log(directories: Iterable[Path], source: str) -> list[PulseSpan]:
    """The pulses of the ingress member that went on longest."""
    logs = [read_pulses(directory, source) for directory in directories]
    if not logs:
        raise UnbrokenError("no surviving node has an ingress log; the results cannot be checked")
    return max(logs, key=len)


def with_rest(spans: Sequence[PulseSpan], limit: int) -> list[PulseSpan]:
    """Rows that were never taken in belong to one more pulse: its results are lost, not overlooked."""
    stop = spans[-1].stop if spans else 0
    cut_ms = spans[-1].cut_ms if spans else 0
    rest = [PulseSpan(len(spans) + 1, cut_ms, stop, limit)] if stop < limit else []
    return [*spans, *rest]


def write_files(out: Path, outcome: DemoOutcome, recording: Recording) -> None:
    """``result.json``, ``timeline.csv`` and ``masked-failure.png``."""
    (out / "result.json").write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
    start_ms = recording.start_ms or 0.0
    write_timeline(out / "timeline.csv", recording.samples, start_ms)
    killed = None
    if recording.killed is not None and recording.kill_ms is not None:
        killed = (recording.killed, (recording.kill_ms - start_ms) / 1000)
    draw(
        out / "masked-failure.png",
        _title(outcome, killed),
        recording.samples,
        start_ms,
        outcome.setting.schedule,
        killed,
        outcome.measures,
    )


def print_summary(console: Console, outcome: DemoOutcome, out: Path) -> None:
    """The criteria in a table: what was measured, what is allowed, and whether it is met."""
    figures = outcome.measures
    table = Table(title=f"{outcome.killed} was killed: was it masked?" if outcome.killed else "No node was killed")
    for column in ("criterion", "measured", "allowed", ""):
        table.add_column(column, justify="left" if column == "criterion" else "right")
    for name, count in (
        ("results lost", outcome.lost),
        ("results duplicated", outcome.duplicated),
        ("results wrong", outcome.wrong),
        ("replicas diverged", outcome.divergences),
    ):
        table.add_row(name, f"{count:,}", "0", _mark(count == 0))
    table.add_row(
        "largest latency after the kill" if outcome.killed else "largest latency in the second half",
        _ms(figures.after.max),
        f"{_ms(figures.latency_bound_ms)} (p99 before + one pulse)",
        _mark(figures.latency_masked),
    )
    table.add_row(
        "longest gap at the kill" if outcome.killed else "longest gap at half time",
        _ms(figures.gap_fault_ms),
        f"{_ms(figures.gap_bound_ms)} (two pulses)",
        _mark(figures.gap_masked),
    )
    console.print(table)
    console.print(
        f"{outcome.rows_out:,} results; latency p50/p99: {_ms(figures.before.p50)}/{_ms(figures.before.p99)} before, "
        f"{_ms(figures.after.p50)}/{_ms(figures.after.p99)} after; "
        f"longest gap before: {_ms(figures.gap_before_ms)}; pulse: {_ms(figures.pulse_ms)}",
        highlight=False,
    )
    console.print(f"Files: {out}/result.json, timeline.csv, masked-failure.png", highlight=False, soft_wrap=True)


def _ingress_logs(state: Path, killed: str | None) -> list[Path]:
    # Of the two members that were there from the start: one that joined later may have only the end of the log.
    logs = sorted(state.glob("*/replicas/ingress.0#[01]/log"))
    return [path for path in logs if path.relative_to(state).parts[0] != killed]


def _title(outcome: DemoOutcome, killed: tuple[str, float] | None) -> str:
    rows = f"{outcome.lost + outcome.wrong} results lost, {outcome.duplicated} duplicated"
    if killed is None:
        return f"Network monitoring, no node was killed: {rows}"
    figures = outcome.measures
    return (
        f"One of {outcome.setting.nodes} nodes is killed at {killed[1]:.0f} s: {rows};\n"
        f"longest gap {_ms(figures.gap_fault_ms)} at the kill, {_ms(figures.gap_before_ms)} before"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _mark(good: bool) -> str:
    return "[green]yes[/]" if good else "[red]no[/]"

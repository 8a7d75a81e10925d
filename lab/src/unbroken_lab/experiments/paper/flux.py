"""Figure 8 of Flux and what its section says of overhead: a machine dies under the monitoring flow; what pairs cost.

Results per second and their latency around a kill, the state that was moved and the time that took. Then the rate that
a flow without replicas, one with two whole copies and one with a replica of every shard can take in, where processors
are the limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.replicas import StateTaken
from unbroken_lab.demo.chart import output_rate
from unbroken_lab.demo.packets import KINDS
from unbroken_lab.demo.runner import choose_victim
from unbroken_lab.experiments.experiment import Experiment, PaperValue, ReportClaim, Row, Rows, Say, Size, number, seen
from unbroken_lab.experiments.observation.figures import STEADY_S, Samples, judge
from unbroken_lab.experiments.observation.observed import END_SLACK_S, START_S, Reader, observed
from unbroken_lab.experiments.paper.saturation import (
    AT_MOST,
    OVERHEAD,
    PAIRS,
    PLAIN,
    THROUGHPUT,
    WAYS,
    draw_rates,
    overhead_claims,
    rates_of,
    saturate,
    saturate_plain,
    stay,
    throughput_claims,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

FLOW = "monitoring.py"
RECOVERY = "recovery"
RATE = 2_000

SHOWN_S = 20
"""Seconds before the kill that are drawn."""

WARM_S = 40.0
SETTLED_MS = 1_500.0
SETTLE_S = 30.0

DIP_S, SPIKE_S = 4, 10
"""Seconds after the kill in which results may become fewer, and in which they may be made up for."""

LEAST, MOST = 0.75, 1.25
"""Of the usual rate: what is less than usual, and what is more."""


class SessionReader(Reader):
    """Counts the sessions of each application and source: as many have to end as there are groups of packets."""

    def counted(self, table: pa.Table) -> Iterable[tuple[Hashable, int]]:
        app, src, sessions = (table[name].to_pylist() for name in ("app", "src", "sessions"))
        return zip(zip(app, src, strict=True), sessions, strict=True)


@dataclass(frozen=True)
class Moved:
    """The state that replicas took over after the kill: all bytes, and the times that the copies took together."""

    megabytes: float
    copied_s: float
    caught_up_s: float
    replicas: int

    @classmethod
    def of(cls, history: Iterable[Reported]) -> Moved:
        """The copies from other nodes; each replica reports its own once."""
        notices = [reported.notice for reported in history]
        found = {one.replica: one for one in notices if isinstance(one, StateTaken) and one.donor is not None}
        return cls(
            round(sum(one.size_bytes for one in found.values()) / 1e6, 2),
            round(sum(one.fetch_s for one in found.values()), 2),
            round(sum(one.catch_up_s for one in found.values()), 2),
            len(found),
        )


class Pairs(Experiment):
    """A failure that is masked, and what it costs to be ready for it."""

    name = "flux-fig8"
    title = "Network monitoring loses a machine; what pairs cost"
    source = "Shah et al., 2004, Figure 8 and section 5.4"
    paper: ClassVar = (
        PaperValue("input rate during the kill of one of four machines", "42,000 tuples/s, constant, nothing dropped"),
        PaperValue("state transferred, time", "8.5 MB in 941 ms"),
        PaperValue("output while state is moved", "drops after about 0.25 s, then a spike, normal about 1 s later"),
        PaperValue("input rate, processor-bound: single dataflow", "82,000 tuples/s"),
        PaperValue("input rate, processor-bound: cluster pairs", "40,000 tuples/s (0.49 of the single one)"),
        PaperValue("input rate, processor-bound: partition pairs", "36,000 tuples/s (0.90 of cluster pairs)"),
    )

    def scale(self, size: Size) -> str:
        return (
            f"Paper: five machines, 42,000 tuples/s. Here: three nodes and a spare on one machine, {_rate(size):,} "
            "packets/s with the kill; two nodes at saturation"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        recovery = {"part": RECOVERY, "way": PAIRS}
        if size.quick:
            return [recovery]
        overhead = [{"part": OVERHEAD, "way": way} for way in WAYS]
        return [recovery, *overhead, *({"part": THROUGHPUT, "way": way} for way in (PLAIN, *AT_MOST))]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        part = str(case["part"])
        if case["way"] == PLAIN:
            return [saturate_plain(size)]
        if part != RECOVERY:
            return [saturate(FLOW, part, str(case["way"]), size, SessionReader)]
        return _lose_a_machine(size, say)

    def draw(self, rows: Rows, figure: Figure) -> None:
        course = _course(rows)
        rates = rates_of(rows, OVERHEAD) | rates_of(rows, THROUGHPUT)
        grid = figure.add_gridspec(2, 3 if rates else 2)
        upper, lower = figure.add_subplot(grid[0, :2]), figure.add_subplot(grid[1, :2])
        seconds = [number(row, "second") or 0.0 for row in course]
        for axes, column, label, color in (
            (upper, "results_per_s", "results per second", "#1f6f8b"),
            (lower, "latency_ms", "mean latency in ms", "#5b4b8a"),
        ):
            # A second without results has no latency; what is drawn goes from the one before to the one after it.
            drawn = [(at, number(row, column)) for at, row in zip(seconds, course, strict=True)]
            points = [(at, value) for at, value in drawn if value is not None]
            axes.plot([at for at, _ in points], [value for _, value in points], color=color, marker=".", markersize=3)
            axes.axvline(0, color="#c0392b", linewidth=1.2)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(label)
            axes.spines[["top", "right"]].set_visible(False)
        restored = _summary(rows).get("restored_s")
        if restored:
            for axes in (upper, lower):
                axes.axvline(float(restored), color="0.6", linestyle="--", linewidth=1)
            upper.annotate(" redundant again", (float(restored), 0.05), xycoords=("data", "axes fraction"), fontsize=7)
        lower.set_xlabel("seconds since the kill")
        if rates:
            right = figure.add_subplot(grid[:, 2])
            draw_rates(right, rows)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        return [
            *_recovery_claims(_summary(rows)),
            *_course_claims(_course(rows)),
            *overhead_claims(rows),
            *throughput_claims(rows),
        ]


# --- a machine dies -----------------------------------------------------------------------------------


def _lose_a_machine(size: Size, say: Say) -> Rows:
    rate, warm_s = _rate(size), size.of(WARM_S, 2.0)
    steady_s, after_s = size.of(float(SHOWN_S), 4.0), size.of(50.0, 8.0)
    seconds = int(START_S + warm_s + steady_s + after_s)
    load = {"RATE": rate, "ROWS": rate * seconds, "NODES": 3, "REPLICAS": 2, "STANDBYS": int(size.of(1, 0))}
    with observed(FLOW, load, SessionReader) as run:
        run.settle(warm_s, SETTLED_MS, warm_s + size.of(SETTLE_S, 0.0))
        stay(run, steady_s)
        victim = choose_victim(run.cluster.status())
        killed_ms = run.kill(victim)
        say(f"{victim} killed")
        restored_ms = None if size.quick else run.await_redundancy(victim, after_s + END_SLACK_S)
        run.await_end(seconds + END_SLACK_S)
        told, bytes_moved = Moved.of(run.history()), run.state_moved()
    samples, lost = run.reader.samples, run.reader.lost(rate * seconds // len(KINDS))
    return [
        *course(samples, killed_ms),
        {
            "restored_s": None if restored_ms is None else (restored_ms - killed_ms) / 1000,
            "state_bytes": bytes_moved,
            "state_mb": told.megabytes,
            "copied_s": told.copied_s,
            "caught_up_s": told.caught_up_s,
            "replicas_moved": told.replicas,
            **_judged(samples, killed_ms, restored_ms),
            "lost": lost,
            "duplicated": run.reader.duplicated,
        },
    ]


def course(samples: Samples, killed_ms: float) -> list[Row]:
    """Results per second and their mean latency, for each second around the kill; a second without any has none."""
    inorder = sorted(samples, key=lambda sample: sample.arrived_ms)
    latencies: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for sample in inorder:
        latencies[int((sample.arrived_ms - killed_ms) // 1000)].append((sample.latency_ms, max(1, sample.rows)))
    rows: list[Row] = []
    for middle, rate in zip(*output_rate(inorder, killed_ms), strict=True):
        second = int(np.floor(middle))
        if second < -SHOWN_S:
            continue
        found = latencies.get(second, [])
        weight = sum(count for _, count in found)
        mean = sum(value * count for value, count in found) / weight if found else None
        rows.append({"second": second, "results_per_s": round(rate, 1), "latency_ms": mean})
    return rows


def _judged(samples: Samples, killed_ms: float, restored_ms: float | None) -> dict[str, Any]:
    figures = judge(samples, killed_ms, float("inf") if restored_ms is None else restored_ms)
    before, during = (figures["latency_ms"][phase] for phase in ("before", "during"))
    return {
        "pulse_ms": figures["pulse_ms"],
        "p50_before_ms": before["p50"],
        "max_before_ms": before["max"],
        "p50_during_ms": during["p50"],
        "max_during_ms": during["max"],
        "gap_before_ms": figures["gap_ms"]["before"],
        "gap_during_ms": figures["gap_ms"]["during"],
    }


# --- in words -----------------------------------------------------------------------------------------


def _course(rows: Rows) -> Rows:
    return [row for row in rows if row["part"] == RECOVERY and number(row, "second") is not None]


def _summary(rows: Rows) -> dict[str, Any]:
    """The row of the recovery that is about all of it."""
    found = [row for row in rows if row["part"] == RECOVERY and number(row, "second") is None]
    return (
        {} if not found else {name: number(found[0], name) for name in found[0] if name not in ("part", "way", "error")}
    )


def _recovery_claims(summary: dict[str, Any]) -> list[ReportClaim]:
    if not summary:
        return []
    out = [
        seen("sessions lost, results duplicated", f"{summary['lost']:,.0f}, {summary['duplicated']:,.0f}"),
        seen(
            f"longest time without results in the {STEADY_S:g} s before the kill, and after it",
            f"{_ms(summary['gap_before_ms'])}, {_ms(summary['gap_during_ms'])}",
        ),
        seen(
            "largest latency before the kill, and after it",
            f"{_ms(summary['max_before_ms'])}, {_ms(summary['max_during_ms'])}",
        ),
    ]
    if summary["restored_s"] is not None:
        out.append(
            seen(
                "redundancy after the kill",
                f"{summary['restored_s']:.1f} s; {summary['replicas_moved']:.0f} replicas, {summary['state_mb']:.1f} "
                f"MB, copied in {summary['copied_s']:.1f} s, caught up in {summary['caught_up_s']:.1f} s",
            )
        )
    without, late = (
        (summary[f"{what}_during_ms"] or 0.0) - (summary[f"{what}_before_ms"] or 0.0) for what in ("gap", "max")
    )
    here = (
        f"longest time without results {without:+,.0f} ms, largest latency {late:+,.0f} ms, pulses of "
        f"{summary['pulse_ms']:,.0f} ms"
    )
    masked = max(without, late) <= summary["pulse_ms"]
    out.append(ReportClaim("the failure is masked: both grow by at most a pulse", "masked", here, masked))
    return out


def _course_claims(course: Rows) -> list[ReportClaim]:
    """Whether results become fewer after the kill, and are made up for, as in the figure of the paper."""
    rates = {int(number(row, "second") or 0): number(row, "results_per_s") or 0.0 for row in course}
    before = [rate for second, rate in rates.items() if second < 0]
    after = [rates[second] for second in range(DIP_S) if second in rates]
    if not before or len(after) < DIP_S:
        return []
    usual = sum(before) / len(before)
    low, high = min(after), max(rate for second, rate in rates.items() if 0 <= second < SPIKE_S)
    dips = low < LEAST * usual and high > MOST * usual
    here = f"{usual:,.0f} before the kill, least {low:,.0f} and most {high:,.0f} after it"
    return [ReportClaim("results per second fall and are made up for", "they do", here, dips)]


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f} ms"


def _rate(size: Size) -> int:
    return int(size.of(RATE, 500))

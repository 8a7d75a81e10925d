"""`unbroken bench core`: plain Structured Streaming, one replica and two replicas, side by side in one run."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from unbroken.client import Result
from unbroken.errors import UnbrokenError
from unbroken.local.launcher import LocalCluster
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken.testing.harness.waiting import Overdue, until
from unbroken_lab.experiments.bars import draw_bars
from unbroken_lab.experiments.cost.plain_process import plain_process
from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Say,
    Size,
    compared,
    number,
    parameter,
    ratio_of,
)
from unbroken_lab.experiments.flows import FLOWS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 5_000
BATCH = 200_000
"""Rows of a micro-batch at saturation."""

QUICK = (3, 0, 100_000, 20_000)
"""No warm-up: on a busy machine the first micro-batch may take all rows of so short a run."""

DEADLINE_S = 240
NOTHING = "no result came within the deadline; run it while nothing else uses the machine"
PLAIN = "plain"
NODES = {"one_replica": 1, "two_replicas": 2}
"""The systems that are Unbroken, and on how many nodes they run."""


@dataclass(frozen=True)
class CoreSample:
    """One result as it came out: when, how many rows of input it covers, and how late its newest row is."""

    at_s: float
    rows: int
    latency_ms: float


@dataclass(frozen=True)
class MeasuredTimes:
    """How long to measure latency and throughput."""

    seconds: int
    warm_up: int
    rows: int
    batch: int


@dataclass(frozen=True)
class Core(Experiment):
    """One case for each system, measured twice: at a fixed rate for its latency, and at saturation."""

    name = "core"
    title = "What replication costs beside plain Structured Streaming"
    source = "unbroken bench core"
    columns: ClassVar = (
        ReportColumn("system", "system"),
        ReportColumn("p50_ms", "p50", " ms", 0),
        ReportColumn("p99_ms", "p99", " ms", 0),
        ReportColumn("max_ms", "largest", " ms", 0),
        ReportColumn("unit_ms", "time between results", " ms", 0),
        ReportColumn("rows_per_s", "rows/s at saturation", digits=0),
    )

    seconds: int = parameter(40, "Length of each latency measurement.")
    warm_up: int = parameter(20, "Seconds of it that are left out at the start.")
    rows: int = parameter(12_000_000, "Rows of each saturation measurement.")

    def scale(self, size: Size) -> str:
        load = self.load(size)
        return (
            f"Latency at {RATE:,} rows/s for {load.seconds} s, the first {load.warm_up} s left out; saturation with "
            f"{load.rows:,} rows in micro-batches of {load.batch:,}; all nodes on one machine"
        )

    def load(self, size: Size) -> MeasuredTimes:
        if size.quick:
            return MeasuredTimes(*QUICK)
        return MeasuredTimes(self.seconds, self.warm_up, self.rows, BATCH)

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"system": system} for system in (PLAIN, *NODES)[: 2 if size.quick else None]]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        system, load = str(case["system"]), self.load(size)
        latency = latency_figures(_results(system, RATE, RATE * load.seconds, load), load.warm_up)
        say(f"{system}: {latency}; throughput at saturation")
        rate = throughput(_results(system, 0, load.rows, load))
        say(f"{system}: {rate:,.0f} rows/s")
        return [{**latency, "rows_per_s": round(rate)}]

    def draw(self, rows: Rows, figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        draw_bars(left, rows, "system", {"p50_ms": "p50", "p99_ms": "p99"}, "latency in ms")
        draw_bars(right, rows, "system", {"rows_per_s": ""}, "rows/s at saturation")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        found = {str(row["system"]): row for row in rows}
        out: list[ReportClaim] = []
        for column, what in (("rows_per_s", "throughput"), ("p50_ms", "p50 latency")):
            for system in NODES:
                if system in found and PLAIN in found:
                    ratio = ratio_of(number(found[system], column), number(found[PLAIN], column))
                    out.append(compared(f"{what} of {system} for each of plain Spark", ratio))
        return out


def latency_figures(samples: list[CoreSample], warm_up_s: float) -> dict[str, float]:
    if not samples:
        raise UnbrokenError(NOTHING)
    begin = samples[0].at_s + warm_up_s
    values = [sample.latency_ms for sample in samples if sample.at_s >= begin]
    if not values:
        raise UnbrokenError("no result came after the warm-up; measure for longer (--seconds)")
    times = [sample.at_s for sample in samples if sample.at_s >= begin]
    return {
        "p50_ms": round(float(np.percentile(values, 50)), 1),
        "p99_ms": round(float(np.percentile(values, 99)), 1),
        "max_ms": round(max(values), 1),
        "unit_ms": round(float(np.median(np.diff(times))) * 1000, 1) if len(times) > 1 else 0.0,
    }


def throughput(samples: list[CoreSample]) -> float:
    """Rows per second over the second half of the rows, when the JVM is warm."""
    if not samples:
        raise UnbrokenError(NOTHING)
    half = [sample for sample in samples if sample.rows >= samples[-1].rows / 2]
    if len(half) < 2:
        raise UnbrokenError("too few units at saturation; measure more rows (--rows)")
    return (half[-1].rows - half[0].rows) / (half[-1].at_s - half[0].at_s)


def _results(system: str, rate: int, rows: int, load: MeasuredTimes) -> list[CoreSample]:
    """The results of a system at a rate, or as fast as it takes rows if the rate is 0."""
    if system == PLAIN:
        samples = plain_process("core", rate, rows, load.batch, DEADLINE_S)
        return [CoreSample(at, count, at * 1000 - cut_ms) for at, count, cut_ms in samples]
    return _unbroken(NODES[system], rate, rows, load.batch)


def _unbroken(nodes: int, rate: int, rows: int, batch: int) -> list[CoreSample]:
    os.environ.update(
        UNBROKEN_BENCH_NODES=str(nodes),
        UNBROKEN_BENCH_RATE=str(rate),
        UNBROKEN_BENCH_ROWS=str(rows),
        UNBROKEN_BENCH_BATCH=str(batch),
        UNBROKEN_BENCH_PULSE_MS="250" if rate else "20",
    )
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "state"
        deployment = LocalDeployment(lambda: LocalCluster(FLOWS / "workload.py", state, nodes=nodes), tended=False)
        # Nodes are not asked how they are: that would be measured, too.
        with Harness(deployment, ask_s=None) as harness:
            harness.start()
            results = harness.collect("live")
            # A machine that is too slow gives fewer results, of which the figures are made.
            with contextlib.suppress(Overdue):
                until(lambda: results.ended, DEADLINE_S, "the last result")
            return [_sample(result, 0 if rate else batch, rows) for result in results.received]


def _sample(result: Result, batch: int, rows: int) -> CoreSample:
    header = result.header
    return CoreSample(result.arrived_ms / 1000, min(header.number * batch, rows), result.arrived_ms - header.cut_ms)

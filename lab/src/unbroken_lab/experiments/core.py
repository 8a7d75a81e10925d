"""`unbroken bench core`: plain Structured Streaming, one replica and two replicas, side by side in one run."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unbroken.errors import UnbrokenError
from unbroken.local.launcher import LocalCluster
from unbroken_lab.experiments.plain_process import plain_process

Say = Callable[[str], None]

RATE = 5_000
NOTHING = "no result came within the deadline; the machine may be too busy to start Spark in time: try again alone"


@dataclass(frozen=True)
class CoreSettings:
    """How long to measure; the defaults take about four minutes in all."""

    latency_seconds: int = 40
    warm_up_seconds: int = 20
    saturation_batch: int = 200_000
    saturation_rows: int = 12_000_000
    deadline_s: int = 240


@dataclass(frozen=True)
class Sample:
    """One result as it came out: when, how many rows of input it covers, and how late its newest row is."""

    at_s: float
    rows: int
    latency_ms: float


SYSTEMS = ("plain", "one_replica", "two_replicas")


def run_core(settings: CoreSettings, say: Say, systems: Sequence[str] = SYSTEMS) -> dict[str, Any]:
    """Measure the systems one after the other, and the ratios to plain Spark."""
    out: dict[str, Any] = {"rate_per_s": RATE, "cores": os.cpu_count(), "systems": {}}
    measures: dict[str, Callable[[int, int], list[Sample]]] = {
        "plain": lambda rate, rows: _plain(rate, rows, settings),
        "one_replica": lambda rate, rows: _unbroken(1, rate, rows, settings),
        "two_replicas": lambda rate, rows: _unbroken(2, rate, rows, settings),
    }
    for name in systems:
        measure = measures[name]
        say(f"{name}: latency at {RATE} rows/s")
        latency = latency_figures(measure(RATE, RATE * settings.latency_seconds), settings.warm_up_seconds)
        say(f"{name}: {latency}; throughput at saturation")
        rate = throughput(measure(0, settings.saturation_rows))
        say(f"{name}: {rate:,.0f} rows/s")
        out["systems"][name] = {**latency, "rows_per_s": round(rate)}
    plain = out["systems"]["plain"]
    out["ratios"] = {
        name: {
            "throughput": round(values["rows_per_s"] / plain["rows_per_s"], 3),
            "p50_latency": round(values["p50_ms"] / plain["p50_ms"], 3),
        }
        for name, values in out["systems"].items()
        if name != "plain"
    }
    return out


def latency_figures(samples: list[Sample], warm_up_s: float) -> dict[str, float]:
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


def throughput(samples: list[Sample]) -> float:
    """Rows per second over the second half of the rows, when the JVM is warm."""
    if not samples:
        raise UnbrokenError(NOTHING)
    half = [sample for sample in samples if sample.rows >= samples[-1].rows / 2]
    if len(half) < 2:
        raise UnbrokenError("too few units at saturation; measure more rows (--rows)")
    return (half[-1].rows - half[0].rows) / (half[-1].at_s - half[0].at_s)


def _plain(rate: int, rows: int, settings: CoreSettings) -> list[Sample]:
    samples = plain_process("core", rate, rows, settings.saturation_batch, settings.deadline_s)
    return [Sample(at, count, at * 1000 - cut_ms) for at, count, cut_ms in samples]


def _unbroken(nodes: int, rate: int, rows: int, settings: CoreSettings) -> list[Sample]:
    os.environ.update(
        UNBROKEN_BENCH_NODES=str(nodes),
        UNBROKEN_BENCH_RATE=str(rate),
        UNBROKEN_BENCH_ROWS=str(rows),
        UNBROKEN_BENCH_BATCH=str(settings.saturation_batch),
        UNBROKEN_BENCH_PULSE_MS="250" if rate else "20",
    )
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as directory:
        flow_file = Path(__file__).with_name("workload.py")
        with LocalCluster(flow_file, Path(directory) / "state", nodes=nodes) as cluster:
            cluster.start()
            cluster.wait_ready()
            with cluster.subscribe("live") as results:
                deadline = time.monotonic() + settings.deadline_s
                while time.monotonic() < deadline:
                    # Asked before the result is taken: once it holds, everything that will come is in the queue.
                    ended = results.ended
                    result = results.next(1.0)
                    if result is None and ended:
                        break
                    if result is not None:
                        header = result.header
                        covered = header.number * settings.saturation_batch if not rate else 0
                        late = result.arrived_ms - header.cut_ms
                        samples.append(Sample(result.arrived_ms / 1000, min(covered, rows), late))
    return samples

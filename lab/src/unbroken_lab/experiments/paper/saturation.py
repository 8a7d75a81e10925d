"""The monitoring flow at saturation: what pairs cost where processors are the limit, and the most that it takes in.

Pulses are cut as soon as somebody is free for them. What pairs cost is measured with some work for every packet, so
that it is the packets that take the processors; the most is measured without, and with large pulses.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import psutil

from unbroken.client import Subscription
from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.cost.plain_process import plain_process
from unbroken_lab.experiments.experiment import ReportClaim, Row, Rows, Size, number, seen
from unbroken_lab.experiments.observation.figures import Samples
from unbroken_lab.experiments.observation.observed import Observed, Reader, observed
from unbroken_lab.experiments.parameters.saturation import LARGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OVERHEAD, THROUGHPUT = "overhead", "throughput"
WAYS: dict[str, dict[str, Any]] = {
    "no replicas": {"REPLICAS": 1},
    "cluster pairs": {"REPLICAS": 2, "PAIRS": "cluster"},
    "partition pairs": {"REPLICAS": 2, "PAIRS": "partition"},
}
PAIRS = "partition pairs"
IN_MEMORY = "partition pairs, state in memory"
AT_MOST: dict[str, dict[str, Any]] = {
    "no replicas": WAYS["no replicas"],
    PAIRS: WAYS[PAIRS],
    IN_MEMORY: {**WAYS[PAIRS], "STORE": "memory"},
}
"""The ways that are measured with large pulses."""

PLAIN = "plain Spark"
"""One query without Unbroken, of the first segment alone: what this machine can do."""

WORKED: dict[str, Any] = {"WORK": 4, "BATCH": 40_000}
"""Rounds of hashing for each packet, which make the first segment the one that takes most of the processors."""

AIM_PER_S = 200_000
LOOK_S = 0.1

Load = Mapping[str, Any]


def saturate_plain(size: Size) -> Row:
    """Packets per second that Structured Streaming takes in by itself, once its code is compiled."""
    batch, seconds = (5_000, 25) if size.quick else (int(LARGE["BATCH"]), 75)
    done = plain_process("monitoring", 0, 10**9, batch, seconds)
    half = done[len(done) // 2 :]
    if len(half) < 2:
        raise UnbrokenError("plain Spark took in too little to be measured; run it alone on the machine")
    return {"rows_per_s": (half[-1][1] - half[0][1]) / (half[-1][0] - half[0][0]), "units": len(half)}


def saturate(flow: str, part: str, way: str, size: Size, read: Callable[[Subscription], Reader]) -> Row:
    """Packets per second that a flow takes in when it gets as many as it can take, and what that takes."""
    kind = {**(LARGE if part == THROUGHPUT else WORKED), **({"BATCH": 5_000} if size.quick else {})}
    warm_s, measured_s = size.of(45.0 if part == THROUGHPUT else 30.0, 3.0), size.of(40.0, 5.0)
    load = {"RATE": 0, "ROWS": 10**9, "NODES": 2, **kind, **(AT_MOST if part == THROUGHPUT else WAYS)[way]}
    with observed(flow, load, read) as run:
        stay(run, warm_s)
        begin_ms, before = time.time() * 1000, used_by_kind()
        stay(run, measured_s)
        seconds, after = time.time() - begin_ms / 1000, used_by_kind()
        samples = [sample for sample in run.reader.samples if sample.arrived_ms >= begin_ms]
        took_ms = _micro_batch_ms(run)
    cores = {f"{name}_cores": round((after[name] - before[name]) / seconds, 3) for name in ("java", "python")}
    return {"rows_per_s": taken_per_s(samples, int(kind["BATCH"])), "units": len(samples), **took_ms, **cores}


def taken_per_s(samples: Samples, batch: int) -> float:
    """Rows per second between the first and the last result; every pulse has ``batch`` rows."""
    inorder = sorted(samples, key=lambda sample: sample.arrived_ms)
    if len(inorder) < 2:
        raise UnbrokenError("fewer than two results came at saturation; run it alone on the machine")
    first, last = inorder[0], inorder[-1]
    return (last.pulse - first.pulse) * batch / (last.arrived_ms - first.arrived_ms) * 1000


def stay(run: Observed, seconds: float) -> None:
    """Let a flow run that has no end for as long as it is needed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if run.reader.ended():
            raise UnbrokenError("the flow ended too early; run it alone on the machine")
        time.sleep(LOOK_S)


def used_by_kind() -> Counter[str]:
    """Processor time of all processes below this one, in seconds: Spark's and ZooKeeper's Java, and Python."""
    out: Counter[str] = Counter()
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used = each.cpu_times()
            out["java" if "java" in each.name() else "python"] += used.user + used.system
    return out


def _micro_batch_ms(run: Observed) -> dict[str, float]:
    """How long the last micro-batches of each segment took, whichever replica took longest."""
    out: dict[str, float] = {}
    for state in run.cluster.status():
        for replica in state.replicas:
            part = replica.replica.split(".")[0]
            took_ms = 0.0 if replica.batch is None else replica.batch.duration_ms.get("triggerExecution", 0.0)
            out[f"{part}_ms"] = max(out.get(f"{part}_ms", 0.0), took_ms)
    return out


def rates_of(rows: Rows, part: str) -> dict[str, float]:
    return {str(row["way"]): number(row, "rows_per_s") or 0.0 for row in rows if row["part"] == part}


def draw_rates(axes: Axes, rows: Rows) -> None:
    """A bar for each way, with work for every packet and without, each below its name."""
    place = 0.0
    for part, color, how in (
        (OVERHEAD, "#1f6f8b", "with work for every packet"),
        (THROUGHPUT, "#9fc5d1", "without, and with large pulses"),
    ):
        for rank, (way, rate) in enumerate(rates_of(rows, part).items()):
            axes.barh(place, rate, height=0.4, color=color, label=how if rank == 0 else None)
            axes.text(0, place - 0.25, f"{way}: {rate:,.0f}", fontsize=7, va="bottom")
            place += 1.0
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}")
    axes.set_xlabel("thousand packets per second at saturation", fontsize=8)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def overhead_claims(rows: Rows) -> list[ReportClaim]:
    rates = rates_of(rows, OVERHEAD)
    single, cluster, partition = (rates.get(way) for way in WAYS)
    if not single or not cluster or not partition:
        return []
    return [
        seen(
            "packets/s at saturation without replicas, with cluster pairs, with partition pairs",
            f"{single:,.0f}, {cluster:,.0f}, {partition:,.0f}",
        ),
        ReportClaim(
            "throughput of cluster pairs by that without replicas",
            "0.49",
            f"{cluster / single:.2f}",
            0.35 <= cluster / single <= 0.65,
        ),
        ReportClaim(
            "throughput of partition pairs by that of cluster pairs",
            "0.90",
            f"{partition / cluster:.2f}",
            0.75 <= partition / cluster <= 1.05,
        ),
    ]


def throughput_claims(rows: Rows) -> list[ReportClaim]:
    """The most that was taken in, and what it takes, which says what limits it."""
    out, plain = [], rates_of(rows, THROUGHPUT).get(PLAIN)
    if plain:
        what = "plain Structured Streaming, no replicas, first segment alone, same pulses"
        out.append(seen(what, f"{plain:,.0f} packets/s"))
    for row in rows:
        rate = number(row, "rows_per_s")
        if row["part"] != THROUGHPUT or row["way"] == PLAIN or rate is None:
            continue
        java, python = (number(row, f"{name}_cores") or 0.0 for name in ("java", "python"))
        first, second = ((number(row, f"{part}_ms") or 0.0) / 1000 for part in ("sessions", "stats"))
        replicated = row["way"] in (PAIRS, IN_MEMORY)
        what = f"pulses of {LARGE['BATCH']:,} packets, no work added, {row['way']}"
        here = (
            f"{rate:,.0f} packets/s; {java:.2f} of {os.cpu_count()} cores in Java, {python:.2f} in Python; micro-batch "
            f"of the first segment {first:.1f} s, of the second {second:.1f} s"
        )
        aim = f"aim: {AIM_PER_S:,} packets/s" if replicated else ""
        out.append(ReportClaim(what, aim, here, rate >= AIM_PER_S if replicated else None))
    return out

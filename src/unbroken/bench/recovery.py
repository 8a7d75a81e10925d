"""`unbroken bench recovery`: a node dies; how long until redundancy is back, and what it costs the survivor."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from unbroken.bench.stateful import PAYLOAD
from unbroken.client import Subscription
from unbroken.cluster.documents import connect, read_history, read_layout
from unbroken.cluster.launcher import LocalCluster
from unbroken.environment import variables
from unbroken.errors import UnbrokenError

Say = Callable[[str], None]

STEADY_S = 15.0
"""Time before the kill in which the survivor's latency is measured."""

RESTORE_DEADLINE_S = 120.0
READ_S = 0.2
WARM_UP_S = 30.0
"""Time from the first result until the queries are compiled."""


@dataclass(frozen=True)
class RecoverySettings:
    """State sizes to measure (bytes of payload in all keys), and the load meanwhile."""

    sizes: Sequence[int] = (10_000_000, 100_000_000)
    rate: int = 10_000
    tail_s: float = 15.0


@dataclass(frozen=True)
class Sample:
    cut_ms: int
    arrived_ms: float

    @property
    def latency_ms(self) -> float:
        return self.arrived_ms - self.cut_ms


@dataclass
class Reader:
    """Takes the results of the flow on a thread of its own: when each came, and the rows counted per key."""

    subscription: Subscription
    samples: list[Sample] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    units: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: int = 0

    def run(self) -> None:
        while not (self.subscription.ended and (result := self.subscription.next(0)) is None):
            result = self.subscription.next(READ_S)
            if result is None:
                continue
            self.samples.append(Sample(result.header.cut_ms, result.arrived_ms))
            self.units[str(result.header.stream), result.header.number] += 1
            keys, counts = (result.table[name].to_numpy() for name in ("k", "n"))
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
                if count <= self.counts[key]:
                    self.wrong += 1
                self.counts[key] = count


def run_recovery(settings: RecoverySettings, say: Say) -> dict[str, Any]:
    """Measure each size of state with a cluster of its own."""
    out: dict[str, Any] = {"rate_per_s": settings.rate, "cores": os.cpu_count(), "states": []}
    for size in settings.sizes:
        say(f"state of {size / 1e6:.0f} MB: starting two nodes and a standby")
        out["states"].append(_measure(size, settings, say))
    return out


def _measure(size: int, settings: RecoverySettings, say: Say) -> dict[str, Any]:
    keys = max(1, size // PAYLOAD)
    fill_s = keys / settings.rate
    seconds = int(fill_s + WARM_UP_S + STEADY_S + RESTORE_DEADLINE_S / 2 + settings.tail_s)
    load = {
        "UNBROKEN_BENCH_KEYS": str(keys),
        "UNBROKEN_BENCH_RATE": str(settings.rate),
        "UNBROKEN_BENCH_SECONDS": str(seconds),
    }
    with variables(load), tempfile.TemporaryDirectory() as directory:
        flow_file = Path(__file__).with_name("stateful.py")
        with LocalCluster(flow_file, Path(directory) / "state", supervise=False) as cluster:
            cluster.start()
            cluster.wait_ready()
            with cluster.subscribe("live") as results:
                reader = Reader(results)
                thread = threading.Thread(target=reader.run, name="results", daemon=True)
                thread.start()
                _wait(lambda: bool(reader.samples), 60, "the first result")
                time.sleep(max(WARM_UP_S, fill_s) + STEADY_S)
                killed_ms = time.time() * 1000
                victim = _leader(cluster)
                cluster.nodes[victim].kill9()
                say(f"state of {size / 1e6:.0f} MB: {victim} killed")
                restored_ms = _await_redundancy(cluster, victim)
                moved, story = _moved(cluster)
                say(f"state of {size / 1e6:.0f} MB: redundant again after {(restored_ms - killed_ms) / 1000:.1f} s")
                thread.join(timeout=seconds + 120)
                if thread.is_alive():
                    raise UnbrokenError("the flow did not end in time; the machine may be too busy: try again alone")
    figures = judge(reader.samples, killed_ms, restored_ms)
    expected = settings.rate * seconds
    duplicated = sum(count - 1 for count in reader.units.values()) + reader.wrong
    lost = expected - sum(reader.counts.values())
    return {
        "state_bytes": size,
        "bytes_moved": moved,
        "restored_s": round((restored_ms - killed_ms) / 1000, 2),
        **figures,
        "lost": lost,
        "duplicated": duplicated,
        "story": story,
    }


def judge(samples: Sequence[Sample], killed_ms: float, restored_ms: float) -> dict[str, Any]:
    """Latency before the kill, from the kill until redundancy is back, and afterwards; and the longest silence."""
    before = [s for s in samples if killed_ms - STEADY_S * 1000 <= s.arrived_ms < killed_ms]
    during = [s for s in samples if killed_ms <= s.arrived_ms <= restored_ms]
    after = [s for s in samples if s.arrived_ms > restored_ms]
    return {
        "pulse_ms": round(float(np.median([b.cut_ms - a.cut_ms for a, b in pairwise(before)] or [0])), 1),
        "latency_ms": {"before": _spread(before), "during": _spread(during), "after": _spread(after)},
        "gap_ms": {"before": _gap(before), "during": _gap([*before[-1:], *during])},
    }


def _spread(samples: Sequence[Sample]) -> dict[str, float]:
    values = [sample.latency_ms for sample in samples]
    if not values:
        return {}
    p50, p99 = (round(float(np.percentile(values, q)), 1) for q in (50, 99))
    return {"p50": p50, "p99": p99, "max": round(max(values), 1)}


def _gap(samples: Sequence[Sample]) -> float:
    times = sorted(sample.arrived_ms for sample in samples)
    return round(max((b - a for a, b in pairwise(times)), default=0.0), 1)


def _leader(cluster: LocalCluster) -> str:
    """The node that is missed most: it leads the ingress and hosts a replica of the stateful segment."""
    return next(str(state["node"]) for state in cluster.status() if state.get("ingress", {}).get("leading"))


def _await_redundancy(cluster: LocalCluster, victim: str) -> float:
    """When the layout says that every shard has its replicas again without ``victim``; ms since the epoch."""
    client = connect(cluster.zookeeper.address, 10)
    try:

        def restored() -> bool:
            layout = read_layout(client, cluster.flow.name)
            if layout is None or layout.hosted(victim):
                return False
            return not layout.short_since and not layout.joining

        _wait(restored, RESTORE_DEADLINE_S, "redundancy to come back")
        return time.time() * 1000
    finally:
        client.stop()
        client.close()


def _moved(cluster: LocalCluster) -> tuple[int, list[str]]:
    """Bytes of state that were moved, and what the history tells."""
    client = connect(cluster.zookeeper.address, 10)
    try:
        story = [str(entry["sentence"]) for entry in read_history(client, cluster.flow.name)]
    finally:
        client.stop()
        client.close()
    return sum(state.get("traffic", {}).get("state", 0) for state in cluster.status()), story


def _wait(done: Callable[[], bool], deadline_s: float, what: str) -> None:
    deadline = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() > deadline:
            raise UnbrokenError(f"waited {deadline_s:.0f} s for {what}; the machine may be too busy: try again alone")
        time.sleep(0.02)

"""`unbroken bench recovery`: a node dies; how long until redundancy is back, and what it costs the survivor."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unbroken_lab.experiments.figures import STEADY_S, judge
from unbroken_lab.experiments.observed import END_SLACK_S, Say, observed
from unbroken_lab.experiments.rows import PAYLOAD

RESTORE_DEADLINE_S = 120.0
WARM_UP_S = 30.0
"""Time from the first result until the queries are compiled."""


@dataclass(frozen=True)
class RecoverySettings:
    """State sizes to measure (bytes of payload in all keys), and the load meanwhile."""

    sizes: Sequence[int] = (10_000_000, 100_000_000)
    rate: int = 10_000
    tail_s: float = 15.0


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
    with observed("stateful.py", {"KEYS": keys, "RATE": settings.rate, "SECONDS": seconds}) as run:
        time.sleep(max(WARM_UP_S, fill_s) + STEADY_S)
        victim = run.leader()
        killed_ms = run.kill(victim)
        say(f"state of {size / 1e6:.0f} MB: {victim} killed")
        restored_ms = run.await_redundancy(victim, RESTORE_DEADLINE_S)
        moved, story = run.state_moved(), run.story()
        say(f"state of {size / 1e6:.0f} MB: redundant again after {(restored_ms - killed_ms) / 1000:.1f} s")
        run.await_end(seconds + END_SLACK_S)
    return {
        "state_bytes": size,
        "bytes_moved": moved,
        "restored_s": round((restored_ms - killed_ms) / 1000, 2),
        **judge(run.reader.samples, killed_ms, restored_ms),
        "lost": run.reader.lost(settings.rate * seconds),
        "duplicated": run.reader.duplicated,
        "story": story,
    }

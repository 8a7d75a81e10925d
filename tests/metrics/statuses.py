"""Statuses of nodes as `unbroken status --json` gives them, for tests that need no node."""

from __future__ import annotations

from typing import Any

from unbroken.node.membership.failovers import CAUSES


def replica(name: str = "sums.0#1", **changes: Any) -> dict[str, Any]:
    return {
        "replica": name,
        "state": "active",
        "reason": None,
        "committed": 40,
        "produced": 41,
        "final": None,
        "lag_units": 2,
        "lag_ms": 750.0,
        "gap_ms": 120.0,
        "latency_ms": 310.0,
        "feeds": {"numbers.0>sums.0": ["a", "b"]},
        "duration_ms": {"triggerExecution": 200, "addBatch": 120, "latestOffset": 30, "walCommit": 20},
        "batch": 40,
        "input_rows": 1_000,
        "state_rows_updated": 101,
        "state_memory": 20_480,
        "state_files": 4_096,
        **changes,
    }


def shard(wanted: int = 2, reachable: int = 2, since_ms: int | None = None) -> dict[str, Any]:
    return {
        "wanted": wanted,
        "full": reachable,
        "reachable": reachable,
        "joining": 0,
        "degraded": reachable < wanted or since_ms is not None,
        "short_since_ms": since_ms,
    }


def sink(**changes: Any) -> dict[str, Any]:
    return {"delivered": 39, "written_here": 20, "waits_ms": 80.0, "busy_ms": 5.0, "stopped": None, **changes}


def stuck(seconds: float = 1.5, trouble: str = "") -> dict[str, Any]:
    return {"pulse": 43, "seconds": seconds, "trouble": trouble, "held": False, "hangs": False}


def running(**changes: Any) -> dict[str, Any]:
    """A node that leads the ingress, hosts one replica and goes on without missing input."""
    tentative: dict[str, Any] = {
        "consistency": "up-failure",
        "lacking": ["numbers"],
        "tentative": 44,
        "tentative_units": 3,
        "fork": None,
    }
    return {
        "node": "a",
        "pid": 1,
        "address": "127.0.0.1:4711",
        "state": "running",
        "story": [],
        "coordination": {
            "connected": True,
            "controller": True,
            "failovers": {**dict.fromkeys(CAUSES, 0), "node_lost": 2},
            "recoveries": {"count": 2, "seconds": 6.5},
        },
        "layout_version": 7,
        "pause": None,
        "joining": {},
        "code": {"generation": 1, "file": "flow.py", "as_given": True},
        "links": ["b"],
        "replicas": [replica(**tentative)],
        "redundancy": {"ingress.0": shard(), "sums.0": shard(reachable=1, since_ms=1_700_000_000_500)},
        "held": {"kept.0#2": 12},
        "sinks": {"sums.0>files.0": sink()},
        "dead_letters": {"lost": 2, "removed": 1},
        "outboxes": {"sums.0>files.0": {"kept": 2, "last": 41}},
        "counters": {"units_accepted": 80, "units_duplicate": 79, "units_divergent": 1, "tentative_units": 5},
        "divergences": ["sums.0#1 diverged from sums.0#0"],
        "received": {"data": 1_000, "redundancy": 900},
        "sent": {"acknowledgements": 50, "coordination": 60},
        "traffic": {"data": 1_000, "redundancy": 900, "acknowledgements": 50, "coordination": 60},
        "overhead": 1.01,
        "traces": {"exported": 120, "dropped": 3, "failed": 5},
        "ingress": {
            "leading": True,
            "term": 3,
            "members": ["a", "b"],
            "pulse": 43,
            "ended": False,
            "period_ms": 250.0,
            "in_flight": 1,
            "rows": 43_000,
            "bad_rows": 4,
            "late_rows": 0,
            "clock_offset_ms": 0.0,
            "unreached_ms": {"slow": 1_500},
            "busy_ms": 12.0,
            "log_busy_ms": 3.0,
            "set_aside": 1,
            "jobs": 0,
            "stuck": {"slow": stuck()},
            "asking_s": {"slow": 1.5},
            "left_behind": [],
        },
        **changes,
    }


def starting(**changes: Any) -> dict[str, Any]:
    """A node that waits for its place in the flow."""
    return {"node": "a", "pid": 1, "address": "127.0.0.1:4711", "state": "starting", "story": [], **changes}


def joining() -> dict[str, Any]:
    return {"sums.0#4": {"phase": "fetching", "fetched": 1_000, "total": 4_000}}

"""Statuses of nodes, for tests that need no node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from unbroken.node.membership.failovers import CAUSES
from unbroken.observe.status.node import NodeStatus

BLANKS: dict[str, dict[str, Any]] = {
    "replicas": {"replica": "sums.0#0", "state": "active", "committed": 0, "produced": 0, "lag_units": 0},
    "ingress": {
        "leading": False,
        "term": 1,
        "members": [],
        "pulse": 0,
        "ended": False,
        "period_ms": 100.0,
        "in_flight": 0,
        "rows": 0,
    },
    "redundancy": {"wanted": 2, "full": 2, "reachable": 2, "joining": 0, "degraded": False},
    "sinks": {"delivered": 0},
    "outboxes": {"kept": 0, "last": 0},
    "flow": {"name": "flow", "sources": [], "segments": {}, "sinks": {}, "edges": []},
    "coordination": {"connected": True, "controller": False},
}
"""Parts of a status in which a test names only the fields that it is about."""


def status(node: str = "a", state: str = "running", **facts: Any) -> NodeStatus:
    """A status with these facts, whose parts may be written as dicts; fields that they leave out are blank."""
    found = msgspec.to_builtins({"node": node, "state": state, **facts})
    for part, blank in BLANKS.items():
        given = found.get(part)
        if part in ("ingress", "flow", "coordination"):
            found[part] = given and {**blank, **given}
        elif isinstance(given, Mapping):
            found[part] = {name: {**blank, **one} for name, one in given.items()}
        elif given:
            found[part] = [{**blank, **one} for one in given]
    return msgspec.convert({name: value for name, value in found.items() if value is not None}, NodeStatus)


def changed(part: msgspec.Struct | None, **changes: Any) -> dict[str, Any]:
    """A part of a status with changes, as a dict."""
    return {**msgspec.to_builtins(part), **changes}


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
        "batch": {
            "number": 40,
            "duration_ms": {"triggerExecution": 200, "addBatch": 120, "latestOffset": 30, "walCommit": 20},
            "input_rows": 1_000,
            "state_rows_updated": 101,
            "state_memory_bytes": 20_480,
            "state_file_bytes": 4_096,
        },
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


def diverged() -> dict[str, Any]:
    """A unit that differs between replicas."""
    mine = {"replica": "sums.0#1", "stream": "sums.0>out.0", "unit": 41, "rows": 12, "digest": "5f3a"}
    return {**mine, "sibling": "sums.0#0", "sibling_rows": 12, "sibling_digest": "9b01"}


def stuck(seconds: float = 1.5, trouble: str = "") -> dict[str, Any]:
    return {"pulse": 43, "seconds": seconds, "trouble": trouble, "held": 0, "hangs": False}


def running(**changes: Any) -> NodeStatus:
    """A node that leads the ingress, hosts one replica and goes on without missing input."""
    tentative: dict[str, Any] = {
        "state": "up-failure",
        "lacking": ["numbers"],
        "tentative": 44,
        "tentative_units": 3,
        "fork": None,
    }
    facts: dict[str, Any] = {
        "node": "a",
        "pid": 1,
        "address": "127.0.0.1:4711",
        "state": "running",
        "notices": [],
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
        "replicas": [replica(consistency=tentative)],
        "redundancy": {"ingress.0": shard(), "sums.0": shard(reachable=1, since_ms=1_700_000_000_500)},
        "held": {"kept.0#2": 12},
        "sinks": {"sums.0>files.0": sink()},
        "dead_letters": {"lost": 2, "removed": 1},
        "outboxes": {"sums.0>files.0": {"kept": 2, "last": 41}},
        "counters": {"units_accepted": 80, "units_duplicate": 79, "units_divergent": 1, "tentative_units": 5},
        "divergences": [diverged()],
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
    return status(**facts)


def starting(**changes: Any) -> NodeStatus:
    """A node that waits for its place in the flow."""
    return status(**{"node": "a", "state": "starting", "pid": 1, "address": "127.0.0.1:4711", **changes})


def joining() -> dict[str, Any]:
    return {"sums.0#4": {"phase": "fetching", "fetched_bytes": 1_000, "total_bytes": 4_000}}

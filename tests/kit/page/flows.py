"""Snapshots of made-up flows, for tests that need no node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kit.statuses import status
from unbroken.coordination.documents import Suspicion
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice, Reported

NOW_MS = 1_700_000_000_000

SHAPE: dict[str, Any] = {
    "name": "clicks",
    "sources": ["clicks"],
    "segments": {"sums": {"shards": 2, "ha": "active", "replicas": 2}},
    "sinks": {"screen": {"client": True}},
    "edges": [["clicks", "sums"], ["sums", "screen"]],
}

PLACES = {"ingress.0#0": "a", "ingress.0#1": "b", "sums.0#0": "a", "sums.0#1": "b", "sums.1#0": "b", "sums.1#1": "c"}


def replica(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "replica": name,
        "state": "active",
        "reason": None,
        "committed": 10,
        "produced": 10,
        "final": None,
        "lag_units": 0,
        "lag_ms": 20.0,
        "gap_ms": 100.0,
        "latency_ms": 250.0,
        "batch": {
            "number": 9,
            "duration_ms": {"triggerExecution": 200, "addBatch": 120, "latestOffset": 30, "walCommit": 20},
            "input_rows": 1_000,
            "state_file_bytes": 4_096,
        },
        **changes,
    }


def redundancy(wanted: int = 2) -> dict[str, Any]:
    return {shard: {"wanted": wanted} for shard in ("ingress.0", "sums.0", "sums.1")}


def node(name: str, replicas: Iterable[dict[str, Any]] = (), **changes: Any) -> dict[str, Any]:
    """A node that runs; ``a`` leads the ingress."""
    state: dict[str, Any] = {
        "node": name,
        "pid": 1,
        "state": "running",
        "notices": [],
        "layout_version": 7,
        "coordination": {"connected": True, "controller": name == "a"},
        "joining": {},
        "code": {"generation": 1, "file": "flow.py", "as_given": True},
        "flow": SHAPE,
        "links": [other for other in "abc" if other != name],
        "replicas": list(replicas),
        "redundancy": redundancy(),
        "held": {},
        "sinks": {},
        "divergences": [],
        "traffic": {"data": 100, "redundancy": 50},
    }
    if name in ("a", "b"):
        state["ingress"] = ingress(name == "a")
    return state | changes


def ingress(leading: bool, **changes: Any) -> dict[str, Any]:
    return {
        "leading": leading,
        "term": 2,
        "members": ["a", "b"],
        "pulse": 10,
        "ended": False,
        "period_ms": 500.0,
        "in_flight": 1,
        "rows": 1_000,
        "bad_rows": 0,
        "late_rows": 0,
        "unreached_ms": {},
        **changes,
    }


def states() -> dict[str, dict[str, Any]]:
    """Three nodes that are well, by name; to be changed by whoever asked for them."""
    return {
        "a": node("a", [replica("sums.0#0")]),
        "b": node("b", [replica("sums.0#1"), replica("sums.1#0")]),
        "c": node("c", [replica("sums.1#1")]),
    }


def layout(places: dict[str, str] | None = None, **changes: Any) -> Layout:
    found = PLACES if places is None else places
    placement = {ReplicaId.parse(name): where for name, where in found.items()}
    most: dict[Any, int] = {}
    for one in placement:
        most[one.shard] = max(most.get(one.shard, 0), one.index + 1)
    return Layout(7, {name: f"disk-{name}" for name in "abc"}, placement, most, **changes)


def snapshot(found: dict[str, dict[str, Any]] | None = None, **changes: Any) -> FlowSnapshot:
    given = states() if found is None else found
    facts: dict[str, Any] = {
        "time_ms": NOW_MS,
        "flow": "clicks",
        "states": tuple(status(**given[name]) for name in sorted(given)),
        "layout": layout(),
        **changes,
    }
    return FlowSnapshot(**facts)


def dead(name: str, reason: str = "killed by signal 9") -> dict[str, Any]:
    return {"node": name, "state": "dead", "reason": reason}


def silent(name: str) -> dict[str, Any]:
    return {"node": name, "state": "silent", "reason": "it did not answer"}


def suspicion(suspect: str, by: str) -> Suspicion:
    return Suspicion(suspect, by, "no sign of life for 2.0 s")


def told(notice: Notice, after_ms: int = 0, by: str = "a") -> Reported:
    return Reported(NOW_MS + after_ms, by, notice)

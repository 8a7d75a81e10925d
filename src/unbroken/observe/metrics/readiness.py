"""Whether a node does its share: its replicas are there and keep up.

For load balancers, rolling restarts and whoever waits for a node. That a node is not ready does not mean that results
wait: siblings of its replicas may well be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from unbroken.protocol.repair.catchup import Phase
from unbroken.quantities import milliseconds

CAUGHT_UP = Phase.CAUGHT_UP.value

MAX_LAG_MS = 5_000.0
"""Lag up to which a replica counts as caught up, unless the question says otherwise: more than any pulse that a flow
with room settles at, and less than anybody would call an outage."""

STUCK_MS = 30_000.0
"""How long the ingress, a source or a sink may be at one piece of work. Systems that fail over are back before that."""


@dataclass(frozen=True)
class Lack:
    """One thing that is missing."""

    what: str
    why: str


@dataclass(frozen=True)
class Readiness:
    node: str
    max_lag_ms: float
    missing: tuple[Lack, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.missing

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "ready": self.ready,
            "max_lag_seconds": self.max_lag_ms / 1000,
            "missing": [{"what": lack.what, "why": lack.why} for lack in self.missing],
        }


def max_lag_of(query: str) -> float:
    """The lag in ms that a question allows, as in ``max_lag=500ms``; ValueError if it cannot be understood."""
    allowed = MAX_LAG_MS
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "max_lag":
            raise ValueError(f"there is no parameter {name!r}; write for example /ready?max_lag=5s")
        allowed = float(milliseconds(value))
    return allowed


def readiness(status: Mapping[str, Any], max_lag_ms: float = MAX_LAG_MS) -> Readiness:
    """Judge a node by its status."""
    node = str(status["node"])
    missing: list[Lack] = []
    if status["state"] != "running":
        missing.append(Lack(node, f"it is {status['state']}: not all of its queries are started"))
    # One that has caught up is as good as the others, even if the controller has yet to say so.
    joining = {name: facts for name, facts in status.get("joining", {}).items() if facts["phase"] != CAUGHT_UP}
    missing += [Lack(replica, _joins(facts)) for replica, facts in joining.items()]
    for replica in status.get("replicas", ()):
        if replica["replica"] not in joining:
            missing += _lacks(replica, max_lag_ms)
    ingress = status.get("ingress")
    if ingress is not None and node not in ingress["members"] and not any(r.startswith("ingress.") for r in joining):
        missing.append(Lack("ingress", "this node's part of the ingress is not in sync with the others"))
    return Readiness(node, max_lag_ms, (*missing, *stuck_parts(status)))


def stuck_parts(status: Mapping[str, Any]) -> list[Lack]:
    """The ingress, sources and sinks of a node that make no progress; sinks that have stopped are among them."""
    return [*_stuck_ingress(status.get("ingress") or {}), *_stuck_sinks(status.get("sinks", {}))]


def _stuck_ingress(ingress: Mapping[str, Any]) -> list[Lack]:
    out: list[Lack] = []
    if ingress.get("busy_ms", 0.0) > STUCK_MS:
        out.append(Lack("ingress", f"its thread has been at one job for {ingress['busy_ms'] / 1000:.0f} s"))
    if ingress.get("log_busy_ms", 0.0) > STUCK_MS:
        age_s = ingress["log_busy_ms"] / 1000
        out.append(Lack("ingress log", f"the disk has been at its last entries for {age_s:.0f} s"))
    for source, facts in ingress.get("stuck", {}).items():
        if facts["seconds"] * 1000 > STUCK_MS:
            why = f": {facts['trouble']}" if facts["trouble"] else ""
            waits = f"its rows of pulse {facts['pulse']} have not been read for {facts['seconds']:.0f} s{why}"
            out.append(Lack(f"source {source}", waits))
    for source, asking_s in ingress.get("asking_s", {}).items():
        if asking_s * 1000 > STUCK_MS:
            out.append(Lack(f"source {source}", f"it has not said for {asking_s:.0f} s how far it can be read"))
    return out


def _stuck_sinks(sinks: Mapping[str, Mapping[str, Any]]) -> list[Lack]:
    out: list[Lack] = []
    for stream, facts in sinks.items():
        if facts.get("stopped") is not None:
            out.append(Lack(f"sink {stream}", f"it has stopped at unit {facts['stopped']}, which it refuses"))
        elif max(facts.get("waits_ms") or 0.0, facts.get("busy_ms", 0.0)) > STUCK_MS:
            age_s = max(facts.get("waits_ms") or 0.0, facts.get("busy_ms", 0.0)) / 1000
            out.append(Lack(f"sink {stream}", f"it has not taken its next unit for {age_s:.0f} s"))
    return out


def _joins(facts: Mapping[str, Any]) -> str:
    why = f"it has yet to catch up ({facts['phase']})"
    if "total" in facts:
        why += f"; {facts['fetched']} of {facts['total']} bytes of its state are here"
    return why


def _lacks(replica: Mapping[str, Any], max_lag_ms: float) -> list[Lack]:
    name = str(replica["replica"])
    if replica["reason"]:
        return [Lack(name, f"it has stopped: {replica['reason']}")]
    lag_ms = float(replica.get("lag_ms", 0))
    if lag_ms <= max_lag_ms:
        return []
    units = "1 unit" if replica["lag_units"] == 1 else f"{replica['lag_units']} units"
    behind = f"{lag_ms / 1000:.1f} s and {units} behind its input"
    return [Lack(name, f"it is {behind}; {max_lag_ms / 1000:g} s are allowed")]

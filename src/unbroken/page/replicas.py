"""How every replica of a flow is, in the few words that a person who watches needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from unbroken.page.snapshot import Snapshot, State
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import INGRESS


class Look(StrEnum):
    """What a replica is shown as. Each has a colour, a shape and a word of its own.

    ACTIVE works; STANDBY is as good, or holds a copy of the state, and does not send; JOINING is being built or started
    and does not count yet; WAITING lacks input and gives out nothing; TENTATIVE goes on without missing input, or puts
    right what it gave out meanwhile; SUSPECTED is on a node that somebody does not hear; DEAD is lost or has stopped,
    and MISSING has no place at all.
    """

    ACTIVE = "active"
    STANDBY = "standby"
    JOINING = "joining"
    WAITING = "waiting"
    TENTATIVE = "tentative"
    SUSPECTED = "suspected"
    DEAD = "dead"
    MISSING = "missing"


WELL = frozenset({Look.ACTIVE, Look.STANDBY, Look.WAITING, Look.TENTATIVE})
"""Replicas that stand in for each other."""

WHOLE = "triggerExecution"
"""What Spark calls all of a micro-batch."""

PARTS = {
    "latestOffset": "input",
    "getBatch": "plan",
    "queryPlanning": "plan",
    "addBatch": "query",
    "walCommit": "commit",
    "commitOffsets": "commit",
    "commitBatch": "commit",
}
"""Spark's steps of a micro-batch, as the page names them; the wait for input is part of the first."""


@dataclass(frozen=True)
class ReplicaView:
    """One replica: where it is, how it is and why, and what it has done. What is not known is None."""

    replica: str
    shard: str
    node: NodeId
    look: Look
    why: str = ""
    units: int | None = None
    behind: int | None = None
    lag_ms: float | None = None
    gap_ms: float | None = None
    latency_ms: float | None = None
    batch_ms: float | None = None
    split: Mapping[str, float] = field(default_factory=dict)
    rows: int | None = None
    state_bytes: int | None = None
    copied: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Without what is not known, which for a dead replica is nearly everything."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", {})}


def replica_views(snapshot: Snapshot) -> list[ReplicaView]:
    """Every replica that has a place, in the order of the layout; without a layout those that nodes tell of."""
    told: dict[ReplicaId, tuple[NodeId, Mapping[str, Any]]] = {}
    for state in snapshot.states:
        for facts in state.get("replicas", ()):
            told[ReplicaId.parse(str(facts["replica"]))] = (str(state["node"]), facts)
    layout = snapshot.layout
    placed = {replica: node for replica, (node, _) in told.items()} if layout is None else layout.placement
    doubts = doubts_of(snapshot)
    out: list[ReplicaView] = []
    for replica, node in sorted(placed.items()):
        on, facts = told.get(replica, (node, {}))
        look, why = _how(snapshot, replica, node, facts if on == node else {}, doubts.get(node, ""))
        out.append(_view(replica, node, look, why, facts, _copied(snapshot.by_node.get(node, {}), replica)))
    return out


def doubts_of(snapshot: Snapshot) -> dict[NodeId, str]:
    """The nodes that others say they do not hear, and who says so."""
    found: dict[NodeId, list[str]] = {}
    for suspicion in snapshot.suspicions:
        found.setdefault(suspicion.suspect, []).append(suspicion.by)
    return {
        node: f"{', '.join(sorted(by))} {'does' if len(by) == 1 else 'do'} not hear it" for node, by in found.items()
    }


def split_of(duration_ms: Mapping[str, float]) -> dict[str, float]:
    """What a micro-batch was spent on, such that the sum is all of it: Spark times most steps, not every one."""
    if not duration_ms:
        return {}
    out: dict[str, float] = {}
    for step, took in duration_ms.items():
        if step != WHOLE:
            part = PARTS.get(step, "other")
            out[part] = out.get(part, 0.0) + took
    rest = duration_ms.get(WHOLE, 0) - sum(out.values())
    if rest > 0:
        out["other"] = out.get("other", 0.0) + rest
    return out


def _how(
    snapshot: Snapshot, replica: ReplicaId, node: NodeId, facts: Mapping[str, Any], doubt: str
) -> tuple[Look, str]:
    """What to show a replica as, and why; what is worst decides."""
    state = snapshot.by_node.get(node)
    if state is None:
        return Look.DEAD, f"{node} is not there"
    reason = str(state.get("reason") or "")
    if state["state"] in ("dead", "lost"):
        return Look.DEAD, f"{node} is {state['state']}" + (f": {reason}" if reason else "")
    if facts.get("reason"):
        return Look.DEAD, f"stopped: {facts['reason']}"
    if state["state"] == "silent" or node in snapshot.frozen:
        silent = f"{node} does not answer" + (f": {reason}" if reason else "")
        return Look.SUSPECTED, f"{silent}; {doubt}" if doubt else silent
    if doubt:
        return Look.SUSPECTED, doubt
    if replica.shard == INGRESS:
        return _ingress(state, node)
    return _working(snapshot, replica, state, facts)


def _working(snapshot: Snapshot, replica: ReplicaId, state: State, facts: Mapping[str, Any]) -> tuple[Look, str]:
    """A replica of a segment on a node that is well."""
    layout = snapshot.layout
    join = state.get("joining", {}).get(str(replica))
    if join is not None:
        return Look.JOINING, _joining(join)
    if layout is not None and replica in layout.joining:
        return Look.JOINING, "it has yet to catch up"
    held = state.get("held", {}).get(str(replica))
    if held is not None or (layout is not None and replica in layout.held):
        return Look.STANDBY, "holds a copy of the state" + (f" as of unit {held}" if held and held > 0 else "")
    if not facts:
        return Look.JOINING, "its query is being started"
    lacking = ", ".join(facts.get("lacking", ())) or "input"
    if facts.get("consistency") == "up-failure":
        if facts.get("fork") or facts.get("tentative_units"):
            return (
                Look.TENTATIVE,
                f"lacks {lacking} and goes on without it; {facts['tentative_units']} units to put right",
            )
        return Look.WAITING, f"waits for {lacking}"
    if facts.get("consistency") == "stabilization":
        return Look.TENTATIVE, f"puts {facts.get('tentative_units', 0)} tentative units right"
    if facts.get("state") == "stands by":
        return Look.STANDBY, "does all the work and lets another one send"
    return Look.ACTIVE, ""


def _ingress(state: State, node: NodeId) -> tuple[Look, str]:
    facts = state.get("ingress")
    if facts is None:
        return Look.JOINING, "is about to read the sources"
    if node not in facts["members"]:
        return Look.JOINING, "has yet to catch up with the log of the ingress"
    return Look.ACTIVE, "cuts the sources" if facts["leading"] else "has every entry of the log"


def _joining(join: Mapping[str, Any]) -> str:
    share = _share(join)
    copied = "" if share is None else f", {share:.0%} of its state is here"
    return f"{join['phase']}{copied}"


def _copied(state: State, replica: ReplicaId) -> float | None:
    join = state.get("joining", {}).get(str(replica))
    return None if join is None else _share(join)


def _share(join: Mapping[str, Any]) -> float | None:
    """How much of the state of a joining replica is there."""
    if not join.get("total"):
        return None
    return round(min(1.0, float(join.get("fetched", 0)) / float(join["total"])), 3)


def _view(
    replica: ReplicaId, node: NodeId, look: Look, why: str, facts: Mapping[str, Any], copied: float | None
) -> ReplicaView:
    split = split_of(facts.get("duration_ms", {}))
    return ReplicaView(
        str(replica),
        str(replica.shard),
        node,
        look,
        why,
        units=facts.get("produced"),
        behind=facts.get("lag_units"),
        lag_ms=facts.get("lag_ms"),
        gap_ms=facts.get("gap_ms"),
        latency_ms=facts.get("latency_ms"),
        batch_ms=round(sum(split.values()), 1) if split else None,
        split=split,
        rows=facts.get("input_rows"),
        state_bytes=facts.get("state_files") or facts.get("state_memory"),
        copied=copied,
    )

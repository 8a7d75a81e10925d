"""How every replica of a flow is, in the few words that a person who watches needs."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.observe.status.node import IngressStatus, JoinStatus, NodeState, NodeStatus, ReplicaState, ReplicaStatus
from unbroken.page.document import Look, ReplicaView
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import INGRESS

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


def replica_views(snapshot: FlowSnapshot) -> list[ReplicaView]:
    """Every replica that has a place, in the order of the layout; without a layout those that nodes tell of."""
    told: dict[ReplicaId, tuple[NodeId, ReplicaStatus]] = {}
    for state in snapshot.states:
        for replica_status in state.replicas:
            told[ReplicaId.parse(replica_status.replica)] = (state.node, replica_status)
    layout = snapshot.layout
    placed = {replica: node for replica, (node, _) in told.items()} if layout is None else layout.placement
    doubts = doubts_of(snapshot)
    out: list[ReplicaView] = []
    for replica, node in sorted(placed.items()):
        on, facts = told.get(replica, (node, None))
        look, why = _how(snapshot, replica, node, facts if on == node else None, doubts.get(node, ""))
        out.append(_view(replica, node, look, why, facts, _copied(snapshot.by_node.get(node), replica)))
    return out


def doubts_of(snapshot: FlowSnapshot) -> dict[NodeId, str]:
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
    snapshot: FlowSnapshot, replica: ReplicaId, node: NodeId, facts: ReplicaStatus | None, doubt: str
) -> tuple[Look, str]:
    """What to show a replica as, and why; what is worst decides."""
    state = snapshot.by_node.get(node)
    if state is None:
        return Look.DEAD, f"{node} is not there"
    reason = f": {state.reason}" if state.reason else ""
    if state.state in (NodeState.DEAD, NodeState.LOST):
        return Look.DEAD, f"{node} is {state.state}{reason}"
    if facts is not None and facts.reason:
        return Look.DEAD, f"stopped: {facts.reason}"
    if state.state is NodeState.UNREADABLE:
        return Look.SUSPECTED, state.reason or ""
    if state.state is NodeState.SILENT or node in snapshot.frozen:
        silent = f"{node} does not answer{reason}"
        return Look.SUSPECTED, f"{silent}; {doubt}" if doubt else silent
    if doubt:
        return Look.SUSPECTED, doubt
    if replica.shard == INGRESS:
        return _ingress(state.ingress, node)
    return _working(snapshot, replica, state, facts)


def _working(
    snapshot: FlowSnapshot, replica: ReplicaId, state: NodeStatus, facts: ReplicaStatus | None
) -> tuple[Look, str]:
    """A replica of a segment on a node that is well."""
    layout = snapshot.layout
    join = state.joining.get(str(replica))
    if join is not None:
        return Look.JOINING, _joining(join)
    if layout is not None and replica in layout.joining:
        return Look.JOINING, "it has yet to catch up"
    held = state.held.get(str(replica))
    if held is not None or (layout is not None and replica in layout.held):
        return Look.STANDBY, "holds a copy of the state" + (f" as of unit {held}" if held and held > 0 else "")
    if facts is None:
        return Look.JOINING, "its query is being started"
    consistency = facts.consistency
    if consistency is not None and consistency.state is Consistency.UP_FAILURE:
        lacking = ", ".join(consistency.lacking) or "input"
        if consistency.fork is not None or consistency.tentative_units:
            units = consistency.tentative_units
            return Look.TENTATIVE, f"lacks {lacking} and goes on without it; {units} units to put right"
        return Look.WAITING, f"waits for {lacking}"
    if consistency is not None and consistency.state is Consistency.STABILIZATION:
        return Look.TENTATIVE, f"puts {consistency.tentative_units} tentative units right"
    if facts.state is ReplicaState.STANDS_BY:
        return Look.STANDBY, "does all the work and lets another one send"
    return Look.ACTIVE, ""


def _ingress(ingress: IngressStatus | None, node: NodeId) -> tuple[Look, str]:
    if ingress is None:
        return Look.JOINING, "is about to read the sources"
    if node not in ingress.members:
        return Look.JOINING, "has yet to catch up with the log of the ingress"
    return Look.ACTIVE, "cuts the sources" if ingress.leading else "has every entry of the log"


def _joining(join: JoinStatus) -> str:
    share = _share(join)
    copied = "" if share is None else f", {share:.0%} of its state is here"
    return f"{join.phase.value}{copied}"


def _copied(state: NodeStatus | None, replica: ReplicaId) -> float | None:
    join = None if state is None else state.joining.get(str(replica))
    return None if join is None else _share(join)


def _share(join: JoinStatus) -> float | None:
    """How much of the state of a joining replica is there."""
    return round(min(1.0, (join.fetched_bytes or 0) / join.total_bytes), 3) if join.total_bytes else None


def _view(
    replica: ReplicaId, node: NodeId, look: Look, why: str, facts: ReplicaStatus | None, copied: float | None
) -> ReplicaView:
    if facts is None:
        return ReplicaView(str(replica), str(replica.shard), node, look, why, copied=copied)
    batch = facts.batch
    split = {} if batch is None else split_of(batch.duration_ms)
    return ReplicaView(
        str(replica),
        str(replica.shard),
        node,
        look,
        why,
        units=facts.produced,
        behind=facts.lag_units,
        lag_ms=facts.lag_ms,
        gap_ms=facts.gap_ms,
        latency_ms=facts.latency_ms,
        batch_ms=round(sum(split.values()), 1) if split else None,
        split=split,
        rows=None if batch is None else batch.input_rows,
        state_bytes=None if batch is None else batch.state_file_bytes or batch.state_memory_bytes,
        copied=copied,
    )

"""One document for the browser, made from a snapshot: parts and their places, replicas, nodes, redundancy.

Pure: the same snapshot gives the same document. What depends on earlier looks (since when, and what happened) is made
in ``series.py``, ``sentences.py`` and ``redundancy.py`` and comes in as arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unbroken.node.status import flow_overhead
from unbroken.page import graph
from unbroken.page.redundancy import Redundancy
from unbroken.page.replicas import Look, ReplicaView, doubts_of, replica_views
from unbroken.page.snapshot import Snapshot, State
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import INGRESS


def document(snapshot: Snapshot, redundancy: Redundancy, views: Sequence[ReplicaView] | None = None) -> dict[str, Any]:
    """All that a page shows of a flow at one moment, apart from charts and history."""
    found = replica_views(snapshot) if views is None else views
    counts = Counter(view.look.value for view in found)
    counts[Look.MISSING.value] = sum(shortage.missing for shortage in redundancy.shards)
    overhead = flow_overhead(snapshot.states)
    return {
        "flow": snapshot.flow,
        "time_ms": snapshot.time_ms,
        "trouble": snapshot.trouble,
        "zookeeper_away": snapshot.zookeeper_away,
        "redundancy": redundancy.to_json(),
        "pulse": _pulse(snapshot.states),
        "pause": snapshot.pause,
        "code": _code(snapshot.states),
        "overhead": None if overhead is None else round(overhead, 2),
        "divergences": sorted({text for state in snapshot.states for text in state.get("divergences", ())}),
        "counts": {look.value: counts[look.value] for look in Look},
        "prefix": common_prefix(snapshot.by_node),
        **_picture(snapshot, redundancy, found),
        "replicas": [view.to_json() for view in found],
        "nodes": _nodes(snapshot, found),
    }


def common_prefix(names: Iterable[str]) -> str:
    """What all nodes' names begin with, up to a separator, such as ``node-``: small cells can do without it."""
    known = list(names)
    found = min(known, default="") if len(known) > 1 else ""
    while found and (found[-1].isalnum() or not all(name.startswith(found) and name != found for name in known)):
        found = found[:-1]
    return found


def _picture(snapshot: Snapshot, redundancy: Redundancy, views: Sequence[ReplicaView]) -> dict[str, Any]:
    """The boxes of the dataflow with their shards, and the edges between them."""
    shape = snapshot.shape
    if shape is None:
        return {"parts": [], "edges": [], "lanes": []}
    edges = [(str(producer), str(consumer)) for producer, consumer in shape["edges"]]
    drawn = graph.arranged(shape["sources"], list(shape["segments"]), list(shape["sinks"]), edges)
    cells: dict[str, list[str]] = {}
    for view in views:
        cells.setdefault(view.shard, []).append(view.replica)

    def box(name: str, kind: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "kind": kind, "column": drawn.places[name].column, "row": drawn.places[name].row, **more}

    def shards(part: str, count: int) -> list[dict[str, Any]]:
        return [_shard(ShardId(part, index), cells, redundancy) for index in range(count)]

    parts = [box(graph.INGRESS, "ingress", sources=list(shape["sources"]), shards=shards(INGRESS.part, 1))]
    parts += [
        box(part, "segment", ha=facts["ha"], shards=shards(part, int(facts["shards"])))
        for part, facts in shape["segments"].items()
    ]
    delivered = _delivered(snapshot.states)
    parts += [
        box(sink, "sink", client=bool(facts["client"]), units=delivered.get(sink), shards=[])
        for sink, facts in shape["sinks"].items()
    ]
    boxes = dict.fromkeys(shape["sources"], graph.INGRESS)
    lines = dict.fromkeys((boxes.get(producer, producer), consumer, producer) for producer, consumer in edges)
    lanes = [
        {"from": left, "to": right, "column": place.column, "row": place.row}
        for (left, right), stops in drawn.lanes.items()
        for place in stops
    ]
    return {"parts": parts, "edges": [list(line) for line in lines], "lanes": lanes}


def _shard(shard: ShardId, cells: Mapping[str, list[str]], redundancy: Redundancy) -> dict[str, Any]:
    name = str(shard)
    short = redundancy.of(name)
    out: dict[str, Any] = {"shard": name, "replicas": cells.get(name, [])}
    if short is not None:
        out |= {"missing": short.missing, "since_ms": short.since_ms}
    return out


def _delivered(states: Iterable[State]) -> dict[str, int]:
    """Units that sinks have, of all shards together."""
    most: dict[str, int] = {}
    for state in states:
        for stream, facts in state.get("sinks", {}).items():
            most[stream] = max(most.get(stream, 0), int(facts["delivered"]))
    out: dict[str, int] = {}
    for stream, units in most.items():
        sink = stream.partition(">")[2].rpartition(".")[0]
        out[sink] = out.get(sink, 0) + units
    return out


def _pulse(states: Iterable[State]) -> dict[str, Any] | None:
    """The pulse as the leader of the ingress tells it; as any other member does, if the leader does not."""
    told = [(state, state["ingress"]) for state in states if "ingress" in state]
    if not told:
        return None
    state, facts = max(told, key=lambda one: (bool(one[1]["leading"]), int(one[1]["pulse"])))
    return {
        "number": facts["pulse"],
        "leader": state["node"] if facts["leading"] else None,
        "period_ms": facts["period_ms"] if facts["leading"] else None,
        "in_flight": facts["in_flight"] if facts["leading"] else None,
        "rows": max(int(ingress["rows"]) for _, ingress in told),
        "bad_rows": max(int(ingress["bad_rows"]) for _, ingress in told),
        "late_rows": max(int(ingress["late_rows"]) for _, ingress in told),
        "ended": facts["ended"],
        "unreached_ms": dict(facts["unreached_ms"]),
    }


def _code(states: Iterable[State]) -> dict[str, Any] | None:
    told = [state["code"] for state in states if "code" in state]
    return max(told, key=lambda code: int(code["generation"]), default=None)


def _nodes(snapshot: Snapshot, views: Sequence[ReplicaView]) -> list[dict[str, Any]]:
    hosted = Counter(view.node for view in views)
    worst = {view.node: view.look for view in views if view.look is Look.SUSPECTED}
    doubts = doubts_of(snapshot)
    draining = frozenset() if snapshot.layout is None else snapshot.layout.draining
    return [
        _node(state, hosted[str(state["node"])], snapshot, draining, doubts, str(state["node"]) in worst)
        for state in snapshot.states
    ]


def _node(
    state: State,
    replicas: int,
    snapshot: Snapshot,
    draining: frozenset[NodeId],
    doubts: Mapping[NodeId, str],
    suspected: bool,
) -> dict[str, Any]:
    name = str(state["node"])
    looks = {"dead": Look.DEAD, "lost": Look.DEAD, "silent": Look.SUSPECTED, "unadopted": Look.SUSPECTED}
    look = {**looks, "starting": Look.JOINING}.get(str(state["state"]), Look.ACTIVE)
    if look is Look.ACTIVE and (suspected or name in doubts or name in snapshot.frozen):
        look = Look.SUSPECTED
    coordination = state.get("coordination", {})
    ingress = state.get("ingress")
    roles = [
        *(["controller"] if coordination.get("controller") else []),
        *([] if ingress is None else ["ingress leader" if ingress["leading"] else "ingress"]),
        *(["cannot reach ZooKeeper"] if coordination.get("connected") is False else []),
    ]
    return {
        "node": name,
        "look": look.value,
        "state": state["state"],
        "why": str(state.get("reason") or doubts.get(name, "")),
        "replicas": replicas,
        "roles": roles,
        "draining": name in draining,
        "local": name in snapshot.local,
        "frozen": name in snapshot.frozen,
        "pid": state.get("pid"),
        "address": state.get("address"),
        "metrics": state.get("metrics"),
        "push": state.get("push"),
        "links": None if "links" not in state else len(state["links"]),
        "overhead": state.get("overhead"),
    }

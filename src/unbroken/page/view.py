"""One document for the browser, made from a snapshot: parts and their places, replicas, nodes, redundancy.

Pure: the same snapshot gives the same document. What depends on earlier looks (since when, and what happened) is made
in ``series.py``, ``chronicle.py`` and ``redundancy.py`` and comes in as arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from unbroken.observe.status.node import CodeStatus, IngressStatus, NodeState, NodeStatus
from unbroken.observe.status.shape import FlowShape
from unbroken.observe.status.summary import divergence_text
from unbroken.observe.status.traffic import flow_overhead
from unbroken.page import graph
from unbroken.page.document import FlowView, LaneView, Look, NodeView, PartView, PulseView, ReplicaView, ShardView
from unbroken.page.graph import Picture
from unbroken.page.redundancy import FlowRedundancy
from unbroken.page.replicas import doubts_of, replica_views
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import INGRESS

LOOKS = {
    NodeState.DEAD: Look.DEAD,
    NodeState.LOST: Look.DEAD,
    NodeState.SILENT: Look.SUSPECTED,
    NodeState.UNADOPTED: Look.SUSPECTED,
    NodeState.UNREADABLE: Look.SUSPECTED,
    NodeState.STARTING: Look.JOINING,
    NodeState.RUNNING: Look.ACTIVE,
}
"""What a node is shown as, unless somebody doubts it."""


def document(
    snapshot: FlowSnapshot, redundancy: FlowRedundancy, views: Sequence[ReplicaView] | None = None
) -> FlowView:
    """All that a page shows of a flow at one moment, apart from charts and history."""
    found = replica_views(snapshot) if views is None else views
    counts = Counter(view.look.value for view in found)
    counts[Look.MISSING.value] = sum(shortage.missing for shortage in redundancy.shards)
    overhead = flow_overhead(snapshot.states)
    shape = snapshot.shape
    edges = () if shape is None else shape.edges
    drawn = None if shape is None else graph.arranged(shape.sources, [*shape.segments], [*shape.sinks], edges)
    return FlowView(
        flow=snapshot.flow,
        time_ms=snapshot.time_ms,
        trouble=snapshot.trouble,
        zookeeper_away=snapshot.zookeeper_away,
        redundancy=redundancy.view(),
        pulse=_pulse(snapshot.states),
        pause=snapshot.pause,
        code=_code(snapshot.states),
        overhead=None if overhead is None else round(overhead, 2),
        divergences=tuple(
            map(divergence_text, sorted({each for state in snapshot.states for each in state.divergences}))
        ),
        counts={look.value: counts[look.value] for look in Look},
        prefix=common_prefix(snapshot.by_node),
        parts=() if shape is None or drawn is None else _parts(shape, drawn, snapshot.states, redundancy, found),
        edges=() if shape is None else _edges(shape),
        lanes=() if drawn is None else _lanes(drawn),
        replicas=tuple(found),
        nodes=_nodes(snapshot, found),
    )


def common_prefix(names: Iterable[str]) -> str:
    """What all nodes' names begin with, up to a separator, such as ``node-``: small cells can do without it."""
    known = list(names)
    found = min(known, default="") if len(known) > 1 else ""
    while found and (found[-1].isalnum() or not all(name.startswith(found) and name != found for name in known)):
        found = found[:-1]
    return found


def _parts(
    shape: FlowShape,
    drawn: Picture,
    states: Iterable[NodeStatus],
    redundancy: FlowRedundancy,
    views: Sequence[ReplicaView],
) -> tuple[PartView, ...]:
    """The boxes of the dataflow with their shards."""
    cells: dict[str, list[str]] = {}
    for view in views:
        cells.setdefault(view.shard, []).append(view.replica)

    def box(
        name: str,
        kind: str,
        shards: int = 0,
        *,
        sources: tuple[str, ...] | None = None,
        ha: str | None = None,
        client: bool | None = None,
        units: int | None = None,
    ) -> PartView:
        place = drawn.places[name]
        within = INGRESS.part if kind == "ingress" else name
        shown = tuple(_shard(ShardId(within, index), cells, redundancy) for index in range(shards))
        return PartView(
            name=name,
            kind=kind,
            column=place.column,
            row=place.row,
            shards=shown,
            sources=sources,
            ha=ha,
            client=client,
            units=units,
        )

    delivered = _delivered(states)
    return (
        box(graph.INGRESS, "ingress", 1, sources=shape.sources),
        *(box(part, "segment", facts.shards, ha=facts.ha) for part, facts in shape.segments.items()),
        *(box(sink, "sink", client=facts.client, units=delivered.get(sink)) for sink, facts in shape.sinks.items()),
    )


def _edges(shape: FlowShape) -> tuple[tuple[str, str, str], ...]:
    """The edges between boxes, each once, with the producer in the box."""
    boxes = dict.fromkeys(shape.sources, graph.INGRESS)
    return tuple(
        dict.fromkeys((boxes.get(producer, producer), consumer, producer) for producer, consumer in shape.edges)
    )


def _lanes(drawn: Picture) -> tuple[LaneView, ...]:
    return tuple(
        LaneView(start=left, end=right, column=place.column, row=place.row)
        for (left, right), stops in drawn.lanes.items()
        for place in stops
    )


def _shard(shard: ShardId, cells: Mapping[str, list[str]], redundancy: FlowRedundancy) -> ShardView:
    name = str(shard)
    short, replicas = redundancy.of(name), tuple(cells.get(name, ()))
    if short is None:
        return ShardView(shard=name, replicas=replicas)
    return ShardView(shard=name, replicas=replicas, missing=short.missing, since_ms=short.since_ms)


def _delivered(states: Iterable[NodeStatus]) -> dict[str, int]:
    """Units that sinks have, of all shards together."""
    most: dict[str, int] = {}
    for state in states:
        for stream, sink in state.sinks.items():
            most[stream] = max(most.get(stream, 0), sink.delivered)
    out: dict[str, int] = {}
    for stream, units in most.items():
        name = stream.partition(">")[2].rpartition(".")[0]
        out[name] = out.get(name, 0) + units
    return out


def _pulse(states: Iterable[NodeStatus]) -> PulseView | None:
    """The pulse as the leader of the ingress reports it; as any other member does, if the leader does not."""
    told = [(state.node, state.ingress) for state in states if state.ingress is not None]
    if not told:
        return None
    node, ingress = max(told, key=lambda one: (one[1].leading, one[1].pulse))

    def most(count: Callable[[IngressStatus], int]) -> int:
        return max(count(member) for _, member in told)

    return PulseView(
        number=ingress.pulse,
        leader=node if ingress.leading else None,
        period_ms=ingress.period_ms if ingress.leading else None,
        in_flight=ingress.in_flight if ingress.leading else None,
        rows=most(lambda member: member.rows),
        bad_rows=most(lambda member: member.bad_rows),
        late_rows=most(lambda member: member.late_rows),
        ended=ingress.ended,
        unreached_ms=ingress.unreached_ms,
    )


def _code(states: Iterable[NodeStatus]) -> CodeStatus | None:
    told = [state.code for state in states if state.code is not None]
    return max(told, key=lambda code: code.generation, default=None)


def _nodes(snapshot: FlowSnapshot, views: Sequence[ReplicaView]) -> tuple[NodeView, ...]:
    hosted = Counter(view.node for view in views)
    suspected = {view.node for view in views if view.look is Look.SUSPECTED}
    doubts = doubts_of(snapshot)
    draining = frozenset() if snapshot.layout is None else snapshot.layout.draining
    return tuple(
        _node(state, hosted[state.node], snapshot, draining, doubts, state.node in suspected)
        for state in snapshot.states
    )


def _node(
    state: NodeStatus,
    replicas: int,
    snapshot: FlowSnapshot,
    draining: frozenset[NodeId],
    doubts: Mapping[NodeId, str],
    suspected: bool,
) -> NodeView:
    name, look = state.node, LOOKS[state.state]
    if look is Look.ACTIVE and (suspected or name in doubts or name in snapshot.frozen):
        look = Look.SUSPECTED
    ingress, coordination = state.ingress, state.coordination
    roles = [
        *(["controller"] if state.controls else []),
        *([] if ingress is None else ["ingress leader" if ingress.leading else "ingress"]),
        *(["cannot reach ZooKeeper"] if coordination is not None and not coordination.connected else []),
    ]
    return NodeView(
        node=name,
        look=look,
        state=state.state,
        why=state.reason or doubts.get(name, ""),
        replicas=replicas,
        roles=tuple(roles),
        draining=name in draining,
        local=name in snapshot.local,
        frozen=name in snapshot.frozen,
        pid=state.pid,
        address=state.address,
        metrics=state.metrics,
        push=state.push,
        links=len(state.links) if state.placed else None,
        overhead=state.overhead,
    )

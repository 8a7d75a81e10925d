"""A running flow in a few sentences: the statuses of its nodes, put together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from unbroken.observe.notices import text_of
from unbroken.observe.status.flow import FlowStatus, FlowSummary, ShortShard
from unbroken.observe.status.node import DivergedUnit, NodeStatus, ReplicaStatus, ShardRedundancy
from unbroken.observe.status.readiness import part_name, stuck_parts
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.notices.replicas import ReplicaDiverged
from unbroken.wording import counted


def flow_status(flow: str, nodes: Sequence[NodeStatus], *, zookeeper_away: bool, time_ms: int) -> FlowStatus:
    """The status of a flow, from those of its nodes."""
    return FlowStatus(
        flow=flow, time_ms=time_ms, zookeeper_away=zookeeper_away, summary=summarize(nodes), nodes=tuple(nodes)
    )


def best_informed(states: Sequence[NodeStatus]) -> NodeStatus | None:
    """The node that knows best how the flow is: it goes by the newest layout, and among those it makes it."""
    placed = [state for state in states if state.placed]
    return max(placed, key=lambda state: (state.layout_version or 0, state.controls), default=None)


def summarize(states: Sequence[NodeStatus]) -> FlowSummary:
    """Put together what the nodes of a flow report."""
    best = best_informed(states)
    leader = next((state for state in states if state.leading), None)
    ingress = None if leader is None else leader.ingress
    replicas = [replica for state in states for replica in state.replicas]
    short = () if best is None else _short(best.redundancy)
    running = sum(1 for state in states if state.running)
    tentative = _tentative(replicas)
    stopped = {replica.replica: replica.reason for replica in replicas if replica.reason}
    stuck = tuple(part for state in states for part in stuck_parts(state))
    divergences = sum(len(state.divergences) for state in states)
    redundant = best is not None and not short
    return FlowSummary(
        well=redundant and running == len(states) and not (tentative or stopped or stuck or divergences),
        redundant=redundant,
        known=best is not None,
        nodes=len(states),
        running=running,
        leader=None if leader is None else leader.node,
        in_sync=() if ingress is None else ingress.members,
        controller=next((state.node for state in states if state.controls), None),
        layout=None if best is None else best.layout_version,
        generation=None if best is None or best.code is None else best.code.generation,
        pause=None if best is None else best.pause,
        period_ms=None if ingress is None else ingress.period_ms,
        in_flight=None if ingress is None else ingress.in_flight,
        ended=any(state.ingress is not None and state.ingress.ended for state in states),
        short=short,
        lag_ms=_worst({replica.replica: replica.lag_ms for replica in replicas}),
        latency_ms=_worst({replica.replica: replica.latency_ms for replica in replicas}),
        gap_ms=_worst({replica.replica: replica.gap_ms for replica in replicas}),
        tentative=tentative,
        stopped=stopped,
        stuck=stuck,
        divergences=divergences,
    )


def in_words(summary: FlowSummary, now_ms: float | None = None) -> list[str]:
    """The summary for a person."""
    now = time.time() * 1000 if now_ms is None else now_ms
    out = [_redundancy(summary, now), _sources(summary, now)]
    if summary.gap_ms is not None or summary.latency_ms is not None:
        out.append(_results(summary))
    for shard, lacking in summary.tentative.items():
        without = f" without {', '.join(lacking)}" if lacking else ""
        out.append(f"tentative: results of {shard} are given out{without} and will be replaced")
    out += [f"stopped: {replica}: {reason}" for replica, reason in summary.stopped.items()]
    out += [f"stuck: {part_name(part)} on {part.node}: {part.why}" for part in summary.stuck]
    if summary.divergences:
        out.append(f"diverged: replicas disagreed {counted(summary.divergences, 'time')}; see `unbroken history`")
    if summary.layout is not None:
        keeper = f"kept by {summary.controller}" if summary.controller else "nobody keeps it at this moment"
        out.append(f"layout: version {summary.layout}, {keeper}; generation {summary.generation} of the code")
    return [sentence for sentence in out if sentence]


def divergence_text(found: DivergedUnit) -> str:
    """A unit that differs between replicas, for a person: the sentence of its notice."""
    replica, sibling = ReplicaId.parse(found.replica), ReplicaId.parse(found.sibling)
    here, there = (found.rows, found.digest), (found.sibling_rows, found.sibling_digest)
    return text_of(ReplicaDiverged(replica, sibling, StreamId.parse(found.stream), found.unit, *here, *there))


def span(milliseconds: float) -> str:
    """A length of time, as exact as anybody wants to know it."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def since(time_ms: float, now_ms: float) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(time_ms / 1000))
    return f"since {clock} ({span(max(0.0, now_ms - time_ms))})"


def _redundancy(summary: FlowSummary, now_ms: float) -> str:
    if not summary.known:
        return "redundancy: no node says yet how the flow is"
    if not summary.short:
        return "redundancy: every shard has all its replicas"
    parts = []
    for short in summary.short:
        comes = f", {short.joining} on the way" if short.joining else ""
        when = f" {since(short.since_ms, now_ms)}" if short.since_ms is not None else ""
        parts.append(f"{short.shard} has {short.there} of {short.wanted} replicas{comes}{when}")
    return f"redundancy: {'; '.join(parts)}"


def _sources(summary: FlowSummary, now_ms: float) -> str:
    if summary.pause is not None:
        reason = f" ({summary.pause.reason})" if summary.pause.reason else ""
        when = since(summary.pause.since_ms, now_ms)
        return f"sources: paused {when}{reason}; `unbroken resume` lets them be read again"
    if summary.leader is None:
        return "sources: nobody leads the ingress at this moment" if summary.known else ""
    others = [node for node in summary.in_sync if node != summary.leader]
    helped = f", {', '.join(others)} in sync" if others else ", alone"
    if summary.ended:
        return f"sources: they have ended; {summary.leader} leads the ingress{helped}"
    pace = "" if summary.period_ms is None else f" every {span(summary.period_ms)}"
    return f"sources: read{pace} by {summary.leader}{helped}; {counted(summary.in_flight or 0, 'pulse')} in flight"


def _results(summary: FlowSummary) -> str:
    parts = []
    if summary.latency_ms is not None:
        parts.append(f"{span(summary.latency_ms)} after their rows were cut")
    if summary.gap_ms is not None:
        parts.append(f"the newest {span(summary.gap_ms)} ago")
    if summary.lag_ms:
        parts.append(f"input waits for {span(summary.lag_ms)}")
    return f"results: {', '.join(parts)}"


def _short(redundancy: Mapping[str, ShardRedundancy]) -> tuple[ShortShard, ...]:
    return tuple(
        ShortShard(
            shard=shard,
            wanted=facts.wanted,
            there=facts.reachable,
            joining=facts.joining,
            missing=max(0, facts.wanted - facts.full - facts.joining),
            since_ms=facts.short_since_ms,
        )
        for shard, facts in sorted(redundancy.items())
        if facts.degraded
    )


def _worst(values: Mapping[str, float | None]) -> float | None:
    """Of values by replica the best of each shard, and of those the worst: what a consumer downstream sees."""
    best: dict[str, float] = {}
    for replica, value in values.items():
        if value is not None:
            shard = _shard(replica)
            best[shard] = min(value, best.get(shard, value))
    return max(best.values(), default=None)


def _tentative(replicas: Sequence[ReplicaStatus]) -> dict[str, tuple[str, ...]]:
    """The shards with tentative results that are not replaced, and what they lack."""
    found: dict[str, set[str]] = {}
    for replica in replicas:
        if replica.consistency is not None and replica.consistency.tentative_units:
            found.setdefault(_shard(replica.replica), set()).update(replica.consistency.lacking)
    return {shard: tuple(sorted(lacking)) for shard, lacking in sorted(found.items())}


def _shard(replica: str) -> str:
    return replica.partition("#")[0]

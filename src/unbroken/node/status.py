"""What a node says about itself, and how it is shown."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from unbroken.node.health import redundancy, timing
from unbroken.protocol.ingress.pause import Rest
from unbroken.protocol.replica.cuts import Reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unbroken.node.ingress.service import IngressService
    from unbroken.node.node import Node
    from unbroken.protocol.ingress.sources import SourceSide
    from unbroken.protocol.machine import NodeProtocol
    from unbroken.protocol.output.hedged_delivery import HedgedDelivery
    from unbroken.protocol.output.outbox import Outbox
    from unbroken.protocol.replica.replica import SegmentReplica
    from unbroken.protocol.values.ids import ReplicaId, StreamId
    from unbroken.protocol.values.layout import Topology

AVAILABILITY = ("redundancy", "acknowledgements", "state", "coordination")
"""The purposes of bytes that would not have to be sent if nothing ever failed."""


def overhead(traffic: Mapping[str, int]) -> float | None:
    """Bytes for availability per byte for processing; None where nothing is processed."""
    data = traffic.get("data", 0)
    return round(sum(traffic.get(purpose, 0) for purpose in AVAILABILITY) / data, 5) if data else None


def flow_overhead(states: Iterable[Mapping[str, Any]]) -> float | None:
    """The same for all nodes together, which say it for themselves: what one sends, another may process."""
    total: Counter[str] = Counter()
    for state in states:
        total.update(state.get("traffic", {}))
    return overhead(total)


def node_status(node: Node, progress: Mapping[ReplicaId, dict[str, Any]]) -> dict[str, Any]:
    """A snapshot for `unbroken status`; called with the protocol at rest."""
    out: dict[str, Any] = {
        "node": node.name,
        "pid": os.getpid(),
        "address": node.server.address,
        "state": "starting",
        "story": [{"time_ms": when, "sentence": sentence} for when, sentence in list(node.story)[-50:]],
    }
    if node.metrics:
        out["metrics"] = node.metrics
    if node.tracing is not None:
        out["traces"] = node.tracing.counts()
    if node.coordination is not None:
        out["coordination"] = node.coordination.facts()
    protocol = node.protocol
    if node.run.id:
        out["run"] = node.run.id
    if protocol is None:
        if node.unadopted:
            out |= {"state": "unadopted", "reason": f"ZooKeeper has no layout of run {node.run.id}: see unbroken adopt"}
        return out
    now_ms = time.monotonic() * 1000
    if all(name in node.runners or replica.stopped for name, replica in protocol.replicas.items()):
        out["state"] = "running"
    out["layout_version"] = protocol.layout.version
    out["joining"] = {
        str(replica): {"phase": join.phase.value, **_copied(node, replica)}
        for replica, join in protocol.joining.joins.items()
    }
    program = node.programs.newest
    out["code"] = {"generation": program.generation, "file": program.file, "as_given": node.programs.as_given}
    out["flow"] = flow_shape(node.flow.name, protocol.topology)
    out["pause"] = None if protocol.layout.pause is None else protocol.layout.pause.to_json()
    out["links"] = sorted(protocol.links - {node.name})
    out["replicas"] = replica_states(protocol, progress, now_ms, time.time() * 1000)
    out["redundancy"] = redundancy(protocol)
    out["held"] = {str(replica): copy.version for replica, copy in protocol.holding.copies.items()}
    busy_s = node.hosting.sink_busy_s()
    out["sinks"] = {
        str(stream): {
            "delivered": delivery.delivered,
            "written_here": node.hosting.sink_writes(stream),
            "waits_ms": _waits_ms(delivery, now_ms),
            "busy_ms": round(1000 * busy_s.get(stream, 0.0), 1),
            "stopped": protocol.sinks.stopped.get(stream),
        }
        for stream, delivery in protocol.sinks.deliveries.items()
    }
    out["outboxes"] = {
        str(stream): {"kept": len(box.headers), "last": box.last, **_readers(node, stream, box)}
        for stream, box in protocol.outboxes.boxes.items()
    }
    out["counters"] = dict(protocol.counters)
    out["divergences"] = [str(divergence) for divergence in protocol.comparison.divergences]
    received, sent = protocol.traffic, node.links.traffic()
    out["received"], out["sent"], out["traffic"] = dict(received), dict(sent), dict(received + sent)
    out["overhead"] = overhead(out["traffic"])
    if protocol.sources is not None and node.ingress is not None:
        out["ingress"] = _ingress(protocol, protocol.sources, node.ingress)
    out["dead_letters"] = {"lost": node.letters.lost, "removed": node.letters.removed}
    return out


def flow_shape(name: str, topology: Topology) -> dict[str, Any]:
    """What the flow consists of and how its parts hang together; the same from every node."""
    return {
        "name": name,
        "sources": list(topology.sources),
        "segments": {
            part: {"shards": shards, "ha": strategy.ha.value, "replicas": strategy.running}
            for part, shards in topology.segments.items()
            for strategy in (topology.strategy(part),)
        },
        "sinks": {sink: {"client": sink in topology.client_sinks} for sink in topology.sinks},
        "edges": [list(edge) for edge in topology.edges],
    }


def replica_states(
    protocol: NodeProtocol, progress: Mapping[ReplicaId, dict[str, Any]], now_ms: float, clock_ms: float
) -> list[dict[str, Any]]:
    """The replicas at work on a node: what they do, how far they are, and where their time goes.

    ``now_ms`` is the time by which the protocol goes, ``clock_ms`` the time of day.
    """
    inboxes = [inbox for replica in protocol.replicas.values() for inbox in replica.inboxes.values()]
    newest = max((Reach.of(inbox, inbox.available).pulse for inbox in inboxes), default=0)
    return [
        {
            "replica": str(replica.replica),
            "state": _doing(protocol, replica),
            "reason": replica.stopped,
            "committed": replica.committed,
            "produced": replica.produced,
            "final": replica.final,
            "inputs": {str(stream): inbox.available for stream, inbox in replica.inboxes.items()},
            "lag_units": newest - replica.pulse,
            **timing(protocol, replica, now_ms, clock_ms),
            **_consistency(protocol, replica),
            "feeds": {str(stream): sorted(feed.subscribed) for stream, feed in replica.feeds.items()},
            **progress.get(replica.replica, {}),
        }
        for replica in protocol.replicas.values()
    ]


def _ingress(protocol: NodeProtocol, sources: SourceSide, service: IngressService) -> dict[str, Any]:
    """A member of the ingress: its log, the pulse, what it has read, and what it is stuck at."""
    log, feeder = sources.log, service.feeder
    return {
        "leading": log.leading,
        "term": log.sync.term,
        "members": sorted(log.sync.members),
        "pulse": log.last_pulse,
        "ended": log.ended,
        "reading": sources.rest is Rest.READING,
        "period_ms": round(sources.pulse.period_ms, 1),
        "in_flight": protocol.pace.in_flight(),
        "rows": feeder.rows,
        "bad_rows": feeder.bad_rows,
        "late_rows": feeder.late_rows,
        "unreached_ms": dict(feeder.unreached_ms()),
        "asking_s": feeder.asking_s(),
        "busy_ms": round(1000 * service.busy_s, 1),
        "log_busy_ms": round(1000 * service.log_busy_s, 1),
        "set_aside": service.set_aside,
        "jobs": service.waiting,
        "stuck": {source: stuck.to_json() for source, stuck in feeder.stuck().items()},
        "left_behind": sorted(protocol.pace.left),
        "clock_offset_ms": round(service.clock_offset_ms, 1),
    }


def _consistency(protocol: NodeProtocol, replica: SegmentReplica) -> dict[str, Any]:
    """How the results of a replica stand that goes on without missing input; nothing for others."""
    watch = protocol.forking.watches.get(replica.replica)
    if watch is None:
        return {}
    lacking = sorted({stream.producer.part for stream in replica.starving()}) if watch.blocked else []
    fork = None if watch.fork is None else {"replica": str(watch.fork.replica), "pulse": watch.fork.done}
    pending = watch.given - watch.stable if watch.given else 0
    told = {"tentative": watch.given, "tentative_units": pending, "fork": fork}
    return {"consistency": watch.state.value, "lacking": lacking, **told}


def _waits_ms(delivery: HedgedDelivery, now_ms: float) -> float:
    """How long the oldest unit that a sink does not have yet has been ready; a replica of higher rank hedges first."""
    due_ms = min(delivery.ready.values(), default=None)
    return 0.0 if due_ms is None else round(max(0.0, now_ms - due_ms + delivery.rank * delivery.hedge_ms), 1)


def _copied(node: Node, replica: ReplicaId) -> dict[str, Any]:
    """How far the copy of a joining replica's state is."""
    fetch = node.transfers.under_way.get(replica)
    return {} if fetch is None else {"fetched": fetch.fetched + fetch.reused, "total": fetch.total}


def _readers(node: Node, stream: StreamId, box: Outbox) -> dict[str, Any]:
    """How far subscribers of a client sink have come."""
    if stream.consumer.part not in node.programs.topology.client_sinks:
        return {}
    return {"readers": {name: subscriber.acked for name, subscriber in box.subscribers.items()}}


def _doing(protocol: NodeProtocol, replica: SegmentReplica) -> str:
    if replica.stopped:
        return "stopped"
    return "stands by" if any(box.quiet for box in protocol.outboxes.of(replica.replica)) else "active"

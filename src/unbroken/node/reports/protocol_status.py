"""The part of a node's status that its protocol object knows.

Everything is worked out when somebody asks; nothing is noted down for it while units pass.
"""

from __future__ import annotations

from unbroken.node.reports.health import redundancy, timing
from unbroken.observe.status.node import (
    ConsistencyStatus,
    DivergedUnit,
    ForkStatus,
    IngressStatus,
    JoinStatus,
    NodeState,
    NodeStatus,
    OutboxStatus,
    PauseStatus,
    ReplicaState,
    ReplicaStatus,
    SinkStatus,
)
from unbroken.observe.status.shape import flow_shape
from unbroken.protocol.ingress.pause import Rest
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.output.hedged_delivery import HedgedDelivery
from unbroken.protocol.output.outbox import Outbox
from unbroken.protocol.replica.cuts import reach_of
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.notices.replicas import ReplicaDiverged


def protocol_status(protocol: NodeProtocol, flow: str, now_ms: float, clock_ms: float) -> NodeStatus:
    """A status with all that the protocol object of a node of ``flow`` knows.

    It is a copy: the object may change afterwards. ``now_ms`` is the time by which the protocol goes, ``clock_ms`` the
    time of day.
    """
    layout = protocol.layout
    pause = layout.pause
    return NodeStatus(
        node=protocol.me,
        state=NodeState.STARTING,
        time_ms=int(clock_ms),
        layout_version=layout.version,
        flow=flow_shape(flow, protocol.topology),
        pause=None if pause is None else PauseStatus(since_ms=pause.since_ms, reason=pause.reason),
        links=tuple(sorted(protocol.links - {protocol.me})),
        replicas=_replicas(protocol, now_ms, clock_ms),
        joining={str(replica): JoinStatus(phase=join.phase) for replica, join in protocol.newcomers.joins.items()},
        held={str(replica): version for replica, version in protocol.policies.held().items()},
        redundancy=redundancy(protocol),
        sinks={
            str(stream): SinkStatus(
                delivered=delivery.delivered,
                waits_ms=_waits_ms(delivery, now_ms),
                stopped=protocol.sinks.stopped.get(stream),
            )
            for stream, delivery in protocol.sinks.deliveries.items()
        },
        outboxes={str(stream): _outbox(protocol, box) for stream, box in protocol.outboxes.boxes.items()},
        ingress=_ingress(protocol),
        counters=dict(protocol.counters),
        divergences=tuple(_diverged(each.notice()) for each in protocol.digest_exchange.divergences),
        received=dict(protocol.traffic),
    )


def _diverged(found: ReplicaDiverged) -> DivergedUnit:
    return DivergedUnit(
        replica=str(found.replica),
        sibling=str(found.kept),
        stream=str(found.stream),
        unit=found.unit,
        rows=found.rows,
        digest=found.digest,
        sibling_rows=found.kept_rows,
        sibling_digest=found.kept_digest,
    )


def _replicas(protocol: NodeProtocol, now_ms: float, clock_ms: float) -> tuple[ReplicaStatus, ...]:
    inboxes = [inbox for replica in protocol.replicas.values() for inbox in replica.inboxes.values()]
    newest = max((reach_of(inbox, inbox.available).pulse for inbox in inboxes), default=0)
    return tuple(_replica(protocol, replica, newest, now_ms, clock_ms) for replica in protocol.replicas.values())


def _replica(
    protocol: NodeProtocol, replica: SegmentReplica, newest: int, now_ms: float, clock_ms: float
) -> ReplicaStatus:
    """A replica at work: how far it is, where its input comes from, and where its time goes."""
    late = timing(protocol, replica, now_ms, clock_ms)
    return ReplicaStatus(
        replica=str(replica.replica),
        state=_doing(protocol, replica),
        reason=replica.stopped,
        committed=replica.committed,
        produced=replica.produced,
        final=replica.final,
        inputs={str(stream): inbox.available for stream, inbox in replica.inboxes.items()},
        lag_units=newest - replica.pulse,
        lag_ms=late.lag_ms,
        gap_ms=late.gap_ms,
        latency_ms=late.latency_ms,
        consistency=_consistency(protocol, replica),
        feeds={str(stream): tuple(sorted(feed.subscribed)) for stream, feed in replica.feeds.items()},
    )


def _doing(protocol: NodeProtocol, replica: SegmentReplica) -> ReplicaState:
    if replica.stopped:
        return ReplicaState.STOPPED
    quiet = any(box.quiet for box in protocol.outboxes.of(replica.replica))
    return ReplicaState.STANDS_BY if quiet else ReplicaState.ACTIVE


def _consistency(protocol: NodeProtocol, replica: SegmentReplica) -> ConsistencyStatus | None:
    """How final the results of a replica are that continues without missing input; None for others."""
    found = protocol.policies.outlook(replica.replica)
    if found is None:
        return None
    lacking = sorted({stream.producer.part for stream in replica.starving()}) if found.blocked else []
    return ConsistencyStatus(
        state=found.state,
        lacking=tuple(lacking),
        tentative=found.given,
        tentative_units=found.given - found.stable if found.given else 0,
        fork=None if found.fork is None else ForkStatus(replica=str(found.fork), pulse=found.fork_pulse),
    )


def _waits_ms(delivery: HedgedDelivery, now_ms: float) -> float:
    """How long the oldest unit that a sink does not have yet has been ready; a replica of higher rank hedges first."""
    due_ms = min(delivery.ready.values(), default=None)
    return 0.0 if due_ms is None else round(max(0.0, now_ms - due_ms + delivery.rank * delivery.hedge_ms), 1)


def _outbox(protocol: NodeProtocol, box: Outbox) -> OutboxStatus:
    """The units that are kept of a stream, and how far subscribers of a client sink have come."""
    client = box.stream.consumer.part in protocol.topology.client_sinks
    readers = {name: subscriber.acked for name, subscriber in box.subscribers.items()} if client else {}
    return OutboxStatus(kept=len(box.headers), last=box.last, readers=readers)


def _ingress(protocol: NodeProtocol) -> IngressStatus | None:
    """The log of the ingress and its pulse; rows are counted where they are read."""
    sources = protocol.sources
    if sources is None:
        return None
    log = sources.log
    return IngressStatus(
        leading=log.leading,
        term=log.sync.term,
        members=tuple(sorted(log.sync.members)),
        pulse=log.last_pulse,
        ended=log.ended,
        reading=sources.rest is Rest.READING,
        period_ms=round(sources.pulse.period_ms, 1),
        in_flight=protocol.backpressure.in_flight(),
        rows=0,
        left_behind=tuple(sorted(protocol.backpressure.left)),
    )

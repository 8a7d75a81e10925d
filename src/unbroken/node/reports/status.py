"""The status of a node: what its protocol object knows, and what its threads, files and queries add to that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from unbroken.connectors.dead_letters import DeadLetters
from unbroken.node.ingress.service import IngressService
from unbroken.node.links import Links
from unbroken.node.membership.session import Coordination
from unbroken.node.replicas.outlets import SinkOutlets
from unbroken.node.replicas.programs import Programs
from unbroken.node.replicas.state_copies import StateCopies
from unbroken.observe.status.node import (
    BatchStatus,
    CodeStatus,
    DeadLetterCounts,
    IngressStatus,
    JoinStatus,
    NodeState,
    NodeStatus,
    ReplicaState,
    SinkStatus,
)
from unbroken.observe.status.notices import status_of
from unbroken.observe.status.traffic import overhead
from unbroken.observe.tracing.tracing import Tracing
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.run import RunIdentity
from unbroken.spark.runner import BatchProgress, QueryRunner
from unbroken.transport.server import NodeServer

STORY = 50
"""Notices of a status: what an operator reads, not a log."""


class ReportedNode(Protocol):
    """The parts of a node that have something to report, and its own state."""

    @property
    def name(self) -> NodeId: ...

    @property
    def run(self) -> RunIdentity: ...

    @property
    def unadopted(self) -> bool:
        """Whether ZooKeeper has lost the documents of the run."""

    @property
    def metrics(self) -> str: ...

    @property
    def story(self) -> Iterable[Reported]: ...

    @property
    def server(self) -> NodeServer: ...

    @property
    def links(self) -> Links: ...

    @property
    def programs(self) -> Programs: ...

    @property
    def runners(self) -> Mapping[ReplicaId, QueryRunner]: ...

    @property
    def copies(self) -> StateCopies: ...

    @property
    def outlets(self) -> SinkOutlets: ...

    @property
    def ingress(self) -> IngressService | None: ...

    @property
    def letters(self) -> DeadLetters: ...

    @property
    def tracing(self) -> Tracing | None: ...

    @property
    def coordination(self) -> Coordination | None: ...


def node_status(
    node: ReportedNode, known: NodeStatus | None, progress: Mapping[ReplicaId, BatchProgress]
) -> NodeStatus:
    """The status of a node; ``known`` is the protocol's part of it, None before the node has its place."""
    starting = NodeStatus(node=node.name, state=NodeState.STARTING)
    status = replace(
        starting if known is None else _placed(node, known, progress),
        pid=os.getpid(),
        address=node.server.address,
        metrics=node.metrics or None,
        run=node.run.id or None,
        notices=tuple(status_of(reported) for reported in list(node.story)[-STORY:]),
        traces=None if node.tracing is None else node.tracing.counts(),
        coordination=None if node.coordination is None else node.coordination.status(),
    )
    if known is None and node.unadopted:
        reason = f"ZooKeeper has no layout of run {node.run.id}: see unbroken adopt"
        status = replace(status, state=NodeState.UNADOPTED, reason=reason)
    return status


def _placed(node: ReportedNode, known: NodeStatus, progress: Mapping[ReplicaId, BatchProgress]) -> NodeStatus:
    """The status of a node that has its place in the flow."""
    batches = {str(replica): _batch(last) for replica, last in progress.items()}
    started = {str(replica) for replica in list(node.runners)}
    program = node.programs.newest
    sent = node.links.traffic()
    traffic = dict(Counter(known.received) + sent)
    at_work = all(one.replica in started or one.state is ReplicaState.STOPPED for one in known.replicas)
    return replace(
        known,
        state=NodeState.RUNNING if at_work else NodeState.STARTING,
        code=CodeStatus(generation=program.generation, file=program.file, as_given=node.programs.as_given),
        replicas=tuple(replace(replica, batch=batches.get(replica.replica)) for replica in known.replicas),
        joining=_joining(node.copies, known.joining),
        sinks=_sinks(node.outlets, known.sinks),
        ingress=None if known.ingress is None or node.ingress is None else _ingress(known.ingress, node.ingress),
        sent=dict(sent),
        traffic=traffic,
        overhead=overhead(traffic),
        dead_letters=DeadLetterCounts(lost=node.letters.lost, removed=node.letters.removed),
    )


def _batch(last: BatchProgress) -> BatchStatus:
    return BatchStatus(
        number=last.batch,
        cut=last.cut,
        duration_ms=dict(last.duration_ms),
        input_rows=last.input_rows,
        state_rows_updated=last.state_rows_updated,
        state_memory_bytes=last.state_memory_bytes,
        state_file_bytes=last.state_file_bytes,
    )


def _joining(copies: StateCopies, joins: Mapping[str, JoinStatus]) -> dict[str, JoinStatus]:
    """How far the copies of joining replicas' states are."""
    fetches = {str(replica): fetch for replica, fetch in list(copies.under_way.items())}
    return {
        replica: replace(join, fetched_bytes=fetch.fetched + fetch.reused, total_bytes=fetch.total)
        if (fetch := fetches.get(replica)) is not None
        else join
        for replica, join in joins.items()
    }


def _sinks(outlets: SinkOutlets, sinks: Mapping[str, SinkStatus]) -> dict[str, SinkStatus]:
    """What the threads of the sinks do."""
    busy_s, out = outlets.busy_s(), {}
    for name, sink in sinks.items():
        stream = StreamId.parse(name)
        busy_ms = round(1000 * busy_s.get(stream, 0.0), 1)
        out[name] = replace(sink, written_here=outlets.writes(stream), busy_ms=busy_ms)
    return out


def _ingress(known: IngressStatus, service: IngressService) -> IngressStatus:
    """What the threads of the ingress have read, and what they are stuck at."""
    known = replace(
        known,
        busy_ms=round(1000 * service.busy_s, 1),
        log_busy_ms=round(1000 * service.log_busy_s, 1),
        set_aside=service.set_aside,
        jobs=service.waiting,
        clock_offset_ms=round(service.clock_offset_ms, 1),
    )
    feeder = service.feeder
    if feeder is None:
        return known  # its log is being opened
    return replace(
        known,
        rows=feeder.rows,
        bad_rows=feeder.bad_rows,
        late_rows=feeder.late_rows,
        unreached_ms=dict(feeder.unreached_ms()),
        asking_s=feeder.health.asking_s(),
        stuck=feeder.health.stuck(),
    )

"""The traces of a node, if its flow asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Protocol

from unbroken.coordination.documents import Member
from unbroken.flow.dataflow import Dataflow
from unbroken.node.inquiries import ProtocolView
from unbroken.node.replicas.programs import Programs
from unbroken.observe.tracing.ids import Ids, Sampling
from unbroken.observe.tracing.incidents import IncidentSpans
from unbroken.observe.tracing.pulses import PulseSpans
from unbroken.observe.tracing.tracing import Exporter, Limits, Tracing
from unbroken.protocol.combinations import separate_sources
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout
from unbroken.spark.runner import QueryRunner

log = logging.getLogger(__name__)


class TracedNode(Protocol):
    """What traces have of a node besides the events of its loop."""

    @property
    def name(self) -> NodeId: ...

    @property
    def flow(self) -> Dataflow: ...

    @property
    def programs(self) -> Programs: ...

    @property
    def runners(self) -> Mapping[ReplicaId, QueryRunner]: ...

    @property
    def view(self) -> ProtocolView | None: ...

    @property
    def members(self) -> Mapping[NodeId, Member]: ...


def open_traces(node: TracedNode, run: str, layout: Layout, sync: InSync) -> Tracing | None:
    """Traces of what ``node`` does from now on, started; None if nobody asks for them."""
    if node.flow.settings.traces is None:
        return None
    # Imported only here: it takes a moment, and most flows do without.
    from unbroken.observe.tracing.otel import limits_of, open_exporter

    exporter = open_exporter(node.flow.name, node.name, run)
    if exporter is None:
        log.info("the environment turns traces off on this node")
        return None
    log.info("one pulse of %d is traced", node.flow.settings.traces)
    out = make_traces(node, run, layout, sync, exporter, limits_of())
    out.start()
    return out


def make_traces(
    node: TracedNode, run: str, layout: Layout, sync: InSync, exporter: Exporter, limits: Limits | None = None
) -> Tracing:
    """Traces of what ``node`` does, to be started."""
    ids, sampling = Ids(run), Sampling(node.flow.settings.traces or 1)

    def spent(replica: ReplicaId, number: int) -> Mapping[str, float]:
        runner = node.runners.get(replica)
        last = None if runner is None else runner.progress()
        return last.duration_ms if last is not None and last.cut == number else {}

    def leading() -> bool:
        return node.view is not None and node.view.leading

    def incarnation(other: NodeId) -> str:
        member = node.members.get(other)
        return "" if member is None else member.incarnation

    pulses = PulseSpans(node.name, ids, sampling, spent, separate_sources(node.programs.topology))
    incidents = IncidentSpans(node.name, ids, layout, sync, time.time_ns())
    return Tracing(sampling, pulses, incidents, exporter, leading, incarnation, limits)

"""The traces of a node, if its flow asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unbroken.observe.tracing.ids import Ids, Sampling
from unbroken.observe.tracing.incidents import IncidentSpans
from unbroken.observe.tracing.pulses import PulseSpans
from unbroken.observe.tracing.tracing import Exporter, Limits, Tracing
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout

if TYPE_CHECKING:
    from unbroken.node.node import Node

log = logging.getLogger(__name__)


def open_traces(node: Node, run: str, layout: Layout, sync: InSync) -> Tracing | None:
    """Traces of what ``node`` does from now on, started; None if nobody asks for them."""
    if node.settings.traces is None:
        return None
    # Imported only here: it takes a moment, and most flows do without.
    from unbroken.observe.tracing.otel import limits_of, open_exporter

    exporter = open_exporter(node.flow.name, node.name, run)
    if exporter is None:
        log.info("the environment turns traces off on this node")
        return None
    log.info("one pulse of %d is traced", node.settings.traces)
    out = make_traces(node, run, layout, sync, exporter, limits_of())
    out.start()
    return out


def make_traces(
    node: Node, run: str, layout: Layout, sync: InSync, exporter: Exporter, limits: Limits | None = None
) -> Tracing:
    """Traces of what ``node`` does, to be started."""
    ids, sampling = Ids(run), Sampling(node.settings.traces or 1)

    def spent(replica: ReplicaId, number: int) -> Mapping[str, float]:
        runner = node.runners.get(replica)
        progress = {} if runner is None else runner.progress()
        split: Mapping[str, float] = progress.get("duration_ms", {}) if progress.get("cut") == number else {}
        return split

    def leading() -> bool:
        protocol = node.protocol
        return protocol is not None and protocol.sources is not None and protocol.sources.log.leading

    def incarnation(other: NodeId) -> str:
        member = node.members.get(other)
        return "" if member is None else member.incarnation

    pulses = PulseSpans(node.name, ids, sampling, spent, node.programs.topology.bucketed)
    incidents = IncidentSpans(node.name, ids, layout, sync, time.time_ns())
    return Tracing(sampling, pulses, incidents, exporter, leading, incarnation, limits)

"""The metrics of a node, made from its status when somebody asks for them.

Nothing is counted or timed for them while units pass: what `unbroken status` shows is all there is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from unbroken import __version__
from unbroken.errors import UnbrokenError
from unbroken.observe.metrics.definitions import DEFINITIONS
from unbroken.observe.status.node import IngressStatus, NodeStatus, ReplicaStatus
from unbroken.protocol.values.ids import ReplicaId, StreamId

FRESH_S = 0.5
"""A status is good for this long. However often a node is asked, it takes no more time from the flow than that."""

ASK_DEADLINE_S = 8.0
"""How long to wait for a status that somebody else is asking for; Prometheus gives up after 10 s by default."""

RECEIVED = ("data", "redundancy", "state", "tentative")
SENT = ("acknowledgements", "redundancy", "coordination")
"""Purposes of bytes that are always shown, so that a counter does not begin with its first increase."""

WHOLE = "triggerExecution"
"""What Spark calls all of a micro-batch."""


class Facts:
    """The status of a node, asked for by one thread at a time and not more often than is useful."""

    def __init__(self, ask: Callable[[], NodeStatus]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._status: NodeStatus | None = None
        self._asked = 0.0

    def read(self) -> NodeStatus:
        """The status; UnbrokenError if it cannot be had in time."""
        if not self._lock.acquire(timeout=ASK_DEADLINE_S):
            raise UnbrokenError(f"the node did not say how it is within {ASK_DEADLINE_S:g} s; Spark may hang")
        try:
            if self._status is None or time.monotonic() - self._asked > FRESH_S:
                self._status = self._ask()
                self._asked = time.monotonic()
            return self._status
        finally:
            self._lock.release()


class NodeCollector:
    """Turns a node's status into metrics; what the status does not say has no sample."""

    def __init__(self, flow: str, node: str, facts: Facts) -> None:
        self._flow = flow
        self._node = node
        self._facts = facts

    def describe(self) -> Iterable[Metric]:
        return _Samples((self._flow, self._node)).families.values()

    def collect(self) -> Iterable[Metric]:
        out = _Samples((self._flow, self._node))
        fill(out, self._facts.read())
        return out.families.values()


class _Samples:
    """All families of metrics, and the samples so far. Every sample begins with the labels flow and node."""

    def __init__(self, first: tuple[str, str]) -> None:
        self._first = first
        self.families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            one.name: (GaugeMetricFamily if one.kind == "gauge" else CounterMetricFamily)(
                one.name, one.help, labels=one.labels
            )
            for one in DEFINITIONS
        }

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a sample of ``unbroken_<name>``, unless its value is not known."""
        if value is not None:
            self.families[f"unbroken_{name}"].add_metric([*self._first, *labels], float(value))


def fill(out: _Samples, status: NodeStatus) -> None:
    """Everything that a status says, as samples."""
    _node(out, status)
    if not status.placed:
        return
    out.add("paused", status.pause is not None)
    _redundancy(out, status)
    for replica in status.replicas:
        _replica(out, replica)
    _not_at_work(out, status)
    _streams(out, status)
    _units(out, status)
    out.add("dead_letters_lost_total", status.dead_letters.lost)
    out.add("dead_letters_removed_total", status.dead_letters.removed)
    if status.ingress is not None:
        _ingress(out, status.ingress)


def _node(out: _Samples, status: NodeStatus) -> None:
    out.add("node_info", 1, __version__)
    out.add("node_running", status.running)
    coordination = status.coordination
    if coordination is not None:
        out.add("zookeeper_connected", coordination.connected)
        out.add("controller", coordination.controller)
        for cause, count in coordination.failovers.items():
            out.add("failovers_total", count, cause)
        out.add("recoveries_total", coordination.recoveries.count)
        out.add("recovery_seconds_total", coordination.recoveries.seconds)
    out.add("layout_version", status.layout_version)
    out.add("code_generation", None if status.code is None else status.code.generation)
    out.add("node_links", len(status.links) if status.placed else None)
    if status.traces is not None:
        out.add("spans_exported_total", status.traces.exported)
        out.add("spans_dropped_total", status.traces.dropped, "queue_full")
        out.add("spans_dropped_total", status.traces.failed, "export_failed")


def _redundancy(out: _Samples, status: NodeStatus) -> None:
    for shard, facts in status.redundancy.items():
        out.add("redundancy_degraded", facts.degraded, shard)
        out.add("redundancy_degraded_since_timestamp_seconds", _seconds(facts.short_since_ms), shard)
        counts = {"wanted": facts.wanted, "full": facts.full, "reachable": facts.reachable, "joining": facts.joining}
        for state, count in counts.items():
            out.add("shard_replicas", count, shard, state)


def _replica(out: _Samples, replica: ReplicaStatus) -> None:
    name = _names(replica.replica)
    out.add("replica_state", 1, *name, replica.state)
    out.add("output_gap_seconds", _seconds(replica.gap_ms), *name)
    out.add("result_latency_seconds", _seconds(replica.latency_ms), *name)
    out.add("replica_lag_seconds", _seconds(replica.lag_ms), *name)
    out.add("replica_lag_units", replica.lag_units, *name)
    out.add("units_produced_total", replica.produced, *name)
    out.add("units_committed_total", replica.committed, *name)
    batch = replica.batch
    if batch is not None:
        out.add("micro_batch_input_rows", batch.input_rows, *name)
        out.add("state_rows_updated", batch.state_rows_updated, *name)
        out.add("state_memory_bytes", batch.state_memory_bytes, *name)
        out.add("state_file_bytes", batch.state_file_bytes, *name)
        for part, took_ms in _parts(batch.duration_ms).items():
            out.add("micro_batch_seconds", _seconds(took_ms), *name, part)
    if replica.consistency is not None:
        out.add("consistency_state", 1, *name, replica.consistency.state.value)
        out.add("tentative_units_pending", replica.consistency.tentative_units, *name)


def _parts(duration_ms: Mapping[str, float]) -> dict[str, float]:
    """What a micro-batch was spent on, such that the sum is all of it: Spark times most steps, not every one."""
    if not duration_ms:
        return {}
    parts = {part: took for part, took in duration_ms.items() if part != WHOLE}
    return {**parts, "other": max(0, duration_ms.get(WHOLE, 0) - sum(parts.values()))}


def _not_at_work(out: _Samples, status: NodeStatus) -> None:
    """Replicas that join, and copies of state that wait to be needed."""
    running = {replica.replica for replica in status.replicas}
    for replica, join in status.joining.items():
        if replica not in running:
            out.add("replica_state", 1, *_names(replica), "joining")
        out.add("copy_bytes", join.fetched_bytes, *_names(replica), "copied")
        out.add("copy_bytes", join.total_bytes, *_names(replica), "all")
    for replica in status.held:
        if replica not in status.joining:
            out.add("replica_state", 1, *_names(replica), "held")


def _streams(out: _Samples, status: NodeStatus) -> None:
    for name, sink in status.sinks.items():
        stream = StreamId.parse(name)
        labels = (str(stream.producer), stream.consumer.part)
        out.add("sink_units_delivered_total", sink.delivered, *labels)
        out.add("sink_units_written_total", sink.written_here, *labels)
        out.add("sink_wait_seconds", _seconds(sink.waits_ms), *labels)
        out.add("sink_busy_seconds", _seconds(sink.busy_ms), *labels)
        out.add("sink_stopped", sink.stopped is not None, *labels)
    for name, box in status.outboxes.items():
        stream = StreamId.parse(name)
        out.add("outbox_units", box.kept, str(stream.producer), str(stream.consumer))


def _units(out: _Samples, status: NodeStatus) -> None:
    counters = status.counters
    for name, counter in (
        ("units_accepted", "units_accepted"),
        ("duplicates_dropped", "units_duplicate"),
        ("units_refused", "units_refused"),
        ("units_given_up", "units_given_up"),
        ("units_set_aside", "units_set_aside"),
        ("messages_refused", "messages_refused"),
        ("tentative_units", "tentative_units"),
        ("tentative_rows", "tentative_rows"),
    ):
        out.add(f"{name}_total", counters.get(counter, 0))
    out.add("divergences_total", len(status.divergences) + counters.get("units_divergent", 0))
    for name, counted, purposes in (
        ("bytes_received", status.received, RECEIVED),
        ("bytes_sent", status.sent, SENT),
    ):
        for purpose, size in {**dict.fromkeys(purposes, 0), **counted}.items():
            out.add(f"{name}_total", size, purpose)


def _ingress(out: _Samples, ingress: IngressStatus) -> None:
    out.add("ingress_leading", ingress.leading)
    out.add("ingress_in_sync_members", len(ingress.members))
    out.add("pulses_total", ingress.pulse)
    if ingress.leading:
        # Only the leader knows: what a follower would adapt has no meaning until it leads.
        out.add("pulse_period_seconds", _seconds(ingress.period_ms))
        out.add("pulses_in_flight", ingress.in_flight)
    out.add("source_rows_total", ingress.rows)
    out.add("source_rows_bad_total", ingress.bad_rows)
    out.add("source_rows_late_total", ingress.late_rows)
    out.add("ingress_clock_offset_seconds", _seconds(ingress.clock_offset_ms))
    for source, away_ms in ingress.unreached_ms.items():
        out.add("source_unreached_seconds", _seconds(away_ms), source)
    out.add("ingress_busy_seconds", _seconds(ingress.busy_ms))
    out.add("ingress_log_busy_seconds", _seconds(ingress.log_busy_ms))
    out.add("ingress_entries_set_aside_total", ingress.set_aside)
    for source, asking_s in ingress.asking_s.items():
        out.add("source_asking_seconds", asking_s, source)
    for source, stuck in ingress.stuck.items():
        out.add("source_stuck_seconds", stuck.seconds, source)


def _names(replica: str) -> tuple[str, str]:
    """The labels shard and replica."""
    return str(ReplicaId.parse(replica).shard), replica


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000

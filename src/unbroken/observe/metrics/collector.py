"""The metrics of a node, made from its status when somebody asks for them.

Nothing is counted or timed for them while units pass: what `unbroken status` shows is all there is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from unbroken import __version__
from unbroken.errors import UnbrokenError
from unbroken.observe.metrics.definitions import DEFINITIONS
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

Status = Mapping[str, Any]


class Facts:
    """The status of a node, asked for by one thread at a time and not more often than is useful."""

    def __init__(self, ask: Callable[[], Status]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._status: Status = {}
        self._asked: float | None = None

    def read(self) -> Status:
        """The status; UnbrokenError if it cannot be had in time."""
        if not self._lock.acquire(timeout=ASK_DEADLINE_S):
            raise UnbrokenError(f"the node did not say how it is within {ASK_DEADLINE_S:g} s; Spark may hang")
        try:
            if self._asked is None or time.monotonic() - self._asked > FRESH_S:
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


def fill(out: _Samples, status: Status) -> None:
    """Everything that a status says, as samples."""
    _node(out, status)
    if status.get("replicas") is None:
        return  # It has not found its place in the flow yet.
    out.add("paused", status.get("pause") is not None)
    _redundancy(out, status)
    for replica in status["replicas"]:
        _replica(out, replica)
    _not_at_work(out, status)
    _streams(out, status)
    _units(out, status)
    letters = status.get("dead_letters", {})
    out.add("dead_letters_lost_total", letters.get("lost", 0))
    out.add("dead_letters_removed_total", letters.get("removed", 0))
    if "ingress" in status:
        _ingress(out, status["ingress"])


def _node(out: _Samples, status: Status) -> None:
    out.add("node_info", 1, __version__)
    out.add("node_running", status["state"] == "running")
    coordination = status.get("coordination", {})
    out.add("zookeeper_connected", coordination.get("connected"))
    out.add("controller", coordination.get("controller"))
    for cause, count in coordination.get("failovers", {}).items():
        out.add("failovers_total", count, cause)
    recoveries = coordination.get("recoveries", {})
    out.add("recoveries_total", recoveries.get("count"))
    out.add("recovery_seconds_total", recoveries.get("seconds"))
    out.add("layout_version", status.get("layout_version"))
    out.add("code_generation", status.get("code", {}).get("generation"))
    if "links" in status:
        out.add("node_links", len(status["links"]))
    if "traces" in status:
        out.add("spans_exported_total", status["traces"]["exported"])
        out.add("spans_dropped_total", status["traces"]["dropped"], "queue_full")
        out.add("spans_dropped_total", status["traces"]["failed"], "export_failed")


def _redundancy(out: _Samples, status: Status) -> None:
    for shard, facts in status.get("redundancy", {}).items():
        out.add("redundancy_degraded", facts["degraded"], shard)
        out.add("redundancy_degraded_since_timestamp_seconds", _seconds(facts["short_since_ms"]), shard)
        for state in ("wanted", "full", "reachable", "joining"):
            out.add("shard_replicas", facts[state], shard, state)


def _replica(out: _Samples, facts: Mapping[str, Any]) -> None:
    name = _names(facts["replica"])
    out.add("replica_state", 1, *name, facts["state"])
    out.add("output_gap_seconds", _seconds(facts.get("gap_ms")), *name)
    out.add("result_latency_seconds", _seconds(facts.get("latency_ms")), *name)
    out.add("replica_lag_seconds", _seconds(facts.get("lag_ms")), *name)
    out.add("replica_lag_units", facts["lag_units"], *name)
    out.add("units_produced_total", facts["produced"], *name)
    out.add("units_committed_total", facts["committed"], *name)
    out.add("micro_batch_input_rows", facts.get("input_rows"), *name)
    out.add("state_rows_updated", facts.get("state_rows_updated"), *name)
    out.add("state_memory_bytes", facts.get("state_memory"), *name)
    out.add("state_file_bytes", facts.get("state_files"), *name)
    for part, took_ms in _parts(facts.get("duration_ms", {})).items():
        out.add("micro_batch_seconds", _seconds(took_ms), *name, part)
    if "consistency" in facts:
        out.add("consistency_state", 1, *name, facts["consistency"])
        out.add("tentative_units_pending", facts["tentative_units"], *name)


def _parts(duration_ms: Mapping[str, float]) -> dict[str, float]:
    """What a micro-batch was spent on, such that the sum is all of it: Spark times most steps, not every one."""
    if not duration_ms:
        return {}
    parts = {part: took for part, took in duration_ms.items() if part != WHOLE}
    return {**parts, "other": max(0, duration_ms.get(WHOLE, 0) - sum(parts.values()))}


def _not_at_work(out: _Samples, status: Status) -> None:
    """Replicas that join, and copies of state that wait to be needed."""
    running = {replica["replica"] for replica in status["replicas"]}
    for replica, facts in status.get("joining", {}).items():
        if replica not in running:
            out.add("replica_state", 1, *_names(replica), "joining")
        out.add("copy_bytes", facts.get("fetched"), *_names(replica), "copied")
        out.add("copy_bytes", facts.get("total"), *_names(replica), "all")
    for replica in status.get("held", {}):
        if replica not in status.get("joining", {}):
            out.add("replica_state", 1, *_names(replica), "held")


def _streams(out: _Samples, status: Status) -> None:
    for name, facts in status.get("sinks", {}).items():
        stream = StreamId.parse(name)
        labels = (str(stream.producer), stream.consumer.part)
        out.add("sink_units_delivered_total", facts["delivered"], *labels)
        out.add("sink_units_written_total", facts["written_here"], *labels)
        out.add("sink_wait_seconds", _seconds(facts.get("waits_ms")), *labels)
        out.add("sink_busy_seconds", _seconds(facts["busy_ms"]), *labels)
        out.add("sink_stopped", facts["stopped"] is not None, *labels)
    for name, facts in status.get("outboxes", {}).items():
        stream = StreamId.parse(name)
        out.add("outbox_units", facts["kept"], str(stream.producer), str(stream.consumer))


def _units(out: _Samples, status: Status) -> None:
    counters: Mapping[str, int] = status.get("counters", {})
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
    out.add("divergences_total", len(status.get("divergences", ())) + counters.get("units_divergent", 0))
    for name, direction, purposes in (("bytes_received", "received", RECEIVED), ("bytes_sent", "sent", SENT)):
        counted = {**dict.fromkeys(purposes, 0), **status.get(direction, {})}
        for purpose, size in counted.items():
            out.add(f"{name}_total", size, purpose)


def _ingress(out: _Samples, facts: Mapping[str, Any]) -> None:
    out.add("ingress_leading", facts["leading"])
    out.add("ingress_in_sync_members", len(facts["members"]))
    out.add("pulses_total", facts["pulse"])
    if facts["leading"]:
        # Only the leader knows: what a follower would adapt has no meaning until it leads.
        out.add("pulse_period_seconds", _seconds(facts["period_ms"]))
        out.add("pulses_in_flight", facts["in_flight"])
    out.add("source_rows_total", facts["rows"])
    out.add("source_rows_bad_total", facts["bad_rows"])
    out.add("source_rows_late_total", facts["late_rows"])
    out.add("ingress_clock_offset_seconds", _seconds(facts["clock_offset_ms"]))
    for source, away_ms in facts["unreached_ms"].items():
        out.add("source_unreached_seconds", _seconds(away_ms), source)
    out.add("ingress_busy_seconds", _seconds(facts["busy_ms"]))
    out.add("ingress_log_busy_seconds", _seconds(facts["log_busy_ms"]))
    out.add("ingress_entries_set_aside_total", facts["set_aside"])
    for source, asking_s in facts.get("asking_s", {}).items():
        out.add("source_asking_seconds", asking_s, source)
    for source, stuck in facts["stuck"].items():
        out.add("source_stuck_seconds", stuck["seconds"], source)


def _names(replica: str) -> tuple[str, str]:
    """The labels shard and replica."""
    return str(ReplicaId.parse(replica).shard), replica


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000

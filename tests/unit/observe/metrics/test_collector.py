"""What Prometheus is told, from statuses as nodes give them."""

from __future__ import annotations

import threading
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kit.statuses import changed, joining, replica, running, starting
from unbroken.errors import UnbrokenError
from unbroken.observe.metrics import collector
from unbroken.observe.metrics.collector import Facts, NodeCollector
from unbroken.observe.metrics.definitions import BY_NAME
from unbroken.observe.status.node import NodeStatus

SUMS = {"flow": "counted", "node": "a", "shard": "sums.0", "replica": "sums.0#1"}


def registry(status: NodeStatus) -> CollectorRegistry:
    out = CollectorRegistry()
    out.register(NodeCollector("counted", "a", Facts(lambda: status)))
    return out


def value(status: NodeStatus, name: str, **labels: str) -> float | None:
    return registry(status).get_sample_value(f"unbroken_{name}", {"flow": "counted", "node": "a", **labels})


def of_replica(status: NodeStatus, name: str, **labels: str) -> float | None:
    return value(status, name, **{**SUMS, **labels})


def test_results_and_lag_are_in_seconds() -> None:
    status = running()
    assert of_replica(status, "output_gap_seconds") == 0.12
    assert of_replica(status, "result_latency_seconds") == 0.31
    assert of_replica(status, "replica_lag_seconds") == 0.75
    assert of_replica(status, "replica_lag_units") == 2
    assert value(status, "sink_wait_seconds", shard="sums.0", sink="files") == 0.08
    assert value(status, "pulse_period_seconds") == 0.25


def test_a_shard_that_is_short_of_replicas_says_since_when() -> None:
    status = running()
    assert value(status, "redundancy_degraded", shard="sums.0") == 1
    assert value(status, "redundancy_degraded_since_timestamp_seconds", shard="sums.0") == 1_700_000_000.5
    assert value(status, "redundancy_degraded", shard="ingress.0") == 0
    assert value(status, "redundancy_degraded_since_timestamp_seconds", shard="ingress.0") is None
    assert value(status, "shard_replicas", shard="sums.0", state="wanted") == 2
    assert value(status, "shard_replicas", shard="sums.0", state="reachable") == 1


def test_counters_that_have_not_counted_anything_are_there_with_zero() -> None:
    status = running(counters={}, divergences=[], received={}, sent={})
    for name in ("duplicates_dropped", "units_accepted", "units_given_up", "divergences", "tentative_units"):
        assert value(status, f"{name}_total") == 0, name
    for purpose in ("data", "redundancy", "state", "tentative"):
        assert value(status, "bytes_received_total", purpose=purpose) == 0
    assert value(status, "failovers_total", cause="replica_stopped") == 0
    assert value(status, "failovers_total", cause="node_lost") == 2
    assert value(status, "recoveries_total") == 2
    assert value(status, "recovery_seconds_total") == 6.5


def test_both_ways_to_find_a_divergence_count() -> None:
    assert value(running(), "divergences_total") == 2


def test_bytes_are_told_by_purpose_and_direction() -> None:
    status = running(received={"data": 1_000, "redundancy": 900}, sent={"redundancy": 70})
    assert value(status, "bytes_received_total", purpose="redundancy") == 900
    assert value(status, "bytes_sent_total", purpose="redundancy") == 70


def test_the_parts_of_a_micro_batch_add_up_to_all_of_it() -> None:
    status = running()
    parts = {
        part: of_replica(status, "micro_batch_seconds", part=part) for part in ("addBatch", "latestOffset", "other")
    }
    assert parts == {"addBatch": 0.12, "latestOffset": 0.03, "other": 0.03}
    samples = [
        sample
        for family in registry(status).collect()
        for sample in family.samples
        if sample.name == "unbroken_micro_batch_seconds"
    ]
    assert sum(sample.value for sample in samples) == pytest.approx(0.2)
    assert "triggerExecution" not in {sample.labels["part"] for sample in samples}


def test_what_is_not_known_has_no_sample() -> None:
    bare = replica(gap_ms=None, latency_ms=None, batch=None)
    status = running(replicas=[bare])
    assert of_replica(status, "output_gap_seconds") is None
    assert of_replica(status, "result_latency_seconds") is None
    assert of_replica(status, "consistency_state", state="stable") is None
    assert of_replica(status, "units_produced_total") == 41


def test_only_the_leader_of_the_ingress_tells_the_period() -> None:
    ingress = changed(running().ingress, leading=False)
    status = running(ingress=ingress)
    assert value(status, "ingress_leading") == 0
    assert value(status, "pulse_period_seconds") is None
    assert value(status, "pulses_total") == 43
    without = running(ingress=None)
    assert value(without, "ingress_leading") is None


def test_threads_that_are_stuck_and_entries_that_are_set_aside_are_told() -> None:
    status = running()
    assert value(status, "sink_busy_seconds", shard="sums.0", sink="files") == 0.005
    assert value(status, "source_asking_seconds", source="slow") == 1.5
    assert value(status, "ingress_busy_seconds") == 0.012
    assert value(status, "ingress_log_busy_seconds") == 0.003
    assert value(status, "ingress_entries_set_aside_total") == 1


def test_replicas_that_do_not_work_are_told_apart() -> None:
    status = running(joining=joining())
    at_work = {**SUMS, "replica": "sums.0#4"}
    assert value(status, "replica_state", **at_work, state="joining") == 1
    assert value(status, "copy_bytes", **at_work, extent="copied") == 1_000
    assert value(status, "copy_bytes", **at_work, extent="all") == 4_000
    assert value(status, "replica_state", shard="kept.0", replica="kept.0#2", state="held") == 1
    stopped = running(replicas=[replica(state="stopped", reason="it diverged")])
    assert of_replica(stopped, "replica_state", state="stopped") == 1


def test_a_replica_that_joins_and_works_already_has_one_state() -> None:
    status = running(replicas=[replica("sums.0#4")], joining={"sums.0#4": {"phase": "catching up"}})
    states = [
        sample.labels["state"]
        for family in registry(status).collect()
        for sample in family.samples
        if sample.name == "unbroken_replica_state" and sample.labels["replica"] == "sums.0#4"
    ]
    assert states == ["active"]


def test_a_node_that_starts_tells_little_and_fails_nobody() -> None:
    away = {"connected": False, "controller": False, "failovers": {}}
    assert value(starting(coordination=away), "zookeeper_connected") == 0
    assert value(starting(), "node_running") == 0
    assert value(starting(), "zookeeper_connected") is None


def test_everything_is_defined_labelled_as_defined_and_can_be_read_back() -> None:
    text = generate_latest(registry(running(joining=joining()))).decode()
    seen = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            definition = BY_NAME[sample.name]
            assert tuple(sample.labels) == definition.labels or set(sample.labels) == set(definition.labels)
            assert family.type == definition.kind
            seen.add(sample.name)
    assert seen == set(BY_NAME), "the statuses of these tests say everything that there is to say"


def test_a_status_is_asked_for_once_by_many_who_ask_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "FRESH_S", 60.0)
    asked = []

    def status() -> NodeStatus:
        asked.append(1)
        return running()

    facts = Facts(status)
    threads = [threading.Thread(target=facts.read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(asked) == 1


def test_a_status_that_does_not_come_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "ASK_DEADLINE_S", 0.05)
    begun, go_on = threading.Event(), threading.Event()

    def status() -> NodeStatus:
        begun.set()
        go_on.wait(30)
        return running()

    facts = Facts(status)
    first = threading.Thread(target=facts.read)
    first.start()
    assert begun.wait(30)
    since = time.monotonic()
    with pytest.raises(UnbrokenError, match="Spark may hang"):
        facts.read()
    assert time.monotonic() - since < 10
    go_on.set()
    first.join(30)
    assert facts.read().node == "a"

"""A real flow on two nodes, scraped like Prometheus does, before and after one of them is killed."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from kit.faults import strike
from kit.places import FLOWS
from kit.support import wait_until
from unbroken.local.launcher import LocalCluster
from unbroken.local.terminal import greet
from unbroken.observe.metrics.definitions import BY_NAME
from unbroken.testing.faults import Kill

COUNTED = FLOWS / "counted.py"
SHARDS = {"ingress.0", "sums.0", "sums.1"}
FIRST_S, NOTICED_S = 300.0, 120.0
"""Deadlines for a machine with other things to do; both usually take a few seconds."""


class Scrape:
    """The answer of one node's endpoint."""

    def __init__(self, address: str) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(get(address, "/metrics")[1]):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def all(self, name: str, **labels: str) -> list[float]:
        found = self._samples.get(f"unbroken_{name}", [])
        return [value for known, value in found if labels.items() <= known.items()]

    def names(self) -> set[str]:
        return {name for name in self._samples if name.startswith("unbroken_")}

    def labels(self, name: str, label: str) -> set[str]:
        return {labels[label] for labels, _ in self._samples.get(f"unbroken_{name}", [])}


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def addresses(cluster: LocalCluster) -> dict[str, str]:
    return {state.node: state.metrics or "" for state in cluster.status()}


def settled(at: dict[str, str]) -> bool:
    """Whether both nodes have results of all their replicas, and miss nobody."""
    scrapes = [Scrape(address) for address in at.values()]
    return all(
        len(scrape.all("output_gap_seconds")) == 2
        and len(scrape.all("micro_batch_seconds", part="addBatch")) == 2
        and min(scrape.all("state_rows_updated"), default=0) > 0
        and scrape.all("redundancy_degraded") == [0, 0, 0]
        for scrape in scrapes
    )


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_killed_node_is_seen_by_whoever_scrapes_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OUT": str(tmp_path / "out"), "NODES": "2", "SECONDS": "3600"}.items():
        monkeypatch.setenv(f"FLOW_{name}", value)
    with LocalCluster(COUNTED, tmp_path / "state", supervise=False, metrics_port=0) as cluster:
        cluster.start()
        cluster.wait_ready(300)
        at = addresses(cluster)
        check_greeting(cluster, at)
        wait_until(lambda: settled(at), FIRST_S, "results and redundancy on both nodes")
        check_both(at)
        leader = next(node for node, address in at.items() if Scrape(address).all("ingress_leading") == [1])
        survivor = next(address for node, address in at.items() if node != leader)
        killed_s = time.time()
        strike(cluster, Kill(leader))
        with pytest.raises(OSError):
            get(at[leader], "/live")
        check_survivor(survivor, killed_s)


def check_greeting(cluster: LocalCluster, at: dict[str, str]) -> None:
    """Whoever starts a run is told where to look."""
    console = Console(record=True, width=200)
    greet(cluster, console)
    text = console.export_text()
    assert all(f"metrics of {node} are at http://{address}/metrics" in text for node, address in at.items())


def check_both(at: dict[str, str]) -> None:
    wait_until(
        lambda: all(get(address, "/ready?max_lag=30s")[0] == 200 for address in at.values()),
        NOTICED_S,
        "both are ready",
    )
    for address in at.values():
        assert get(address, "/live")[0] == 200
        assert get(address, "/ready?max_lag=oops")[0] == 400
    scrapes = {node: Scrape(address) for node, address in at.items()}
    for node, scrape in scrapes.items():
        assert scrape.names() <= set(BY_NAME)
        assert scrape.labels("node_info", "node") == {node} and scrape.labels("node_info", "flow") == {"counted"}
        assert scrape.labels("redundancy_degraded", "shard") == SHARDS
        assert scrape.all("node_running") == scrape.all("zookeeper_connected") == [1]
        assert scrape.all("node_links") == [1]
        assert max(scrape.all("output_gap_seconds")) < 30
        assert min(scrape.all("units_produced_total")) > 0
        assert min(scrape.all("result_latency_seconds")) > 0
        assert min(scrape.all("state_memory_bytes")) > 0
        assert scrape.all("bytes_received_total", purpose="redundancy")[0] > 0
        assert scrape.all("duplicates_dropped_total")[0] > 0
        assert sum(scrape.all("failovers_total")) == sum(scrape.all("divergences_total")) == 0
        assert scrape.all("ingress_in_sync_members") == [2]
    assert sum(sum(scrape.all("controller")) for scrape in scrapes.values()) == 1
    assert sum(sum(scrape.all("ingress_leading")) for scrape in scrapes.values()) == 1


def check_survivor(address: str, killed_s: float) -> None:
    wait_until(
        lambda: Scrape(address).all("redundancy_degraded") == [1, 1, 1], NOTICED_S, "redundancy is degraded everywhere"
    )

    def told() -> dict[str, Any]:
        scrape = Scrape(address)
        return {
            cause: scrape.all("failovers_total", cause=cause)[0] for cause in scrape.labels("failovers_total", "cause")
        }

    # The ingress goes on at once and its lost part is given up for that; for the others the session has to end.
    wait_until(lambda: told()["node_lost"] + told()["out_of_sync"] == 3, NOTICED_S, lambda: f"failovers: {told()}")
    assert told()["node_lost"] >= 2
    assert told()["ingress_leader_lost"] == 1
    # A decision is counted when it is made, and the node hears of the layout a moment later.
    degraded = "redundancy_degraded_since_timestamp_seconds"
    wait_until(lambda: len(Scrape(address).all(degraded)) == 3, NOTICED_S, "since when is known of all shards")
    scrape = Scrape(address)
    since = scrape.all(degraded)
    assert len(since) == 3 and all(killed_s - 1 <= at_s <= time.time() for at_s in since)
    assert scrape.all("shard_replicas", shard="sums.0", state="wanted") == [2]
    assert scrape.all("shard_replicas", shard="sums.0", state="reachable") == [1]
    assert scrape.all("ingress_leading") == scrape.all("controller") == [1]
    assert scrape.all("node_links") == [0]
    before = min(scrape.all("units_produced_total"))
    wait_until(lambda: min(Scrape(address).all("units_produced_total"), default=0) > before, NOTICED_S, "results go on")
    code, text = get(address, "/ready?max_lag=30s")
    assert code == 200 and json.loads(text)["missing"] == [], "what it has to do, it does"

"""What `unbroken bench delivery` makes of the nodes' counters, and which node it kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.statuses import status
from lab.experiments.trying import drawn
from unbroken.errors import UnbrokenError
from unbroken.observe.status.node import NodeStatus
from unbroken_lab.experiments.cost.delivery import (
    DeliveryWays,
    bytes_between,
    most_read,
    ratios,
    remote_readers,
)
from unbroken_lab.experiments.experiment import Row, flat
from unbroken_lab.experiments.observation.usage import Reading


def node(name: str, feeds: dict[str, list[str]], leading: bool = False, **extra: Any) -> NodeStatus:
    """A node with a replica for each entry of ``feeds``: its name, and the nodes it reads from."""
    replicas = [{"replica": replica, "feeds": {"some>stream": nodes}} for replica, nodes in feeds.items()]
    return status(name, replicas=replicas, ingress={"leading": leading}, **extra)


def test_a_reading_sums_the_bytes_of_all_nodes_and_knows_the_rows_of_the_fastest() -> None:
    states = [
        status(ingress={"rows": 90}, traffic={"data": 5, "acknowledgements": 1}),
        status(ingress={"rows": 100}, traffic={"data": 7}),
        status(traffic={"redundancy": 3}),
    ]
    assert Reading.of(states) == Reading(100, {"data": 12, "acknowledgements": 1, "redundancy": 3})


def test_bytes_are_taken_between_rows_not_between_readings() -> None:
    readings = [Reading(0, {}), Reading(100, {"data": 1_000}), Reading(300, {"data": 5_000, "redundancy": 200})]
    used = bytes_between(readings, 50, 200)
    assert used["data"] == 500 + 2_000 and used["redundancy"] == 100
    assert used["state"] == 0 and used["total"] == 2_600


@pytest.mark.parametrize(("first", "last"), [(0, 50), (20, 101)])
def test_rows_that_were_not_read_are_not_guessed(first: int, last: int) -> None:
    with pytest.raises(UnbrokenError, match="not read"):
        bytes_between([Reading(10, {}), Reading(100, {"data": 9})], first, last)


def test_units_are_compared_whatever_their_purpose() -> None:
    one = {"data": 10, "redundancy": 10, "acknowledgements": 5, "total": 25}
    both = {"data": 20, "redundancy": 40, "acknowledgements": 5, "total": 65}
    assert ratios(one, both) == {"units": 0.333, "acknowledgements": 1.0, "total": 0.385}
    assert ratios(one, dict.fromkeys(both, 0))["total"] is None


def test_readers_on_the_same_node_do_not_count() -> None:
    states = [
        node("node-1", {"b.0#1": ["node-3"]}),
        node("node-2", {"a.0#0": ["node-2"], "a.0#1": ["node-2"], "b.0#0": ["node-2"]}),
        node("node-3", {}),
    ]
    assert remote_readers(states) == {"node-3": 1}
    assert most_read(states) == "node-3"


def test_among_equals_the_leader_of_the_ingress_is_spared() -> None:
    states = [
        node("node-1", {"a.0#0": ["node-2"]}, leading=True),
        node("node-2", {"a.0#1": ["node-1"]}),
        status("node-3", "dead"),
    ]
    assert most_read(states) == "node-2"


def test_nobody_to_kill() -> None:
    with pytest.raises(UnbrokenError):
        most_read([status("node-1", "silent")])


def test_too_short_a_stream_is_refused_before_anything_is_started() -> None:
    with pytest.raises(UnbrokenError, match="too short"):
        DeliveryWays(seconds=3)


def row(way: str, of_units: int, lost: int = 0) -> Row:
    used = {"data": of_units, "redundancy": 0, "acknowledgements": 5, "coordination": 1, "state": 0}
    latency = {phase: {"p50": 300.0, "p99": 500.0, "max": 900.0} for phase in ("before", "at_kill", "after")}
    figures = {
        "delivery": way,
        "bytes": {**used, "total": sum(used.values())},
        "bytes_per_row": 640.0,
        "latency_ms": latency,
        "gap_ms": {"before": 800.0, "at_kill": 1_200.0},
        "lost": lost,
        "duplicated": 0,
    }
    return flat(figures)


def test_both_ways_are_compared(tmp_path: Path) -> None:
    claims = drawn(DeliveryWays(), [row("duplicate", 200), row("single", 100)], tmp_path)
    assert claims["bytes of single delivery for each of duplicate delivery: units"].here == "0.500"
    assert claims["rows lost or duplicated"].agrees is True
    (alone,) = DeliveryWays().claims([row("single", 100, lost=-2)])
    assert alone.agrees is False and alone.here == "2", "rows that came too often are wrong, too"

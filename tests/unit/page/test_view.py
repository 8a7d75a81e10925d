"""The document that a browser is given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kit.page.flows import PLACES, dead, ingress, layout, snapshot, states
from unbroken.observe.status.codec import encode
from unbroken.page.redundancy import RedundancyWatch
from unbroken.page.replicas import replica_views
from unbroken.page.snapshot import FlowSnapshot
from unbroken.page.view import common_prefix, document
from unbroken.protocol.values.ids import ShardId


def shown(seen: FlowSnapshot) -> dict[str, Any]:
    views = replica_views(seen)
    value = document(seen, RedundancyWatch().look(seen, views, ()), views)
    told: dict[str, Any] = json.loads(encode(value))
    return told


def test_the_picture_of_a_flow() -> None:
    view = shown(snapshot())
    assert [(part["name"], part["kind"], part["column"]) for part in view["parts"]] == [
        ("ingress", "ingress", 0),
        ("sums", "segment", 1),
        ("screen", "sink", 2),
    ]
    assert view["parts"][0]["sources"] == ["clicks"]
    assert view["parts"][0]["shards"] == [{"shard": "ingress.0", "replicas": ["ingress.0#0", "ingress.0#1"]}]
    assert view["parts"][1]["shards"][1] == {"shard": "sums.1", "replicas": ["sums.1#0", "sums.1#1"]}
    assert view["parts"][2]["client"] is True
    assert view["edges"] == [["ingress", "sums", "clicks"], ["sums", "screen", "sums"]]


def test_counts_add_up() -> None:
    places = {name: where for name, where in PLACES.items() if name != "sums.1#1"}
    since = {ShardId("sums", 1): 5}
    view = shown(snapshot(states() | {"c": dead("c")}, layout=layout(places, short_since=since)))
    assert view["counts"]["active"] == 5
    assert view["counts"]["missing"] == 1
    assert sum(view["counts"].values()) == 6
    assert view["parts"][1]["shards"][1]["missing"] == 1


def test_the_pulse_is_told_by_the_leader() -> None:
    found = states()
    found["b"]["ingress"] = ingress(False, pulse=11, rows=1_100)
    pulse = shown(snapshot(found))["pulse"]
    assert (pulse["number"], pulse["leader"], pulse["period_ms"], pulse["rows"]) == (10, "a", 500.0, 1_100)
    pulse = shown(snapshot(found | {"a": dead("a")}))["pulse"]
    assert (pulse["number"], pulse["leader"], pulse["period_ms"]) == (11, None, None)


def test_units_in_sinks_are_those_of_all_shards() -> None:
    found = states()
    found["a"]["sinks"] = {"sums.0>screen.0": {"delivered": 10}}
    found["b"]["sinks"] = {"sums.0>screen.0": {"delivered": 9}, "sums.1>screen.0": {"delivered": 8}}
    assert shown(snapshot(found))["parts"][2]["units"] == 18


def test_nodes_with_their_tasks() -> None:
    seen = snapshot(states() | {"c": dead("c")}, local=frozenset({"a"}), frozen=frozenset({"b"}))
    nodes = {node["node"]: node for node in shown(seen)["nodes"]}
    assert nodes["a"]["roles"] == ["controller", "ingress leader"]
    assert (nodes["a"]["look"], nodes["b"]["look"], nodes["c"]["look"]) == ("active", "suspected", "dead")
    assert (nodes["a"]["local"], nodes["b"]["frozen"], nodes["c"]["replicas"]) == (True, True, 1)
    assert nodes["c"]["why"] == "killed by signal 9"


def test_a_node_that_is_to_be_left() -> None:
    nodes = shown(snapshot(layout=layout(draining=frozenset({"c"}))))["nodes"]
    assert [node["node"] for node in nodes if node["draining"]] == ["c"]


def test_a_pause_is_told() -> None:
    found = states()
    for state in found.values():
        state["pause"] = {"since_ms": 5, "reason": "maintenance"}
    assert shown(snapshot(found))["pause"] == {"since_ms": 5, "reason": "maintenance"}
    assert shown(snapshot())["pause"] is None


def test_a_flow_that_has_not_begun() -> None:
    view = shown(snapshot({"a": {"node": "a", "state": "starting", "notices": []}}, layout=None))
    assert (view["parts"], view["replicas"], view["pulse"], view["code"]) == ([], [], None, None)
    assert view["nodes"][0]["look"] == "joining"


def test_nothing_at_all() -> None:
    view = shown(FlowSnapshot(0, "", trouble="no ZooKeeper answers"))
    assert view["trouble"] == "no ZooKeeper answers"
    assert view["nodes"] == []


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["node-1", "node-2", "node-10"], "node-"),
        (["node-1", "node-10"], "node-"),
        (["node-10", "node-11"], "node-"),
        (["a", "b"], ""),
        (["east-1", "west-1"], ""),
        (["alone"], ""),
        ([], ""),
        (["db", "db2"], ""),
        (["db.a", "db.b", "db."], ""),
    ],
)
def test_what_names_have_in_common(names: list[str], prefix: str) -> None:
    assert common_prefix(names) == prefix

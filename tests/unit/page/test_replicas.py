"""What each replica is shown as, and why."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from kit.page.flows import PLACES, dead, ingress, layout, node, replica, silent, snapshot, states, suspicion
from unbroken.page.replicas import Look, ReplicaView, replica_views, split_of
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import ReplicaId


def of(seen: FlowSnapshot, name: str) -> ReplicaView:
    return next(view for view in replica_views(seen) if view.replica == name)


def test_all_is_well() -> None:
    views = replica_views(snapshot())
    assert [(view.replica, view.node, view.look.value) for view in views] == [
        (name, where, "active") for name, where in sorted(PLACES.items())
    ]
    view = of(snapshot(), "sums.0#0")
    assert (view.units, view.behind, view.lag_ms, view.latency_ms) == (10, 0, 20.0, 250.0)
    assert (view.batch_ms, view.rows, view.state_bytes) == (200, 1_000, 4_096)
    assert view.split == {"query": 120.0, "input": 30.0, "commit": 20.0, "other": 30.0}


def test_a_replica_on_a_dead_node() -> None:
    view = of(snapshot(states() | {"c": dead("c")}), "sums.1#1")
    assert (view.look, view.why) == (Look.DEAD, "c is dead: killed by signal 9")
    assert view.units is None


def test_a_replica_on_a_node_that_nobody_knows_any_more() -> None:
    found = states()
    del found["c"]
    assert of(snapshot(found), "sums.1#1").look is Look.DEAD


def test_a_silent_node_is_suspected_here_and_by_others() -> None:
    seen = snapshot(states() | {"c": silent("c")}, suspicions=(suspicion("c", "a"), suspicion("c", "b")))
    view = of(seen, "sums.1#1")
    assert view.look is Look.SUSPECTED
    assert view.why == "c does not answer: it did not answer; a, b do not hear it"


def test_a_node_that_answers_here_may_be_suspected_by_another() -> None:
    view = of(snapshot(suspicions=(suspicion("c", "a"),)), "sums.1#1")
    assert (view.look, view.why) == (Look.SUSPECTED, "a does not hear it")


def test_a_frozen_node_is_suspected_at_once() -> None:
    assert of(snapshot(frozen=frozenset({"c"})), "sums.1#1").look is Look.SUSPECTED


def test_a_stopped_replica_is_dead_on_a_node_that_is_well() -> None:
    found = states() | {"c": node("c", [replica("sums.1#1", reason="it diverged", state="stopped")])}
    view = of(snapshot(found), "sums.1#1")
    assert (view.look, view.why) == (Look.DEAD, "stopped: it diverged")


def test_a_replica_that_joins_says_how_far_its_copy_is() -> None:
    join = {"sums.1#1": {"phase": "fetching", "fetched_bytes": 250, "total_bytes": 1_000}}
    found = states() | {"c": node("c", [], joining=join)}
    view = of(snapshot(found, layout=layout(joining=frozenset({ReplicaId.parse("sums.1#1")}))), "sums.1#1")
    assert (view.look, view.why, view.copied) == (Look.JOINING, "fetching, 25% of its state is here", 0.25)


def test_a_replica_that_the_layout_lets_join() -> None:
    joining = frozenset({ReplicaId.parse("sums.1#1")})
    assert of(snapshot(layout=layout(joining=joining)), "sums.1#1").look is Look.JOINING


def test_a_replica_whose_query_is_not_there_yet() -> None:
    assert of(snapshot(states() | {"c": node("c", [])}), "sums.1#1").look is Look.JOINING
    starting = states() | {"c": {"node": "c", "state": "starting", "notices": []}}
    assert of(snapshot(starting), "sums.1#1").look is Look.JOINING


def test_a_copy_of_the_state_stands_by() -> None:
    held = frozenset({ReplicaId.parse("sums.1#1")})
    found = states() | {"c": node("c", [], held={"sums.1#1": 8})}
    view = of(snapshot(found, layout=layout(held=held)), "sums.1#1")
    assert (view.look, view.why) == (Look.STANDBY, "holds a copy of the state as of unit 8")


def test_a_standby_that_works_and_does_not_send() -> None:
    found = states() | {"c": node("c", [replica("sums.1#1", state="stands by")])}
    assert of(snapshot(found), "sums.1#1").look is Look.STANDBY


@pytest.mark.parametrize(
    ("facts", "look", "why"),
    [
        (
            {
                "consistency": {
                    "state": "up-failure",
                    "lacking": ["clicks"],
                    "fork": {"replica": "x", "pulse": 1},
                    "tentative_units": 3,
                }
            },
            Look.TENTATIVE,
            "lacks clicks and goes on without it; 3 units to put right",
        ),
        (
            {"consistency": {"state": "up-failure", "lacking": ["clicks"], "fork": None, "tentative_units": 0}},
            Look.WAITING,
            "waits for clicks",
        ),
        (
            {"consistency": {"state": "stabilization", "lacking": [], "fork": None, "tentative_units": 2}},
            Look.TENTATIVE,
            "puts 2 tentative units right",
        ),
        ({"consistency": {"state": "stable", "lacking": [], "fork": None, "tentative_units": 0}}, Look.ACTIVE, ""),
    ],
)
def test_results_that_are_not_final(facts: dict[str, Any], look: Look, why: str) -> None:
    found = states() | {"c": node("c", [replica("sums.1#1", **facts)])}
    view = of(snapshot(found), "sums.1#1")
    assert (view.look, view.why) == (look, why)


def test_members_of_the_ingress() -> None:
    assert of(snapshot(), "ingress.0#0").why == "cuts the sources"
    assert of(snapshot(), "ingress.0#1").why == "has every entry of the log"
    found = states()
    found["b"]["ingress"] = ingress(False, members=["a"])
    assert of(snapshot(found), "ingress.0#1").look is Look.JOINING
    del found["b"]["ingress"]
    assert of(snapshot(found), "ingress.0#1").look is Look.JOINING


def test_without_a_layout_what_nodes_tell_is_shown() -> None:
    views = replica_views(snapshot(layout=None))
    assert [view.replica for view in views] == ["sums.0#0", "sums.0#1", "sums.1#0", "sums.1#1"]


def test_what_is_not_known_is_left_out() -> None:
    told = of(snapshot(states() | {"c": dead("c")}), "sums.1#1")
    assert set(to_builtins(told)) == {"replica", "shard", "node", "look", "why"}


def test_the_parts_of_a_micro_batch_are_all_of_it() -> None:
    assert split_of({}) == {}
    durations = {"triggerExecution": 100, "addBatch": 60, "queryPlanning": 10, "getBatch": 2, "somethingElse": 5}
    split = split_of(durations)
    assert split == {"query": 60.0, "plan": 12.0, "other": 28.0}
    assert sum(split.values()) == 100

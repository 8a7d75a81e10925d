"""How segments may be kept available: what is refused, with which words, and what it becomes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from unbroken import Availability, Client, Dataflow, Generator
from unbroken.errors import FlowError, Problem
from unbroken.flow.plan import build_topology
from unbroken.protocol.registry import POLICIES
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.strategy import Ha, Strategy


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a plan reads no rows")


def flow_of(flow_options: dict[str, Any] | None = None, **options: Any) -> Dataflow:
    flow = Dataflow("kept", nodes=4, **(flow_options or {}))
    flow.source("a", Generator(nothing, schema="k int", rate=None))
    flow.segment("a", name="seg", **options)(lambda rows: rows)
    flow.sink("out", "seg", Client())
    return flow


def problems_of(flow: Dataflow, nodes: int = 4) -> list[Problem]:
    with pytest.raises(FlowError) as caught:
        build_topology(flow, nodes)
    for problem in caught.value.problems:
        assert problem.where.startswith(f"{__file__}:") and problem.where.endswith(", segment seg")
        assert problem.what and problem.remedy
    return caught.value.problems


# --- what works -----------------------------------------------------------------------------------------------

GOOD: dict[str, tuple[dict[str, Any], Strategy, int]] = {
    "left out": ({}, Strategy(Ha.ACTIVE, 1), 2),
    "replicas": ({"replicas": 3}, Strategy(Ha.ACTIVE, 2), 3),
    "one replica": ({"replicas": 1}, Strategy(Ha.ACTIVE, 0), 1),
    "k_safety": ({"k_safety": 3}, Strategy(Ha.ACTIVE, 3), 4),
    "no k_safety": ({"k_safety": 0}, Strategy(Ha.ACTIVE, 0), 1),
    "both, and they agree": ({"replicas": 3, "k_safety": 2}, Strategy(Ha.ACTIVE, 2), 3),
    "active-standby": ({"ha": "active-standby"}, Strategy(Ha.ACTIVE_STANDBY, 1), 2),
    "passive": ({"ha": "passive"}, Strategy(Ha.PASSIVE, 1), 1),
    "passive, now and then": ({"ha": "passive", "checkpoint_every": 10}, Strategy(Ha.PASSIVE, 1, every=10), 1),
    "passive, twice": ({"ha": "passive", "k_safety": 2}, Strategy(Ha.PASSIVE, 2), 1),
    "upstream": ({"ha": "upstream"}, Strategy(Ha.UPSTREAM, 1), 1),
    "upstream with a horizon": (
        {"ha": "upstream", "k_safety": 2, "state_horizon": "10min"},
        Strategy(Ha.UPSTREAM, 2, horizon_ms=600_000),
        1,
    ),
    "a horizon in milliseconds": (
        {"ha": "upstream", "state_horizon": 250},
        Strategy(Ha.UPSTREAM, 1, horizon_ms=250),
        1,
    ),
    "none": ({"ha": "none"}, Strategy(Ha.NONE, 0), 1),
    "none, said twice": ({"ha": "none", "k_safety": 0}, Strategy(Ha.NONE, 0), 1),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_works(case: str) -> None:
    options, strategy, running = GOOD[case]
    topology = build_topology(flow_of(**options))
    assert topology.strategy("seg") == strategy
    assert topology.replicas == {"seg": running, INGRESS.part: strategy.nodes}


def test_a_strategy_that_is_not_installed_is_refused_for_that_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(POLICIES, "passive")
    with pytest.raises(FlowError) as caught:
        build_topology(flow_of(ha="passive", checkpoint_every=10, ordering="leader"))
    (problem,) = caught.value.problems
    assert "not installed: passive" in problem.what


def test_a_strategy_that_is_no_word_is_refused_whatever_else_is_asked_for() -> None:
    with pytest.raises(FlowError) as caught:
        build_topology(flow_of(ha=["passive"], ordering="leader", availability=Availability("3s")))
    assert any("there is no ha=['passive']" in problem.what for problem in caught.value.problems)


def test_a_segment_is_kept_as_the_flow_says_unless_it_says_otherwise() -> None:
    flow = flow_of({"ha": "passive", "replicas": 3})
    flow.segment("a", name="other", ha="none")(lambda rows: rows)
    flow.segment("a", name="third", ha="active")(lambda rows: rows)
    for name in ("other", "third"):
        flow.sink(f"out-{name}", name, Client())
    topology: Topology = build_topology(flow)
    assert topology.strategies == {
        "seg": Strategy(Ha.PASSIVE, 2),
        "other": Strategy(Ha.NONE, 0),
        "third": Strategy(Ha.ACTIVE, 2),
    }
    assert topology.replicas[INGRESS.part] == 3


def test_nodes_are_needed_for_backups_only() -> None:
    build_topology(flow_of(ha="none"), 1)
    build_topology(flow_of(ha="passive", k_safety=2), 3)
    build_topology(flow_of(ha="upstream", k_safety=3), 4)


# --- what does not --------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "unknown": ({"ha": "hot"}, 4, "there is no ha='hot'", "active, active-standby, passive, upstream, none"),
    "not a word": ({"ha": 2}, 4, "there is no ha=2", "use one of"),
    "no replicas": ({"replicas": 0}, 4, "replicas=0 is out of range", "use 1 to 8"),
    "many replicas": ({"replicas": 9}, 40, "replicas=9 is out of range", "use 1 to 8"),
    "half a replica": ({"replicas": 1.5}, 4, "replicas=1.5 is out of range", "use 1 to 8"),
    "truth for a number": ({"replicas": True}, 4, "replicas=True is out of range", "use 1 to 8"),
    "less than nothing": ({"k_safety": -1}, 4, "k_safety=-1 is out of range", "use 0 to 7"),
    "too safe": ({"k_safety": 8}, 40, "k_safety=8 is out of range", "use 0 to 7"),
    "never": ({"ha": "passive", "checkpoint_every": 0}, 4, "checkpoint_every=0 is out of range", "use 1 to 1000"),
    "no time": ({"ha": "upstream", "state_horizon": "soon"}, 4, "'soon' is not a length of time", "'10s'"),
    "no time at all": ({"ha": "upstream", "state_horizon": 0}, 4, "state_horizon=0 is not a length", "still matter"),
    "the past": ({"ha": "upstream", "state_horizon": -5}, 4, "state_horizon=-5 is not a length", "still matter"),
    "a list": ({"ha": "upstream", "state_horizon": [1]}, 4, "state_horizon=[1] is not a length", "still matter"),
    "two numbers": ({"replicas": 3, "k_safety": 1}, 4, "contradict each other", "k_safety=1 is 2 replicas"),
    "backups of none": ({"ha": "none", "replicas": 2}, 4, "ha='none' keeps no backups", "choose another ha"),
    "safety of none": ({"ha": "none", "k_safety": 1}, 4, "ha='none' keeps no backups", "choose another ha"),
    "no standby": ({"ha": "active-standby", "replicas": 1}, 4, "with no backup protects nothing", "k_safety=1"),
    "no copy": ({"ha": "passive", "k_safety": 0}, 4, "ha='passive' with no backup protects nothing", "ha='none'"),
    "no level": ({"ha": "upstream", "k_safety": 0}, 4, "ha='upstream' with no backup protects nothing", "ha='none'"),
    "copies of active": (
        {"checkpoint_every": 5},
        4,
        "checkpoint_every=5 has no meaning with ha='active'",
        "leave it out",
    ),
    "copies of upstream": (
        {"ha": "upstream", "checkpoint_every": 5},
        4,
        "has no meaning with ha='upstream'",
        "passive",
    ),
    "horizon of active": ({"state_horizon": "1s"}, 4, "state_horizon='1s' has no meaning with ha='active'", "upstream"),
    "horizon of passive": ({"ha": "passive", "state_horizon": "1s"}, 4, "no meaning with ha='passive'", "leave it out"),
    "few nodes": ({"replicas": 3}, 2, "replicas=3, but there are only 2 nodes", "never share a node"),
    "few nodes, by safety": ({"k_safety": 2}, 2, "with 2 backups needs 3 nodes, but there are only 2", "more nodes"),
    "nowhere for a copy": ({"ha": "passive"}, 1, "ha='passive' with 1 backups needs 2 nodes", "start more nodes"),
    "no spare": ({"ha": "upstream", "k_safety": 3}, 3, "ha='upstream' with 3 backups needs 4 nodes", "ask for less"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str) -> None:
    options, nodes, what, remedy = BAD[case]
    (problem,) = problems_of(flow_of(**options), nodes)
    assert what in problem.what
    assert remedy in problem.remedy


def test_everything_wrong_is_told_at_once() -> None:
    found = problems_of(flow_of(replicas=0, checkpoint_every="often", state_horizon="soon"))
    assert [problem.what.partition("=")[0] for problem in found] == ["replicas", "checkpoint_every", "state_horizon"]
    found = problems_of(flow_of(replicas=3, k_safety=1, checkpoint_every=2, state_horizon="1s"), 1)
    assert [problem.what.split()[0] for problem in found] == [
        "replicas=3",
        "checkpoint_every=2",
        "state_horizon='1s'",
        "replicas=3,",
    ]


def test_what_the_flow_says_is_refused_where_the_segment_is_declared() -> None:
    (problem,) = problems_of(flow_of({"ha": "warm"}))
    assert "ha='warm'" in problem.what

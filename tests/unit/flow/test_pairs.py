"""Whole copies of a dataflow as a setting: what it becomes, what it is refused with, and that it stays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from unbroken import Client, Dataflow, Generator
from unbroken.errors import FlowError
from unbroken.flow.plan import build_topology
from unbroken.flow.program import PROGRAM, Declared, Program, differences, merged


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a plan reads no rows")


def flow_of(options: dict[str, Any] | None = None, **settings: Any) -> Dataflow:
    flow = Dataflow("kept", **{"nodes": 4, "pairs": "cluster", **settings})
    flow.source("a", Generator(nothing, schema="k int", rate=None))
    flow.segment("a", name="first", shards=2, shard_by="k")(lambda rows: rows)
    flow.segment("first", name="second", **(options or {}))(lambda rows: rows)
    flow.sink("out", "second", Client())
    return flow


def test_the_setting_reaches_the_topology_and_stays_there() -> None:
    flow = flow_of(replicas=3)
    topology = build_topology(flow)
    assert topology.whole and set(topology.replicas.values()) == {3}
    assert not build_topology(flow_of(pairs="partition")).whole
    program = Program.first(flow, topology, "flow.py", "")
    assert PROGRAM.decode(PROGRAM.encode(program)) == program
    following = program.followed_by(flow, "flow.py", "", 2, ["second"])
    assert following.topology.whole and merged([program, following]).whole


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "passive": ({"ha": "passive"}, {}, "ha='passive' has none"),
    "active-standby": ({"ha": "active-standby"}, {}, "ha='active-standby' has none"),
    "none": ({"ha": "none"}, {}, "ha='none' has none"),
    "upstream everywhere": ({}, {"ha": "upstream"}, "ha='upstream' has none"),
    "shared load": (
        {"routing": "hashing", "replicas": 2, "shard_by": "k"},
        {},
        "ha='upstream' has none",
    ),
    "different numbers": ({"replicas": 3}, {}, "first has 2, second has 3"),
    "different k_safety": ({"k_safety": 0}, {}, "first has 2, second has 1"),
    "snapshots": ({}, {"snapshots": "/tmp/snapshots"}, "never from snapshots"),
    "too few nodes": ({}, {"replicas": 3, "nodes": 2}, "there are only 2 nodes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_in_whole_copies_is_refused_with_the_reason(name: str) -> None:
    options, settings, words = REFUSED[name]
    with pytest.raises(FlowError) as caught:
        build_topology(flow_of(options, **settings))
    found = [problem for problem in caught.value.problems if words in problem.what]
    assert found and all(problem.remedy and problem.where.startswith(__file__) for problem in found)


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "too few nodes"])
def test_the_same_runs_in_pairs_of_partitions(name: str) -> None:
    options, settings, _ = REFUSED[name]
    assert not build_topology(flow_of(options, **{**settings, "pairs": "partition"})).whole


def test_numbers_that_are_none_are_refused_as_such() -> None:
    with pytest.raises(FlowError) as caught:
        build_topology(flow_of({"replicas": "two"}))
    assert [problem.what for problem in caught.value.problems] == ["replicas='two' is out of range"]


def test_an_unknown_kind_of_pairs_is_refused() -> None:
    with pytest.raises(FlowError, match="pairs"):
        flow_of(pairs="nodes")


def test_the_code_of_whole_copies_cannot_be_replaced_while_they_run() -> None:
    assert [
        str(problem) for problem in differences(Declared.of(flow_of()), flow_of()) if "pairs='cluster'" in problem.what
    ]
    assert differences(Declared.of(flow_of(pairs="partition")), flow_of(pairs="partition")) == []

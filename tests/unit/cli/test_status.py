"""What is told of a running flow at a glance, and shown beside it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import to_builtins
from rich.console import Console

from kit.statuses import changed, diverged, replica, running, shard, sink, status, stuck
from kit.support import TOKEN
from unbroken.cli import cli
from unbroken.cli.shared import EXIT_DEGRADED, EXIT_OK
from unbroken.local.terminal import status_view
from unbroken.observe.status.node import NodeStatus
from unbroken.observe.status.summary import in_words, since, span, summarize

NOW_MS = 1_700_000_060_500


def node(name: str, **changes: Any) -> NodeStatus:
    """A node that is well, and has one of two replicas of ``sums.0``."""
    well: dict[str, Any] = {
        "node": name,
        "replicas": [replica(f"sums.0#{ord(name) - ord('a')}")],
        "redundancy": {"ingress.0": shard(), "sums.0": shard()},
        "divergences": [],
        "coordination": {"connected": True, "controller": False, "failovers": {}},
        "held": {},
    }
    if name != "a":
        well["ingress"] = changed(running().ingress, leading=False)
    return running(**{**well, **changes})


KEEPER = {"coordination": {"connected": True, "controller": True, "failovers": {}}}


def test_a_flow_that_is_well() -> None:
    found = summarize([node("a"), node("b", **KEEPER)])
    assert found.well and found.redundant and found.leader == "a" and found.controller == "b"
    told = in_words(found, NOW_MS)
    assert told == [
        "redundancy: every shard has all its replicas",
        "sources: read every 250 ms by a, b in sync; 1 pulse in flight",
        "results: 310 ms after their rows were cut, the newest 120 ms ago, input waits for 750 ms",
        "layout: version 7, kept by b; generation 1 of the code",
    ]


def test_a_lost_node_is_told_with_how_long_it_is_missed() -> None:
    short = {"ingress.0": shard(), "sums.0": {**shard(reachable=1, since_ms=1_700_000_000_500), "joining": 1}}
    old = node("a")
    lost = status("b", "lost", reason="its session with ZooKeeper has ended")
    found = summarize([old, node("c", redundancy=short, layout_version=8), lost])
    assert not found.well and not found.redundant and (found.nodes, found.running) == (3, 2)
    told = in_words(found, NOW_MS)[0]
    assert told.startswith("redundancy: sums.0 has 1 of 2 replicas, 1 on the way since ") and "(60.0 s)" in told
    (missed,) = found.short
    assert missed.since_ms == 1_700_000_000_500
    assert (missed.wanted, missed.there, missed.joining, missed.missing) == (2, 1, 1, 0)


def test_a_pause_is_no_trouble() -> None:
    pause = {"since_ms": NOW_MS - 5_000, "reason": "the topic is moved"}
    found = summarize([node("a", pause=pause), node("b", pause=pause)])
    assert found.well
    (told,) = [line for line in in_words(found, NOW_MS) if line.startswith("sources")]
    assert "paused since" in told and "(5.0 s) (the topic is moved)" in told and "unbroken resume" in told


def test_what_somebody_should_look_at() -> None:
    tentative = replica(
        "sums.0#0", consistency={"state": "up-failure", "lacking": ["numbers"], "tentative_units": 3, "fork": None}
    )
    stopped = replica("sums.0#1", reason="out of memory")
    found = summarize([node("a", replicas=[tentative]), node("b", replicas=[stopped], divergences=[diverged()])])
    told = in_words(found, NOW_MS)
    assert not found.well and found.redundant
    assert "tentative: results of sums.0 are given out without numbers and will be replaced" in told
    assert "stopped: sums.0#1: out of memory" in told
    assert any(line.startswith("diverged: replicas disagreed 1 time") for line in told)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ingress": {"stuck": {"numbers": stuck(40.0, "no such file")}}}, "source numbers on b: its rows of pulse 43"),
        ({"ingress": {"busy_ms": 31_000.0}}, "ingress on b: its thread has been at one job for 31 s"),
        ({"sinks": {"sums.0>mail.0": sink(stopped=41)}}, "sink sums.0>mail.0 on b: it has stopped at unit 41"),
        ({"sinks": {"sums.0>mail.0": sink(waits_ms=45_000.0)}}, "sink sums.0>mail.0 on b: it has not taken its next"),
    ],
    ids=["source", "ingress", "stopped sink", "stuck sink"],
)
def test_a_flow_whose_parts_make_no_progress_is_not_well(
    changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "ingress" in changes:
        changes = {"ingress": {**to_builtins(node("b").ingress), **changes["ingress"]}}
    states = [node("a"), node("b", **changes)]
    found = summarize(states)
    assert found.redundant and not found.well
    assert any(line.startswith(f"stuck: {told}") for line in in_words(found, NOW_MS)), in_words(found, NOW_MS)
    assert checked(monkeypatch, states) == EXIT_DEGRADED
    assert checked(monkeypatch, [node("a"), node("b")]) == EXIT_OK


def checked(monkeypatch: pytest.MonkeyPatch, states: list[NodeStatus]) -> int:
    """The exit code of `unbroken status --check` of a flow with these nodes."""

    class Reader:
        directory = SimpleNamespace(away=False)

        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Reader:
            return self

        def __exit__(self, *_: object) -> None: ...

        def read(self) -> list[NodeStatus]:
            return states

    monkeypatch.setattr("unbroken.observe.status.reader.StatusReader", Reader)
    monkeypatch.setenv("UNBROKEN_TOKEN", TOKEN)
    asked = ["status", "orders", "--zookeeper", "127.0.0.1:1", "--check", "--json"]
    result = CliRunner().invoke(cli, asked)
    assert json.loads(result.stdout)["summary"]["well"] == (result.exit_code == EXIT_OK), result.output
    return result.exit_code


def test_the_first_replica_to_be_ready_is_what_is_seen_downstream() -> None:
    slow = replica("sums.0#0", latency_ms=4_000.0, lag_ms=9_000.0, gap_ms=3_000.0)
    other = replica("more.0#0", latency_ms=600.0, lag_ms=0.0, gap_ms=40.0)
    found = summarize([node("a", replicas=[slow]), node("b", replicas=[replica("sums.0#1"), other])])
    assert (found.latency_ms, found.lag_ms, found.gap_ms) == (600.0, 750.0, 120.0)


def test_nobody_says_anything() -> None:
    for states in (list[NodeStatus](), [status("a", "starting"), status("b", "silent", reason="no answer")]):
        found = summarize(states)
        assert not found.well and not found.redundant
        assert in_words(found, NOW_MS) == ["redundancy: no node says yet how the flow is"]


@pytest.mark.parametrize(
    ("length_ms", "text"), [(40, "40 ms"), (1_240, "1.2 s"), (95_000, "95.0 s"), (600_000, "10 min"), (9e6, "2.5 h")]
)
def test_lengths_of_time(length_ms: float, text: str) -> None:
    assert span(length_ms) == text


def test_moments() -> None:
    assert since(0, 2_000).startswith("since ") and since(0, 2_000).endswith("(2.0 s)")


def test_the_table_shows_lag_latency_and_what_joins() -> None:
    joins = {"sums.1#4": {"phase": "fetching", "fetched_bytes": 1_000, "total_bytes": 4_000}}
    resting = changed(running().ingress, reading=False)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(status_view("orders", [node("a", joining=joins, ingress=resting)]))
    text = captured.get()
    for part in ("2 units, 750 ms", "310 ms", "joins: fetching", "25 % copied", "leads the pulse, paused"):
        assert part in text

"""A flow drawn as a tree, for Graphviz and for programs; declared, and running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kit.statuses import status
from kit.topologies import chain, diamond
from unbroken.cli.drawing import Drawing, dot, places_of, tree
from unbroken.observe.status.flow import PlaceState, ReplicaPlace
from unbroken.observe.status.node import NodeState, NodeStatus
from unbroken.observe.status.shape import flow_shape
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.strategy import Ha, Strategy
from unit.cli.asking import ask, facts

DISKS = {"a": "1", "b": "2", "c": "3"}

FLOW = """
from unbroken import Client, Dataflow, Generator
flow = Dataflow("clicks", nodes=3)
one = flow.source("one", Generator(lambda start, stop, seed: None, schema="n long", rate=1))
two = flow.source("two", Generator(lambda start, stop, seed: None, schema="n long", rate=1))
flow.segment(one, two, name="joined", shard_by=["n"], shards=2)(lambda one, two: one)
flow.sink("live", "joined", Client())
"""


def shown(drawing: Drawing) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(tree(drawing), highlight=False)
    return captured.get()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.py"
    path.write_text(FLOW)
    return path


def test_what_a_file_declares(file: Path) -> None:
    told = ask("topology", str(file))
    assert told.exit_code == 0, told.stderr
    assert "clicks" in told.stdout and "sink, read by subscribers" in told.stdout
    assert "joined  segment, 2 shards x 2 replicas, also reads two" in told.stdout
    assert "joined  (see above)" in told.stdout, "it is drawn once, and named where it is read again"
    found = facts("topology", str(file))
    found, running = found["flow"], found["running"]
    assert found["edges"] == [["one", "joined"], ["two", "joined"], ["joined", "live"]]
    assert running is False and found["segments"]["joined"] == {"shards": 2, "ha": "active", "replicas": 2}


def test_a_picture_for_graphviz(file: Path) -> None:
    told = ask("topology", str(file), "--dot")
    assert told.stdout.startswith('digraph "clicks" {') and told.stdout.rstrip().endswith("}")
    for part in ('"one" -> "joined";', '"joined" -> "live";', "shape=note"):
        assert part in told.stdout


def test_a_file_that_is_not_there() -> None:
    told = ask("topology", "nothing.py")
    assert told.exit_code == 2 and "there is no such file" in told.stderr


def test_each_part_of_a_diamond_is_drawn_once() -> None:
    text = shown(Drawing(flow_shape("d", diamond(2))))
    parts = [line for line in text.splitlines() if "segment," in line]
    assert len(parts) == len(diamond(2).segments)


def test_strategies_are_named() -> None:
    topology = replace(chain((1,)), strategies={"s0": Strategy(Ha.PASSIVE, backups=1)})
    assert "segment, 1 shard x 1 replica, passive" in shown(Drawing(flow_shape("p", topology)))


def running_node(name: str, replicas: list[str], *, reason: str | None = None, **changes: Any) -> NodeStatus:
    topology = chain((2,))
    doing = [{"replica": replica, "reason": reason} for replica in replicas]
    facts = {"layout_version": 1, "flow": flow_shape("run", topology), "replicas": doing, **changes}
    return status(name, **facts)


def test_replicas_on_their_nodes() -> None:
    layout = chained_placement(chain((2,)), DISKS)
    layout = replace(layout, joining=frozenset({ReplicaId(ShardId("s0", 0), 1)}))
    states = [
        running_node("a", [], ingress={"leading": True}),
        running_node(
            "b", ["s0.0#0"], ingress={"leading": False}, pause={"since_ms": 1, "reason": ""}, layout_version=2
        ),
        status("c", "silent", reason="no answer"),
    ]
    drawing = Drawing.running(states, layout)
    places = {
        shard: [(place.node, place.node_state, place.state) for place in found]
        for shard, found in drawing.places.items()
    }
    assert places == {
        "ingress.0": [("a", "running", "leads"), ("b", "running", "follows")],
        "s0.0": [("b", "running", "active"), ("c", "silent", "unavailable")],
        "s0.1": [("c", "silent", "unavailable"), ("a", "running", "starting")],
    }
    text = shown(drawing)
    assert "run [paused]" in text and "s0.0  b (active), c (node silent)" in text
    assert "ingress.0  a (leads), b (follows)" in text
    assert drawing.status().replicas["s0.0"][0] == ReplicaPlace(
        replica="s0.0#0", node="b", node_state=NodeState.RUNNING, state=PlaceState.ACTIVE
    )
    assert "s0.1: c, a" in dot(drawing)


def test_what_joins_holds_a_copy_or_has_stopped() -> None:
    layout = chained_placement(chain((2,)), DISKS)
    first, second = ReplicaId(ShardId("s0", 0), 0), ReplicaId(ShardId("s0", 0), 1)
    layout = replace(layout, joining=frozenset({first}), held=frozenset({second}))
    stopped = running_node("c", ["s0.1#0"], reason="out of memory")
    found = places_of([running_node("a", []), running_node("b", []), stopped], layout)
    assert [place.state for place in found["s0.0"]] == ["joins", "holds a copy"]
    assert [place.state for place in found["s0.1"]] == ["stopped", "starting"]


def test_a_shard_without_a_node() -> None:
    layout = chained_placement(chain((2,)), DISKS).without([ReplicaId(ShardId("s0", 1), n) for n in (0, 1)])
    assert "s0.1  on no node" in shown(Drawing.running([running_node("a", [])], layout))

"""A local flow whose links lead through proxies: how its nodes and readers are told the ways."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from unbroken.testing.harness.cluster import ExposedCluster

FLOW = """
from unbroken import Console, Dataflow, Generator

flow = Dataflow("linked", nodes=3, standbys=1)
numbers = flow.source("numbers", Generator(rate=10))
flow.segment(numbers, name="same")(lambda numbers: numbers)
flow.sink("screen", "same", Console())
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ExposedCluster]:
    file = tmp_path / "linked.py"
    file.write_text(FLOW)
    found = ExposedCluster(file, tmp_path / "run", cuttable=True)
    yield found
    found.stop()


def options(command: list[str], name: str) -> list[str]:
    return [value for option, value in pairwise(command) if option == name]


def test_every_node_listens_at_a_port_of_its_own_and_knows_a_way_to_each_other_one(cluster: ExposedCluster) -> None:
    names = ["node-1", "node-2", "node-3", "standby-1"]
    ways = {name: cluster.ways_of(name) for name in names}
    assert len({options(ways[name], "--port")[0] for name in names}) == len(names)
    every: list[str] = []
    for name in names:
        routes = dict(route.split("=") for route in options(ways[name], "--route"))
        assert set(routes) == set(names) - {name}
        every += routes.values()
    here = dict(route.split("=") for route in cluster.routes_here())
    assert set(here) == set(names)
    every += here.values()
    assert len(set(every)) == len(every), "a way that two share could not be cut for one of them"


def test_the_ways_stay_the_same_when_a_node_is_started_again(cluster: ExposedCluster) -> None:
    assert cluster.ways_of("node-2") == cluster.ways_of("node-2")
    assert cluster.routes_here() == cluster.routes_here()


def test_stopping_again_does_nothing(cluster: ExposedCluster) -> None:
    cluster.stop()
    cluster.stop()

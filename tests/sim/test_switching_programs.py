"""A flow goes over to other code, whichever node is lost, cut off or late at whichever step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.notices.upgrades import UpgradeRefused, UpgradeSetBack
from unbroken_lab.sim.flows import chain, diamond, join
from unbroken_lab.sim.sources import Pulse
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.flows import Choose, pick_settings, pick_topology
from unbroken_lab.sim.steps.schedules import run_schedule, schedules

PULSES = 10
OLD, NEW = ShardId("s1", 0), ShardId("s1@2", 0)


def apart(pulses: int = PULSES) -> FaultyCluster:
    """The ingress is on nodes 1 and 2, s0 on 3 and 4, s1 on 5 and 6; the code that comes finds 1 and 2 least busy."""
    shards = (INGRESS, ShardId("s0", 0), OLD)
    placement = {ReplicaId(shard, i): f"node-{1 + 2 * place + i}" for place, shard in enumerate(shards) for i in (0, 1)}
    cluster = FaultyCluster(chain((1, 1)), 6, pulses, placement=placement)
    cluster.upgrades = 2
    cluster.run_until(lambda: cluster.delivered() >= 2)
    return cluster


def parts(cluster: FaultyCluster) -> list[list[str]]:
    """The parts that the sinks got the units of each of their streams from, without repetition."""
    return [list(dict.fromkeys(found)) for found in cluster.world.makers.values()]


def counting(cluster: FaultyCluster) -> tuple[int, ...]:
    return cluster.layout.generations


TOPOLOGIES: dict[str, tuple[Topology, str]] = {
    "all": (chain((2, 1)), "s0"),
    "last": (chain((1, 2)), "s1"),
    "join": (join(2), "join"),
    "side of a diamond": (diamond(2), "b"),
    "three replicas": (chain((2,), replicas=3), "s0"),
}


@pytest.mark.parametrize(("topology", "segment"), TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_without_faults_every_sink_turns_at_the_same_unit(topology: Topology, segment: str) -> None:
    cluster = FaultyCluster(topology, 3, PULSES)
    cluster.run_until(lambda: cluster.delivered() >= 2)
    cluster.upgrade(segment)
    cluster.settle()
    assert counting(cluster) == (2,) and not cluster.world.zookeeper.refused
    turns = {found.index(max(found)) for found in cluster.world.makers.values()}
    assert len(turns) == 1 and turns != {0}
    assert cluster.world.sink.repeated == 0, "only one replica touches the sink"


def test_code_is_replaced_again_and_again() -> None:
    cluster = apart()
    for segment in ("s1", "s0"):
        wished = cluster.upgrade(segment)
        cluster.run_until(lambda wished=wished: counting(cluster) == (wished,))  # type: ignore[misc]
    cluster.settle()
    assert parts(cluster) == [["s1", "s1@2", "s1@3"]]


def test_a_wish_taken_back_leaves_nothing_behind() -> None:
    cluster = apart()
    cluster.upgrade("s1")
    cluster.run_until(lambda: bool(cluster.layout.full(NEW)))
    cluster.withdraw()
    cluster.settle()
    assert parts(cluster) == [["s1"]] and counting(cluster) == (1,)
    assert cluster.world.zookeeper.refused == [UpgradeRefused(2, 1)]


def test_code_that_fails_is_refused_and_no_sink_notices() -> None:
    cluster = apart()
    cluster.upgrade("s1")
    first = ReplicaId(NEW, 0)
    cluster.run_until(lambda: first in cluster.layout.full(NEW))
    cluster.stop(cluster.layout.placement[first], first)
    cluster.settle()
    assert parts(cluster) == [["s1"]] and cluster.world.zookeeper.refused[0].detail == "the disk is full"


@pytest.mark.parametrize("node", ["node-5", "node-6"])
def test_a_node_that_has_not_heard_of_other_code_does_not_deliver_results_that_do_not_count(node: NodeId) -> None:
    """It hosts the code that goes, and does not know that the units it gets are no longer for it."""
    cluster = apart()
    cluster.blind(node)
    cluster.upgrade("s1")
    cluster.run_until(lambda: parts(cluster) == [["s1", "s1@2"]])
    cluster.settle()


@pytest.mark.parametrize("segment", ["s0", "s1"])
def test_a_replica_that_was_given_up_while_its_code_came_does_no_harm(segment: str) -> None:
    """Its node cannot reach the store and continues, with a state that the others have begun anew without."""
    cluster = apart(pulses=20)
    cluster.upgrade(segment)
    first, second = (ReplicaId(ShardId(f"{segment}@2", 0), index) for index in (0, 1))
    cluster.run_until(lambda: first in cluster.layout.full(first.shard))
    node = cluster.layout.placement[first]
    cluster.run_until(lambda: second in cluster.protocol(node).around.layout.placement)
    cluster.blind(node)
    # Its own code has made something else of the state before the others begin with a later one.
    seen = cluster.delivered()
    cluster.run_until(lambda: cluster.delivered() >= seen + 4, without=("control", "forget"))
    cluster.expire(node)
    cluster.run_until(lambda: cluster.layout.generation == 2)
    assert any(isinstance(one, UpgradeSetBack) and one.generation == 2 for one in cluster.reports())
    cluster.run_turns(100)
    cluster.settle()
    assert not cluster.world.zookeeper.refused and parts(cluster) == [["s1", "s1@2"]]


Reached = Callable[[FaultyCluster], bool]


def asked_for(cluster: FaultyCluster) -> bool:
    """Whether results of the second generation are asked for."""
    return any(entry.pulse and Pulse.of(entry).generation == 2 for entry in cluster.world.entries.values())


STEPS: dict[str, Reached] = {
    "prepared": lambda c: len(counting(c)) == 2,
    "first placed": lambda c: bool(c.layout.counted(ShardId("s0@2", 0))),
    "first full": lambda c: bool(c.layout.full(ShardId("s0@2", 0))),
    "second placed": lambda c: len(c.layout.counted(ShardId("s0@2", 0))) == 2,
    "reader placed": lambda c: bool(c.layout.counted(NEW)),
    "reader full": lambda c: bool(c.layout.full(NEW)),
    "switched": lambda c: c.layout.generation == 2,
    "asked for": asked_for,
    "first result": lambda c: parts(c) == [["s1", "s1@2"]],
    "retired": lambda c: counting(c) == (2,),
}


@pytest.mark.parametrize("fault", ["kill", "wipe", "freeze", "blackout"])
@pytest.mark.parametrize("step", STEPS)
def test_a_node_is_lost_while_the_flow_goes_over(step: str, fault: str) -> None:
    for victim in range(1, 4) if fault != "blackout" else range(1):
        cluster = FaultyCluster(chain((1, 1)), 3, PULSES, standbys=1)
        cluster.run_until(lambda c=cluster: c.delivered() >= 2)  # type: ignore[misc]
        cluster.upgrade("s0")
        cluster.run_until(lambda c=cluster: STEPS[step](c))  # type: ignore[misc]
        name = f"node-{victim}"
        arguments = {"kill": (name,), "wipe": (name, True), "freeze": (name,), "blackout": ()}
        action = (fault, *arguments[fault])
        if action in cluster.faults():
            cluster.do(action)
        cluster.run_turns(20)
        cluster.check()
        cluster.settle()
        assert parts(cluster) == [["s1", "s1@2"]]


@pytest.mark.parametrize("seed", schedules(8))
def test_random_schedule_with_an_upgrade(seed: int) -> None:
    run_schedule(seed, steps=500, upgrades=1)


@pytest.mark.parametrize("seed", schedules(6))
def test_random_schedule_with_two_upgrades_and_many_faults(seed: int) -> None:
    run_schedule(seed, steps=700, fault_chance=0.08, upgrades=2)


def pick_at_most_once(choose: Choose) -> FaultyCluster:
    """A cluster with turns, and a sink that must not be given anything twice."""
    topology, nodes = pick_topology(choose)
    settings, pulses, standbys, transfers = pick_settings(choose), 4 + choose(9), choose(3), 1 + choose(3)
    topology = replace(topology, at_most_once=True)
    cluster = FaultyCluster(topology, nodes, pulses, settings, standbys, transfers)
    cluster.unsure = True
    return cluster


@pytest.mark.parametrize("seed", schedules(3))
def test_at_most_once_never_twice_while_code_is_replaced(seed: int) -> None:
    run_schedule(seed, steps=600, fault_chance=0.03, upgrades=2, pick=pick_at_most_once)

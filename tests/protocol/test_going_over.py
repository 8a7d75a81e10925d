"""The simulated cluster goes over to other code, whoever is lost, cut off or late at whichever step of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocol.cluster_model import Cluster
from protocol.model_parts import chain, diamond, join
from protocol.schedules import run_schedule, schedules
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Topology

PULSES = 10
OLD, NEW = ShardId("s1", 0), ShardId("s1@2", 0)


def apart(pulses: int = PULSES) -> Cluster:
    """The ingress is on n0 and n1, s0 on n2 and n3, s1 on n4 and n5; the code that comes finds n0 and n1 least busy."""
    shards = (INGRESS, ShardId("s0", 0), OLD)
    placement = {ReplicaId(shard, i): f"n{2 * place + i}" for place, shard in enumerate(shards) for i in (0, 1)}
    cluster = Cluster(chain((1, 1)), 6, pulses, placement=placement)
    cluster.upgrades = 2
    cluster.run_until(lambda: cluster.delivered() >= 2)
    return cluster


def parts(cluster: Cluster) -> list[list[str]]:
    """Which parts the lanes of the sinks got their units from, without repetition."""
    return [list(dict.fromkeys(part for part, _ in units)) for units in cluster.sink.written.values()]


TOPOLOGIES: dict[str, tuple[Topology, str]] = {
    "all": (chain((2, 1)), "s0"),
    "last": (chain((1, 2)), "s1"),
    "join": (join(2), "join"),
    "side of a diamond": (diamond(2), "b"),
    "three replicas": (chain((2,), replicas=3), "s0"),
}


@pytest.mark.parametrize(("topology", "segment"), TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_without_faults_every_sink_turns_at_the_same_unit(topology: Topology, segment: str) -> None:
    cluster = Cluster(topology, 3, PULSES)
    cluster.upgrades = 1
    cluster.run_until(lambda: cluster.delivered() >= 2)
    cluster.perform(("upgrade", (segment,)))
    cluster.settle()
    assert cluster.store.layout.generations == (2,) and not cluster.store.refused
    turns = {
        [part for part, _ in units].index(max(part for part, _ in units)) for units in cluster.sink.written.values()
    }
    assert len(turns) == 1 and turns != {0}
    assert cluster.sink.skipped == 0, "only one replica touches the sink"


def test_code_is_replaced_again_and_again() -> None:
    cluster = apart()
    for segment in ("s1", "s0"):
        cluster.perform(("upgrade", (segment,)))
        wished = cluster.store.wished
        cluster.run_until(lambda wished=wished: cluster.store.layout.generations == (wished,))  # type: ignore[misc]
    cluster.settle()
    assert parts(cluster) == [["s1", "s1@2", "s1@3"]]


def test_a_wish_taken_back_leaves_nothing_behind() -> None:
    cluster = apart()
    cluster.perform(("upgrade", ("s1",)))
    cluster.run_until(lambda: bool(cluster.store.layout.full(NEW)))
    cluster.perform(("withdraw",))
    cluster.settle()
    assert parts(cluster) == [["s1"]] and cluster.store.layout.generations == (1,)
    assert cluster.store.refused == ["generation 2 is refused, generation 1 goes on: it was withdrawn"]


def test_code_that_fails_is_refused_and_nobody_notices() -> None:
    cluster = apart()
    cluster.perform(("upgrade", ("s1",)))
    first = ReplicaId(NEW, 0)
    cluster.run_until(lambda: first in cluster.store.layout.full(NEW))
    cluster.perform(("stop", cluster.store.layout.placement[first], first))
    cluster.settle()
    assert parts(cluster) == [["s1"]] and "the disk is full" in cluster.store.refused[0]


@pytest.mark.parametrize("node", ["n4", "n5"])
def test_a_node_that_has_not_heard_of_other_code_does_not_deliver_what_does_not_count(node: NodeId) -> None:
    """It hosts the code that goes, and does not know that the units it gets are not for it any more."""
    cluster = apart()
    cluster.perform(("blind", node))
    cluster.perform(("upgrade", ("s1",)))
    cluster.run_until(lambda: parts(cluster) == [["s1", "s1@2"]])
    cluster.settle()


@pytest.mark.parametrize("segment", ["s0", "s1"])
def test_a_replica_that_was_given_up_while_its_code_came_does_no_harm(segment: str) -> None:
    """Its node cannot reach the store and works on, with a state that the others have begun again without."""
    cluster = apart(pulses=20)
    cluster.perform(("upgrade", (segment,)))
    first, second = (ReplicaId(ShardId(f"{segment}@2", 0), index) for index in (0, 1))
    cluster.run_until(lambda: first in cluster.store.layout.full(first.shard))
    node = cluster.store.layout.placement[first]
    cluster.run_until(lambda: second in cluster.nodes[node].protocol.layout.placement)
    cluster.perform(("blind", node))
    # Its own code has made something else of the state before the others begin with a later one.
    seen = cluster.delivered()
    cluster.run_until(lambda: cluster.delivered() >= seen + 4, without=("control",))
    cluster.perform(("expire", node))
    cluster.run_until(lambda: cluster.store.layout.generation == 2)
    assert any("lost before generation 2 was ready" in sentence for sentence in cluster.store.sentences)
    cluster.run_turns(100)
    cluster.settle()
    assert not cluster.store.refused and parts(cluster) == [["s1", "s1@2"]]


Reached = Callable[[Cluster], bool]

STEPS: dict[str, Reached] = {
    "prepared": lambda c: len(c.store.layout.generations) == 2,
    "first placed": lambda c: bool(c.store.layout.counted(ShardId("s0@2", 0))),
    "first full": lambda c: bool(c.store.layout.full(ShardId("s0@2", 0))),
    "second placed": lambda c: len(c.store.layout.counted(ShardId("s0@2", 0))) == 2,
    "reader placed": lambda c: bool(c.store.layout.counted(NEW)),
    "reader full": lambda c: bool(c.store.layout.full(NEW)),
    "switched": lambda c: c.store.layout.generation == 2,
    "asked for": lambda c: any(b'"generation": 2' in entry.body for entry in c.entries.values()),
    "first result": lambda c: parts(c) == [["s1", "s1@2"]],
    "retired": lambda c: c.store.layout.generations == (2,),
}


@pytest.mark.parametrize("fault", ["kill", "wipe", "freeze", "blackout"])
@pytest.mark.parametrize("step", STEPS)
def test_whoever_is_lost_while_the_flow_goes_over(step: str, fault: str) -> None:
    for victim in range(3) if fault != "blackout" else range(1):
        cluster = Cluster(chain((1, 1)), 3, PULSES, standbys=1)
        cluster.upgrades = 1
        cluster.run_until(lambda c=cluster: c.delivered() >= 2)  # type: ignore[misc]
        cluster.perform(("upgrade", ("s0",)))
        cluster.run_until(lambda c=cluster: STEPS[step](c))  # type: ignore[misc]
        arguments = {"kill": (f"n{victim}",), "wipe": (f"n{victim}", True), "freeze": (f"n{victim}",), "blackout": ()}
        action = (fault, *arguments[fault])
        if action in cluster.faults():
            cluster.perform(action)
        cluster.run_turns(20)
        cluster.check()
        cluster.settle()
        assert parts(cluster) == [["s1", "s1@2"]]


@pytest.mark.parametrize("seed", schedules(16))
def test_random_schedule_with_an_upgrade(seed: int) -> None:
    run_schedule(seed, steps=500, upgrades=1)


@pytest.mark.parametrize("seed", schedules(6))
def test_random_schedule_with_two_upgrades_and_many_faults(seed: int) -> None:
    run_schedule(seed, steps=700, fault_chance=0.08, upgrades=2)

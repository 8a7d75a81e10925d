"""The whole protocol under random schedules and faults: agreement, determinism, no loss, no duplicate, progress."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices.ingress import IngressLed, InSyncProposed
from unbroken_lab.sim.flows import chain, diamond, join
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.flows import pick_active
from unbroken_lab.sim.steps.schedules import run_schedule, schedules

Choice = st.integers(0, 2**16)


class FlowMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens next. Steps come in bursts, or a schedule would hardly get anywhere."""

    cluster: FaultyCluster

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.cluster = pick_active(lambda n: data.draw(st.integers(0, n - 1)))

    @rule(choices=st.lists(Choice, min_size=1, max_size=30))
    def steps(self, choices: list[int]) -> None:
        for choice in choices:
            steps = self.cluster.steps()
            if steps:
                self.cluster.take(steps[choice % len(steps)])

    @rule(turns=st.integers(1, 4))
    def run_in_turn(self, turns: int) -> None:
        self.cluster.run_turns(turns)

    @rule()
    def time_passes(self) -> None:
        self.cluster.advance()

    @rule(choice=Choice)
    def fault(self, choice: int) -> None:
        faults = self.cluster.faults()
        self.cluster.do(faults[choice % len(faults)])

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.settle()


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", schedules(30))
def test_random_schedule(seed: int) -> None:
    run_schedule(seed, steps=300)


@pytest.mark.parametrize("seed", schedules(12))
def test_random_schedule_with_many_faults(seed: int) -> None:
    run_schedule(seed, steps=500, fault_chance=0.1)


TOPOLOGIES = {
    "one segment": chain((1,)),
    "three segments": chain((3, 1, 2)),
    "join": join(2),
    "diamond": diamond(2),
    "three replicas": chain((2,), replicas=3),
}


@pytest.mark.parametrize("single", [False, True], ids=["duplicate", "single"])
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_without_faults_only_one_replica_touches_the_sink(topology: Topology, single: bool) -> None:
    cluster = FaultyCluster(topology, nodes=3, pulses=10, settings=replace(SETTINGS, single_delivery=single))
    members = tuple(sorted(cluster.world.zookeeper.sync.members))
    cluster.settle()
    assert cluster.world.sink.repeated == 0
    assert cluster.reports() == [InSyncProposed("node-1", members), IngressLed("node-1", 2)]
    assert cluster.layout.version == 1


@pytest.mark.parametrize("victim", ["node-1", "node-2", "node-3"])
def test_flow_goes_on_without_the_store(victim: str) -> None:
    """A node dies while the store is away: only the ingress needs it, and only to go on without a member."""
    cluster = FaultyCluster(chain((2, 1)), nodes=3, pulses=10)
    cluster.run_turns(30)
    before = cluster.delivered()
    in_sync = victim in cluster.world.zookeeper.sync.members
    cluster.wipe(victim, False)
    cluster.run_turns(400, without=("write", "document", "control"))
    assert before < 10
    if in_sync:
        assert cluster.delivered() >= before
    else:
        assert cluster.delivered() == 10
    cluster.settle()

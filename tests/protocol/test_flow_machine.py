"""The whole protocol under random schedules and faults: agreement, determinism, no loss, no duplicate, progress."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.cluster_effects import SETTINGS
from protocol.cluster_model import Cluster
from protocol.model_parts import chain, diamond, join
from protocol.schedules import pick_cluster, run_schedule, schedules
from unbroken.protocol.values.layout import Topology

Choice = st.integers(0, 2**16)


class FlowMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens next. Steps come in bursts, or a schedule would hardly get anywhere."""

    cluster: Cluster

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.cluster = pick_cluster(lambda n: data.draw(st.integers(0, n - 1)))

    @rule(choices=st.lists(Choice, min_size=1, max_size=30))
    def steps(self, choices: list[int]) -> None:
        for choice in choices:
            actions = self.cluster.enabled()
            if actions:
                self.cluster.perform(actions[choice % len(actions)])

    @rule(turns=st.integers(1, 4))
    def run_in_turn(self, turns: int) -> None:
        self.cluster.run_turns(turns)

    @rule()
    def time_passes(self) -> None:
        self.cluster.advance()

    @rule(choice=Choice)
    def fault(self, choice: int) -> None:
        faults = self.cluster.faults()
        self.cluster.perform(faults[choice % len(faults)])

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


@pytest.mark.parametrize("seed", schedules(60))
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
    cluster = Cluster(topology, nodes=3, pulses=10, settings=replace(SETTINGS, single_delivery=single))
    cluster.settle()
    assert cluster.sink.skipped == 0
    reports = [report for node in cluster.nodes.values() for report in node.reports]
    assert reports == ["n0 leads the ingress (term 2)"]
    assert cluster.store.layout.version == 1


@pytest.mark.parametrize("victim", ["n0", "n1", "n2"])
def test_flow_goes_on_without_the_store(victim: str) -> None:
    """A node dies while the store is away: only the ingress needs it, and only to go on without a member."""
    cluster = Cluster(chain((2, 1)), nodes=3, pulses=10)
    cluster.run_turns(30)
    before = _delivered(cluster)
    in_sync = victim in cluster.store.sync.members
    cluster.perform(("wipe", victim, False))
    for _ in range(400):
        for action in cluster.enabled():
            if action[0] not in ("write", "orphan", "document", "control"):
                cluster.perform(action)
        cluster.advance()
    assert before < 10
    if in_sync:
        assert _delivered(cluster) >= before
    else:
        assert _delivered(cluster) == 10
    cluster.settle()


def _delivered(cluster: Cluster) -> int:
    return cluster.delivered()

"""The ingress log under every interleaving: crashes, restarts, newcomers, lost links, late and racing documents."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unbroken.protocol.ingress import learners as ingress_learners
from unbroken_lab.sim.steps.ingress import IngressCluster, pick_ingress, run_ingress


@pytest.fixture(autouse=True, scope="module")
def small_bounds() -> Iterator[None]:
    """Bounds so small that short runs meet them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingress_learners, "LEARNER_ENTRIES", 6)
        patch.setattr(ingress_learners, "WINDOW_ENTRIES", 2)
        patch.setattr(ingress_learners, "CLOSING_LAG", 1)
        yield


Choice = st.integers(0, 2**16)


class IngressMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens next."""

    cluster: IngressCluster

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.cluster = pick_ingress(lambda n: data.draw(st.integers(0, n - 1)))

    @rule(choices=st.lists(Choice, min_size=1, max_size=20))
    def steps(self, choices: list[int]) -> None:
        for choice in choices:
            steps = self.cluster.steps()
            if steps:
                self.cluster.take(steps[choice % len(steps)])

    @rule()
    def time_passes(self) -> None:
        self.cluster.advance()

    @precondition(lambda self: self.cluster.running())
    @rule(choice=Choice)
    def push(self, choice: int) -> None:
        self.cluster.push(_pick(self.cluster.running(), choice))

    @precondition(lambda self: self.cluster.world.network.connections)
    @rule(choice=Choice, late=st.booleans())
    def cut(self, choice: int, late: bool) -> None:
        client, server = _pick(self.cluster.world.network.connections, choice)
        self.cluster.cut(client, server, late)

    @precondition(lambda self: self.cluster.running())
    @rule(choice=Choice)
    def kill(self, choice: int) -> None:
        self.cluster.kill(_pick(self.cluster.running(), choice))

    @rule()
    def kill_all(self) -> None:
        self.cluster.blackout()

    @precondition(lambda self: self.cluster.running())
    @rule(choice=Choice, count=st.integers(1, 3), everywhere=st.booleans())
    def tear(self, choice: int, count: int, everywhere: bool) -> None:
        """A disk has lost the end of the log, perhaps after a blackout; nothing else happens until it is mended."""
        if self.cluster.tear(_pick(self.cluster.running(), choice), count):
            if everywhere:
                self.cluster.blackout()
            self.cluster.recover_all()
            self.cluster.run_until(self.cluster.mended)

    @precondition(lambda self: self.cluster.running())
    @rule(choice=Choice)
    def wipe(self, choice: int) -> None:
        name = _pick(self.cluster.running(), choice)
        if self.cluster.spares(self.cluster.layout.hosted(name)):
            self.cluster.wipe(name)

    @rule(choice=Choice)
    def restart(self, choice: int) -> None:
        self.cluster.boot(_pick(self.cluster.world.machines, choice))

    @rule()
    def break_copies(self) -> None:
        for name in self.cluster.running():
            for copy in self.cluster.world.copying.of(self.cluster.process(name)):
                self.cluster.break_copy(name, copy.replica)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.settle()


def _pick(things: Collection[Any], choice: int) -> Any:
    return list(things)[choice % len(things)]


TestIngressMachine = IngressMachine.TestCase
TestIngressMachine.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("block", range(10))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 10, (block + 1) * 10):
        run_ingress(seed)

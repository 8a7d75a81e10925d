"""The ingress log under every interleaving: crashes, restarts, newcomers, lost links, late and racing documents."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.ingress_cluster import IngressCluster
from unbroken.protocol.ingress import learners as ingress_learners


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
    cluster: IngressCluster

    @initialize(members=st.integers(1, 3), spares=st.integers(0, 2))
    def start(self, members: int, spares: int) -> None:
        self.cluster = IngressCluster(members, spares)

    @precondition(lambda self: self.cluster.actions())
    @rule(choice=Choice)
    def step(self, choice: int) -> None:
        actions = self.cluster.actions()
        self.cluster.perform(actions[choice % len(actions)])

    @rule()
    def append(self) -> None:
        self.cluster.append(self.cluster.doc.leader)

    @rule(choice=Choice)
    def append_anywhere(self, choice: int) -> None:
        self.cluster.append(_pick(self.cluster.names, choice))

    @precondition(lambda self: self.cluster.links)
    @rule(choice=Choice)
    def cut(self, choice: int) -> None:
        self.cluster.cut(_pick(self.cluster.links, choice))

    @rule(choice=Choice)
    def kill(self, choice: int) -> None:
        self.cluster.kill(_pick(self.cluster.names, choice))

    @rule()
    def kill_all(self) -> None:
        for name in self.cluster.names:
            self.cluster.kill(name)

    @rule(choice=Choice, count=st.integers(1, 3))
    def tear(self, choice: int, count: int) -> None:
        self.cluster.tear(_pick(self.cluster.names, choice), count)

    @rule(choice=Choice, count=st.integers(1, 3))
    def blackout(self, choice: int, count: int) -> None:
        self.cluster.blackout(_pick(self.cluster.names, choice), count)

    @rule(choice=Choice)
    def wipe(self, choice: int) -> None:
        self.cluster.wipe(_pick(self.cluster.names, choice))

    @rule(choice=Choice)
    def restart(self, choice: int) -> None:
        self.cluster.restart(_pick(self.cluster.names, choice))

    @rule(choice=Choice, back=st.integers(0, 2))
    def trim(self, choice: int, back: int) -> None:
        self.cluster.trim(_pick(self.cluster.names, choice), back)

    @rule(choice=Choice)
    def abandon(self, choice: int) -> None:
        self.cluster.abandon(_pick(self.cluster.names, choice))

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
TestIngressMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def run_ingress(seed: int) -> IngressCluster:
    rng = random.Random(seed)
    cluster = IngressCluster(seed % 3 + 1, seed % 4 % 3)
    slow = rng.choice(cluster.names)  # hears from the store long after the others

    def anybody() -> str:
        return rng.choice(cluster.names)

    def kill_all() -> None:
        for name in cluster.names:
            cluster.kill(name)

    faults: list[Callable[[], None]] = [
        lambda: cluster.cut(rng.choice(list(cluster.links))) if cluster.links else None,
        lambda: cluster.kill(anybody()),
        lambda: cluster.kill(cluster.doc.leader),
        lambda: cluster.restart(anybody()),
        lambda: cluster.restart(anybody()),
        lambda: cluster.restart(anybody()),
        lambda: cluster.wipe(anybody()),
        lambda: cluster.tear(anybody(), rng.randint(1, 4)),
        lambda: cluster.blackout(rng.choice([anybody(), cluster.doc.leader]), rng.randint(1, 4)),
        lambda: cluster.trim(anybody(), rng.randrange(3)),
        lambda: cluster.abandon(anybody()),
        *([kill_all] if seed % 5 == 0 else []),
    ]
    hectic = rng.choice([0.02, 0.05, 0.12])
    for _ in range(150):
        actions = [a for a in cluster.actions() if a != ("news", slow) or rng.random() < 0.05]
        chance = rng.random()
        if chance < hectic:
            rng.choice(faults)()
        elif chance < hectic + 0.15 or not actions:
            cluster.append(cluster.doc.leader if rng.random() < 0.8 else anybody())
        else:
            cluster.perform(rng.choice(actions))
        cluster.check()
    cluster.settle()
    return cluster


@pytest.mark.parametrize("block", range(10))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 40, (block + 1) * 40):
        try:
            run_ingress(seed)
        except AssertionError as error:
            raise AssertionError(f"run_ingress(seed={seed}): {error}") from error

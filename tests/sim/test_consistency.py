"""Segments that continue without missing input, under random failures.

After the properties of the paper: a sink with a stable path gets stable results, and one with any path gets some in
time (1); going over from one to another never takes anything twice (2); when all failures heal, the stable results are
complete and nothing tentative is left (3); stable results never change (4). The last three are asserted by the cluster
itself and by ``settle``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pytest

from kit.missing_input import UNIT_MS, X_MS, cluster_of, pass_ms, states
from unbroken.protocol.values.consistency import Consistency, DelayBound, InputHandling, Reconcile
from unbroken_lab.sim.content import DELAY_MS
from unbroken_lab.sim.flows import join
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.failures import finish, join_of_two, pick_available, run_failures, two_joins, wide_join
from unbroken_lab.sim.steps.paths import BEGUN_MS, Path, StaticCluster, run_static
from unbroken_lab.sim.steps.schedules import run_schedule, schedules

EXAMPLES = (0, 1, 2, 3, 7, 8)
"""Schedules in which all that matters is known to happen; of others it is only checked what comes of them."""


@pytest.mark.parametrize("seed", schedules(1))
def test_input_fails_and_comes_back(seed: int) -> None:
    run_failures(seed, episodes=7)


@pytest.mark.parametrize("seed", schedules(1))
@pytest.mark.parametrize("how", Reconcile, ids=lambda how: how.value)
def test_input_fails_with_one_way_to_put_it_right(how: Reconcile, seed: int) -> None:
    run_failures(seed, partial(pick_available, reconcile=how), episodes=7)


@pytest.mark.parametrize("seed", schedules(3))
def test_random_schedule(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.04, pick=pick_available, upgrades=seed % 2)


def test_what_has_failed_and_stays_so_in_every_way() -> None:
    """Property 1, and at the end all the others."""
    best: Counter[Path] = Counter()
    happened: Counter[str] = Counter()
    for seed in EXAMPLES:
        cluster, path = run_static(seed)
        best[path] += 1
        happened += cluster.counts
    assert best[Path.STABLE] and best[Path.TENTATIVE] and happened["taken by sinks"], f"nothing to see: {best}"


@pytest.mark.parametrize("seed", schedules(1))
def test_what_has_failed_and_stays_so(seed: int) -> None:
    run_static(seed)


def in_time(
    seed: int, policy: InputHandling, reconcile: Collection[Reconcile] = tuple(Reconcile)
) -> tuple[StaticCluster, random.Random, float]:
    """A flow in which everything is in time as long as nothing fails, and how long missing input is waited for."""
    rng = random.Random(seed)
    shape = (join(), wide_join(), two_joins(), join_of_two())[rng.randrange(4)]
    back = rng.choice(list(reconcile))
    how = DelayBound(7_500.0, rng.choice((0.5, 0.9)), policy, policy, back, horizon_ms=DELAY_MS + 4_000)
    topology = replace(
        shape,
        availability=dict.fromkeys(shape.segments, how),
        bucketed=True,
        tentative_sinks=frozenset({"sink"}),
    )
    settings = replace(SETTINGS, pulse_min_ms=1_000, standing_ms=rng.choice((0, 250_000)))
    cluster = StaticCluster(topology, rng.randrange(2, 5), settings, cost_ms=rng.choice((0, 100)), fork_ms=250)
    cluster.run_to(BEGUN_MS)
    return cluster, rng, how.patience_ms


@pytest.mark.parametrize("seed", schedules(2))
def test_failures_that_are_over_in_time_show_in_nothing(seed: int) -> None:
    cluster, rng, patience = in_time(seed, InputHandling.PROCESS)
    for _ in range(5):
        away = rng.sample(cluster.topology.sources, rng.randrange(1, len(cluster.topology.sources)))
        for source in away:
            cluster.leave(source)
        # They are asked again with the next pulse, and it takes a while to get through the flow.
        pass_ms(cluster, rng.uniform(2.5, patience - 2_500))
        for source in away:
            cluster.back(source)
        pass_ms(cluster, 3_750)
    assert not cluster.counts["given"] and not cluster.counts["failures"]
    finish(cluster)


@pytest.mark.parametrize("seed", schedules(2))
def test_a_flow_that_suspends_gives_out_nothing_tentative(seed: int) -> None:
    cluster, rng, patience = in_time(seed, InputHandling.SUSPEND)
    for _ in range(3):
        source = rng.choice(cluster.topology.sources)
        cluster.leave(source)
        pass_ms(cluster, patience + 10_000)
        cluster.back(source)
        pass_ms(cluster, rng.choice((500, 10_000)))
    assert cluster.counts["failures"] and not cluster.counts["given"] and not cluster.counts["forks"]
    finish(cluster)


@pytest.mark.parametrize("seed", schedules(3))
@pytest.mark.parametrize("policy", [InputHandling.PROCESS, InputHandling.DELAY], ids=lambda policy: policy.value)
def test_sources_alone_fail_and_nothing_tentative_is_covered_twice(policy: InputHandling, seed: int) -> None:
    """All links and forks stay, and so do the replicas that are listened to."""
    cluster, rng, patience = in_time(seed, policy, [Reconcile.FORK])
    cluster.leave(rng.choice(cluster.topology.sources))
    pass_ms(cluster, patience + 10_000)
    assert cluster.sink.accepted, "nothing tentative has come"
    for _ in range(6):
        for source in cluster.topology.sources:
            if source in cluster.world.sources.away and rng.random() < 0.5:
                cluster.back(source)
            elif source not in cluster.world.sources.away and rng.random() < 0.4:
                cluster.leave(source)
        pass_ms(cluster, rng.choice((500, 2_500, 7_500, 17_500)))
    finish(cluster)
    assert cluster.sink.overlaps == 0


def test_a_state_that_is_being_rebuilt_is_not_copied() -> None:
    """A replica was set back by its undo log, and another one is to be built from it at that moment."""
    how = DelayBound(X_MS, alpha=0.5, reconcile=Reconcile.UNDO, horizon_ms=DELAY_MS + 4_000)
    cluster = cluster_of(join(), how, cost_ms=50, nodes=3, pulse_ms=UNIT_MS)
    pass_ms(cluster, 5 * X_MS)
    cluster.leave("right")
    pass_ms(cluster, 2 * X_MS)
    cluster.back("right")
    while not cluster.counts["undos"]:
        pass_ms(cluster, 100)
    rebuilt = next(watch.replica for _, watch in cluster.watches() if watch.state is Consistency.STABILIZATION)
    assert rebuilt.committed < rebuilt.whole, "its state is complete"
    hosts = cluster.layout.nodes_of(rebuilt.replica.shard)
    cluster.wipe(next(node for node, replica in hosts.items() if replica != rebuilt.replica))
    pass_ms(cluster, 20 * X_MS)
    assert states(cluster) == {Consistency.STABLE}
    finish(cluster)

"""Segments that go on without missing input, under random failures.

After the properties of the paper: whoever has a stable path gets stable results, and whoever has any path gets some in
time (1); going over from one to another never takes anything twice (2); when all failures heal, the stable results are
complete and nothing tentative is left (3); stable results never change (4). The last three are asserted by the cluster
itself and by ``settle``.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from protocol.cluster_effects import SETTINGS
from protocol.consistency_paths import Path, StaticCluster, run_static
from protocol.consistency_schedules import (
    UNENDING,
    join_of_two,
    pick_available,
    run_failures,
    two_joins,
    wide_join,
)
from protocol.model_parts import join
from protocol.schedules import run_schedule, schedules
from unbroken.protocol.consistency import Availability, Policy, Reconcile

BLOCK = 2
"""Schedules that are run one after the other, so that it can be seen whether they are about anything."""


@pytest.mark.parametrize("block", schedules(2))
def test_input_fails_and_comes_back(block: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        happened += run_failures(seed, episodes=7).counts
    print(f"\n{dict(happened)}")
    assert happened["forks"] >= 3, f"too little happens: {happened}"


@pytest.mark.parametrize("seed", schedules(1))
@pytest.mark.parametrize("how", Reconcile, ids=lambda how: how.value)
def test_input_fails_with_one_way_to_put_it_right(how: Reconcile, seed: int) -> None:
    run_failures(seed, partial(pick_available, reconcile=how), episodes=7)


@pytest.mark.parametrize("seed", schedules(3))
def test_random_schedule(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.04, upgrades=seed % 2, pick=pick_available)


@pytest.mark.parametrize("block", schedules(2))
def test_what_has_failed_and_stays_so(block: int) -> None:
    """Property 1, and at the end all the others."""
    best: Counter[Path] = Counter()
    happened: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        cluster, path = run_static(seed)
        best[path] += 1
        happened += cluster.counts
    print(f"\n{dict(best)} {dict(happened)}")
    assert best[Path.NONE] < BLOCK and happened["taken by sinks"] + best[Path.STABLE], f"nothing to see: {best}"


def in_time(seed: int, policy: Policy) -> tuple[StaticCluster, random.Random, float]:
    """A flow in which everything is in time as long as nothing fails, and how long missing input is waited for."""
    rng = random.Random(seed)
    shape = (join(), wide_join(), two_joins(), join_of_two())[rng.randrange(4)]
    how = Availability(300.0, rng.choice((0.5, 0.9)), policy, policy, rng.choice(list(Reconcile)), horizon_ms=55)
    topology = replace(
        shape,
        availability=dict.fromkeys(shape.segments, how),
        bucketed=True,
        tentative_sinks=frozenset({"sink"}),
    )
    settings = replace(SETTINGS, pulse_min_ms=40, standing_ms=rng.choice((0, 10_000)))
    cluster = StaticCluster(topology, rng.randrange(2, 5), UNENDING, settings, cost_ms=rng.choice((0, 4)), fork_ms=10)
    cluster.run_to(300)
    return cluster, rng, how.patience_ms


def finish(cluster: StaticCluster) -> None:
    cluster.pulses = max(entry.pulse for entry in cluster.entries.values()) + 3
    cluster.settle()


@pytest.mark.parametrize("seed", schedules(2))
def test_failures_that_are_over_in_time_show_in_nothing(seed: int) -> None:
    cluster, rng, patience = in_time(seed, Policy.PROCESS)
    for _ in range(5):
        away = rng.sample(cluster.topology.sources, rng.randrange(1, len(cluster.topology.sources)))
        for source in away:
            cluster.do_leave(source)
        # They are asked again with the next pulse, and it takes a while to get through the flow.
        cluster.run_to(cluster.now + rng.uniform(0.1, patience - 100))
        for source in away:
            cluster.do_back(source)
        cluster.run_to(cluster.now + 150)
    assert not cluster.counts["given"] and not cluster.counts["failures"]
    finish(cluster)


@pytest.mark.parametrize("seed", schedules(2))
def test_who_suspends_gives_out_nothing_tentative(seed: int) -> None:
    cluster, rng, patience = in_time(seed, Policy.SUSPEND)
    for _ in range(3):
        source = rng.choice(cluster.topology.sources)
        cluster.do_leave(source)
        cluster.run_to(cluster.now + patience + 400)
        cluster.do_back(source)
        cluster.run_to(cluster.now + rng.choice((20, 400)))
    assert cluster.counts["failures"] and not cluster.counts["given"] and not cluster.counts["forks"]
    finish(cluster)

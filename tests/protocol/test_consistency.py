"""Segments that go on without missing input, under random failures.

After the properties of the paper: whoever has a stable path gets stable results, and whoever has any path gets some in
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
from unbroken.protocol.values.consistency import Availability, Policy, Reconcile

EXAMPLES = (0, 1, 3, 4, 5, 8)
"""Schedules in which all that matters is known to happen; of others it is only checked what comes of them."""

EVENTS = (
    "failures",
    "failures while stabilizing",
    "forks",
    "failed forks",
    "killed with a fork",
    "redos",
    "undos",
    "taken by replicas",
    "taken by sinks",
)
"""What random failures have to bring about if they are to be about anything; see ``AvailableCluster.counts``."""


def test_input_fails_and_comes_back_in_every_way() -> None:
    happened: Counter[str] = Counter()
    for seed in EXAMPLES:
        happened += run_failures(seed, episodes=7).counts
    assert {event for event in EVENTS if not happened[event]} == set(), f"too little happens: {happened}"


@pytest.mark.parametrize("seed", schedules(1))
def test_input_fails_and_comes_back(seed: int) -> None:
    run_failures(seed, episodes=7)


@pytest.mark.parametrize("seed", schedules(1))
@pytest.mark.parametrize("how", Reconcile, ids=lambda how: how.value)
def test_input_fails_with_one_way_to_put_it_right(how: Reconcile, seed: int) -> None:
    run_failures(seed, partial(pick_available, reconcile=how), episodes=7)


@pytest.mark.parametrize("seed", schedules(3))
def test_random_schedule(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.04, upgrades=seed % 2, pick=pick_available)


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
    seed: int, policy: Policy, reconcile: Collection[Reconcile] = tuple(Reconcile)
) -> tuple[StaticCluster, random.Random, float]:
    """A flow in which everything is in time as long as nothing fails, and how long missing input is waited for."""
    rng = random.Random(seed)
    shape = (join(), wide_join(), two_joins(), join_of_two())[rng.randrange(4)]
    how = Availability(300.0, rng.choice((0.5, 0.9)), policy, policy, rng.choice(list(reconcile)), horizon_ms=55)
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


@pytest.mark.parametrize("seed", schedules(3))
@pytest.mark.parametrize("policy", [Policy.PROCESS, Policy.DELAY], ids=lambda policy: policy.value)
def test_sources_alone_fail_and_nothing_tentative_is_covered_twice(policy: Policy, seed: int) -> None:
    """All links and forks stay, and so do the replicas that are listened to."""
    cluster, rng, patience = in_time(seed, policy, [Reconcile.FORK])
    cluster.do_leave(rng.choice(cluster.topology.sources))
    cluster.run_to(cluster.now + patience + 400)
    assert cluster.sink.accepted, "nothing tentative has come"
    for _ in range(6):
        for source in cluster.topology.sources:
            if source in cluster.away and rng.random() < 0.5:
                cluster.do_back(source)
            elif source not in cluster.away and rng.random() < 0.4:
                cluster.do_leave(source)
        cluster.run_to(cluster.now + rng.choice((20, 100, 300, 700)))
    finish(cluster)
    assert cluster.sink.overlaps == 0


def test_a_state_that_is_being_built_again_is_not_copied() -> None:
    """A replica was set back by its undo log, and another one was to be built from it at that moment."""
    run_failures(43, episodes=7)

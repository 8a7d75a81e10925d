"""What each guarantee promises holds under random schedules and faults, whatever keeps segments available.

Exactly once, with sinks that keep a ledger, is what all other schedules check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.cluster_model import Cluster
from protocol.schedules import pick_cluster, pick_strategies, run_interrupted, run_schedule, schedules
from protocol.sim_sinks import LooseSink, OnceSink

Pick = Callable[[Callable[[int], int]], Cluster]


def at_most_once(pick: Pick) -> Pick:
    """The same cluster with turns, and a sink that must not be given anything twice."""

    def picked(choose: Callable[[int], int]) -> Cluster:
        like = pick(choose)
        nodes = len(like.store.layout.nodes)
        cluster = Cluster(
            replace(like.topology, at_most_once=True),
            nodes,
            like.pulses,
            like.settings,
            standbys=len(like.disks) - nodes,
            transfers=like.store.transfers,
        )
        cluster.unsure = True
        return cluster

    return picked


def at_least_once(pick: Pick) -> Pick:
    """The same cluster with a sink that has no ledger."""

    def picked(choose: Callable[[int], int]) -> Cluster:
        cluster = pick(choose)
        cluster.sink = LooseSink()
        cluster.unsure = True
        return cluster

    return picked


def units_lost(cluster: Cluster) -> int:
    assert isinstance(cluster.sink, OnceSink)
    ended = cluster.ended()
    assert ended is not None
    return sum(len(cluster.sink.lost(lane, ended)) for lane in cluster.programs.lanes())


@pytest.mark.parametrize("seed", schedules(4))
def test_at_most_once_never_twice(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.06, pick=at_most_once(pick_cluster))


@pytest.mark.parametrize("seed", schedules(5))
def test_at_most_once_never_twice_whatever_keeps_segments_available(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.06, pick=at_most_once(pick_strategies))


@pytest.mark.parametrize("seed", schedules(3))
@pytest.mark.parametrize("pick", [pick_cluster, pick_strategies], ids=["active", "mixed"])
def test_at_most_once_never_twice_when_deliveries_are_interrupted(seed: int, pick: Pick) -> None:
    run_interrupted(seed, at_most_once(pick))


@pytest.mark.parametrize("seed", schedules(3))
def test_at_most_once_never_twice_while_code_is_replaced(seed: int) -> None:
    run_schedule(seed, steps=600, fault_chance=0.03, upgrades=2, pick=at_most_once(pick_cluster))


@pytest.mark.parametrize("seed", schedules(3))
def test_at_most_once_loses_nothing_without_a_fault(seed: int) -> None:
    assert units_lost(run_schedule(seed, steps=300, fault_chance=0.0, pick=at_most_once(pick_strategies))) == 0


@pytest.mark.parametrize("seed", schedules(3))
def test_at_least_once_never_lost(seed: int) -> None:
    check_nothing_lost(run_schedule(seed, steps=400, fault_chance=0.06, pick=at_least_once(pick_strategies)))


@pytest.mark.parametrize("seed", schedules(4))
@pytest.mark.parametrize("pick", [pick_cluster, pick_strategies], ids=["active", "mixed"])
def test_at_least_once_never_lost_when_deliveries_are_interrupted(seed: int, pick: Pick) -> None:
    check_nothing_lost(run_interrupted(seed, at_least_once(pick)))


def check_nothing_lost(cluster: Cluster) -> None:
    """Every unit came, as it would without faults."""
    assert isinstance(cluster.sink, LooseSink)
    for lane, expected in cluster.programs.reference(cluster.entries).items():
        units = dict.fromkeys(cluster.sink.received[lane])
        assert sorted(units) == [(number, *unit) for number, unit in enumerate(expected, 1)]


def test_the_guarantees_differ() -> None:
    """The same interruptions: units are lost with one guarantee, units come twice with the other."""
    lost = again = 0
    for seed in range(6):
        lost += units_lost(run_interrupted(seed, at_most_once(pick_cluster)))
        again += run_interrupted(seed, at_least_once(pick_cluster)).sink.skipped
    assert lost > 0 and again > 0

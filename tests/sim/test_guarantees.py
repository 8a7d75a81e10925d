"""What each guarantee promises holds under random schedules and faults, whatever keeps segments available.

Exactly once, with sinks that keep a ledger, is what all other schedules check.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from unbroken_lab.sim.sinks import OnceSink
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.flows import Choose, Pick, pick_active, pick_strategies
from unbroken_lab.sim.steps.schedules import run_interrupted, run_schedule, schedules


def at_most_once(pick: Pick) -> Pick:
    """The same cluster with turns, and a sink that must not be given anything twice."""

    def picked(choose: Choose) -> FaultyCluster:
        like = pick(choose)
        setup = like.world.setup
        cluster = FaultyCluster(
            replace(like.topology, at_most_once=True),
            setup.nodes,
            int(like.world.sources.last_pulse),
            setup.settings,
            standbys=setup.standbys,
            transfers=setup.store.transfers,
        )
        cluster.unsure = True
        return cluster

    return picked


def at_least_once(pick: Pick) -> Pick:
    """The same cluster with sinks that fail: what comes again is taken for the same, and counted."""

    def picked(choose: Choose) -> FaultyCluster:
        cluster = pick(choose)
        cluster.unsure = True
        return cluster

    return picked


def units_lost(cluster: FaultyCluster) -> int:
    sink, ended = cluster.world.sink, cluster.world.ended()
    assert isinstance(sink, OnceSink) and ended is not None
    streams = [stream for stream in cluster.topology.streams if cluster.topology.is_sink(stream.consumer)]
    return sum(ended - len(sink.received.get(stream, {})) for stream in streams)


@pytest.mark.parametrize("seed", schedules(4))
def test_at_most_once_never_twice(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.06, pick=at_most_once(pick_active))


@pytest.mark.parametrize("seed", schedules(5))
def test_at_most_once_never_twice_whatever_keeps_segments_available(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.06, pick=at_most_once(pick_strategies))


@pytest.mark.parametrize("seed", schedules(3))
@pytest.mark.parametrize("pick", [pick_active, pick_strategies], ids=["active", "mixed"])
def test_at_most_once_never_twice_when_deliveries_are_interrupted(seed: int, pick: Pick) -> None:
    run_interrupted(seed, at_most_once(pick))


@pytest.mark.parametrize("seed", schedules(3))
def test_at_most_once_loses_nothing_without_a_fault(seed: int) -> None:
    assert units_lost(run_schedule(seed, steps=300, fault_chance=0.0, pick=at_most_once(pick_strategies))) == 0


@pytest.mark.parametrize("seed", schedules(3))
def test_at_least_once_never_lost(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.06, pick=at_least_once(pick_strategies))


@pytest.mark.parametrize("seed", schedules(4))
@pytest.mark.parametrize("pick", [pick_active, pick_strategies], ids=["active", "mixed"])
def test_at_least_once_never_lost_when_deliveries_are_interrupted(seed: int, pick: Pick) -> None:
    run_interrupted(seed, at_least_once(pick))


def test_the_guarantees_differ() -> None:
    """The same interruptions: units are lost with one guarantee, units come twice with the other."""
    lost = again = 0
    for seed in range(6):
        lost += units_lost(run_interrupted(seed, at_most_once(pick_active)))
        again += run_interrupted(seed, at_least_once(pick_active)).world.sink.repeated
    assert lost > 0 and again > 0

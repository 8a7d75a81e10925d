"""Work that nodes do off their loops and that fails or does not end: the real hosting code, on simulated queries."""

from __future__ import annotations

import pytest

from unbroken.protocol.replica.replica import RESTARTS
from unbroken.protocol.values.ids import ReplicaId
from unbroken_lab.sim import faults
from unbroken_lab.sim.campaign import Options, run_seed, summary
from unbroken_lab.sim.faults import JOB_FAULTS, Kind
from unbroken_lab.sim.flows import chain
from unbroken_lab.sim.machine import NodeProcess
from unbroken_lab.sim.resting import advance, finish
from unbroken_lab.sim.transfers import DEADLINE_MS
from unbroken_lab.sim.world import Setup, World

OPTIONS = Options(length_s=4.0, mean_s=1.0, most_nodes=5, check_every=50)
SEEDS = 6
REPLICA = ReplicaId.parse("s0.0#1")


@pytest.mark.parametrize(
    ("kind", "consequence"),
    [
        (Kind.FAILED_START, "refused queries"),
        (Kind.STUCK_QUERY, "stuck queries"),
        (Kind.FULL_STORE, "copies"),
    ],
)
def test_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, kind: Kind, consequence: str) -> None:
    """The flow delivers what it would without faults, and what the fault leads to has happened."""
    assert kind in JOB_FAULTS
    monkeypatch.setattr(faults, "JOBS_FAULTED", 1.0)
    monkeypatch.setattr(faults, "JOB_FAULTS", (kind,))
    # Flows that nothing else happens to are whole then.
    monkeypatch.setattr(faults, "WEIGHTS", {Kind.PUSH: 1})
    outcomes = [run_seed(seed, OPTIONS, story=True) for seed in range(SEEDS)]
    for outcome in outcomes:
        assert outcome.ok, "\n".join([f"{OPTIONS.command(outcome.seed)}: {outcome.failure}", *outcome.story])
    found = summary(outcomes)
    assert found[f"fault {kind}"] >= 3 and found[consequence] >= 3


@pytest.fixture
def world() -> World:
    world = World(Setup(chain((1, 1)), 4), seed=3)
    advance(world, 3_000.0)
    return world


def host_of(world: World) -> NodeProcess:
    process = world.process(world.zookeeper.layout.placement[REPLICA])
    assert process is not None
    return process


def end(world: World) -> None:
    world.sources.end_ms = world.kernel.now_ms + 1_000.0
    finish(world, 60_000.0)


@pytest.mark.parametrize("times", [RESTARTS - 1, RESTARTS])
def test_a_query_that_cannot_be_started_is_tried_some_times_and_then_replaced(world: World, times: int) -> None:
    host = host_of(world)
    host.engine.refusals[REPLICA] = times
    host.engine.fail(REPLICA, "out of memory")
    advance(world, 12_000.0)
    assert (REPLICA in world.zookeeper.layout.placement) == (times < RESTARTS)
    end(world)


def test_a_directory_stays_while_the_query_on_it_does_not_end(world: World) -> None:
    host = host_of(world)
    host.engine.stuck = True
    world.zookeeper.renewed[REPLICA] = None
    advance(world, 12_000.0)
    assert REPLICA not in world.zookeeper.layout.placement and REPLICA in host.disk.replicas
    host.engine.heal()
    advance(world, 12_250.0)
    assert REPLICA not in host.disk.replicas
    end(world)


def test_a_copy_that_stalls_is_waited_for(world: World) -> None:
    world.copying.stalled.update(world.machines)
    world.zookeeper.renewed[REPLICA] = None
    advance(world, 8_000.0)
    assert world.copying.under_way and not world.copying.copies
    world.copying.stalled.clear()
    advance(world, 10_000.0)
    assert world.copying.copies and not world.copying.under_way
    end(world)


def test_a_copy_that_stalls_for_too_long_is_fetched_again(world: World) -> None:
    world.copying.stalled.update(world.machines)
    world.zookeeper.renewed[REPLICA] = None
    advance(world, 5_000.0)
    [first] = world.copying.under_way
    world.sources.end_ms = world.kernel.now_ms
    world.kernel.run(first.began_ms + DEADLINE_MS + 5_000.0)
    world.copying.stalled.clear()
    finish(world, 60_000.0)
    assert world.copying.copies == 1 and first.over


def test_a_node_whose_disk_takes_no_units_gives_its_replicas_up(world: World) -> None:
    host = host_of(world)
    host.disk.full = True
    advance(world, 12_000.0)
    assert host.name not in {world.zookeeper.layout.placement[r] for r in world.zookeeper.layout.full(REPLICA.shard)}
    host.disk.full = False
    end(world)

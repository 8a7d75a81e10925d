"""A paused flow on virtual time: nothing is read, nothing becomes tentative, repair goes on, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices.placement import FlowPaused, FlowResumed
from unbroken.protocol.values.notices.replicas import InputMissing
from unbroken.protocol.values.pause import Pause
from unbroken_lab.sim.faults import Fault, Kind, make_pauses
from unbroken_lab.sim.flows import chain
from unbroken_lab.sim.injector import Injector
from unbroken_lab.sim.sources import Pulse
from unbroken_lab.sim.world import Setup, World

PAUSE_MS, RESUME_MS = 5_000.0, 40_000.0
"""Longer than any patience with missing input."""


def bounded(topology: Topology) -> Topology:
    """The same, going on without input that is missing for a second."""
    return replace(topology, availability={part: DelayBound(1_000.0) for part in topology.segments})


TWO = replace(
    chain((1, 1)),
    sources=("one", "two"),
    edges=(("one", "s0"), ("two", "s0"), ("s0", "s1"), ("s1", "sink")),
)
FLOWS = {
    "pulses": chain((1, 2)),
    "pulses with a bound": bounded(chain((1, 2))),
    "buckets": replace(TWO, bucketed=True),
    "buckets with a bound": replace(bounded(TWO), bucketed=True),
}


def rows_after(world: World, moment_ms: float) -> int:
    """Rows that were cut from the sources after a moment, by the entries of the log."""
    pulses = [Pulse.of(entry) for entry in world.entries.values() if entry.pulse]
    return sum(pulse.rows for pulse in pulses if pulse.cut_ms > moment_ms)


def paused(world: World, kill: bool) -> None:
    """Run into a pause, lose the leader in it if that is wanted, and out of it again to the end."""
    world.kernel.run(PAUSE_MS)
    world.zookeeper.pause = Pause(int(PAUSE_MS))
    world.kernel.run(PAUSE_MS + 3_000.0)
    assert world.zookeeper.layout.pause is not None
    before, leader = rows_after(world, 0), world.zookeeper.sync.leader
    if kill:
        world.kill(leader, silently=False)
        world.kernel.run(PAUSE_MS + 8_000.0)
        world.boot(leader)
    world.kernel.run(RESUME_MS)
    world.check()
    assert rows_after(world, 0) == before, "rows were cut from the sources of a paused flow"
    if kill:
        assert world.zookeeper.sync.leader != leader
        assert world.shortage() is None, "redundancy does not come back while the flow is paused"
    world.zookeeper.pause = None
    world.sources.end_ms = RESUME_MS + 3_000.0
    deadline = RESUME_MS + 60_000.0
    while (reason := world.at_rest()) is not None:
        assert world.kernel.now_ms < deadline, reason
        world.kernel.run(world.kernel.now_ms + 500.0)
        world.check()
    world.check_result()


@pytest.mark.parametrize("kill", [False, True], ids=["quiet", "leader killed"])
@pytest.mark.parametrize("name", FLOWS)
def test_a_pause_changes_no_result(name: str, kill: bool) -> None:
    world = World(Setup(FLOWS[name], 3), seed=3)
    paused(world, kill)
    kinds = Counter(type(reported.notice) for reported in world.zookeeper.history)
    assert kinds[FlowPaused] == 1 and kinds[FlowResumed] == 1
    if not kill:
        assert not world.counts["tentative"] and not kinds[InputMissing]


def test_pauses_are_drawn_apart_from_faults() -> None:
    drawn = [make_pauses(Random(seed), ["a", "b"], 10_000.0) for seed in range(400)]
    assert 60 < sum(map(len, drawn)) < 140
    assert all(fault.kind is Kind.PAUSE and fault.at_ms < 10_000.0 for faults in drawn for fault in faults)


def test_a_pause_ends_with_the_faults() -> None:
    world = World(Setup(chain((1,)), 2), seed=1)
    injector = Injector(world, fragile=True, tell=lambda _: None)
    injector.begin([Fault(1_000.0, Kind.PAUSE, "node-1", "node-2", 60_000.0)])
    world.kernel.run(3_000.0)
    assert world.zookeeper.layout.pause is not None
    injector.heal_all()
    world.kernel.run(6_000.0)
    assert world.zookeeper.layout.pause is None

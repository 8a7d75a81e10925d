"""One flow on many nodes: how fast it is simulated, and whether it stands what happens to some of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Topology
from unbroken_lab.sim.collecting import collecting_seldom
from unbroken_lab.sim.faults import Fault, Kind
from unbroken_lab.sim.flows import wide
from unbroken_lab.sim.injector import Injector
from unbroken_lab.sim.queries import CostModel
from unbroken_lab.sim.resting import advance, failure_of, finish
from unbroken_lab.sim.world import SETTINGS, Setup, World

BRANCH = 10
"""Segments of one branch; a flow of many nodes has many branches."""

CHECK_EVERY = 50
LOOK_MS = 1_000.0
"""Events of the flow after which a node checks its invariants, and how often all nodes and the whole are looked at."""

BLOWS = (Kind.KILL, Kind.KILL, Kind.FREEZE)
SHORT_MS = (500.0, 3_000.0)
LONG_MS = (6_000.0, 15_000.0)
"""How long a node is away: it is back before its session has ended, or its replicas are built elsewhere meanwhile."""

QUIET = 0.1
"""Share of the time before the first fault."""

AFTER_MS = 3_000.0
REST_MS = 240_000.0
"""How long the sources go on after the last fault, and how long the flow may take to come to rest after that."""


@dataclass(frozen=True)
class Scale:
    """What is simulated: a flow on so many nodes, for so long, with so many nodes killed or frozen. With ``check``
    invariants are looked at, and in the end the flow has to come to rest with the results of one without faults."""

    nodes: int = 100
    seconds: float = 10.0
    pulse_ms: float = 1_000.0
    seed: int = 0
    mesh: bool = False
    faults: int = 0
    check: bool = False


def flow_for(nodes: int) -> Topology:
    """A flow with about as many shards as there are nodes, two replicas each: a source into branches that are joined
    in the end."""
    branches = max(1, (nodes - 2) // BRANCH)
    return wide(branches, min(BRANCH, max(1, nodes - 2)))


def make_blows(random: Random, names: Sequence[NodeId], length_ms: float, number: int) -> list[Fault]:
    """Nodes that are killed and started again, or frozen, at random moments."""
    out: list[Fault] = []
    for _ in range(number):
        at_ms = random.uniform(QUIET * length_ms, length_ms)
        target, other = random.sample(list(names), 2)
        out.append(
            Fault(at_ms, random.choice(BLOWS), target, other, random.uniform(*random.choice((SHORT_MS, LONG_MS))))
        )
    return sorted(out, key=lambda fault: fault.at_ms)


def run_scale(scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Simulate it and say what it took, and what was wrong, if anything was."""
    settings = replace(SETTINGS, pulse_min_ms=scale.pulse_ms, pulse_start_ms=scale.pulse_ms, ring_period_ms=500)
    began = time.process_time()
    setup = Setup(
        flow_for(scale.nodes),
        scale.nodes,
        settings=settings,
        costs=CostModel(gate_wait_ms=5_000),
        check_every=CHECK_EVERY if scale.check else 0,
        mesh=scale.mesh,
    )
    world = World(setup, scale.seed)
    injector = Injector(world, fragile=False, tell=lambda _: None)
    ready, failure = time.process_time(), None
    with collecting_seldom():
        try:
            _run(scale, world, injector, tell)
        except Exception as error:
            failure = failure_of(error)
    took = time.process_time() - ready
    return {
        "nodes": scale.nodes,
        "shards": len(world.topology.placed_shards),
        "simulated_s": round(world.kernel.now_ms / 1000, 3),
        "start_s": round(ready - began, 2),
        "took_s": round(took, 2),
        "handled": world.count,
        "events": world.kernel.events,
        "units": world.network.units_delivered,
        "messages": world.network.messages_delivered,
        "delivered": world.counts["delivered"],
        "deliveries_per_s": round(world.network.units_delivered / took),
        "us_per_event": round(took / world.count * 1e6, 1),
        "faults": dict(sorted(Counter(str(fault.kind) for fault in injector.done).items())),
        "skipped": injector.skipped,
        "layouts": world.zookeeper.layout.version,
        "copies": world.copying.copies,
        "checked": scale.check,
        "failure": failure,
        "digest": world.kernel.digest(),
    }


def _run(scale: Scale, world: World, injector: Injector, tell: Callable[[str], None]) -> None:
    began, length_ms = time.process_time(), scale.seconds * 1000
    injector.begin(make_blows(world.kernel.random("faults"), list(world.machines), length_ms, scale.faults))
    for place in range(1, 11):
        until_ms = length_ms * place / 10
        if scale.check:
            advance(world, until_ms, LOOK_MS)
        else:
            world.kernel.run(until_ms)
        took = time.process_time() - began
        tell(f"{until_ms / 1000:g} of {scale.seconds:g} s are simulated, in {took:.0f} s of processor time")
    if scale.check:
        injector.heal_all()
        world.sources.end_ms = world.kernel.now_ms + AFTER_MS
        finish(world, REST_MS, LOOK_MS)
        tell(f"at rest after {world.kernel.now_ms / 1000:g} s, with the results of a run without faults")

"""How fast a flow is simulated: one of a given size, without faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unbroken.protocol.layout import Topology
from unbroken.sim.flows import wide
from unbroken.sim.queries import CostModel
from unbroken.sim.world import SETTINGS, Setup, World

BRANCH = 10
"""Segments of one branch; a flow of many nodes has many branches."""


def flow_for(nodes: int) -> Topology:
    """A flow with about as many shards as there are nodes, two replicas each: a source into branches that are joined
    in the end."""
    branches = max(1, (nodes - 2) // BRANCH)
    return wide(branches, min(BRANCH, max(1, nodes - 2)))


def run_scale(
    nodes: int, seconds: float, pulse_ms: float, seed: int, mesh: bool, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Simulate so many seconds and say what they took."""
    settings = replace(SETTINGS, pulse_min_ms=pulse_ms, pulse_start_ms=pulse_ms, ring_period_ms=500)
    costs = CostModel(gate_wait_ms=5_000)
    began = time.process_time()
    setup = Setup(flow_for(nodes), nodes, settings=settings, costs=costs, check_every=0, mesh=mesh)
    world = World(setup, seed)
    ready = time.process_time()
    step = seconds / 10
    for place in range(1, 11):
        world.kernel.run(step * place * 1000)
        took = time.process_time() - ready
        tell(f"{step * place:g} of {seconds:g} s are simulated, in {took:.0f} s of processor time")
    took = time.process_time() - ready
    return {
        "nodes": nodes,
        "shards": len(world.topology.placed_shards),
        "simulated_s": seconds,
        "start_s": round(ready - began, 2),
        "took_s": round(took, 2),
        "handled": world.count,
        "events": world.kernel.events,
        "units": world.network.units_delivered,
        "messages": world.network.messages_delivered,
        "delivered": world.counts["delivered"],
        "deliveries_per_s": round(world.network.units_delivered / took),
        "us_per_event": round(took / world.count * 1e6, 1),
        "digest": world.kernel.digest(),
    }

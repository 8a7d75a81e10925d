"""A small flow for any policies that go together: what the simulator needs to try each pair of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from unbroken.protocol.values.consistency import DelayBound, Reconcile
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken_lab.sim.content import DELAY_MS
from unbroken_lab.sim.flows import Flow, join
from unbroken_lab.sim.queries import CostModel
from unbroken_lab.sim.world import SETTINGS, Setup

STRATEGIES = {"active-standby": Ha.ACTIVE_STANDBY, "passive": Ha.PASSIVE, "upstream": Ha.UPSTREAM}


def topology_with(policies: Collection[str]) -> Topology:
    """Two sources, which are joined; the join has all of these policies."""
    topology = join(2 if "sharing" in policies else 1)
    part = next(iter(topology.segments))
    ha = next((STRATEGIES[name] for name in policies if name in STRATEGIES), None)
    if ha is None and "sharing" in policies:
        ha = Ha.UPSTREAM
    if ha is not None:
        strategy = Strategy(ha, 1, every=2, horizon_ms=DELAY_MS + 1_000, shares="sharing" in policies, foldable=True)
        strategies = {**topology.strategies, part: strategy}
        topology = replace(topology, strategies=strategies, replicas={**topology.replicas, part: strategy.running})
    back = next((way for way in Reconcile if way.value in policies), None)
    if back is not None:
        how = DelayBound(1_000, reconcile=back, horizon_ms=DELAY_MS + 1_000, foldable=True)
        topology = replace(topology, availability={part: how}, tentative_sinks=frozenset(topology.sinks))
    return replace(
        topology,
        whole="cluster" in policies,
        led=frozenset({part} if "leader" in policies else ()),
        bucketed="bucket" in policies,
        at_most_once="at-most-once" in policies,
    )


def flow_with(policies: Collection[str]) -> Flow:
    """The flow on four nodes; every node checks its invariants after every event, and looks for overlooked parts."""
    topology = topology_with(policies)
    settings = replace(SETTINGS, warm_units=3, warm_ms=500)
    setup = Setup(topology, 4, settings=settings, costs=CostModel(batch_ms=20, gate_wait_ms=300), look_every=3)
    fragile = any(strategy.running == 1 for strategy in topology.strategies.values())
    return Flow(" and ".join(sorted(policies)) or "active", setup, fragile)

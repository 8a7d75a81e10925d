"""Small random flows for schedules of steps: shapes, strategies, orderings and copies, on few nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken_lab.sim.content import DELAY_MS
from unbroken_lab.sim.flows import chain, diamond, join
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.faults import FaultyCluster

Choose = Callable[[int], int]
"""Any number below the given one."""

Pick = Callable[[Choose], FaultyCluster]

MOST_SAFE = 3
"""The largest k_safety that is drawn."""


def pick_topology(choose: Choose) -> tuple[Topology, int]:
    """A small random topology, and 2 to 4 nodes that are enough for its replicas."""
    nodes = 2 + choose(3)
    replicas = 2 + (choose(nodes - 1) and choose(2))
    kind = choose(4)
    if kind == 0:
        return join(1 + choose(2), replicas), nodes
    if kind == 1:
        return diamond(1 + choose(2), replicas), nodes
    return chain(tuple(1 + choose(2) for _ in range(1 + choose(3))), replicas), nodes


def pick_settings(choose: Choose) -> ProtocolSettings:
    return replace(
        SETTINGS,
        single_delivery=choose(2) == 1,
        claim_units=3 if choose(4) == 1 else SETTINGS.claim_units,
        catch_up_lag=choose(3),
    )


def pick_active(choose: Choose) -> FaultyCluster:
    """A small random topology on 2 to 4 nodes and up to 2 standbys."""
    topology, nodes = pick_topology(choose)
    settings = pick_settings(choose)
    return FaultyCluster(topology, nodes, 4 + choose(9), settings, standbys=choose(3), transfers=1 + choose(3))


def pick_strategies(choose: Choose, only: Ha | None = None) -> FaultyCluster:
    """A small random flow whose segments are kept available in different ways, on 3 or 4 nodes and up to 2 standbys."""
    topology = (join(1 + choose(2)), diamond(1 + choose(2)), chain((1, 1 + choose(2), 1)), chain((2,)))[choose(4)]
    kinds = list(Ha) if only is None else [only, Ha.ACTIVE]
    strategies = {part: _strategy(kinds[choose(len(kinds))], choose) for part in topology.segments}
    # The ingress is as safe as the safest segment.
    safest = max(strategy.backups for strategy in strategies.values())
    topology = with_strategies(topology, strategies, 1 + max(1, safest))
    settings = replace(SETTINGS, single_delivery=choose(2) == 1, catch_up_lag=choose(3), ack_every=1 + choose(3))
    nodes = max(3, 1 + safest) + choose(2)
    return FaultyCluster(topology, nodes, 8 + choose(12), settings, standbys=choose(3), transfers=1 + choose(3))


def pick_row(choose: Choose) -> FaultyCluster:
    """Segments in a row that all rely on their producers, with nodes enough for each to have one of its own."""
    topology = (chain((1, 1, 1)), chain((1, 2, 1)), chain((1, 1, 1, 1)), diamond(1))[choose(4)]
    k_safety = 1 + choose(MOST_SAFE)
    strategies = {
        part: replace(_strategy(Ha.UPSTREAM, choose), backups=k_safety, shares=False) for part in topology.segments
    }
    topology = with_strategies(topology, strategies, 1 + MOST_SAFE)
    return FaultyCluster(topology, 5 + choose(3), 40, replace(SETTINGS, ack_every=1 + choose(2)), standbys=choose(3))


def pick_led(choose: Choose) -> FaultyCluster:
    """A flow in which some segments are ordered by a leader, on 3 or 4 nodes."""
    shapes = (join(1 + choose(2)), diamond(1), chain((1, 1 + choose(2), 1)), chain((1,)))
    topology = shapes[choose(4)]
    led = frozenset(part for part in topology.segments if choose(3) > 0) or frozenset(list(topology.segments)[:1])
    settings = replace(
        SETTINGS, single_delivery=choose(2) == 1, catch_up_lag=choose(3), ack_every=1 + choose(2), order_lost_ms=500
    )
    return FaultyCluster(replace(topology, led=led), 3 + choose(2), 6 + choose(12), settings, standbys=choose(2))


def pick_long_windows(choose: Choose) -> FaultyCluster:
    """Segments whose state reaches back over many units, in a flow that is long enough to forget."""
    topology = (join(1), chain((1, 1)))[choose(2)]
    horizon = DELAY_MS + 5_000 + 800 * choose(6)
    strategies = {part: Strategy(Ha.UPSTREAM, horizon_ms=horizon, foldable=True) for part in topology.segments}
    topology = with_strategies(topology, strategies, 2)
    settings = replace(SETTINGS, ack_every=1 + choose(3))
    return FaultyCluster(topology, 3 + choose(2), 40 + choose(10), settings, standbys=1)


def with_strategies(topology: Topology, strategies: dict[str, Strategy], members: int) -> Topology:
    """A flow whose segments are kept available like this, with so many members of the ingress."""
    every = {**strategies, INGRESS.part: Strategy(Ha.ACTIVE, members - 1)}
    return replace(topology, strategies=every, replicas={part: strategy.running for part, strategy in every.items()})


def _strategy(ha: Ha, choose: Choose) -> Strategy:
    if ha is not Ha.UPSTREAM:
        return Strategy(ha, 0 if ha is Ha.NONE else 1 + choose(MOST_SAFE), every=1 + choose(4))
    timed = choose(2) == 1
    horizon = (0, DELAY_MS + 250 * (1 + choose(9)) if timed else 400 * (1 + choose(4)))[choose(3) > 0]
    return Strategy(
        ha,
        1 + choose(MOST_SAFE),
        horizon_ms=horizon,
        timed=timed,
        shares=choose(2) == 1,
        foldable=timed and horizon > 0,
    )

"""Random flows whose segments go on without missing input, and random schedules of what may be missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from unbroken.protocol.values.consistency import DelayBound, InputHandling, Reconcile
from unbroken.protocol.values.layout import Topology
from unbroken_lab.sim.content import DELAY_MS
from unbroken_lab.sim.flows import diamond, join, topology_of
from unbroken_lab.sim.steps.available import AvailableCluster
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.flows import Choose

LEAST_MS = 1_500.0
"""The smallest bound on a delay: about as long as two pulses."""

WEIGHTS = {
    "leave": 5.0,
    "back": 3.0,
    "part": 4.0,
    "heal": 3.0,
    "stall": 2.0,
    "spoil": 2.0,
    "kill": 1.5,
    "boot": 3.0,
    "freeze": 1.0,
    "thaw": 2.0,
    "blind": 0.5,
    "see": 1.0,
    "cut": 1.0,
    "fail": 1.0,
    "stop": 0.3,
    "wipe": 0.3,
    "expire": 0.3,
    "renew": 0.2,
    "blackout": 0.2,
    "upgrade": 0.5,
    "withdraw": 0.3,
}
"""How often a kind of fault is picked, if it is possible: mostly those that keep input away, and bring it back."""

STRETCHES_MS = (250, 750, 2_000, 4_000, 8_000)
"""How long things are left alone after a fault."""

UNENDING = 1_000_000

PickAvailable = Callable[[Choose], AvailableCluster]


def wide_join(sources: int = 3, replicas: int = 2) -> Topology:
    """Several sources into one segment."""
    names = tuple(f"source{i}" for i in range(sources))
    return topology_of(names, {"join": 1}, (*((name, "join") for name in names), ("join", "sink")), replicas)


def two_joins(replicas: int = 2, shards: int = 1) -> Topology:
    """(left, right) > first, (first, third) > second > sink."""
    edges = (("left", "first"), ("right", "first"), ("first", "second"), ("third", "second"), ("second", "sink"))
    return topology_of(("left", "right", "third"), {"first": shards, "second": 1}, edges, replicas)


def join_of_two(replicas: int = 2) -> Topology:
    """left > a, right > b, (a, b) > join > (last > sink)."""
    edges = (("left", "a"), ("right", "b"), ("a", "join"), ("b", "join"), ("join", "last"), ("last", "sink"))
    return topology_of(("left", "right"), {"a": 1, "b": 1, "join": 1, "last": 1}, edges, replicas)


def shapes(choose: Choose) -> tuple[Topology, ...]:
    return (
        join(1 + choose(2)),
        wide_join(3),
        two_joins(shards=1 + choose(2)),
        join_of_two(),
        diamond(1 + choose(2)),
    )


def pick_availability(choose: Choose, reconcile: Reconcile | None = None) -> DelayBound:
    policies = (InputHandling.PROCESS, InputHandling.PROCESS, InputHandling.DELAY, InputHandling.SUSPEND)
    timed = choose(2) == 1
    return DelayBound(
        max_delay_ms=LEAST_MS * (1 + choose(5)),
        alpha=(0.5, 0.9)[choose(2)],
        during_failure=policies[choose(4)],
        during_stabilization=policies[choose(4)],
        reconcile=list(Reconcile)[choose(3)] if reconcile is None else reconcile,
        horizon_ms=DELAY_MS + 250 * (1 + choose(9)) if timed else 400 * (1 + choose(4)),
        timed=timed,
        foldable=timed and choose(2) == 1,
    )


def pick_available(choose: Choose, reconcile: Reconcile | None = None) -> AvailableCluster:
    """A small random flow, some of whose segments, or all, have a bound on their delay."""
    shape = shapes(choose)[choose(5)]
    some = choose(4) == 0
    available = {part: pick_availability(choose, reconcile) for part in shape.segments if not some or choose(2)}
    topology = replace(
        shape,
        availability=available,
        bucketed=len(shape.sources) > 1 and choose(4) > 0,
        tentative_sinks=frozenset({"sink"} if choose(5) else ()),
    )
    settings = replace(
        SETTINGS,
        single_delivery=choose(3) == 0,
        catch_up_lag=choose(3),
        ack_every=1 + choose(3),
        warm_units=choose(2),
        standing_ms=250_000 if choose(3) == 0 else 0,
    )
    cost_ms, fork_ms = 125.0 * choose(3), 500.0 * choose(3)
    nodes, pulses, standbys = 2 + choose(3), 12 + choose(20), choose(2)
    return AvailableCluster(topology, nodes, pulses, settings, standbys, cost_ms, fork_ms)


def run_failures(seed: int, pick: PickAvailable = pick_available, episodes: int = 14) -> AvailableCluster:
    """Input fails and comes back again and again, in time or out of step, then all is well and is checked."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    cluster.world.sources.last_pulse = UNENDING
    cluster.upgrades = int(random.Random(f"upgrades {seed}").random() < 0.2)
    try:
        cluster.run_to(rng.choice((2_500, 7_500)))
        for _ in range(episodes):
            for _ in range(rng.choice((1, 1, 2))):
                disturb(cluster, rng)
            cluster.check()
            until_ms = cluster.now_ms + rng.choice(STRETCHES_MS)
            if rng.random() < 0.5:
                cluster.run_to(until_ms)
            else:
                out_of_step(cluster, rng, until_ms)
            cluster.check()
        finish(cluster)
    except Exception as error:
        raise AssertionError(f"run_failures({seed}, {pick}, {episodes}): {error}") from error
    return cluster


def finish(cluster: AvailableCluster) -> None:
    """Let the sources end, and the flow come to rest."""
    cluster.world.sources.last_pulse = cluster.pulses() + 3
    cluster.settle()


def disturb(cluster: AvailableCluster, rng: random.Random) -> None:
    faults = cluster.faults()
    kinds = sorted({str(fault[0]) for fault in faults} & WEIGHTS.keys())
    kind = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
    cluster.do(rng.choice([fault for fault in faults if fault[0] == kind]))


def out_of_step(cluster: AvailableCluster, rng: random.Random, until_ms: float, most: int = 500) -> None:
    """Steps in any order; time passes although others are possible."""
    for _ in range(most):
        if cluster.now_ms >= until_ms:
            return
        steps = cluster.steps()
        if not steps or rng.random() < 0.15:
            cluster.advance()
        else:
            cluster.take(rng.choice(steps))

"""Random flows whose segments go on without missing input, and random schedules of what may be missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from protocol.cluster_effects import SETTINGS
from protocol.consistency_model import AvailableCluster
from protocol.model_parts import DELAY, diamond, join
from unbroken.protocol.values.consistency import Availability, Policy, Reconcile
from unbroken.protocol.values.layout import INGRESS, Topology

Choose = Callable[[int], int]


def wide_join(sources: int = 3, replicas: int = 2) -> Topology:
    """Several sources into one segment."""
    names = tuple(f"source{i}" for i in range(sources))
    return Topology(
        sources=names,
        segments={"join": 1},
        sinks=("sink",),
        edges=(*((name, "join") for name in names), ("join", "sink")),
        replicas={"join": replicas, INGRESS.part: replicas},
    )


def two_joins(replicas: int = 2, shards: int = 1) -> Topology:
    """(left, right) > first, (first, third) > second > sink."""
    return Topology(
        sources=("left", "right", "third"),
        segments={"first": shards, "second": 1},
        sinks=("sink",),
        edges=(("left", "first"), ("right", "first"), ("first", "second"), ("third", "second"), ("second", "sink")),
        replicas={"first": replicas, "second": replicas, INGRESS.part: replicas},
    )


def join_of_two(replicas: int = 2) -> Topology:
    """left > a, right > b, (a, b) > join > (last > sink)."""
    return Topology(
        sources=("left", "right"),
        segments={"a": 1, "b": 1, "join": 1, "last": 1},
        sinks=("sink",),
        edges=(("left", "a"), ("right", "b"), ("a", "join"), ("b", "join"), ("join", "last"), ("last", "sink")),
        replicas=dict.fromkeys(["a", "b", "join", "last", INGRESS.part], replicas),
    )


def shapes(choose: Choose) -> tuple[Topology, ...]:
    return (
        join(1 + choose(2)),
        wide_join(3),
        two_joins(shards=1 + choose(2)),
        join_of_two(),
        diamond(1 + choose(2)),
    )


def pick_availability(choose: Choose, reconcile: Reconcile | None = None, least_ms: float = 60.0) -> Availability:
    policies = (Policy.PROCESS, Policy.PROCESS, Policy.DELAY, Policy.SUSPEND)
    timed = choose(2) == 1
    return Availability(
        max_delay_ms=least_ms * (1 + choose(5)),
        alpha=(0.5, 0.9)[choose(2)],
        during_failure=policies[choose(4)],
        during_stabilization=policies[choose(4)],
        reconcile=list(Reconcile)[choose(3)] if reconcile is None else reconcile,
        horizon_ms=DELAY + 10 + 10 * choose(9) if timed else 1 + choose(4),
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
        standing_ms=10_000 if choose(3) == 0 else 0,
    )
    times: dict[str, Any] = {"cost_ms": 5.0 * choose(3), "fork_ms": 20.0 * choose(3)}
    return AvailableCluster(topology, 2 + choose(3), 12 + choose(20), settings, standbys=choose(2), **times)


# --- schedules ------------------------------------------------------------------------------------------

WEIGHTS = {
    "leave": 5,
    "back": 3,
    "part": 4,
    "heal": 3,
    "stall": 2,
    "flow": 2,
    "spoil": 2,
    "kill": 1.5,
    "boot": 3,
    "freeze": 1,
    "thaw": 2,
    "blind": 0.5,
    "see": 1,
    "cut": 1,
    "fail": 1,
    "stop": 0.3,
    "wipe": 0.3,
    "expire": 0.3,
    "renew": 0.2,
    "blackout": 0.2,
    "upgrade": 0.5,
    "withdraw": 0.3,
}
"""How often a kind of fault is picked, if it is possible: mostly those that keep input away, and bring it back."""

STRETCHES_MS = (10, 30, 80, 150, 300, 700)
"""How long things are left alone after a fault. Bounds on the delay are between 60 and 300 ms."""

UNENDING = 1_000_000


def run_failures(
    seed: int, pick: Callable[[Choose], AvailableCluster] = pick_available, episodes: int = 14
) -> AvailableCluster:
    """Input fails and comes back again and again, in time or out of step, then all is well and is checked."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    cluster.pulses, cluster.upgrades = UNENDING, int(rng.random() < 0.2)
    try:
        cluster.run_to(rng.choice((100, 300)))
        for _ in range(episodes):
            for _ in range(rng.choice((1, 1, 2))):
                fault(cluster, rng)
            cluster.check()
            until = cluster.now + rng.choice(STRETCHES_MS)
            if rng.random() < 0.5:
                cluster.run_to(until)
            else:
                out_of_step(cluster, rng, until)
            cluster.check()
        cluster.pulses = max((entry.pulse for entry in cluster.entries.values()), default=0) + 3
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_failures({seed}, {pick}, {episodes}): {error}") from error
    return cluster


def fault(cluster: AvailableCluster, rng: random.Random) -> None:
    faults = cluster.faults()
    kinds = sorted({fault[0] for fault in faults} & WEIGHTS.keys())
    kind = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
    cluster.perform(rng.choice([fault for fault in faults if fault[0] == kind]))


def out_of_step(cluster: AvailableCluster, rng: random.Random, until_ms: float, most: int = 500) -> None:
    """Steps in any order; time passes although others are possible."""
    for _ in range(most):
        actions = cluster.enabled()
        if cluster.now >= until_ms:
            return
        if not actions or rng.random() < 0.15:
            cluster.advance()
        else:
            cluster.perform(rng.choice(actions))

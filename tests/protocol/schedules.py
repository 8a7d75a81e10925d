"""Random schedules of the simulated cluster: the same seed gives the same schedule."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

from protocol.cluster_effects import SETTINGS
from protocol.cluster_model import Action, Cluster
from protocol.model_parts import DELAY, chain, diamond, join
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, StreamId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.strategy import Ha, Strategy

FAULT_CHANCE = 0.03
MOST_SAFE = 3
"""The largest k_safety that is drawn."""
TIME_CHANCE = 0.1
RARE = ("blackout", "drain", "lose", "undrain", "renew", "stop", "upgrade", "wipe", "withdraw")
"""Kinds of faults that take a while to be repaired, and would leave time for nothing else."""


INTERRUPTIONS = (
    ("kill",),
    ("wipe",),
    ("stop",),
    ("refuse",),
    ("expire",),
    ("freeze", "suspect"),
    ("freeze", "expire"),
    ("blind", "suspect"),
    ("suspect", "kill"),
)
"""What happens to a node in the middle of a delivery: one after the other, as far as it is possible."""


def schedules(few: int) -> range:
    """The seeds of a run: ``few``, or as many as the environment asks for, from a number on that it may give."""
    first = int(os.environ.get("UNBROKEN_FIRST_SCHEDULE", "0"))
    return range(first, first + int(os.environ.get("UNBROKEN_SCHEDULES", few)))


def pick_topology(choose: Callable[[int], int]) -> tuple[Topology, int]:
    """A small random topology, and 2 to 4 nodes that are enough for its replicas."""
    nodes = 2 + choose(3)
    replicas = 2 + (choose(nodes - 1) and choose(2))
    kind = choose(4)
    if kind == 0:
        return join(1 + choose(2), replicas), nodes
    if kind == 1:
        return diamond(1 + choose(2), replicas), nodes
    return chain(tuple(1 + choose(2) for _ in range(1 + choose(3))), replicas), nodes


def pick_settings(choose: Callable[[int], int]) -> ProtocolSettings:
    return replace(
        SETTINGS,
        single_delivery=choose(2) == 1,
        claim_units=3 if choose(4) == 1 else SETTINGS.claim_units,
        catch_up_lag=choose(3),
    )


def pick_cluster(choose: Callable[[int], int]) -> Cluster:
    """A small random topology on 2 to 4 nodes and up to 2 standbys."""
    topology, nodes = pick_topology(choose)
    settings = pick_settings(choose)
    return Cluster(topology, nodes, 4 + choose(9), settings, standbys=choose(3), transfers=1 + choose(3))


def pick_strategies(choose: Callable[[int], int], only: Ha | None = None) -> Cluster:
    """A small random flow whose segments are kept available in different ways, on 3 or 4 nodes and up to 2 standbys."""
    topology = (join(1 + choose(2)), diamond(1 + choose(2)), chain((1, 1 + choose(2), 1)), chain((2,)))[choose(4)]
    kinds = list(Ha) if only is None else [only, Ha.ACTIVE]
    strategies = {part: _strategy(kinds[choose(len(kinds))], choose) for part in topology.segments}
    running = {part: strategy.running for part, strategy in strategies.items()}
    # The ingress is as safe as the safest segment.
    safest = max(strategy.backups for strategy in strategies.values())
    replicas = {**topology.replicas, **running, INGRESS.part: 1 + max(1, safest)}
    topology = replace(topology, strategies=strategies, replicas=replicas)
    settings = replace(SETTINGS, single_delivery=choose(2) == 1, catch_up_lag=choose(3), ack_every=1 + choose(3))
    nodes = max(3, 1 + safest) + choose(2)
    return Cluster(topology, nodes, 8 + choose(12), settings, standbys=choose(3), transfers=1 + choose(3))


def pick_row(choose: Callable[[int], int]) -> Cluster:
    """Segments in a row that all rely on their producers, with nodes enough for each to have one of its own."""
    topology = (chain((1, 1, 1)), chain((1, 2, 1)), chain((1, 1, 1, 1)), diamond(1))[choose(4)]
    k_safety = 1 + choose(MOST_SAFE)
    strategies = {
        part: replace(_strategy(Ha.UPSTREAM, choose), backups=k_safety, shares=False) for part in topology.segments
    }
    replicas = {**dict.fromkeys(strategies, 1), INGRESS.part: 1 + MOST_SAFE}
    topology = replace(topology, strategies=strategies, replicas=replicas)
    return Cluster(topology, 5 + choose(3), 40, replace(SETTINGS, ack_every=1 + choose(2)), standbys=choose(3))


def pick_led(choose: Callable[[int], int]) -> Cluster:
    """A flow in which some segments are ordered by a leader, on 3 or 4 nodes."""
    shapes = (join(1 + choose(2)), diamond(1), chain((1, 1 + choose(2), 1)), chain((1,)))
    topology = shapes[choose(4)]
    led = frozenset(part for part in topology.segments if choose(3) > 0) or frozenset(list(topology.segments)[:1])
    settings = replace(
        SETTINGS, single_delivery=choose(2) == 1, catch_up_lag=choose(3), ack_every=1 + choose(2), order_lost_ms=20
    )
    return Cluster(replace(topology, led=led), 3 + choose(2), 6 + choose(12), settings, standbys=choose(2))


def pick_long_windows(choose: Callable[[int], int]) -> Cluster:
    """Segments whose state reaches back over many units, in a flow that is long enough to forget."""
    topology = (join(1), chain((1, 1)))[choose(2)]
    horizon = DELAY + 80 + 10 * choose(6)
    strategies = {part: Strategy(Ha.UPSTREAM, horizon_ms=horizon, foldable=True) for part in topology.segments}
    topology = replace(topology, strategies=strategies, replicas={**topology.replicas, **dict.fromkeys(strategies, 1)})
    return Cluster(topology, 3 + choose(2), 40 + choose(10), replace(SETTINGS, ack_every=1 + choose(3)), standbys=1)


def _strategy(ha: Ha, choose: Callable[[int], int]) -> Strategy:
    if ha is not Ha.UPSTREAM:
        return Strategy(ha, 0 if ha is Ha.NONE else 1 + choose(MOST_SAFE), every=1 + choose(4))
    timed = choose(2) == 1
    horizon = (0, DELAY + 10 + 10 * choose(9) if timed else 1 + choose(4))[choose(3) > 0]
    return Strategy(
        ha,
        1 + choose(MOST_SAFE),
        horizon_ms=horizon,
        timed=timed,
        shares=choose(2) == 1,
        foldable=timed and horizon > 0,
    )


def run_schedule(
    seed: int,
    steps: int = 400,
    fault_chance: float = FAULT_CHANCE,
    upgrades: int = 0,
    pick: Callable[[Callable[[int], int]], Cluster] = pick_cluster,
) -> Cluster:
    """A random schedule with faults, then a quiet end. ``upgrades`` of the code are asked for at random moments."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    cluster.upgrades = upgrades
    cluster.hasty = upgrades > 0 and rng.random() < 0.2
    moments = {rng.randrange(steps // 2) for _ in range(upgrades)}
    due = 0
    try:
        for step in range(steps):
            actions = cluster.enabled()
            due += step in moments
            if due and (wishes := [wish for wish in cluster.wishes() if wish[0] == "upgrade"]):
                due -= 1
                cluster.perform(rng.choice(wishes))
            if rng.random() < fault_chance:
                fault = pick_fault(cluster, rng)
                cluster.perform(fault)
                cluster.check()
            elif not actions or rng.random() < TIME_CHANCE:
                cluster.advance()
            else:
                cluster.perform(rng.choice(actions))
            if step % 10 == 0:
                cluster.check()
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_schedule({seed}, {steps}, {fault_chance}, {upgrades}): {error}") from error
    return cluster


def run_losses(
    seed: int, ha: Ha, losses: int = 6, pick: Callable[[Callable[[int], int]], Cluster] | None = None
) -> tuple[Cluster, int]:
    """Only the nodes of segments with one strategy are lost, with their disks, again and again; how often that was."""
    rng = random.Random(seed)
    cluster = pick_strategies(rng.randrange, ha) if pick is None else pick(rng.randrange)
    cluster.pulses = 40
    lost = 0
    try:
        for _ in range(losses):
            for _ in range(rng.randrange(50, 250)):
                actions = cluster.enabled()
                cluster.perform(rng.choice(actions)) if actions and rng.random() > TIME_CHANCE else cluster.advance()
            if rng.random() < 0.5:
                # Far enough for units to be dropped: what is lost afterwards cannot begin with the first one.
                cluster.run_turns(rng.randrange(20, 120))
            hosts = {
                node
                for replica, node in cluster.store.layout.placement.items()
                if cluster.topology.strategy(replica.shard.part).ha is ha and node in cluster.nodes
            }
            doomed = [(node,) for node in sorted(hosts) if cluster.spares(cluster.store.layout.hosted(node))]
            several = [names for names in cluster.losses() if hosts & set(names)]
            several = [names for names in several if hosts >= set(names)] or several
            if doomed or several:
                cluster.perform(("lose", rng.choice(several if several and rng.random() < 0.7 else doomed or several)))
                lost += 1
            else:
                cluster.run_turns(5)
            for name in cluster.disks:
                if name not in cluster.nodes:
                    cluster.boot(name)
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_losses({seed}, {ha}, {losses}): {error}") from error
    return cluster, lost


def run_interrupted(
    seed: int, pick: Callable[[Callable[[int], int]], Cluster] = pick_cluster, interruptions: int = 8
) -> Cluster:
    """Nodes are interrupted in the middle of a delivery or right after it; the sink may have the unit by then."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    cluster.pulses = 30
    try:
        for _ in range(interruptions):
            for _ in range(rng.randrange(20, 120)):
                actions = cluster.enabled()
                cluster.perform(rng.choice(actions)) if actions and rng.random() > TIME_CHANCE else cluster.advance()
            for _ in range(200):
                busy = [(name, stream) for name, node in cluster.nodes.items() for stream in node.deliveries]
                if busy or not (actions := cluster.enabled()):
                    break
                cluster.perform(rng.choice(actions))
            if busy:
                _interrupt(cluster, rng, *rng.choice(busy))
            cluster.check()
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_interrupted({seed}): {error}") from error
    return cluster


def _interrupt(cluster: Cluster, rng: random.Random, name: NodeId, stream: StreamId) -> None:
    """Something happens to a node that delivers; whoever was away before may come back."""
    possible = {fault for fault in cluster.faults() if name in fault}
    for fault in [("thaw", name), ("see", name), ("trust", name)]:
        if fault in possible:
            cluster.perform(fault)
    if rng.random() < 0.7:
        cluster.perform((rng.choice(("linger", "sink")), name, stream))
    for kinds in rng.choice(INTERRUPTIONS):
        possible = {fault for fault in cluster.faults() if fault[0] == kinds and name in fault}
        if possible:
            cluster.perform(rng.choice(sorted(possible, key=str)))
    for other in cluster.disks:
        if other not in cluster.nodes and rng.random() < 0.7:
            cluster.boot(other)


def pick_fault(cluster: Cluster, rng: random.Random) -> Action:
    """A kind of fault first: there are many links to cut and few nodes to kill."""
    faults = cluster.faults()
    kinds = sorted({fault[0] for fault in faults})
    kind = rng.choice(
        [kind for kind in kinds if kind not in RARE or rng.random() < 0.5 - 0.4 * (kind == "withdraw")] or kinds
    )
    return rng.choice([fault for fault in faults if fault[0] == kind])

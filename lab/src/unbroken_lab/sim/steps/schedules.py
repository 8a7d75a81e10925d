"""Random schedules of steps and faults: the same seed gives the same schedule."""

from __future__ import annotations

import os
import random

from unbroken.protocol.values.ids import NodeId, StreamId
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.sim.steps.faults import Fault, FaultyCluster
from unbroken_lab.sim.steps.flows import Pick, pick_active, pick_strategies

FAULT_CHANCE = 0.03
TIME_CHANCE = 0.1
RARE = ("blackout", "drain", "lose", "undrain", "renew", "stop", "upgrade", "wipe", "withdraw")
"""Kinds of faults that take a while to be repaired, and would leave time for nothing else."""

INTERRUPTIONS = (
    ("kill",),
    ("wipe",),
    ("stop",),
    ("refuse",),
    ("expire",),
    ("freeze", "doubt"),
    ("freeze", "expire"),
    ("blind", "doubt"),
    ("doubt", "kill"),
)
"""What happens to a node in the middle of a delivery: one after the other, as far as it is possible."""

LOOK_EVERY = 10
"""Steps after which the whole is looked at."""


def schedules(few: int) -> range:
    """The seeds of a run: ``few``, or as many as the environment asks for, from a number on that it may give."""
    first = int(os.environ.get("UNBROKEN_FIRST_SCHEDULE", "0"))
    return range(first, first + int(os.environ.get("UNBROKEN_SCHEDULES", few)))


def run_schedule(
    seed: int,
    steps: int = 400,
    fault_chance: float = FAULT_CHANCE,
    pick: Pick = pick_active,
    upgrades: int = 0,
) -> FaultyCluster:
    """A random schedule with faults, then a quiet end. ``upgrades`` of the code are asked for at random moments."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    cluster.upgrades = upgrades
    cluster.hasty = upgrades > 0 and rng.random() < 0.2
    moments = {rng.randrange(steps // 2) for _ in range(upgrades)}
    due = 0
    try:
        for step in range(steps):
            due += step in moments
            if due and (wishes := [wish for wish in cluster.wishes() if wish[0] == "upgrade"]):
                due -= 1
                cluster.do(rng.choice(wishes))
            if rng.random() < fault_chance:
                cluster.do(pick_fault(cluster, rng))
                cluster.check()
            else:
                take_any(cluster, rng)
            if step % LOOK_EVERY == 0:
                cluster.check()
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_schedule({seed}, {steps}, {fault_chance}, {upgrades}): {error}") from error
    return cluster


def take_any(cluster: FaultyCluster, rng: random.Random) -> None:
    """Any step that is possible, or time passes."""
    steps = cluster.steps()
    if not steps or rng.random() < TIME_CHANCE:
        cluster.advance()
    else:
        cluster.take(rng.choice(steps))


def run_losses(seed: int, ha: Ha, losses: int = 6, pick: Pick | None = None) -> tuple[FaultyCluster, int]:
    """Only the nodes of segments with one strategy are lost, with their disks, again and again; how often that was."""
    rng = random.Random(seed)
    cluster = pick_strategies(rng.randrange, ha) if pick is None else pick(rng.randrange)
    cluster.world.sources.last_pulse = 40
    lost = 0
    try:
        for _ in range(losses):
            for _ in range(rng.randrange(50, 250)):
                take_any(cluster, rng)
            if rng.random() < 0.5:
                # Far enough for units to be dropped: what is lost afterwards cannot begin with the first one.
                cluster.run_turns(rng.randrange(20, 120))
            lost += _lose_hosts(cluster, rng, ha)
            for name in cluster.world.machines:
                cluster.boot(name)
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_losses({seed}, {ha}, {losses}): {error}") from error
    return cluster, lost


def _lose_hosts(cluster: FaultyCluster, rng: random.Random, ha: Ha) -> bool:
    """Lose one node or several that host segments with this strategy; False if the flow would not stand it."""
    running = cluster.running()
    hosts = {
        node
        for replica, node in cluster.layout.placement.items()
        if cluster.topology.strategy(replica.shard.part).ha is ha and node in running
    }
    doomed = [(node,) for node in sorted(hosts) if cluster.spares(cluster.layout.hosted(node))]
    several = [names for names in cluster.losses() if hosts & set(names)]
    several = [names for names in several if hosts >= set(names)] or several
    if not doomed and not several:
        cluster.run_turns(5)
        return False
    cluster.lose(rng.choice(several if several and rng.random() < 0.7 else doomed or several))
    return True


def run_interrupted(seed: int, pick: Pick = pick_active, interruptions: int = 8) -> FaultyCluster:
    """Nodes are interrupted in the middle of a delivery or right after it; the sink may have the unit by then."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    cluster.world.sources.last_pulse = 30
    try:
        for _ in range(interruptions):
            for _ in range(rng.randrange(20, 120)):
                take_any(cluster, rng)
            for _ in range(200):
                busy = [(name, stream) for name in cluster.running() for stream in cluster.delivering(name)]
                if busy or not (steps := cluster.steps()):
                    break
                cluster.take(rng.choice(steps))
            if busy:
                _interrupt(cluster, rng, *rng.choice(busy))
            cluster.check()
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_interrupted({seed}): {error}") from error
    return cluster


def _interrupt(cluster: FaultyCluster, rng: random.Random, name: NodeId, stream: StreamId) -> None:
    """Something happens to a node that delivers; those that were away before may come back."""
    for fault in [("thaw", name), ("see", name), ("trust", name)]:
        if fault in cluster.faults():
            cluster.do(fault)
    for _ in range(rng.choice((0, 1, 1, 2))):
        # The sink has the unit after the first of the two steps, and the node knows it after the second.
        for step in cluster.steps():
            if step.kind == "sink" and name in step.nodes and step.about == stream:
                cluster.take(step)
    for kind in rng.choice(INTERRUPTIONS):
        possible = [fault for fault in cluster.faults() if fault[0] == kind and name in fault]
        if possible:
            cluster.do(rng.choice(possible))
    for other in cluster.world.machines:
        if rng.random() < 0.7:
            cluster.boot(other)


def pick_fault(cluster: FaultyCluster, rng: random.Random) -> Fault:
    """A kind of fault first: there are many links to cut and few nodes to kill."""
    faults = cluster.faults()
    kinds = sorted({str(fault[0]) for fault in faults})
    seldom = {"withdraw": 0.1}
    kind = rng.choice([kind for kind in kinds if kind not in RARE or rng.random() < seldom.get(kind, 0.5)] or kinds)
    return rng.choice([fault for fault in faults if fault[0] == kind])

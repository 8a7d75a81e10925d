"""Random dataflows for the simulator: shapes, strategies, guarantees and orderings, on up to fifty nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.consistency import DelayBound, InputHandling, Reconcile
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken_lab.sim.content import DELAY_MS
from unbroken_lab.sim.links import LinkModel
from unbroken_lab.sim.queries import CostModel
from unbroken_lab.sim.world import SETTINGS, Setup
from unbroken_lab.sim.zookeeper import StoreModel

MOST_NODES = 50

SMALL = 6
LARGE = 0.1
"""Share of the flows with more nodes than that: one of fifty costs as much as many small ones."""

KINDS = {
    "active": 6,
    "strategies": 4,
    "leader": 2,
    "once": 2,
    "copies": 1,
    "snapshots": 2,
    "tentative": 4,
    "bucket": 2,
}
"""What flows are drawn from, and how often."""

MOST_SAFE = 3
"""The largest number of nodes that a flow is made to lose at once."""

Edges = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Flow:
    """A flow to be simulated. In a ``fragile`` one a shard may have a single working replica, so that it stands one
    lost node at a time and no more."""

    kind: str
    setup: Setup
    fragile: bool

    def __str__(self) -> str:
        topology = self.setup.topology
        parts = [f"{part}*{shards}" for part, shards in topology.segments.items()]
        words = [self.kind, f"{self.setup.nodes}+{self.setup.standbys} nodes", " ".join(parts)]
        words += [f"led: {', '.join(sorted(topology.led))}"] if topology.led else []
        found = sorted({strategy.ha.value for part, strategy in topology.strategies.items() if part != INGRESS.part})
        words += ["by event time"] if topology.bucketed else []
        back = sorted({how.reconcile.value for how in topology.availability.values()})
        return "; ".join([*words, "/".join(found), *(["/".join(back)] if back else [])])


def topology_of(sources: tuple[str, ...], segments: Mapping[str, int], edges: Edges, replicas: int = 2) -> Topology:
    """A flow in which every shard has so many replicas that do everything. What reads from nobody's segment ends in a
    sink; strategies are written out, because they are looked up all the time."""
    strategies = {part: Strategy(Ha.ACTIVE, replicas - 1) for part in [*segments, INGRESS.part]}
    return Topology(
        sources, segments, ("sink",), edges, dict.fromkeys([*segments, INGRESS.part], replicas), strategies=strategies
    )


def chain(shards: tuple[int, ...], replicas: int = 2) -> Topology:
    """source > s0 > s1 > ... > sink, segment i with ``shards[i]`` shards."""
    names = [f"s{i}" for i in range(len(shards))]
    edges = tuple(zip(["source", *names], [*names, "sink"], strict=True))
    return topology_of(("source",), dict(zip(names, shards, strict=True)), edges, replicas)


def join(shards: int = 1, replicas: int = 2) -> Topology:
    """Two sources into one segment: a query with two source instances."""
    edges = (("left", "join"), ("right", "join"), ("join", "sink"))
    return topology_of(("left", "right"), {"join": shards}, edges, replicas)


def diamond(shards: int = 1, replicas: int = 2) -> Topology:
    """source > a > (b, c) > d > sink."""
    edges = (("source", "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "sink"))
    return topology_of(("source",), {"a": 1, "b": shards, "c": 1, "d": 1}, edges, replicas)


def wide(branches: int, length: int, replicas: int = 2) -> Topology:
    """source > ``branches`` chains of so many segments > one that joins them > sink."""
    names = [[f"b{branch}s{place}" for place in range(length)] for branch in range(branches)]
    edges: list[tuple[str, str]] = []
    for line in names:
        edges += zip(["source", *line], [*line, "end"], strict=True)
    segments = {name: 1 for line in names for name in line} | {"end": 1}
    return topology_of(("source",), segments, (*edges, ("end", "sink")), replicas)


def tangle(random: Random, shards: int, replicas: int = 2) -> Topology:
    """Any shape: up to three sources, and segments that each read from one to three of what comes before them, mostly
    from what comes right before them. What nobody reads goes to the sink."""
    sources = tuple(f"source{i}" for i in range(random.randint(1, 3)))
    segments: dict[str, int] = {}
    edges: list[tuple[str, str]] = []
    while sum(segments.values()) < shards:
        name, before = f"s{len(segments)}", [*sources, *segments]
        unread = [part for part in before if not any(producer == part for producer, _ in edges)]
        near = unread if unread and random.random() < 0.7 else before[-4:]
        inputs = {random.choice(near), *random.choices(before[-6:], k=random.choice((0, 0, 1, 1, 2)))}
        edges += [(part, name) for part in before if part in inputs]
        segments[name] = min(random.choice((1, 1, 1, 2, 3)), shards - sum(segments.values()))
    read = {producer for producer, _ in edges}
    edges += [(part, "sink") for part in segments if part not in read]
    return topology_of(tuple(source for source in sources if source in read), segments, tuple(edges), replicas)


def pick_flow(random: Random, most_nodes: int = MOST_NODES, check_every: int = 1) -> Flow:
    """A random flow; the same randomness gives the same one."""
    kind = random.choices(list(KINDS), list(KINDS.values()))[0]
    large = random.random() < LARGE and most_nodes > SMALL and kind != "copies"
    nodes = random.randint(SMALL + 1, most_nodes) if large else random.randint(2, min(SMALL, most_nodes))
    if kind in ("strategies", "leader"):
        nodes = max(3, nodes)
    topology = _shape(random, nodes, large)
    settings = _settings(random)
    match kind:
        case "strategies":
            topology = _with_strategies(random, topology, nodes)
        case "leader":
            led = frozenset(part for part in topology.segments if random.random() < 0.7)
            some = [part for part in topology.segments if random.random() < 0.3]
            standby = {part: Strategy(Ha.ACTIVE_STANDBY, _safety(random, nodes)) for part in some}
            running = {part: strategy.running for part, strategy in standby.items()}
            topology = replace(
                topology,
                led=led or frozenset(list(topology.segments)[:1]),
                strategies={**topology.strategies, **standby},
                replicas={**topology.replicas, **running},
            )
        case "once":
            topology = replace(topology, at_most_once=True)
        case "copies":
            topology = replace(topology, whole=True)
        case "snapshots":
            settings = replace(settings, snapshots=True)
        case "tentative":
            topology = _with_availability(random, topology)
            warm_ms, standing_ms = random.choice((200, 500, 3_000)), random.choice((0, 10_000))
            settings = replace(settings, warm_units=3, warm_ms=warm_ms, standing_ms=standing_ms)
        case "bucket":
            if random.random() < 0.5:
                topology = _with_strategies(random, topology, nodes)
    if kind == "bucket" or (kind == "tentative" and random.random() < 0.6):
        topology = replace(topology, bucketed=True)
    costs = CostModel(batch_ms=random.uniform(10, 80), spread=random.uniform(0.0, 0.6), gate_wait_ms=300)
    setup = Setup(
        topology,
        nodes,
        standbys=random.randint(0, 2),
        settings=settings,
        links=_links(random),
        store=StoreModel(watch_ms=random.choice((3.0, 3.0, 3.0, 100.0, 600.0))),
        costs=costs,
        rows_per_s=random.choice((200.0, 2_000.0, 20_000.0)),
        check_every=check_every,
    )
    fragile = any(strategy.running == 1 for strategy in topology.strategies.values())
    return Flow(kind, setup, fragile)


def _shape(random: Random, nodes: int, large: bool) -> Topology:
    replicas = 1 + (1 if random.random() < 0.6 else _safety(random, nodes))
    if large:
        return tangle(random, max(2, int(nodes * random.uniform(0.2, 0.7))), replicas)
    match random.randrange(5):
        case 0:
            return join(random.randint(1, 2), replicas)
        case 1:
            return diamond(random.randint(1, 2), replicas)
        case 2:
            return tangle(random, random.randint(2, 5), replicas)
        case _:
            return chain(tuple(random.randint(1, 2) for _ in range(random.randint(1, 3))), replicas)


def _settings(random: Random) -> ProtocolSettings:
    return replace(
        SETTINGS,
        single_delivery=random.random() < 0.5,
        catch_up_lag=random.randint(0, 3),
        ack_every=random.choice((1, 1, 1, 2, 4)),
        claim_units=random.choice((50, 1_000, 1_000)),
        ring_period_ms=random.choice((0, 250, 500)),
    )


def _links(random: Random) -> LinkModel:
    """In a rack, between halls, or over a long way; jitter lets what is sent to two nodes arrive in any order."""
    latency_ms = random.choice((0.5, 0.5, 3.0, 20.0))
    return LinkModel(latency_ms=latency_ms, jitter_ms=latency_ms * random.choice((0.5, 2.0)))


def _safety(random: Random, nodes: int) -> int:
    """How many nodes may be lost at once: no more than leave one."""
    return random.randint(1, min(MOST_SAFE, nodes - 1))


def _with_strategies(random: Random, topology: Topology, nodes: int) -> Topology:
    """Segments with strategies of their own, and an ingress that is as safe as the safest of them."""
    most = _safety(random, nodes)
    only = random.choice(list(Ha)) if random.random() < 0.5 else None
    strategies = {part: _strategy(random, most, only) for part in topology.segments}
    strategies[INGRESS.part] = Strategy(Ha.ACTIVE, max(1, *(strategy.backups for strategy in strategies.values())))
    running = {part: strategy.running for part, strategy in strategies.items()}
    return replace(
        topology,
        strategies={**topology.strategies, **strategies},
        replicas={**topology.replicas, **running},
    )


def _strategy(random: Random, most: int, only: Ha | None) -> Strategy:
    ha, backups = only or random.choice(list(Ha)), most if only else random.randint(1, most)
    if ha is not Ha.UPSTREAM:
        return Strategy(ha, 0 if ha is Ha.NONE else backups, every=random.randint(1, 4))
    timed, horizon = random.random() < 0.5, 0.0
    if random.random() < 0.7:
        horizon = DELAY_MS + random.uniform(100, 3_000) if timed else random.uniform(200, 2_000)
    foldable = timed and horizon > 0
    return Strategy(ha, backups, horizon_ms=horizon, timed=timed, shares=random.random() < 0.3, foldable=foldable)


def _with_availability(random: Random, topology: Topology) -> Topology:
    """All segments have the same bound on their delay, or some of them their own."""
    if random.random() < 0.5:
        availability = dict.fromkeys(topology.segments, _availability(random))
    else:
        availability = {part: _availability(random) for part in topology.segments if random.random() < 0.7}
    sinks = frozenset({"sink"} if random.random() < 0.8 else ())
    return replace(topology, availability=availability, tentative_sinks=sinks)


def _availability(random: Random) -> DelayBound:
    timed = random.random() < 0.5
    return DelayBound(
        max_delay_ms=random.choice((500.0, 1_000.0, 3_000.0)),
        alpha=random.choice((0.5, 0.9)),
        during_failure=random.choice(
            (InputHandling.PROCESS, InputHandling.PROCESS, InputHandling.DELAY, InputHandling.SUSPEND)
        ),
        during_stabilization=random.choice(list(InputHandling)),
        reconcile=random.choice(list(Reconcile)),
        horizon_ms=DELAY_MS + random.uniform(100, 3_000) if timed else random.uniform(200, 2_000),
        timed=timed,
        foldable=timed and random.random() < 0.5,
    )

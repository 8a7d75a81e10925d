"""Simulated flows to show on a page: one to be taken in at a glance, and one with as many replicas as wanted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.testing.faults import Fault, Freeze, Kill
from unbroken_lab.page.simulated import SimulatedFlow
from unbroken_lab.sim.queries import CostModel
from unbroken_lab.sim.world import SETTINGS, Setup
from unbroken_lab.sim.zookeeper import StoreModel

REGIONS = ("north", "south", "east", "west", "coast", "hills")
STEPS = (("parse", 2), ("visits", 4), ("totals", 4), ("score", 4), ("trend", 2))
"""What becomes of the rows of a region, and in how many shards."""

PULSE_MS = 1_000.0

SPARK = CostModel(
    gate_wait_ms=5_000, batch_ms=120, row_us=1.0, keep=0.15, query_ms=2_000, boot_ms=4_000, copy_bytes_per_ms=500
)
"""Like Spark on a small node. A copy of a state takes long enough to be seen; what a segment keeps goes to each of its
consumer's shards, so that more would multiply rows on their way."""


def shop() -> SimulatedFlow:
    """Three sources, four segments in different ways of being available, three sinks, on six nodes."""
    strategies = {
        INGRESS.part: Strategy(Ha.ACTIVE, 2),
        "visits": Strategy(Ha.ACTIVE, 1),
        "baskets": Strategy(Ha.ACTIVE, 1),
        "totals": Strategy(Ha.ACTIVE, 2),
        "alerts": Strategy(Ha.PASSIVE, 1, every=4),
    }
    topology = Topology(
        sources=("clicks", "orders", "stock"),
        segments={"visits": 4, "baskets": 2, "totals": 3, "alerts": 1},
        sinks=("board", "archive", "pager"),
        edges=(
            ("clicks", "visits"),
            ("orders", "baskets"),
            ("visits", "totals"),
            ("baskets", "totals"),
            ("baskets", "alerts"),
            ("stock", "alerts"),
            ("totals", "board"),
            ("totals", "archive"),
            ("alerts", "pager"),
        ),
        replicas={part: strategy.running for part, strategy in strategies.items()},
        strategies=strategies,
        availability={"totals": DelayBound(2_500.0)},
        tentative_sinks=frozenset({"board"}),
    )
    return flow_of(topology, 6, "shop", rows_per_s=24_000.0, costs=SPARK)


def many(replicas: int) -> SimulatedFlow:
    """A flow with about so many replicas: regions of five segments each, which come together in a report."""
    regions = [f"{REGIONS[i % len(REGIONS)]}{i // len(REGIONS) + 1 if i >= len(REGIONS) else ''}" for i in range(64)]
    per_region = 2 * sum(shards for _, shards in STEPS)
    wanted = regions[: max(1, round((replicas - 8) / per_region))]
    segments: dict[str, int] = {}
    edges: list[tuple[str, str]] = []
    for region in wanted:
        before = region
        for step, shards in STEPS:
            segments[f"{region}_{step}"] = shards
            edges.append((before, f"{region}_{step}"))
            before = f"{region}_{step}"
        edges.append((before, "report"))
    segments["report"] = 3
    strategies = {part: Strategy(Ha.ACTIVE, 1) for part in [*segments, INGRESS.part]}
    topology = Topology(
        tuple(wanted),
        segments,
        ("archive",),
        (*edges, ("report", "archive")),
        {part: strategy.running for part, strategy in strategies.items()},
        strategies=strategies,
    )
    return flow_of(topology, max(4, replicas // 8), "regions", rows_per_s=60_000.0, costs=replace(SPARK, cores=8))


def some_faults(flow: SimulatedFlow, seed: int, seconds: float = 3_600.0, every_s: float = 20.0) -> None:
    """Nodes that are killed or frozen, or lose their JVM, now and then."""
    random = Random(f"page {seed}")
    names = sorted(flow.world.machines)
    after_s, faults = 8.0, []
    while after_s < seconds:
        node, for_s = random.choice(names), random.uniform(3.0, 9.0)
        choices: tuple[Fault, ...] = (
            Kill(node, back_after_s=for_s, after_s=after_s),
            Kill(node, back_after_s=for_s, after_s=after_s),
            Freeze(node, for_s, after_s=after_s),
            Kill(node, jvm=True, after_s=after_s),
        )
        faults.append(random.choice(choices))
        after_s += random.expovariate(1 / every_s)
    flow.begin_faults(faults)


def flow_of(topology: Topology, nodes: int, name: str, rows_per_s: float, costs: CostModel) -> SimulatedFlow:
    """A simulated flow that beats once a second, with nodes that all know the time."""
    settings = replace(SETTINGS, pulse_min_ms=PULSE_MS, pulse_start_ms=PULSE_MS, ring_period_ms=500)
    setup = Setup(
        topology,
        nodes,
        settings=settings,
        costs=costs,
        store=StoreModel(return_grace_ms=4_000),
        rows_per_s=rows_per_s,
        check_every=0,
        skewed=False,
    )
    return SimulatedFlow(setup, name=name)

"""Which node `unbroken bench piecemeal` kills, and what it claims."""

from __future__ import annotations

from pathlib import Path

from lab.experiments.trying import drawn
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken_lab.experiments.experiment import Row, flat
from unbroken_lab.experiments.recovery.piecemeal import (
    AFFECTED,
    NODES,
    SEGMENT,
    SHARDS,
    UNAFFECTED,
    Piecemeal,
    choose_victim,
)


def test_the_victim_hosts_half_of_the_shards_and_no_ingress() -> None:
    topology = Topology(
        sources=("rows",),
        segments={SEGMENT: SHARDS},
        sinks=("live",),
        edges=(("rows", SEGMENT), (SEGMENT, "live")),
        replicas={SEGMENT: 2, INGRESS.part: 2},
    )
    layout = chained_placement(topology, {f"node-{i}": "disk" for i in range(1, NODES + 1)})
    victim = choose_victim(layout)
    assert victim.node not in layout.nodes_of(INGRESS)
    assert len(victim.affected) == len(victim.unaffected) == 2
    assert victim.affected == {replica.shard.index for replica in layout.hosted(victim.node)}


def row(shards: str, growth_ms: float) -> Row:
    latency = {"before": {"p50": 800.0, "p99": 1_000.0, "max": 1_000.0}}
    latency["during"] = {name: value + growth_ms for name, value in latency["before"].items()}
    figures = {
        "state_mb": 10.0,
        "shards": shards,
        "latency_ms": latency,
        "change_ms": {"p99": growth_ms, "max": growth_ms},
        "pulse_ms": {"before": 1_000.0, "during": 1_100.0},
        "gap_ms": {"before": 900.0, "during": 1_500.0},
        "restored_s": 20.0,
        "lost": 0,
        "duplicated": 0,
    }
    return flat(figures)


def test_only_shards_that_lost_nothing_have_to_stay_within_a_pulse(tmp_path: Path) -> None:
    claims = drawn(Piecemeal(), [row(UNAFFECTED, 400.0), row(AFFECTED, 4_000.0)], tmp_path)
    assert claims["unaffected shards: growth of p99 until redundancy is back"].agrees is True
    assert claims["affected shards: growth of p99 until redundancy is back"].agrees is None
    late = Piecemeal().claims([row(UNAFFECTED, 1_001.0)])
    assert [claim.agrees for claim in late] == [False, False, True]

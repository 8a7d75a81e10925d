"""Which node `unbroken bench piecemeal` kills."""

from __future__ import annotations

from unbroken.protocol.values.layout import INGRESS, Topology, chained_placement
from unbroken_lab.experiments.piecemeal import NODES, SEGMENT, SHARDS, choose_victim


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

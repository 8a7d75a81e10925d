"""What counts as a failover, and by which cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kit.topologies import chain
from unbroken.node.membership.failovers import CAUSES, Failovers, losses, recoveries_ms
from unbroken.observe.status.node import RecoveryCounts
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.controller import Situation, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout

TOPOLOGY = chain((1,))
DISKS = {"a": "disk a", "b": "disk b", "c": "disk c"}
SHARD = ShardId("s0", 0)


def layout(nodes: str = "ab") -> Layout:
    return chained_placement(TOPOLOGY, {node: DISKS[node] for node in nodes})


def decided(before: Layout, present: dict[str, str], **known: Any) -> dict[str, int]:
    """What is counted for the controller's own decision."""
    situation = Situation(0, present, **known)
    decision = next_layout(TOPOLOGY, situation, before, transfers=2)
    assert decision is not None
    return dict(losses(before, decision.layout, situation))


def here(nodes: str, **changes: str) -> dict[str, str]:
    return {node: DISKS[node] for node in nodes} | changes


def test_every_replica_of_a_lost_node_is_a_failover() -> None:
    assert decided(layout(), here("a")) == {"node_lost": 2}


def test_the_last_replica_is_not_gone_on_without() -> None:
    before = layout().without([ReplicaId(SHARD, 0), ReplicaId(INGRESS, 1)])
    alone = before.placement[ReplicaId(SHARD, 1)]
    other = "b" if alone == "a" else "a"
    situation = Situation(0, here(other))
    decision = next_layout(TOPOLOGY, situation, before, transfers=0)
    after = before if decision is None else decision.layout
    assert ReplicaId(SHARD, 1) in after.placement
    assert not losses(before, after, situation)


def test_a_disk_that_was_lost_is_told_apart() -> None:
    assert decided(layout(), here("ab", b="another disk")) == {"disk_lost": 2}


def test_a_replica_that_stopped_is_one() -> None:
    assert decided(layout(), here("ab"), stopped={ReplicaId(SHARD, 1): "it diverged"}) == {"replica_stopped": 1}


def test_an_ingress_that_the_others_went_on_without_is_one() -> None:
    before = layout()
    left = frozenset(list(before.nodes_of(INGRESS))[:1])
    assert decided(before, here("ab"), in_sync=left) == {"out_of_sync": 1}


def test_what_was_asked_for_is_none() -> None:
    before = layout("abc")
    drained = before.placement[ReplicaId(SHARD, 0)]
    assert decided(before, here("abc"), draining=frozenset({drained})) == {}
    assert decided(before, here("abc"), renewed=[ReplicaId(SHARD, 1)]) == {}


def test_one_that_did_not_count_yet_is_none() -> None:
    before, newcomer = layout("ab").with_joining(SHARD, "c")
    before = replace(before, nodes={**before.nodes, "c": DISKS["c"]})
    situation = Situation(0, here("ab"))
    assert not losses(before, before.without([newcomer]), situation)


def sync(version: int, leader: str, *members: str) -> InSync:
    return InSync(version, leader, frozenset(members or (leader,)), version)


def test_whoever_takes_the_lead_from_a_lost_leader_counts_it_once() -> None:
    a, b = Failovers("a"), Failovers("b")
    for node in (a, b):
        node.in_sync_changed(sync(1, "a", "a", "b"))
        node.in_sync_changed(sync(2, "b", "b"))
        node.in_sync_changed(sync(2, "b", "b"))
        node.in_sync_changed(sync(1, "a", "a", "b"))
    assert a.counts()["ingress_leader_lost"] == 0
    assert b.counts()["ingress_leader_lost"] == 1


def test_a_lead_that_is_kept_handed_over_or_found_is_not_a_failover() -> None:
    b = Failovers("b")
    b.in_sync_changed(sync(1, "b", "a", "b"))
    b.in_sync_changed(sync(2, "b", "b"))
    assert b.counts()["ingress_leader_lost"] == 0, "a follower was lost, which the layout tells"
    b.in_sync_changed(sync(3, "a", "a", "b"))
    b.layout_changed(replace(layout(), draining=frozenset({"a"})))
    b.in_sync_changed(sync(4, "b", "b"))
    assert b.counts()["ingress_leader_lost"] == 0, "its node was drained"


def test_all_causes_are_counted_from_zero() -> None:
    assert Failovers("a").counts() == dict.fromkeys(CAUSES, 0)
    counted = Failovers("a")
    before = layout()
    counted.decided(before, before.without(before.hosted("b")), Situation(0, here("a")))
    assert counted.counts() == {**dict.fromkeys(CAUSES, 0), "node_lost": 2}


def test_the_return_of_redundancy_is_counted_with_the_time_it_took() -> None:
    whole, other = layout(), ShardId("gone", 0)
    short = replace(whole, short_since={SHARD: 4_000, INGRESS: 5_000, other: 1_000})
    half = replace(whole, short_since={INGRESS: 5_000})
    assert recoveries_ms(short, half, 10_500) == [6_500], "a shard that is not there any more has not recovered"
    assert recoveries_ms(whole, short, 10_500) == []
    counted = Failovers("a")
    counted.decided(short, half, Situation(10_500, here("ab")))
    counted.decided(half, whole, Situation(12_000, here("ab")))
    assert counted.recovered() == RecoveryCounts(count=2, seconds=13.5)


def test_a_controller_whose_clock_is_behind_counts_no_negative_time() -> None:
    assert recoveries_ms(replace(layout(), short_since={SHARD: 9_000}), layout(), 8_000) == [0]

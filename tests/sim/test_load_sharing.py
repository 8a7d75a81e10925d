"""Replicas that share the load of a segment: the next in the ring takes a lost one's place, and gives it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unbroken.protocol.policies.load_sharing.messages import Record
from unbroken.protocol.policies.load_sharing.records import LoadSharing
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.notices.placement import PlaceReturned
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken_lab.sim.flows import chain
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.faults import FaultyCluster

PULSES = 40


def sharing(shards: int, nodes: int) -> FaultyCluster:
    """source > s0, in ``shards`` that share the load > sink."""
    topology = chain((shards,))
    strategy = Strategy(Ha.UPSTREAM, 1, shares=True)
    topology = replace(topology, strategies={"s0": strategy}, replicas={**topology.replicas, "s0": 1})
    return FaultyCluster(topology, nodes, PULSES, SETTINGS)


def node_of(cluster: FaultyCluster, index: int) -> str:
    return next(iter(cluster.layout.full_nodes_of(ShardId("s0", index))))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_successor_takes_the_place_and_gives_it_back(index: int) -> None:
    cluster = sharing(3, 3)
    cluster.run_until(lambda: cluster.delivered() >= 5)
    victim, successor = node_of(cluster, index), node_of(cluster, (index + 1) % 3)
    cluster.kill(victim)
    shard = ShardId("s0", index)
    cluster.run_until(lambda: list(cluster.layout.full_nodes_of(shard)) == [successor])
    assert cluster.layout.homes == {shard: victim}
    before = cluster.delivered()
    cluster.run_until(lambda: cluster.delivered() >= before + 3)
    cluster.boot(victim)
    cluster.run_until(lambda: list(cluster.layout.full_nodes_of(shard)) == [victim])
    cluster.run_until(lambda: not cluster.layout.homes)
    assert any(
        isinstance(one, PlaceReturned) and (one.replica.shard, one.node) == (shard, victim) for one in cluster.reports()
    )
    cluster.settle()


def test_a_survivor_of_two_works_in_both_places() -> None:
    cluster = sharing(2, 2)
    cluster.run_until(lambda: cluster.delivered() >= 5)
    victim, survivor = node_of(cluster, 0), node_of(cluster, 1)
    cluster.kill(victim)
    both = {ShardId("s0", 0), ShardId("s0", 1)}
    cluster.run_until(lambda: {r.shard for r in cluster.protocol(survivor).replicas} == both)
    cluster.settle()


def test_colleagues_know_what_a_lost_one_had_pending() -> None:
    cluster = sharing(3, 3)
    cluster.run_until(lambda: cluster.delivered() >= 8)
    lost = ReplicaId(ShardId("s0", 0), 0)
    known = [
        protocol.policies.of(LoadSharing).of(lost.shard)
        for name, protocol in cluster.protocols().items()
        if name != node_of(cluster, 0)
    ]
    records = [record for record in known if record is not None]
    assert records, "no colleague has a record"
    for record in records:
        assert record.replica == lost and 0 < record.purged <= record.pending


def test_records_only_grow() -> None:
    records = sharing(2, 2).protocol("node-1").policies.of(LoadSharing)
    replica = ReplicaId(ShardId("s0", 1), 0)
    records.received(Record(replica, 5, Rebuilt(5), 7))
    records.received(Record(replica, 4, Rebuilt(4), 9))
    records.received(Record(ReplicaId(replica.shard, 1), 3, Rebuilt(3), 3))
    assert records.of(replica.shard) == Record(replica, 5, Rebuilt(5), 7)
    assert records.of(ShardId("s0", 0)) is None

"""Replicas that share the load of a segment: the next in the ring takes a lost one's place, and gives it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.cluster_effects import SETTINGS
from protocol.cluster_model import Cluster
from protocol.model_parts import chain
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.replica.tuple_records import Record
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.strategy import Ha, Strategy

PULSES = 40


def sharing(shards: int, nodes: int) -> Cluster:
    """source > s0, in ``shards`` that share the load > sink."""
    topology = chain((shards,))
    strategy = Strategy(Ha.UPSTREAM, 1, shares=True)
    topology = replace(topology, strategies={"s0": strategy}, replicas={**topology.replicas, "s0": 1})
    return Cluster(topology, nodes, PULSES, SETTINGS)


def node_of(cluster: Cluster, index: int) -> str:
    return next(iter(cluster.store.layout.full_nodes_of(ShardId("s0", index))))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_successor_takes_the_place_and_gives_it_back(index: int) -> None:
    cluster = sharing(3, 3)
    cluster.run_until(lambda: cluster.delivered() >= 5)
    victim, successor = node_of(cluster, index), node_of(cluster, (index + 1) % 3)
    cluster.perform(("kill", victim))
    shard = ShardId("s0", index)
    cluster.run_until(lambda: list(cluster.store.layout.full_nodes_of(shard)) == [successor])
    assert cluster.store.layout.homes == {shard: victim}
    before = cluster.delivered()
    cluster.run_until(lambda: cluster.delivered() >= before + 3)
    cluster.perform(("boot", victim))
    cluster.run_until(lambda: list(cluster.store.layout.full_nodes_of(shard)) == [victim])
    cluster.run_until(lambda: not cluster.store.layout.homes)
    assert any(f"has the place of {shard} back on {victim}" in line for line in cluster.store.sentences)
    cluster.settle()


def test_a_survivor_of_two_works_in_both_places() -> None:
    cluster = sharing(2, 2)
    cluster.run_until(lambda: cluster.delivered() >= 5)
    victim, survivor = node_of(cluster, 0), node_of(cluster, 1)
    cluster.perform(("kill", victim))
    both = {ShardId("s0", 0), ShardId("s0", 1)}
    cluster.run_until(lambda: {r.shard for r in cluster.nodes[survivor].protocol.replicas} == both)
    cluster.settle()


def test_colleagues_know_what_a_lost_one_had_pending() -> None:
    cluster = sharing(3, 3)
    cluster.run_until(lambda: cluster.delivered() >= 8)
    lost = ReplicaId(ShardId("s0", 0), 0)
    known = [node.protocol.records.of(lost.shard) for node in cluster.nodes.values() if node.me != node_of(cluster, 0)]
    records = [record for record in known if record is not None]
    assert records, "no colleague has a record"
    for record in records:
        assert record.replica == lost and 0 < record.purged <= record.pending


def test_records_only_grow() -> None:
    records = sharing(2, 2).nodes["n0"].protocol.records
    replica = ReplicaId(ShardId("s0", 1), 0)
    records.received(Record(replica, 5, Rebuilt(5), 7))
    records.received(Record(replica, 4, Rebuilt(4), 9))
    records.received(Record(ReplicaId(replica.shard, 1), 3, Rebuilt(3), 3))
    assert records.of(replica.shard) == Record(replica, 5, Rebuilt(5), 7)
    assert records.of(ShardId("s0", 0)) is None

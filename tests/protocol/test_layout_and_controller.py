"""Placement, and the layout that follows from who is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.model_parts import chain, diamond, join
from unbroken.errors import InvariantViolation
from unbroken.protocol.controller import next_layout
from unbroken.protocol.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.layout import INGRESS, Layout, Topology, chained_placement


@given(st.integers(2, 6), st.integers(1, 3), st.booleans())
def test_replicas_of_a_shard_never_share_a_node(nodes: int, replicas: int, straight: bool) -> None:
    topology = chain((2, 3, 1), replicas) if straight else diamond(3, replicas)
    names = tuple(f"n{i}" for i in range(nodes))
    if replicas > nodes:
        with pytest.raises(InvariantViolation):
            chained_placement(topology, names)
        return
    layout = chained_placement(topology, names)
    for shard in topology.placed_shards:
        assert len(layout.nodes_of(shard)) == replicas


def test_a_layout_survives_being_written_down() -> None:
    layout = chained_placement(join(2), ("a", "b", "c")).without_nodes(["b"])
    assert Layout.from_json(layout.to_json()) == layout


def test_streams_follow_the_edges() -> None:
    topology: Topology = join(2)
    right = StreamId(ShardId("right", 0), ShardId("join", 1))
    assert right in topology.inputs(ShardId("join", 1))
    assert right in topology.outputs(ShardId("right", 0))
    assert topology.host_shard(right.producer) == INGRESS
    assert topology.is_sink(ShardId("sink", 0)) and not topology.is_sink(ShardId("join", 0))


def test_the_first_layout_waits_for_everybody() -> None:
    topology = chain((1,))
    assert next_layout(topology, 3, {"a", "b"}, None) is None
    decision = next_layout(topology, 2, {"c", "b", "a"}, None)
    assert decision is not None and decision[0].nodes == ("a", "b")


def test_a_lost_node_is_not_counted_and_does_not_come_back() -> None:
    topology = chain((1,))
    first = chained_placement(topology, ("a", "b"))
    decision = next_layout(topology, 2, {"a"}, first)
    assert decision is not None
    layout, sentence = decision
    assert layout.version == first.version + 1
    assert set(layout.nodes_of(ShardId("s0", 0))) == {"a"}
    assert sentence == "b lost; no longer waiting for ingress.0#1, s0.0#0"
    assert next_layout(topology, 2, {"a", "b"}, layout) is None


def test_a_stopped_replica_is_not_counted_on_a_node_that_is_well() -> None:
    topology = chain((1,))
    first = chained_placement(topology, ("a", "b"))
    stopped = ReplicaId(ShardId("s0", 0), 1)
    decision = next_layout(topology, 2, {"a", "b"}, first, [stopped])
    assert decision is not None
    layout, sentence = decision
    assert layout.lost == {stopped}
    assert sentence == "s0.0#1 stopped; no longer waiting for s0.0#1"
    assert next_layout(topology, 2, {"a", "b"}, layout, [stopped]) is None

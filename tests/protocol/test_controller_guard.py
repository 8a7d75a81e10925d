"""The controller never gives up the last replica of a shard, whatever it sees of nodes and replicas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.model_parts import chain, diamond
from unbroken.protocol.controller import next_layout
from unbroken.protocol.ids import ReplicaId, ShardId
from unbroken.protocol.layout import INGRESS, Layout, chained_placement

S0 = ShardId("s0", 0)
A, B = ReplicaId(S0, 1), ReplicaId(S0, 0)
"""The replicas of the only segment of ``chain((1,))`` on nodes a and b."""

NODES = ("a", "b", "c")


def two_nodes() -> Layout:
    layout = chained_placement(chain((1,)), ("a", "b"))
    assert layout.placement[A] == "a" and layout.placement[B] == "b"
    return layout


def test_nothing_is_dropped_when_everybody_is_out_of_sight() -> None:
    assert next_layout(chain((1,)), 2, set(), two_nodes()) is None


def test_whoever_comes_back_first_replaces_the_others() -> None:
    decision = next_layout(chain((1,)), 2, {"b"}, two_nodes())
    assert decision is not None and decision[0].counted(S0) == {B}


def test_the_last_replica_is_kept_when_its_node_goes_after_the_others() -> None:
    topology = chain((1,))
    decision = next_layout(topology, 2, {"b"}, two_nodes())
    assert decision is not None
    assert next_layout(topology, 2, set(), decision[0]) is None


def test_the_last_replica_is_kept_when_it_stops() -> None:
    topology = chain((1,))
    decision = next_layout(topology, 2, {"a", "b"}, two_nodes(), [A])
    assert decision is not None
    assert next_layout(topology, 2, {"a", "b"}, decision[0], [A, B]) is None
    assert next_layout(topology, 2, {"a", "b"}, two_nodes(), [A, B]) is None


def test_a_node_out_of_sight_is_kept_rather_than_a_stopped_replica() -> None:
    decision = next_layout(chain((1,)), 2, {"b"}, two_nodes(), [B])
    assert decision is not None
    layout, sentence = decision
    assert layout.counted(S0) == {A}
    assert layout.counted(INGRESS) == {ReplicaId(INGRESS, 1)}
    assert sentence == (
        "a lost, s0.0#0 stopped; no longer waiting for ingress.0#0, s0.0#0; "
        "still counting s0.0#1, as nothing else is left of the shard"
    )


steps = st.tuples(
    st.sets(st.sampled_from(NODES)),
    st.sets(st.tuples(st.sampled_from(["s0.0", "s1.0", "s1.2", "b.0", "d.0", "ingress.0"]), st.integers(0, 1))),
)


@given(st.booleans(), st.lists(steps, max_size=8))
def test_every_shard_keeps_a_replica(straight: bool, seen: list[tuple[set[str], set[tuple[str, int]]]]) -> None:
    topology = chain((1, 3)) if straight else diamond(2)
    layout = chained_placement(topology, NODES)
    for present, ended in seen:
        stopped = [ReplicaId(ShardId.parse(shard), index) for shard, index in ended]
        decision = next_layout(topology, 3, present, layout, stopped)
        if decision is None:
            continue
        following = decision[0]
        assert following.lost > layout.lost
        assert all(following.counted(shard) for shard in topology.placed_shards)
        assert next_layout(topology, 3, present, following, stopped) is None
        layout = following

"""The controller never gives up what is left of a shard, whatever it sees of nodes and replicas."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.topologies import chain, diamond
from unbroken.coordination.documents import LAYOUT
from unbroken.protocol.placement.controller import Decision, Situation, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices.placement import LastReplicasAwaited, ReplicasDropped

S0 = ShardId("s0", 0)
A, B = ReplicaId(S0, 1), ReplicaId(S0, 0)
"""The replicas of the only segment of ``chain((1,))`` on nodes a and b."""

NODES = {"a": "disk a", "b": "disk b", "c": "disk c"}
TWO = {"a": "disk a", "b": "disk b"}


def two_nodes() -> Layout:
    layout = chained_placement(chain((1,)), TWO)
    assert layout.placement[A] == "a" and layout.placement[B] == "b"
    return layout


def decide(
    present: set[NodeId], stopped: list[ReplicaId], current: Layout, topology: Topology | None = None
) -> Decision | None:
    """Without a limit of transfers reached, so that nothing is placed."""
    there = {node: NODES[node] for node in sorted(present)}
    return next_layout(
        topology or chain((1,)), Situation(0, there, stopped=dict.fromkeys(stopped, "broken")), current, transfers=0
    )


def test_nothing_is_dropped_when_everybody_is_out_of_sight() -> None:
    decision = decide(set(), [], two_nodes())
    assert decision is not None and decision.layout.placement == two_nodes().placement
    assert set(decision.layout.short_since) == {INGRESS, S0}
    assert decide(set(), [], decision.layout) is None


def test_whoever_comes_back_first_replaces_the_others() -> None:
    decision = decide({"b"}, [], two_nodes())
    assert decision is not None and decision.layout.counted(S0) == {B}


def test_the_last_replica_is_kept_when_its_node_goes_after_the_others() -> None:
    decision = decide({"b"}, [], two_nodes())
    assert decision is not None
    assert decide(set(), [], decision.layout) is None


def test_the_last_replica_is_kept_when_it_stops() -> None:
    decision = decide({"a", "b"}, [A], two_nodes())
    assert decision is not None and decision.layout.counted(S0) == {B}
    assert decide({"a", "b"}, [A, B], decision.layout) is None
    both = decide({"a", "b"}, [A, B], two_nodes())
    assert both is not None and both.layout.counted(S0) == {A, B}


def test_a_node_out_of_sight_and_a_stopped_replica_are_both_kept() -> None:
    """The stopped one may only have been given up for being slow, the other one may be gone for good."""
    decision = decide({"b"}, [B], two_nodes())
    assert decision is not None
    assert decision.layout.counted(S0) == {A, B}
    assert decision.layout.counted(INGRESS) == {ReplicaId(INGRESS, 1)}
    assert decision.notices[:2] == (
        ReplicasDropped((ReplicaId(INGRESS, 0),), lost=("a",)),
        LastReplicasAwaited(tuple(sorted((A, B)))),
    )
    following = decide({"a", "b"}, [B], decision.layout)
    assert following is not None and following.layout.counted(S0) == {A}


def test_a_joining_replica_is_kept_when_nothing_else_is_left() -> None:
    layout, newcomer = two_nodes().without([B]).with_joining(S0, "b")
    wiped = {"a": "another disk"}
    decision = next_layout(chain((1,)), Situation(0, wiped), layout, transfers=0)
    assert decision is not None and decision.layout.counted(S0) == {newcomer}


steps = st.tuples(
    st.sets(st.sampled_from(list(NODES))),
    st.sets(st.tuples(st.sampled_from(["s0.0", "s1.0", "s1.2", "b.0", "d.0", "ingress.0"]), st.integers(0, 1))),
)


@settings(deadline=None)
@given(st.booleans(), st.integers(0, 2), st.lists(steps, max_size=8))
def test_every_shard_keeps_a_replica(
    straight: bool, transfers: int, seen: list[tuple[set[str], set[tuple[str, int]]]]
) -> None:
    topology = chain((1, 3)) if straight else diamond(2)
    layout = chained_placement(topology, NODES)
    for present, ended in seen:
        stopped = [ReplicaId(ShardId.parse(shard), index) for shard, index in ended]
        situation = Situation(
            0, {node: NODES[node] for node in sorted(present)}, stopped=dict.fromkeys(stopped, "broken")
        )
        decision = next_layout(topology, situation, layout, transfers)
        if decision is None:
            continue
        following = decision.layout
        following.check()
        assert following.version == layout.version + 1
        assert all(following.full(shard) for shard in topology.placed_shards)
        assert len(following.joining) <= max(transfers, len(layout.joining))
        assert next_layout(topology, situation, following, transfers) is None, "decided at once"
        layout = following


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    some_nodes = st.frozensets(st.sampled_from(list(NODES)))
    return {
        "present": {node: f"disk {node}{draw(st.sampled_from(['', '', '', ' again']))}" for node in draw(some_nodes)},
        "in_sync": draw(some_nodes),
        "draining": draw(some_nodes) if draw(st.integers(0, 3)) == 0 else frozenset(),
        "ready": draw(st.booleans()),
        "stopped": draw(st.integers(0, 9)),
        "renewed": draw(st.integers(0, 9)),
        "transfers": draw(st.integers(0, 3)),
    }


def _logs(layout: Layout, situation: Situation) -> list[ReplicaId]:
    """The replicas that hold the whole log of the ingress."""
    present, nodes = situation.present, layout.nodes
    hosts = {node: replica for node, replica in layout.full_nodes_of(INGRESS).items() if node in situation.in_sync}
    return [replica for node, replica in hosts.items() if present.get(node, nodes[node]) == nodes[node]]


@settings(deadline=None)
@given(st.booleans(), st.lists(situations(), max_size=10))
def test_a_decision_is_sound_and_final_whatever_the_situation(straight: bool, seen: list[dict[str, Any]]) -> None:
    topology = chain((1, 2)) if straight else diamond(1)
    layout = chained_placement(topology, NODES)
    for now, drawn in enumerate(seen):
        replicas = sorted(layout.placement)
        situation = Situation(
            now,
            drawn["present"],
            stopped=dict.fromkeys(replicas[drawn["stopped"] :][:1], "broken"),
            caught_up=layout.joining if drawn["ready"] else (),
            in_sync=drawn["in_sync"],
            draining=drawn["draining"],
            renewed=replicas[drawn["renewed"] :][:1],
        )
        decision = next_layout(topology, situation, layout, drawn["transfers"])
        if decision is None:
            continue
        following = decision.layout
        following.check()
        assert LAYOUT.decode(LAYOUT.encode(following)) == following
        if _logs(layout, situation):
            assert _logs(following, situation), "the log of the ingress was given up"
        assert all(following.next_index[shard] >= index for shard, index in layout.next_index.items())
        again = next_layout(topology, situation, following, drawn["transfers"])
        assert again is None, f"{decision.notices} and then {again.notices}"
        layout = following

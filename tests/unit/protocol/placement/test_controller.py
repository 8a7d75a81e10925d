"""Placement, and the layout that follows from who is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.topologies import chain, diamond, join
from unbroken.coordination.documents import LAYOUT
from unbroken.errors import InvariantViolation
from unbroken.protocol.placement.controller import Decision, Situation, first_layout, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices.placement import (
    FirstLayoutRefused,
    NodeDrained,
    NodeDraining,
    NodeReady,
    Purpose,
    ReplicaJoined,
    ReplicaPlaced,
    ReplicaRenewed,
    ReplicasDropped,
    ShardRedundant,
)

S0, S1 = ShardId("s0", 0), ShardId("s1", 0)
DISKS = {name: f"disk {name}" for name in "abcde"}


def disks(names: str) -> dict[str, str]:
    return {name: DISKS[name] for name in names}


def layout_on(names: str, topology: Topology | None = None) -> Layout:
    return chained_placement(topology or chain((1,)), disks(names))


def decide(current: Layout, situation: Situation, topology: Topology | None = None, transfers: int = 9) -> Decision:
    decision = next_layout(topology or chain((1,)), situation, current, transfers)
    assert decision is not None
    decision.layout.check()
    assert decision.layout.version == current.version + 1
    return decision


# --- layouts ------------------------------------------------------------------------------------------------


@given(st.integers(2, 6), st.integers(1, 3), st.booleans())
def test_replicas_of_a_shard_never_share_a_node(nodes: int, replicas: int, straight: bool) -> None:
    topology = chain((2, 3, 1), replicas) if straight else diamond(3, replicas)
    names = {f"n{i}": f"disk {i}" for i in range(nodes)}
    if replicas > nodes:
        with pytest.raises(InvariantViolation):
            chained_placement(topology, names)
        return
    layout = chained_placement(topology, names)
    for shard in topology.placed_shards:
        assert len(layout.nodes_of(shard)) == replicas


def test_a_layout_survives_being_written_down() -> None:
    layout = chained_placement(join(2), disks("abc")).without_nodes(["b"])
    layout, newcomer = layout.with_joining(ShardId("join", 0), "c")
    layout = replace(layout, draining=frozenset("a"), short_since={INGRESS: 12_345})
    assert newcomer in layout.joining
    assert LAYOUT.decode(LAYOUT.encode(layout)) == layout


def test_a_name_is_never_used_twice() -> None:
    layout, first = layout_on("ab").without_nodes(["b"]).with_joining(S0, "b")
    layout, second = layout.without([first]).with_joining(S0, "b")
    assert (first.index, second.index) == (2, 3)
    assert layout.full(S0) == {ReplicaId(S0, 1)} and layout.counted(S0) == {ReplicaId(S0, 1), second}
    assert layout.with_full([second]).full(S0) == layout.counted(S0)


def test_streams_follow_the_edges() -> None:
    topology: Topology = join(2)
    right = StreamId(ShardId("right", 0), ShardId("join", 1))
    assert right in topology.inputs(ShardId("join", 1))
    assert right in topology.outputs(ShardId("right", 0))
    assert topology.host_shard(right.producer) == INGRESS
    assert topology.is_sink(ShardId("sink", 0)) and not topology.is_sink(ShardId("join", 0))


# --- the controller -----------------------------------------------------------------------------------------


def test_the_first_layout_waits_for_everybody() -> None:
    topology = chain((1,))
    fresh = dict.fromkeys("abc", "")
    assert first_layout(topology, 3, disks("ab"), fresh, "r") is None
    decision = first_layout(topology, 2, disks("cba"), fresh, "r")
    assert isinstance(decision, Decision) and decision.layout.nodes == disks("ab") and decision.layout.run == "r"


def test_a_flow_whose_disks_belong_to_a_run_is_not_begun_anew() -> None:
    """Also if the only such disk is that of a standby, or more nodes than are wanted have fresh ones."""
    for runs in ({"a": "old", "b": ""}, {"a": "", "b": "", "standby": "old"}, dict.fromkeys("abc", "old")):
        decision = first_layout(chain((1,)), 2, disks("ab"), runs, "new")
        assert isinstance(decision, FirstLayoutRefused) and set(decision.runs) == {"old"}
        assert set(decision.nodes) == {node for node, run in runs.items() if run}


def test_nothing_changes_while_all_is_well() -> None:
    assert next_layout(chain((1,)), Situation(0, disks("ab")), layout_on("ab"), 2) is None


def test_a_lost_node_is_not_counted_and_its_replicas_are_placed_elsewhere() -> None:
    decision = decide(layout_on("ab"), Situation(0, disks("ac")))
    assert decision.notices == (
        ReplicasDropped((ReplicaId(INGRESS, 1), ReplicaId(S0, 0)), lost=("b",)),
        NodeReady("c"),
        ReplicaPlaced(ReplicaId(INGRESS, 2), "c", Purpose.REDUNDANCY),
        ReplicaPlaced(ReplicaId(S0, 2), "c", Purpose.REDUNDANCY),
    )
    assert decision.layout.nodes == disks("ac")
    assert decision.layout.joining == {ReplicaId(INGRESS, 2), ReplicaId(S0, 2)}
    assert decision.layout.short_since == {INGRESS: 0, S0: 0}


def test_a_node_that_comes_back_with_its_disk_begins_again_as_a_newcomer() -> None:
    lost = decide(layout_on("ab"), Situation(0, disks("a"))).layout
    assert not lost.joining, "there is nowhere to go"
    back = decide(lost, Situation(0, disks("ab"))).layout
    assert back.nodes_of(S0) == {"a": ReplicaId(S0, 1), "b": ReplicaId(S0, 2)}


def test_replacements_begin_next_to_the_sources_and_keep_to_the_limit() -> None:
    topology = chain((1, 1))
    layout = layout_on("abc", topology)
    decision = decide(layout.without_nodes(["c"]), Situation(0, disks("abd")), topology, transfers=1)
    assert [str(replica) for replica in decision.layout.joining] == ["s0.0#2"], "the ingress lost nothing"
    following = decide(decision.layout, Situation(0, disks("abd"), caught_up=[ReplicaId(S0, 2)]), topology, transfers=1)
    assert [str(replica) for replica in following.layout.joining] == ["s1.0#2"]


def test_the_node_with_least_to_do_is_taken_and_idle_standbys_come_first() -> None:
    topology = chain((1, 1, 1))
    layout = layout_on("abc", topology)
    lost = {ReplicaId(S0, 0)}
    host = layout.placement[ReplicaId(S0, 0)]
    idle = decide(layout, Situation(0, disks("abcd"), stopped=dict.fromkeys(lost, "")), topology)
    assert idle.layout.placement[ReplicaId(S0, 2)] == "d"
    free = {node: len(layout.hosted(node)) for node in "abc" if node not in layout.full_nodes_of(S0) or node == host}
    busy = decide(layout, Situation(0, disks("abc"), stopped=dict.fromkeys(lost, "")), topology)
    assert busy.layout.placement[ReplicaId(S0, 2)] in free


def test_a_shard_is_not_placed_where_it_has_just_failed() -> None:
    stopped = [ReplicaId(S0, 1)]
    situation = Situation(0, disks("abc"), stopped=dict.fromkeys(stopped, ""), avoid={(S0, "c"), (S0, "a")})
    decision = decide(layout_on("ab"), situation)
    assert decision.notices[0] == ReplicasDropped((ReplicaId(S0, 1),), stopped=(ReplicaId(S0, 1),))
    assert set(decision.layout.nodes_of(S0)) == {"b"}
    allowed = decide(layout_on("ab"), replace(situation, avoid={(S0, "c")}))
    assert set(allowed.layout.nodes_of(S0)) == {"a", "b"}


def test_a_newcomer_that_has_caught_up_counts_and_the_time_is_told() -> None:
    short = decide(layout_on("ab"), Situation(1_000, disks("ac"))).layout
    [newcomer] = short.joining & short.counted(S0)
    decision = decide(short, Situation(3_500, disks("ac"), caught_up=[newcomer]))
    assert decision.notices == (ReplicaJoined(ReplicaId(S0, 2), "c"), ShardRedundant(S0, 2.5))
    assert S0 not in decision.layout.short_since and INGRESS in decision.layout.short_since


def test_a_newcomer_that_is_gone_or_has_stopped_does_not_count() -> None:
    layout, newcomer = layout_on("ab").without([ReplicaId(S0, 0)]).with_joining(S0, "b")
    stopped = decide(layout, Situation(0, disks("ab"), stopped={newcomer: "slow"}, caught_up=[newcomer])).layout
    assert newcomer not in stopped.placement
    gone = decide(layout, Situation(0, disks("a"), caught_up=[newcomer])).layout
    assert newcomer not in gone.placement


def test_a_node_with_another_disk_has_lost_its_replicas() -> None:
    present = {"a": DISKS["a"], "b": "another disk"}
    decision = decide(layout_on("ab"), Situation(0, present))
    assert decision.notices[0] == ReplicasDropped((ReplicaId(INGRESS, 1), ReplicaId(S0, 0)), without_disk=("b",))
    assert decision.layout.nodes == present
    assert decision.layout.replica_on("b", S0) == ReplicaId(S0, 2)


def test_what_exists_nowhere_is_not_waited_for_and_comes_from_a_snapshot_if_there_is_one() -> None:
    layout = layout_on("ab").without([ReplicaId(S0, 1)])
    present = {"a": DISKS["a"], "b": "another disk"}
    lost = decide(layout, Situation(0, present)).layout
    assert not lost.counted(S0)
    restored = decide(layout, Situation(0, present, restorable=True)).layout
    assert restored.joining >= restored.counted(S0) != frozenset()


# --- the ingress --------------------------------------------------------------------------------------------


def test_a_member_that_the_others_went_on_without_is_built_again() -> None:
    decision = decide(layout_on("ab"), Situation(0, disks("ab"), in_sync=frozenset("a")))
    assert ReplicasDropped((ReplicaId(INGRESS, 1),), stopped=(ReplicaId(INGRESS, 1),)) in decision.notices
    assert decision.layout.replica_on("b", INGRESS) == ReplicaId(INGRESS, 2)


def test_a_newcomer_of_the_ingress_counts_only_as_a_member() -> None:
    layout, newcomer = layout_on("ab").without([ReplicaId(INGRESS, 1)]).with_joining(INGRESS, "b")
    early = Situation(0, disks("ab"), caught_up=[newcomer], in_sync=frozenset("a"))
    decision = next_layout(chain((1,)), early, layout, 9)
    assert decision is None or newcomer in decision.layout.joining
    decision = decide(layout, replace(early, in_sync=frozenset("ab")))
    assert newcomer in decision.layout.full(INGRESS)


def test_a_joining_member_is_kept_when_it_alone_has_the_log() -> None:
    layout, newcomer = layout_on("ab").without([ReplicaId(INGRESS, 1)]).with_joining(INGRESS, "b")
    alone = Situation(0, disks("a"), in_sync=frozenset("b"))
    decision = next_layout(chain((1,)), alone, layout, 0)
    assert decision is not None and newcomer in decision.layout.placement
    draining = Situation(0, disks("ab"), in_sync=frozenset("b"), draining=frozenset("b"))
    decision = next_layout(chain((1,)), draining, layout, 0)
    assert decision is not None and newcomer in decision.layout.placement


# --- wishes -------------------------------------------------------------------------------------------------


def test_a_node_is_drained_without_a_moment_of_less_redundancy() -> None:
    begun = decide(layout_on("ab"), Situation(0, disks("abc"), draining=frozenset("b")))
    assert begun.notices[1] == NodeDraining("b", 2)
    assert set(begun.layout.hosted("b")) == {ReplicaId(INGRESS, 1), ReplicaId(S0, 0)}
    newcomers = begun.layout.joining
    assert {begun.layout.placement[replica] for replica in newcomers} == {"c"}
    done = decide(
        begun.layout, Situation(0, disks("abc"), caught_up=newcomers, draining=frozenset("b"), in_sync=frozenset("abc"))
    )
    assert not done.layout.hosted("b")
    assert NodeDrained("b") in done.notices
    assert next_layout(chain((1,)), Situation(0, disks("abc"), draining=frozenset("b")), done.layout, 9) is None
    assert not decide(done.layout, Situation(0, disks("abc"))).layout.draining


def test_a_replica_is_renewed_in_its_place_while_there_is_another() -> None:
    replica = ReplicaId(S0, 0)
    decision = decide(layout_on("ab"), Situation(0, disks("ab"), renewed=[replica]))
    assert decision.notices == (ReplicaRenewed(replica, "b", (ReplicaId(S0, 2),)),)
    assert decision.layout.placement[ReplicaId(S0, 2)] == "b"
    alone = Situation(0, disks("ab"), stopped={ReplicaId(S0, 1): "slow"}, renewed=[replica])
    assert replica in decide(layout_on("ab"), alone).layout.placement

"""Whole-dataflow pairs: copies that feed themselves, are given up and built again as wholes, under every fault that
leaves one of them intact."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.coordination.documents import LAYOUT
from unbroken.protocol.events import Received
from unbroken.protocol.messages import Missing
from unbroken.protocol.placement.controller import Decision, Situation, first_layout, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.repair.catchup import Phase
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices.placement import (
    CopyDropped,
    CopyJoined,
    FlowRedundant,
    NodeDrained,
    ReplicasDropped,
)
from unbroken_lab.sim.flows import chain, diamond, join
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.copies import WholeCluster, copy_on, pick_copies, segments_of
from unbroken_lab.sim.steps.kernel import Step
from unbroken_lab.sim.steps.schedules import run_schedule, schedules

CHAIN = replace(chain((1, 2)), whole=True)
S0, S1 = ShardId("s0", 0), ShardId("s1", 0)
DISKS = {name: f"disk of {name}" for name in "abc"}


@pytest.mark.parametrize("seed", schedules(8))
def test_random_schedule(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.05, pick=pick_copies)


# --- placement --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("topology", [chain((1, 3)), diamond(2), join(2)], ids=["chain", "diamond", "join"])
def test_each_node_that_takes_part_has_all_of_the_dataflow(topology: Topology, replicas: int) -> None:
    topology = replace(topology, whole=True, replicas=dict.fromkeys(topology.replicas, replicas))
    decision = first_layout(topology, 3, DISKS, {}, "r")
    assert isinstance(decision, Decision)
    for node in DISKS:
        index = sorted(DISKS).index(node)
        here = [ReplicaId(shard, index) for shard in topology.placed_shards] if index < replicas else []
        assert decision.layout.hosted(node) == sorted(here)
    assert set(decision.layout.nodes) == set(DISKS)


# --- decisions --------------------------------------------------------------------------------------------


def first(nodes: str = "ab") -> Layout:
    return chained_placement(CHAIN, {name: DISKS[name] for name in nodes})


def decide(layout: Layout, present: str = "abc", **facts: Any) -> Decision:
    """The next decision; the one after it changes nothing."""
    situation = Situation(1_000, {name: DISKS[name] for name in present}, **facts)
    decision = next_layout(CHAIN, situation, layout, transfers=1)
    assert decision is not None
    assert next_layout(CHAIN, situation, decision.layout, transfers=1) is None
    return decision


def shards_on(layout: Layout, node: NodeId) -> set[ShardId]:
    return {replica.shard for replica in layout.hosted(node)}


def hosts(layout: Layout) -> set[NodeId]:
    return {node for node in layout.nodes if copy_on(layout, node)}


EVERYTHING = set(CHAIN.placed_shards)


def test_a_stopped_replica_takes_its_copy_with_it_and_the_log_stays_until_it_is_safe_elsewhere() -> None:
    decision = decide(first(), stopped={ReplicaId(S1, 0): "the disk is full"}, in_sync=frozenset("ab"))
    layout = decision.layout
    assert layout.hosted("a") == [ReplicaId(INGRESS, 0)]
    assert shards_on(layout, "c") == EVERYTHING and layout.joining == set(layout.hosted("c"))
    assert {replica.index for replica in layout.hosted("c")} == {2}
    stopped = ReplicaId(S1, 0)
    assert ReplicasDropped((stopped,), stopped=(stopped,)) in decision.notices
    assert CopyDropped(("a",), (ReplicaId(S0, 0), ReplicaId(ShardId("s1", 1), 0))) in decision.notices

    ready = decide(layout, caught_up=layout.joining, in_sync=frozenset("abc")).layout
    assert not ready.joining and not ready.hosted("a")
    assert shards_on(ready, "b") == shards_on(ready, "c") == EVERYTHING


def test_without_another_node_a_copy_is_built_again_where_it_was_with_the_log_that_is_there() -> None:
    layout = decide(first(), "ab", stopped={ReplicaId(S0, 0): "the disk is full"}, in_sync=frozenset("ab")).layout
    assert shards_on(layout, "a") == EVERYTHING
    assert layout.joining == copy_on(layout, "a") and layout.replica_on("a", INGRESS) == ReplicaId(INGRESS, 0)


def test_a_lost_node_is_replaced_by_one_node_whatever_the_limit_of_transfers() -> None:
    layout = decide(first(), "bc").layout
    assert hosts(layout) == {"b", "c"} and shards_on(layout, "c") == EVERYTHING


def test_a_copy_counts_when_all_of_it_has_caught_up_and_then_at_once() -> None:
    layout = decide(first(), "bc").layout
    for late in sorted(layout.joining):
        situation = Situation(5_000, {name: DISKS[name] for name in "bc"}, caught_up=layout.joining - {late})
        decision = next_layout(CHAIN, situation, layout, 1)
        waiting = layout.joining if decision is None else decision.layout.joining
        assert waiting >= copy_on(layout, "c"), "the log may count before the copy, nothing else"
    decision = decide(layout, "bc", caught_up=layout.joining)
    assert not decision.layout.joining
    copy = tuple(ReplicaId(shard, 2) for shard in (S0, S1, ShardId("s1", 1)))
    assert CopyJoined("c", copy) in decision.notices and FlowRedundant(0.0) in decision.notices


def test_a_member_that_the_ingress_went_on_without_gets_its_log_again_and_keeps_its_copy() -> None:
    layout = decide(first(), in_sync=frozenset("a")).layout
    assert copy_on(layout, "b") == copy_on(first(), "b")
    assert layout.joining == {ReplicaId(INGRESS, 2)} and layout.placement[ReplicaId(INGRESS, 2)] == "b"


def test_the_only_member_of_the_ingress_is_not_given_up_with_its_copy() -> None:
    layout = decide(first(), "ab", stopped={ReplicaId(S0, 0): "broken"}, in_sync=frozenset("a")).layout
    assert layout.replica_on("a", INGRESS) == ReplicaId(INGRESS, 0)
    assert layout.full(INGRESS) == {ReplicaId(INGRESS, 0)}
    assert copy_on(layout, "b") == copy_on(first(), "b"), "it only waits for a log"


def test_while_no_copy_is_sound_one_out_of_sight_is_kept_as_a_whole() -> None:
    """It may be all that is left, and it may return."""
    situation = Situation(0, {"a": DISKS["a"]}, stopped={ReplicaId(S0, 0): "broken"}, in_sync=frozenset("ab"))
    decision = next_layout(CHAIN, situation, first(), 1)
    layout = first() if decision is None else decision.layout
    assert copy_on(layout, "a") == copy_on(first(), "a") and copy_on(layout, "b") == copy_on(first(), "b")
    back = decide(layout, "ab", stopped={ReplicaId(S0, 0): "broken"}, in_sync=frozenset("ab")).layout
    assert copy_on(back, "b") == copy_on(first(), "b")
    assert copy_on(back, "a") == {replica for replica in back.joining if replica.shard != INGRESS}


def test_when_all_copies_are_damaged_each_is_mended_with_what_the_others_have() -> None:
    damaged = {ReplicaId(S0, 0): "broken", ReplicaId(S1, 1): "broken"}
    layout = decide(first(), "ab", stopped=damaged, in_sync=frozenset("ab")).layout
    assert not set(damaged) & set(layout.placement)
    assert shards_on(layout, "a") == shards_on(layout, "b") == EVERYTHING
    assert {(replica.shard, layout.placement[replica]) for replica in layout.joining} == {(S0, "a"), (S1, "b")}


def test_a_drained_copy_moves_as_a_whole_and_leaves_when_the_other_counts() -> None:
    layout = decide(first(), draining=frozenset("a"), in_sync=frozenset("ab")).layout
    assert layout.hosted("a") == first().hosted("a") and shards_on(layout, "c") == EVERYTHING
    decision = decide(layout, draining=frozenset("a"), in_sync=frozenset("abc"), caught_up=layout.joining)
    assert not decision.layout.hosted("a") and not decision.layout.joining
    assert NodeDrained("a") in decision.notices


def test_a_copy_is_built_again_as_a_whole_when_that_is_asked_of_one_replica() -> None:
    layout = decide(first(), renewed=[ReplicaId(S0, 1)], in_sync=frozenset("ab")).layout
    assert layout.joining == copy_on(layout, "b") and len(layout.joining) == len(segments_of(CHAIN))
    assert layout.replica_on("b", INGRESS) == ReplicaId(INGRESS, 1)
    layout = decide(first(), renewed=[ReplicaId(INGRESS, 1)], in_sync=frozenset("ab")).layout
    assert layout.joining == {layout.replica_on("b", INGRESS)}


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    some_nodes = st.frozensets(st.sampled_from("abcd"))
    return {
        "present": {node: f"disk {node}{draw(st.sampled_from(['', '', '', ' again']))}" for node in draw(some_nodes)},
        "in_sync": draw(some_nodes),
        "draining": draw(some_nodes) if draw(st.integers(0, 3)) == 0 else frozenset(),
        "suspected": draw(some_nodes) if draw(st.integers(0, 3)) == 0 else frozenset(),
        "avoid": {(S0, node) for node in draw(some_nodes)} if draw(st.integers(0, 3)) == 0 else set(),
        "ready": draw(st.booleans()),
        "stopped": draw(st.sets(st.integers(0, 12), max_size=2)),
        "renewed": draw(st.integers(0, 20)),
    }


@settings(deadline=None)
@given(st.integers(2, 3), st.lists(situations(), max_size=6))
def test_a_decision_is_sound_and_final_whatever_the_situation(replicas: int, seen: list[dict[str, Any]]) -> None:
    topology = replace(chain((1, 2), replicas), whole=True)
    layout = chained_placement(topology, {node: f"disk {node}" for node in "abcd"})
    for now, drawn in enumerate(seen):
        placed = sorted(layout.placement)
        facts = {key: drawn[key] for key in ("present", "in_sync", "draining", "suspected", "avoid")}
        situation = Situation(
            now,
            **facts,
            stopped={placed[i]: "broken" for i in drawn["stopped"] if i < len(placed)},
            caught_up=layout.joining if drawn["ready"] else (),
            renewed=placed[drawn["renewed"] :][:1],
        )
        decision = next_layout(topology, situation, layout, transfers=1)
        if decision is None:
            continue
        following = decision.layout
        following.check()
        assert LAYOUT.decode(LAYOUT.encode(following)) == following
        lost = set(_beyond_help(layout, situation))
        assert all(following.full(shard) for shard in topology.placed_shards if layout.full(shard) - lost)
        assert all(following.next_index[shard] >= index for shard, index in layout.next_index.items())
        layout = _final(topology, situation, following)


def _final(topology: Topology, situation: Situation, layout: Layout) -> Layout:
    """What the controller comes to rest at. An order that was waiting may be carried out with the next decision."""
    for _ in range(DECISIONS):
        decision = next_layout(topology, situation, layout, transfers=1)
        if decision is None:
            return layout
        decision.layout.check()
        layout = decision.layout
    raise AssertionError(f"{DECISIONS} decisions, and no end: {layout}")


DECISIONS = 3


def _beyond_help(layout: Layout, situation: Situation) -> Collection[ReplicaId]:
    """Replicas whose disks are lost, and logs that the members of the ingress went on without."""
    wiped = {r for r, n in layout.placement.items() if situation.present.get(n, layout.nodes[n]) != layout.nodes[n]}
    outside = {r for r in layout.counted(INGRESS) if layout.placement[r] not in situation.in_sync}
    return wiped | (outside if situation.in_sync else set())


# --- copies at work ---------------------------------------------------------------------------------------


def running(nodes: int = 2, standbys: int = 1, topology: Topology = CHAIN, pulses: int = 20) -> WholeCluster:
    cluster = WholeCluster(topology, nodes, pulses, SETTINGS, standbys=standbys, transfers=1)
    cluster.run_until(lambda: cluster.delivered() >= 3)
    return cluster


def feeds(cluster: WholeCluster) -> dict[NodeId, set[NodeId]]:
    """From which nodes each node takes input."""
    return {
        name: {giver for r in protocol.replicas.values() for feed in r.feeds.values() for giver in feed.subscribed}
        for name, protocol in cluster.protocols().items()
    }


@pytest.mark.parametrize("single", [False, True], ids=["duplicate", "single"])
def test_a_copy_takes_its_input_from_nobody_else(single: bool) -> None:
    """The model asserts it of every subscription; the other way round, each copy does feed itself."""
    settings = replace(SETTINGS, single_delivery=single)
    cluster = WholeCluster(CHAIN, 3, 12, settings, standbys=1)
    cluster.run_until(lambda: cluster.delivered() >= 3)
    assert feeds(cluster) == {"node-1": {"node-1"}, "node-2": {"node-2"}, "node-3": set(), "standby-1": set()}
    cluster.settle()


def test_a_copy_whose_producer_has_stopped_starves_although_another_one_has_everything() -> None:
    cluster = running()
    victim = ReplicaId(S0, 1)
    reader = cluster.protocol("node-2").replicas[ReplicaId(S1, 1)]
    cluster.stop("node-2", victim)
    cluster.run_until(lambda: cluster.delivered() >= 8, without=("control", "write"))
    assert reader.committed < 8
    cluster.settle()


def test_a_copy_whose_own_producer_has_dropped_what_it_needs_is_built_again() -> None:
    """Although the producer of another copy may have it."""
    cluster = running()
    stream = StreamId(S0, S1)
    reader = cluster.protocol("node-2").replicas[ReplicaId(S1, 1)]
    missing = Missing(stream, str(reader.replica), reader.inboxes[stream].available + 1)
    cluster.process("node-2").post(Received("node-2", missing))
    assert reader.stopped is not None
    cluster.settle()
    assert reader.replica not in cluster.layout.placement


def test_a_stopped_replica_costs_its_copy_and_the_next_one_counts_as_a_whole() -> None:
    cluster = running()
    doomed = set(cluster.layout.hosted("node-2"))
    cluster.stop("node-2", ReplicaId(S0, 1))
    cluster.run_until(lambda: bool(copy_on(cluster.layout, "standby-1")))
    assert cluster.layout.hosted("node-2") == [ReplicaId(INGRESS, 1)], "the log is not given up before it is safe"
    cluster.run_until(lambda: not cluster.layout.joining)
    assert set(cluster.layout.hosted("node-2")) == set() and shards_on(cluster.layout, "standby-1") == EVERYTHING
    assert not doomed & set(cluster.layout.placement)
    cluster.settle()


def test_all_of_a_copy_is_fetched_at_once_and_none_has_caught_up_without_its_own_producer() -> None:
    cluster = running()
    cluster.wipe("node-2", False)
    cluster.run_until(lambda: bool(copy_on(cluster.layout, "standby-1")))
    home = cluster.protocol("standby-1")

    def held_back(step: Step) -> bool:
        return step.kind == "transfer" and isinstance(step.about, ReplicaId) and step.about.shard == S0

    cluster.run_turns(120, unless=held_back)
    producer, reader = cluster.layout.replica_on("standby-1", S0), cluster.layout.replica_on("standby-1", S1)
    assert producer is not None and producer not in home.hosted()
    assert reader in home.hosted() and home.newcomers.joins[reader].phase is Phase.CATCHING_UP
    cluster.settle()


def test_one_copy_after_the_other_is_lost_with_its_disk() -> None:
    cluster = running(standbys=2, pulses=40)
    for _ in range(5):
        cluster.run_until(lambda: cluster.world.shortage() is None)
        victim = min(hosts(cluster.layout), key=lambda node: min(copy_on(cluster.layout, node)).index)
        cluster.wipe(victim, True)
        cluster.boot(victim)
        cluster.run_turns(3)
    cluster.settle()
    assert min(replica.index for replica in cluster.layout.placement if replica.shard != INGRESS) >= 4


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_copy_that_is_cut_off_from_the_others_gets_the_log_again(standbys: int) -> None:
    """Long enough for the ingress to go on without it; meanwhile the copy keeps its state and waits."""
    cluster = running(standbys=standbys, pulses=30)
    copies = {node: copy_on(cluster.layout, node) for node in ("node-1", "node-2")}
    cluster.freeze("node-2")
    cluster.cut_both("node-1", "node-2")
    cluster.run_until(lambda: cluster.world.zookeeper.sync.members == {"node-1"})
    cluster.thaw("node-2")
    store = cluster.world.zookeeper
    cluster.run_until(lambda: store.sync.members == {"node-1", "node-2"} and cluster.world.shortage() is None)
    assert {node: copy_on(cluster.layout, node) for node in ("node-1", "node-2")} == copies
    cluster.settle()


def test_a_node_is_drained_of_its_copy() -> None:
    cluster = running()
    cluster.drain("node-1")
    cluster.run_until(lambda: not cluster.layout.hosted("node-1"))
    assert hosts(cluster.layout) == {"node-2", "standby-1"}
    cluster.settle()

"""The controller's decisions about generations of code: prepare, place, begin again, switch, retire, withdraw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.topologies import chain
from unbroken.protocol.placement.controller import Decision, Situation, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.placement.upgrade import coming_shards, next_generation
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices.placement import Purpose, ReplicaPlaced
from unbroken.protocol.values.notices.upgrades import (
    UpgradeDone,
    UpgradePrepared,
    UpgradeReady,
    UpgradeRefused,
    UpgradeSetBack,
)
from unbroken_lab.sim.programs import ProgramModels

DISKS = {name: f"disk {name}" for name in "abcd"}
S0, S1 = ShardId("s0", 0), ShardId("s1", 0)
N0, N1 = ShardId("s0@2", 0), ShardId("s1@2", 0)
QUIET = Situation(0, DISKS, wished=2)


def programs(*changed: str) -> ProgramModels:
    out = ProgramModels.of(chain((1, 1)))
    out.declare(1, changed)
    return out


BOTH = programs("s0").topology((1, 2))
"""Generation 2 replaces both segments, the second because it reads from the first."""

LAST = programs("s1").topology((1, 2))
"""Generation 2 replaces the last segment only."""


def running() -> Layout:
    return chained_placement(chain((1, 1)), DISKS)


def preparing(topology: Topology = BOTH, *full: ReplicaId) -> Layout:
    """Generation 2 is prepared, and these replicas of it count as redundancy, each on a node of its own."""
    layout = replace(running(), generations=(1, 2))
    for replica in full:
        while layout.next_index.get(replica.shard, 0) < replica.index:
            layout = replace(layout, next_index={**layout.next_index, replica.shard: replica.index})
        layout, placed = layout.with_joining(replica.shard, sorted(DISKS)[replica.index % len(DISKS)])
        assert placed == replica
        layout = layout.with_full([replica])
    return layout


def replicas(shard: ShardId, count: int = 2) -> list[ReplicaId]:
    return [ReplicaId(shard, index) for index in range(count)]


READY = preparing(BOTH, *replicas(N0), *replicas(N1))


def decide(situation: Situation, current: Layout, topology: Topology = BOTH) -> Decision:
    """As the controller does: generations first."""
    decision = next_generation(topology, situation, current) or next_layout(topology, situation, current, 1)
    assert decision is not None
    decision.layout.check()
    assert decision.layout.version > current.version
    return decision


# --- preparing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wished", [None, 1])
def test_nothing_happens_without_a_wish_for_another_generation(wished: int | None) -> None:
    assert next_generation(chain((1, 1)), replace(QUIET, wished=wished), running()) is None


def test_a_wish_is_prepared_beside_what_runs() -> None:
    decision = decide(QUIET, running(), chain((1, 1)))
    assert (decision.layout.generation, decision.layout.generations) == (1, (1, 2))
    assert decision.notices == (UpgradePrepared(2, 1),)
    assert decision.layout.placement == running().placement


def test_the_shards_that_come_are_those_with_other_code_and_what_reads_from_them() -> None:
    assert coming_shards(BOTH) == [N0, N1]
    assert coming_shards(LAST) == [N1]


def test_one_replica_begins_and_the_others_are_copies_of_it() -> None:
    first = next_layout(BOTH, QUIET, preparing(), 9)
    assert first is not None and first.layout.joining == {ReplicaId(N0, 0)}, "s1@2 has nothing to read yet"
    assert first.notices[0] == ReplicaPlaced(ReplicaId(N0, 0), "a", Purpose.UPGRADE)
    begun = replace(QUIET, caught_up=[ReplicaId(N0, 0)])
    second = next_layout(BOTH, begun, first.layout, 9)
    assert second is not None and second.layout.joining == {ReplicaId(N0, 1), ReplicaId(N1, 0)}


def test_nothing_begins_while_its_predecessor_has_no_state_to_give() -> None:
    lonely = {node: DISKS[node] for node in DISKS if node not in preparing().full_nodes_of(S0)}
    decision = next_layout(BOTH, replace(QUIET, present=lonely), preparing(), 9)
    assert decision is not None and not decision.layout.counted(N0)


def test_redundancy_comes_back_though_code_that_comes_takes_its_time() -> None:
    """It may be waiting for units that only the replica in question would produce."""
    layout, _ = preparing().with_joining(N0, "d")
    lost = min(layout.full(S0))
    decision = next_layout(BOTH, replace(QUIET, stopped={lost: "the disk is full"}), layout, transfers=1)
    assert decision is not None and {replica.shard for replica in decision.layout.joining} == {N0, S0}


# --- lost on the way ----------------------------------------------------------------------------------------


def test_a_shard_that_loses_all_its_replicas_begins_again_with_all_that_read_from_it() -> None:
    layout = preparing(BOTH, ReplicaId(N0, 0), ReplicaId(N1, 1))
    gone = {node: disk for node, disk in DISKS.items() if node != "a"}
    decision = decide(replace(QUIET, present=gone), layout)
    assert decision.notices == (UpgradeSetBack(2, (ReplicaId(N0, 0), ReplicaId(N1, 1))),)
    assert not decision.layout.counted(N0) and not decision.layout.counted(N1)
    assert decision.layout.generations == (1, 2), "it is still wished for"


def test_a_shard_that_keeps_a_replica_goes_on_with_it() -> None:
    layout = preparing(BOTH, *replicas(N0), ReplicaId(N1, 2))
    gone = {node: disk for node, disk in DISKS.items() if node != "a"}
    decision = decide(replace(QUIET, present=gone), layout)
    assert decision.layout.counted(N0) == {ReplicaId(N0, 1)} and decision.layout.counted(N1) == {ReplicaId(N1, 2)}


def test_what_joins_is_not_left_to_begin_in_another_way_than_the_replica_it_was_to_copy() -> None:
    """Two newcomers may be at different stages: one with a copy, one without."""
    layout = preparing(LAST, ReplicaId(N1, 0))
    for node in "bc":
        layout, _ = layout.with_joining(N1, node)
    gone = {node: disk for node, disk in DISKS.items() if node != "a"}
    assert not decide(replace(QUIET, present=gone), layout, LAST).layout.counted(N1)


def test_the_first_replica_is_left_alone_while_it_joins() -> None:
    layout, first = preparing(LAST).with_joining(N1, "b")
    assert next_generation(LAST, QUIET, layout) is None
    gone = {node: disk for node, disk in DISKS.items() if node != "b"}
    assert first not in decide(replace(QUIET, present=gone), layout, LAST).layout.placement


def test_a_disk_that_is_lost_takes_its_replicas_with_it() -> None:
    layout = preparing(LAST, ReplicaId(N1, 0))
    decision = decide(replace(QUIET, present={**DISKS, "a": "another disk"}), layout, LAST)
    assert not decision.layout.counted(N1)


# --- going over ---------------------------------------------------------------------------------------------


def test_results_are_asked_for_when_all_of_it_is_redundant() -> None:
    early = preparing(BOTH, *replicas(N0), ReplicaId(N1, 0))
    assert next_generation(BOTH, QUIET, early) is None
    decision = decide(QUIET, READY)
    assert (decision.layout.generation, decision.layout.generations) == (2, (1, 2))
    assert decision.notices == (UpgradeReady(2),)
    assert decision.layout.placement == READY.placement


def test_replicas_that_still_join_do_not_count_as_redundancy() -> None:
    layout = replace(READY, joining=frozenset({ReplicaId(N1, 1)}))
    assert next_generation(BOTH, QUIET, layout) is None


def switched_layout() -> Layout:
    return replace(READY, generation=2)


def test_the_code_that_goes_is_not_built_again_and_not_moved_away_from_its_last_node() -> None:
    layout = switched_layout()
    hosts = list(layout.full_nodes_of(S1))
    one_left = next_layout(BOTH, replace(QUIET, present={n: d for n, d in DISKS.items() if n != hosts[0]}), layout, 9)
    assert one_left is not None
    assert len(one_left.layout.counted(S1)) == 1 and not one_left.layout.joining & one_left.layout.counted(S1)
    draining = replace(QUIET, draining=frozenset({hosts[1]}))
    drained = next_layout(BOTH, draining, one_left.layout, 9)
    assert drained is not None and drained.layout.counted(S1) == one_left.layout.counted(S1)


def test_the_code_that_goes_stays_until_every_sink_has_turned() -> None:
    layout = switched_layout()
    assert next_generation(BOTH, QUIET, layout) is None
    assert next_generation(BOTH, replace(QUIET, switched=[N0]), layout) is None, "no sink reads s0"
    decision = decide(replace(QUIET, switched=[N1]), layout)
    assert decision.layout.generations == (2,) and decision.layout.generation == 2
    assert not decision.layout.counted(S0) and not decision.layout.counted(S1)
    assert decision.layout.full(N1) == set(replicas(N1))
    assert decision.notices == (UpgradeDone(2, ("s0@2", "s1@2")),)


def test_what_has_no_successor_stays_when_the_code_before_ends() -> None:
    layout = replace(preparing(LAST, *replicas(N1)), generation=2)
    decision = decide(replace(QUIET, switched=[N1]), layout, LAST)
    assert decision.layout.full(S0) == running().full(S0) and not decision.layout.counted(S1)


def test_results_that_count_cannot_be_withdrawn() -> None:
    layout = switched_layout()
    for situation in (replace(QUIET, wished=None), replace(QUIET, stopped={ReplicaId(N1, 0): "broken"})):
        assert next_generation(BOTH, situation, layout) is None


# --- not going over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wished", [None, 3])
def test_a_wish_is_taken_back_as_if_it_had_never_been(wished: int | None) -> None:
    decision = decide(replace(QUIET, wished=wished), READY)
    assert (decision.layout.generation, decision.layout.generations) == (1, (1,))
    assert decision.layout.placement == running().placement
    assert decision.refused == UpgradeRefused(2, 1)
    assert decision.layout.next_index[N0] == 2, "names are not used again"


def test_code_that_does_not_run_is_refused_with_the_reason() -> None:
    stopped = {ReplicaId(S0, 0): "the disk is full", ReplicaId(N1, 1): "division by zero"}
    decision = decide(replace(QUIET, stopped=stopped), READY)
    assert decision.layout.generations == (1,) and not decision.layout.counted(N0)
    assert decision.refused == UpgradeRefused(2, 1, ReplicaId(N1, 1), "division by zero")
    assert ReplicaId(S0, 0) in decision.layout.placement, "that is another matter"


def test_a_replica_of_the_code_that_runs_may_stop_without_harm_to_the_code_that_comes() -> None:
    early = preparing(BOTH, ReplicaId(N0, 0))
    decision = decide(replace(QUIET, stopped={ReplicaId(S0, 0): "the disk is full"}), early)
    assert decision.refused is None and ReplicaId(S0, 0) not in decision.layout.placement
    assert ReplicaId(N0, 0) in decision.layout.placement

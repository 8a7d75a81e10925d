"""How long nodes are waited for."""

from __future__ import annotations

import pytest

from kit.topologies import chain
from unbroken.protocol.placement.absence import ABSENCE_S, Absence, out_of_office
from unbroken.protocol.placement.controller import Situation, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId

DISKS = {"a": "disk-a", "b": "disk-b", "c": "disk-c"}
TOPOLOGY = chain((1,))
LAYOUT = chained_placement(TOPOLOGY, DISKS)


def test_a_node_that_was_linked_is_missed_after_a_second_and_a_stranger_after_the_grace() -> None:
    absence = Absence("a", return_grace_s=60)
    here = {"a": "disk-a"}
    assert set(absence.present(LAYOUT, here, ["b"], 0.0)) == {"a", "b", "c"}
    assert set(absence.present(LAYOUT, here, ["b"], ABSENCE_S)) == {"a", "c"}
    assert absence.given_up(59.9) == frozenset()
    assert set(absence.present(LAYOUT, here, ["b"], 60.0)) == {"a"}
    assert absence.given_up(60.0) == {"b", "c"}


def test_a_node_that_comes_back_begins_anew() -> None:
    absence = Absence("a", return_grace_s=60)
    absence.present(LAYOUT, {"a": "disk-a"}, ["b", "c"], 0.0)
    absence.present(LAYOUT, DISKS, ["b", "c"], 50.0)
    assert set(absence.present(LAYOUT, {"a": "disk-a"}, ["b", "c"], 60.0)) == {"a", "b", "c"}
    assert absence.given_up(61.0) == frozenset()


def test_the_controller_counts_itself_even_if_its_entry_is_gone() -> None:
    assert Absence("a", 60).present(LAYOUT, {}, [], 100.0)["a"] == "disk-a"


def test_a_shard_whose_nodes_are_given_up_is_restored_where_there_are_snapshots() -> None:
    shard = ShardId(next(iter(TOPOLOGY.segments)), 0)
    hosts = set(LAYOUT.nodes_of(shard))
    left = {node: disk for node, disk in DISKS.items() if node not in hosts}
    waiting = Situation(0, left, restorable=True)
    first = next_layout(TOPOLOGY, waiting, LAYOUT, transfers=4)
    assert first is None or first.layout.counted(shard) == LAYOUT.counted(shard), "they may come back"
    over = Situation(0, left, given_up=frozenset(hosts), restorable=True)
    decision = next_layout(TOPOLOGY, over, LAYOUT, transfers=4)
    assert decision is not None
    assert decision.layout.counted(shard) == {ReplicaId(shard, 2)}
    hopeless = Situation(0, left, given_up=frozenset(hosts), restorable=False)
    kept = next_layout(TOPOLOGY, hopeless, LAYOUT, transfers=4)
    assert kept is None or kept.layout.counted(shard) == LAYOUT.counted(shard), "nothing else is left of it"


def test_a_node_is_suspected_that_another_does_not_hear_and_the_controller_is_not_linked_to() -> None:
    absence = Absence("a", return_grace_s=60)
    assert absence.suspects(DISKS, {"c": ["b"]}, ["a", "b"]) == {"c"}
    assert absence.suspects(DISKS, {"c": ["b"]}, ["a", "b", "c"]) == frozenset(), "the controller hears it"
    assert absence.suspects(DISKS, {}, ["a"]) == frozenset(), "nobody else misses it"
    assert absence.suspects(DISKS, {"c": ["a"]}, ["a", "b"]) == {"c"}, "the controller may be the one who asked"


def test_only_members_suspect_and_are_suspected() -> None:
    absence = Absence("a", return_grace_s=60)
    left = {"a": "disk-a", "c": "disk-c"}
    assert absence.suspects(left, {"c": ["b"]}, ["a"]) == frozenset(), "b is gone itself"
    assert absence.suspects(left, {"b": ["c"]}, ["a", "c"]) == frozenset(), "ZooKeeper has given b up"
    assert absence.suspects(left, {"c": ["c"]}, ["a"]) == frozenset()
    assert absence.suspects(left, {"a": ["c"]}, []) == frozenset(), "the controller is there"


def test_of_two_that_suspect_each_other_the_one_with_a_link_is_believed() -> None:
    absence = Absence("a", return_grace_s=60)
    mutual = {"b": ["c"], "c": ["b"]}
    assert absence.suspects(DISKS, mutual, ["a", "b"]) == {"c"}
    assert absence.suspects(DISKS, mutual, ["a"]) == frozenset(), "nobody knows who is right"
    assert absence.suspects(DISKS, mutual, ["a", "b", "c"]) == frozenset()


def test_a_controller_that_is_cut_off_suspects_nobody() -> None:
    absence = Absence("a", return_grace_s=60)
    assert absence.suspects(DISKS, {"b": ["a"], "a": ["b"]}, ["a"]) == {"b"}, "b may be wrong"
    assert absence.suspects(DISKS, {"b": ["a"], "a": ["c"]}, ["a"]) == frozenset(), "c misses the controller, too"


def test_being_suspected_changes_nothing_about_being_present() -> None:
    absence = Absence("a", return_grace_s=60)
    assert absence.suspects(DISKS, {"c": ["b"]}, ["a", "b"])
    assert set(absence.present(LAYOUT, DISKS, ["a", "b", "c"], 0.0)) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("suspected", "connected", "gone"),
    [
        ("", "", ""),
        ("ab", "", "ab"),
        ("ab", "b", ""),
        ("b", "", ""),
        ("a", "", ""),
        ("abd", "d", "ab"),
    ],
)
def test_who_makes_room_for_the_next_in_line(suspected: str, connected: str, gone: str) -> None:
    assert out_of_office(["a", "b", "c", "d"], "c", set(suspected), set(connected)) == list(gone)


def test_who_does_not_stand_in_line_removes_nobody() -> None:
    assert out_of_office(["a", "b"], "c", {"a", "b"}, set()) == []
    assert out_of_office(["c", "b"], "c", {"b"}, set()) == []

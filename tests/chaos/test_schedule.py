"""Schedules are a function of their seed, and none of them asks for more than can be survived."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise

import pytest

from unbroken.errors import UnbrokenError
from unbroken_lab.chaos.campaign import parse_seeds
from unbroken_lab.chaos.faults import STRIKES
from unbroken_lab.chaos.schedule import (
    AT_NODES,
    FREEZES,
    LENGTH_S,
    MOST_FREEZE_S,
    MOST_ZOOKEEPER_FREEZE_S,
    ONCE,
    Fault,
    Kind,
    Schedule,
    make_schedule,
)

SEEDS = range(1, 501)

KNOWN = [
    "2.6 s: freeze-node node-2 for 9.0 s",
    "2.6 s: freeze-jvm node-1 for 9.0 s",
    "10.6 s: upgrade",
    "20.3 s: restart-all",
    "23.9 s: kill-jvm node-3",
    "27.8 s: wipe-node node-2",
    "32.3 s: freeze-node node-2 for 8.4 s",
    "36.9 s: kill-node node-2",
    "42.7 s: freeze-jvm node-3 for 5.2 s",
]
"""The faults of seed 17."""


@pytest.fixture(scope="module")
def schedules() -> list[Schedule]:
    return [make_schedule(seed) for seed in SEEDS]


def moments(schedule: Schedule) -> list[list[Fault]]:
    return [list(faults) for _, faults in groupby(schedule.faults, key=lambda fault: fault.at_s)]


def test_a_seed_always_gives_the_same_faults() -> None:
    assert make_schedule(17) == make_schedule(17)
    assert str(make_schedule(17)) == str(make_schedule(17))
    assert len({make_schedule(seed).faults for seed in SEEDS}) == len(SEEDS)


def test_a_known_seed_has_not_changed() -> None:
    """A failure that was reported by its seed can only be repeated while this holds."""
    schedule = make_schedule(17)
    assert schedule.standbys == 0
    assert [str(fault) for fault in schedule.faults] == KNOWN


def test_faults_come_in_order_within_the_length(schedules: list[Schedule]) -> None:
    for schedule in schedules:
        assert schedule.faults
        assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(schedule.faults))
        assert all(0 < fault.at_s <= LENGTH_S for fault in schedule.faults)


def test_a_short_schedule_is_the_beginning_of_a_long_one(schedules: list[Schedule]) -> None:
    for schedule in schedules:
        short = make_schedule(schedule.seed, 15)
        assert short.faults == schedule.faults[: len(short.faults)]
        assert len(moments(short)) == 1 or short.faults[-1].at_s <= 15


def test_a_schedule_tells_how_it_is_repeated() -> None:
    assert make_schedule(17).command == "unbroken chaos --seeds 17"
    assert make_schedule(17, 8).command == "unbroken chaos --seeds 17 --length 8"


def test_targets_and_lengths_fit_the_kinds(schedules: list[Schedule]) -> None:
    for schedule in schedules:
        for fault in schedule.faults:
            assert (fault.target in schedule.node_names) == (fault.kind in AT_NODES)
            most = MOST_ZOOKEEPER_FREEZE_S if fault.kind is Kind.FREEZE_ZOOKEEPER else MOST_FREEZE_S
            assert (1 <= fault.seconds <= most) if fault.kind in FREEZES else fault.seconds == 0


def test_two_faults_at_once_hit_different_nodes_and_leave_their_disks(schedules: list[Schedule]) -> None:
    together = [faults for schedule in schedules for faults in moments(schedule) if len(faults) > 1]
    assert together
    for faults in together:
        faults = [fault for fault in faults if fault.kind is not Kind.UPGRADE]
        if len(faults) < 2:
            continue
        assert len(faults) == 2
        assert faults[0].target != faults[1].target
        assert {Kind.WIPE_NODE, Kind.RESTART_ALL}.isdisjoint(fault.kind for fault in faults)


def test_expensive_faults_come_once(schedules: list[Schedule]) -> None:
    for schedule in schedules:
        counts = Counter(fault.kind for fault in schedule.faults)
        assert all(counts[kind] <= 1 for kind in ONCE)


def test_only_a_wiped_disk_needs_a_whole_flow() -> None:
    assert [kind for kind in Kind if Fault(1, kind).alone] == [Kind.WIPE_NODE]


def test_the_campaign_covers_every_kind_often(schedules: list[Schedule]) -> None:
    counts = Counter(fault.kind for schedule in schedules[:30] for fault in schedule.faults)
    assert all(counts[kind] >= 5 for kind in Kind), counts
    assert {schedule.standbys for schedule in schedules[:30]} == {0, 1}


def test_every_kind_can_be_done() -> None:
    assert set(STRIKES) == set(Kind)


@pytest.mark.parametrize(
    ("text", "seeds"), [("17", [17]), ("1-4", [1, 2, 3, 4]), ("2-3, 9,3", [2, 3, 9]), (" 5 - 5 ", [5])]
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "4-1", "1-", "-3", "1,,2", "1.5"])
def test_other_words_are_no_seeds(text: str) -> None:
    with pytest.raises(UnbrokenError, match="names no seeds"):
        parse_seeds(text)

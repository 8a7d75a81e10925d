"""Schedules are a function of their seed, and none of them asks for more than can be survived."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise

import pytest

from unbroken.errors import UnbrokenError
from unbroken.testing.faults import EVERYTHING, ZOOKEEPER, Fault, Freeze, Kill, Restart, Wipe
from unbroken_lab.chaos.campaign import parse_seeds
from unbroken_lab.chaos.schedule import (
    KINDS,
    LENGTH_S,
    MOST_FREEZE_S,
    MOST_ZOOKEEPER_FREEZE_S,
    ChaosSchedule,
    Upgrade,
    due_s,
    make_schedule,
)

SEEDS = range(1, 501)

KNOWN = [
    Freeze("node-2", 9.0, after_s=2.6),
    Freeze("node-1", 9.0, jvm=True, after_s=2.6),
    Upgrade(after_s=10.6),
    Restart(EVERYTHING, after_s=20.3),
    Kill("node-3", jvm=True, after_s=23.9),
    Wipe("node-2", after_s=27.8, when_whole=True),
    Freeze("node-2", 8.4, after_s=32.3, when_whole=True),
    Kill("node-2", after_s=36.9),
    Freeze("node-3", 5.2, jvm=True, after_s=42.7),
]
"""The faults of seed 17."""

SAMPLES = [kind.make("node-1", 2.0, 1.0) for kind in KINDS]
"""A fault of every kind."""


def form(fault: Fault) -> Fault:
    """A fault without its node, length and time: what kind it is."""
    at_zookeeper = ZOOKEEPER in fault.targets()
    match fault:
        case Kill():
            return Kill(ZOOKEEPER if at_zookeeper else "node-1", jvm=fault.jvm, after_s=1.0)
        case Freeze():
            return Freeze(ZOOKEEPER if at_zookeeper else "node-1", 2.0, jvm=fault.jvm, after_s=1.0)
        case Wipe():
            return Wipe("node-1", after_s=1.0)
        case Restart():
            return Restart(EVERYTHING, after_s=1.0)
    return Upgrade(after_s=1.0)


@pytest.fixture(scope="module")
def schedules() -> list[ChaosSchedule]:
    return [make_schedule(seed) for seed in SEEDS]


def moments(schedule: ChaosSchedule) -> list[list[Fault]]:
    return [list(faults) for _, faults in groupby(schedule.faults, key=due_s)]


def test_a_seed_always_gives_the_same_faults() -> None:
    assert make_schedule(17) == make_schedule(17)
    assert str(make_schedule(17)) == str(make_schedule(17))
    assert len({make_schedule(seed).faults for seed in SEEDS}) == len(SEEDS)


def test_a_known_seed_has_not_changed() -> None:
    """A failure that was reported by its seed can only be repeated while this holds."""
    schedule = make_schedule(17)
    assert schedule.standbys == 0
    assert list(schedule.faults) == KNOWN


def test_faults_come_in_order_within_the_length(schedules: list[ChaosSchedule]) -> None:
    for schedule in schedules:
        assert schedule.faults
        assert all(due_s(earlier) <= due_s(later) for earlier, later in pairwise(schedule.faults))
        assert all(0 < due_s(fault) <= LENGTH_S for fault in schedule.faults)


def test_a_short_schedule_is_the_beginning_of_a_long_one(schedules: list[ChaosSchedule]) -> None:
    for schedule in schedules:
        short = make_schedule(schedule.seed, 15)
        assert short.faults == schedule.faults[: len(short.faults)]
        assert len(moments(short)) == 1 or due_s(short.faults[-1]) <= 15


def test_a_schedule_tells_how_it_is_repeated() -> None:
    assert make_schedule(17).command == "unbroken chaos --seeds 17"
    assert make_schedule(17, 8).command == "unbroken chaos --seeds 17 --length 8"


def test_targets_and_lengths_fit_the_kinds(schedules: list[ChaosSchedule]) -> None:
    for schedule in schedules:
        for fault in schedule.faults:
            assert not fault.problems()
            about_nodes = not isinstance(fault, Upgrade) and form(fault) not in (
                Kill(ZOOKEEPER, after_s=1.0),
                Freeze(ZOOKEEPER, 2.0, after_s=1.0),
                Restart(EVERYTHING, after_s=1.0),
            )
            assert all((target in schedule.node_names) == about_nodes for target in fault.targets())
            if isinstance(fault, Freeze):
                most = MOST_ZOOKEEPER_FREEZE_S if fault.node == ZOOKEEPER else MOST_FREEZE_S
                assert 1 <= fault.for_s <= most


def test_two_faults_at_once_hit_different_nodes_and_leave_their_disks(schedules: list[ChaosSchedule]) -> None:
    together = [faults for schedule in schedules for faults in moments(schedule) if len(faults) > 1]
    assert together
    for faults in together:
        faults = [fault for fault in faults if not isinstance(fault, Upgrade)]
        if len(faults) < 2:
            continue
        assert len(faults) == 2
        assert faults[0].targets() != faults[1].targets()
        assert not any(isinstance(fault, Wipe | Restart) for fault in faults)


def test_expensive_faults_come_once(schedules: list[ChaosSchedule]) -> None:
    for schedule in schedules:
        counts = Counter(type(fault) for fault in schedule.faults)
        assert counts[Wipe] <= 1 and counts[Restart] <= 1


def test_only_a_wiped_disk_and_what_follows_it_need_a_whole_flow(schedules: list[ChaosSchedule]) -> None:
    for schedule in schedules:
        careful = [isinstance(fault, Wipe) for fault in schedule.faults]
        wanted = [one or last for last, one in pairwise([False, *careful])]
        assert [fault.when_whole for fault in schedule.faults] == wanted


def test_the_campaign_covers_every_kind_often(schedules: list[ChaosSchedule]) -> None:
    counts = Counter(form(fault) for schedule in schedules[:30] for fault in schedule.faults)
    assert all(counts[fault] >= 5 for fault in [*SAMPLES, Upgrade(after_s=1.0)]), counts
    assert {schedule.standbys for schedule in schedules[:30]} == {0, 1}


@pytest.mark.parametrize(
    ("text", "seeds"), [("17", [17]), ("1-4", [1, 2, 3, 4]), ("2-3, 9,3", [2, 3, 9]), (" 5 - 5 ", [5])]
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "4-1", "1-", "-3", "1,,2", "1.5"])
def test_other_words_are_no_seeds(text: str) -> None:
    with pytest.raises(UnbrokenError, match="names no seeds"):
        parse_seeds(text)

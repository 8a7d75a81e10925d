"""Where a shard keeps failing it is tried again later and later."""

from __future__ import annotations

from unbroken.protocol.placement.backoff import AVOID_S, DOUBT_S, LONGEST_AVOID_S, Avoidance
from unbroken.protocol.values.ids import ShardId

PLACE = (ShardId("sums", 0), "a")


def test_the_first_failure_may_be_chance_and_the_pause_doubles_from_the_second_on() -> None:
    avoidance = Avoidance()
    avoidance.failed(PLACE, 0)
    assert avoidance.places(0) == set()
    for times in range(3):
        avoidance.failed(PLACE, 100)
        pause = AVOID_S * 2**times
        assert avoidance.places(100 + pause - 0.1) == {PLACE}
        assert avoidance.places(100 + pause) == set()


def test_no_pause_is_longer_than_the_longest() -> None:
    avoidance = Avoidance()
    for _ in range(50):
        avoidance.failed(PLACE, 0)
    assert avoidance.places(LONGEST_AVOID_S - 1) == {PLACE} and avoidance.places(LONGEST_AVOID_S) == set()


def test_a_doubt_ends_by_itself_and_is_not_prolonged() -> None:
    avoidance = Avoidance()
    avoidance.doubted(PLACE, 0)
    avoidance.doubted(PLACE, DOUBT_S / 2)
    assert avoidance.places(DOUBT_S - 1) == {PLACE} and avoidance.places(DOUBT_S) == set()

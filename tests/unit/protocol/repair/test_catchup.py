"""The parts of a catch-up: the newcomer's way, claims at the producers, from whom a stream is taken."""

from __future__ import annotations

import pytest

from kit.topologies import chain
from unbroken.errors import InvariantViolation
from unbroken.protocol.instructions import DropOutbox, GiveUp, Report, Send
from unbroken.protocol.messages import Ack, Claim, Claimed, Subscribe, Unsubscribe
from unbroken.protocol.output.outboxes import Outboxes, snapshot_of
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.repair.catchup import RETRY_MS, CatchUp, Phase, Promise
from unbroken.protocol.replica.feeds import LONGEST_PATIENCE, Feed
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.replicas import ReplicaResumed, SnapshotOutdated, StateTaken
from unbroken.protocol.values.recovery import StoredUnits
from unbroken.protocol.values.units import Digest, UnitHeader

SHARD = ShardId("s0", 0)
STREAM = StreamId(ShardId("source", 0), SHARD)
NEWCOMER = ReplicaId(SHARD, 2)
OWNER = ReplicaId(ShardId("ingress", 0), 0)


# --- the newcomer's way -------------------------------------------------------------------------------------


def catch_up() -> CatchUp:
    return CatchUp(NEWCOMER, (STREAM,), since_ms=0)


def fetching(donor: str = "d") -> CatchUp:
    join = catch_up()
    join.claimed(STREAM, "p", Promise(3, 9))
    assert join.next_donor({STREAM: ["p"]}, [donor], 0) == (donor,)
    return join


def test_state_is_fetched_when_every_producer_in_reach_has_promised() -> None:
    join = catch_up()
    assert join.claims({STREAM: ["q", "p"]}) == [(STREAM, "p"), (STREAM, "q")]
    join.claimed(STREAM, "p", Promise(3, 9))
    assert join.next_donor({STREAM: ["p", "q"]}, ["d"], 0) is None
    assert join.next_donor({STREAM: []}, ["d"], 0) is None, "nobody can send the stream"
    assert join.next_donor({STREAM: ["p"]}, [], 0) is None, "nobody can give the state"
    assert join.next_donor({STREAM: ["p"]}, ["d"], 0) == ("d",)
    assert join.next_donor({STREAM: ["p"]}, ["d"], 0) is None, "once"
    join.check()


def test_a_state_that_nobody_promised_to_continue_is_not_fetched() -> None:
    join = catch_up()
    join.phase = Phase.FETCHING
    with pytest.raises(InvariantViolation):
        join.check()


def test_a_failed_donor_is_asked_again_later_and_another_one_at_once() -> None:
    join = fetching()
    join.failed(0)
    assert join.next_retry_ms() == RETRY_MS
    assert join.next_donor({STREAM: ["p"]}, ["d"], RETRY_MS - 1) is None
    assert join.next_donor({STREAM: ["p"]}, ["d", "e"], 1) == ("e",)
    join.failed(1)
    assert join.next_donor({STREAM: ["p"]}, ["d", "e"], RETRY_MS) == ("d",)


def within(join: CatchUp, lag: int, committed: int, available: int, tried: bool = False) -> bool:
    return join.within(lag, committed, {STREAM: committed}, {STREAM: available}, tried)


def test_it_has_caught_up_within_the_lag_of_all_it_knows() -> None:
    join = fetching()
    with pytest.raises(InvariantViolation):
        catch_up().arrived(1, 0, 0)
    join.arrived(7, 2_000_000, 1_500)
    assert not within(join, 1, 7, 7), "a producer had unit 9 long ago"
    assert not within(join, 9, 7, 9), "it has processed nothing of its own"
    assert not within(join, 1, 8, 12)
    assert within(join, 1, 8, 9)
    assert join.finish(2_000) == StateTaken(join.replica, "d", 2_000_000, 7, fetch_s=1.5, catch_up_s=0.5)
    assert not within(join, 1, 8, 9), "told once"


def test_code_that_comes_has_to_try_a_unit_even_if_there_is_none() -> None:
    join = fetching()
    join.arrived(9, 0, 1_500)
    assert within(join, 1, 9, 9)
    assert not within(join, 1, 9, 9, tried=True)
    assert within(join, 1, 10, 10, tried=True)


def test_it_does_not_count_before_every_producer_keeps_what_it_may_need() -> None:
    join = fetching()
    join.arrived(7, 0, 0)
    assert join.provided({STREAM: ["p"]}, {STREAM: 7})
    assert not join.provided({STREAM: ["p", "q"]}, {STREAM: 7}), "q could not be reached"
    join.claimed(STREAM, "q", Promise(8, 9))
    assert not join.provided({STREAM: ["p", "q"]}, {STREAM: 7}), "q has dropped unit 8"
    assert join.provided({STREAM: ["p", "q"]}, {STREAM: 8})


# --- claims -------------------------------------------------------------------------------------------------


def with_outbox(
    units: int = 0, base: int = 0, claim_units: int = 1_000, snapshots: bool = False
) -> tuple[Outboxes, Layout]:
    topology = chain((1,))
    layout = chained_placement(topology, {"a": "", "b": ""})
    outboxes = Outboxes(topology, 0, claim_units, 1 << 30, snapshots=snapshots)
    headers = tuple(unit(n) for n in range(base + 1, units + 1))
    outboxes.open(STREAM, OWNER, layout, StoredUnits(base, headers))
    return outboxes, layout


def unit(number: int) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 0, Digest(1, number), size=1)


def test_a_claim_is_confirmed_by_a_layout_that_counts_the_claimant() -> None:
    outboxes, layout = with_outbox(units=5, base=2)
    joining, newcomer = layout.with_joining(SHARD, "c")
    claim = Claim(STREAM, newcomer, joining.version)
    assert outboxes.claim("c", claim, layout) == []
    assert outboxes.claim("c", claim, layout) == [], "asked again"
    assert outboxes.layout_changed(joining) == [Send("c", Claimed(STREAM, newcomer, 2, 5))]
    assert outboxes.claim("c", claim, joining) == [Send("c", Claimed(STREAM, newcomer, 2, 5))], "at once"


def test_what_is_claimed_stays_until_the_newcomer_or_the_layout_lets_it_go() -> None:
    outboxes, layout = with_outbox(units=4)
    joining, newcomer = layout.with_joining(SHARD, "c")
    outboxes.layout_changed(joining)
    for consumer in layout.counted(SHARD):
        assert outboxes.ack(Ack(STREAM, str(consumer), 4)) == []
    assert outboxes.ack(Ack(STREAM, str(newcomer), 3)) == [DropOutbox(OWNER, STREAM, (1, 2, 3))]
    gone = joining.without([newcomer])
    assert outboxes.layout_changed(gone) == [DropOutbox(OWNER, STREAM, (4,))]
    assert outboxes.claim("c", Claim(STREAM, newcomer, joining.version), gone) == [], "it does not count any more"


def test_a_consumer_far_behind_its_peer_is_given_up_once() -> None:
    outboxes, layout = with_outbox(claim_units=3)
    fast, slow = sorted(layout.counted(SHARD))
    steps = []
    for number in range(1, 7):
        outboxes.produced(OWNER, unit(number), layout)
        steps += outboxes.ack(Ack(STREAM, str(fast), number))
    assert [step for step in steps if isinstance(step, GiveUp)] == [GiveUp(slow, STREAM, 4)]


def test_what_was_there_before_a_claim_is_not_held_against_the_claimant() -> None:
    outboxes, layout = with_outbox(units=10, claim_units=3)
    fast, slow = sorted(layout.counted(SHARD))
    assert outboxes.ack(Ack(STREAM, str(fast), 10)) == [], "after a restart the other one has yet to be heard of"
    outboxes.ack(Ack(STREAM, str(slow), 9))
    joining, _ = layout.with_joining(SHARD, "c")
    outboxes.layout_changed(joining)
    outboxes.produced(OWNER, unit(11), layout)
    assert not any(isinstance(step, GiveUp) for step in outboxes.ack(Ack(STREAM, str(fast), 11)))


def test_nobody_is_given_up_for_units_that_this_producer_has_yet_to_produce() -> None:
    """Its sibling is faster: acknowledgements run ahead of it, and it keeps nothing for those that are behind."""
    outboxes, layout = with_outbox(claim_units=3)
    fast, slow = sorted(layout.counted(SHARD))
    assert outboxes.ack(Ack(STREAM, str(fast), 9)) == []
    joining, newcomer = layout.without([slow]).with_joining(SHARD, "c")
    outboxes.layout_changed(joining)
    steps = []
    for number in range(1, 14):
        steps += outboxes.produced(OWNER, unit(number), layout)[1]
        steps += outboxes.ack(Ack(STREAM, str(fast), max(9, number)))
    assert [step.replica for step in steps if isinstance(step, GiveUp)] == [newcomer], "only for units 10 to 13"
    assert outboxes.boxes[STREAM].last == 13


def test_the_subscription_of_a_replica_ends_with_its_place_in_the_layout() -> None:
    outboxes, layout = with_outbox(units=2)
    stays, goes = sorted(layout.counted(SHARD))
    for name in (str(stays), str(goes), "client"):
        outboxes.subscribe("b", Subscribe(STREAM, name, 0))
    outboxes.layout_changed(layout.without([goes]))
    assert set(outboxes.boxes[STREAM].subscribers) == {str(stays), "client"}
    assert set(outboxes.routes) == {(STREAM, str(stays)), (STREAM, "client")}


def test_messages_about_streams_that_are_not_produced_here_are_left_alone() -> None:
    outboxes, layout = with_outbox()
    other = StreamId(SHARD, ShardId("sink", 0))
    assert outboxes.subscribe("b", Subscribe(other, "x", 0)) == []
    assert outboxes.ack(Ack(other, "x", 1)) == []
    outboxes.unsubscribe(Unsubscribe(other, "x"))
    outboxes.close(OWNER)
    assert outboxes.claim("b", Claim(STREAM, NEWCOMER, 1), layout) == [] and not outboxes.claims


# --- feeds --------------------------------------------------------------------------------------------------


def test_duplicate_delivery_takes_from_everybody() -> None:
    feed = Feed(False, 100)
    assert feed.update(["a", "b"]) == (["a", "b"], [])
    assert feed.update(["b", "c"]) == (["c"], ["a"])
    feed.forget("b")
    assert feed.update(["b", "c"]) == (["b"], [])
    assert not feed.starve(0) and not feed.starve(10_000), "there is nobody else to turn to"


def test_single_delivery_takes_from_one_and_stays_with_it() -> None:
    feed = Feed(True, 100, turn=1)
    assert feed.update(["a", "b"]) == (["b"], [])
    assert feed.update(["c", "a", "b"]) == ([], [])
    assert feed.update(["c", "a"]) == (["a"], ["b"])
    assert feed.update([]) == ([], ["a"])
    feed.check()


def test_single_delivery_turns_away_from_a_silent_producer_less_and_less_often() -> None:
    feed = Feed(True, 100)
    feed.update(["a", "b"])
    turns = [now for now in range(0, 5_000, 50) if feed.starve(now)]
    assert turns[:4] == [100, 300, 700, 1_500]
    assert turns[4] - turns[3] == turns[5] - turns[4] == LONGEST_PATIENCE * 100
    assert feed.turn_away() == ["a"]
    assert feed.update(["a", "b"]) == (["b"], [])
    feed.fed()
    assert feed.next_turn_ms() is None
    feed.starve(6_000)
    assert feed.next_turn_ms() == 6_100
    feed.content()
    assert feed.next_turn_ms() is None


def test_one_that_goes_on_from_its_disk_says_so() -> None:
    join = CatchUp(ReplicaId(ShardId("s0", 0), 2), (), 0)
    join.resume(7, 1_000)
    assert join.finish(3_500) == ReplicaResumed(join.replica, 7, 2.5)


def test_a_snapshot_that_does_not_come_holds_no_more_than_a_slow_replica_may() -> None:
    outboxes, layout = with_outbox(claim_units=3, snapshots=True)
    owner = next(iter(outboxes.owners.values()))
    box = next(iter(outboxes.boxes.values()))
    told: list[Notice] = []
    for number in range(1, 9):
        outboxes.produced(owner, unit(number), layout)
        for replica in layout.counted(SHARD):
            steps = outboxes.ack(Ack(box.stream, str(replica), number))
            told += [step.notice for step in steps if isinstance(step, Report)]
    assert box.base == 5, "three units are kept for the next snapshot"
    assert told == [SnapshotOutdated(SHARD)]
    outboxes.ack(Ack(box.stream, str(snapshot_of(SHARD)), 8))
    assert box.base == 8

"""Whose event is next: each sender in its own order, all groups in turn, nothing lost, and a bound on everything."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.errors import InvariantViolation
from unbroken.node.fair_queue import FairQueue, Sender

LIMIT, LIMIT_BYTES, FLOOD_S, OWN = 10, 100, 5.0, 6
NODE = Sender("node", "node")
CLIENTS = [Sender("clients", f"client-{number}") for number in range(3)]
SENDERS = [NODE, Sender("from node-2", "node-2"), *CLIENTS]

sender = st.sampled_from(SENDERS)
steps = st.one_of(
    st.tuples(st.just("offer"), sender, st.integers(0, 120)),
    st.tuples(st.just("offer"), sender, st.just(0)),
    st.tuples(st.just("take"), st.integers(1, 30)),
    st.tuples(st.just("own")),
    st.tuples(st.just("force"), sender),
    st.tuples(st.just("clear"), sender),
    st.tuples(st.just("wait"), st.floats(0, 6)),
)


def small() -> FairQueue[int]:
    return FairQueue(LIMIT, LIMIT_BYTES, FLOOD_S, OWN)


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=80))
def test_any_sequence_keeps_the_order_of_each_sender_and_its_bounds(sequence: list[tuple]) -> None:  # type: ignore[type-arg]
    queue, now_s = small(), 0.0
    expected: dict[Sender | None, list[tuple[int, int]]] = {each: [] for each in [None, *SENDERS]}
    forced: Counter[Sender] = Counter()
    for number, (kind, *rest) in enumerate(sequence):
        match kind:
            case "offer":
                who, size = rest
                waiting = expected[who]
                room = not waiting or (len(waiting) < LIMIT and sum(s for _, s in waiting) + size <= LIMIT_BYTES)
                verdict = queue.offer(who, number, now_s, size)
                assert (verdict == "taken") == room
                if room:
                    waiting.append((number, size))
                assert len(waiting) <= LIMIT + forced[who]
            case "force":
                queue.force(rest[0], number)
                expected[rest[0]].append((number, 0))
                forced[rest[0]] += 1
            case "own":
                if len(expected[None]) < OWN:
                    queue.put_own(number)
                    expected[None].append((number, 0))
                else:
                    with pytest.raises(InvariantViolation, match="more than 6 others"):
                        queue.put_own(number)
            case "clear":
                assert queue.clear(rest[0]) == len(expected[rest[0]])
                expected[rest[0]].clear()
            case "wait":
                now_s += rest[0]
            case "take":
                for _ in range(rest[0]):
                    found = queue.take()
                    if found is None:
                        assert not any(expected.values())
                        break
                    event, who = found
                    assert expected[who].pop(0)[0] == event
                    assert who is None or not expected[None], "the consumer's own events come first"
        queue.check()
        assert len(queue) == sum(map(len, expected.values()))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=len(SENDERS), max_size=len(SENDERS)), st.data())
def test_no_group_waits_for_two_turns_of_another(loads: list[int], data: st.DataObject) -> None:
    queue: FairQueue[int] = FairQueue(1_000)
    for who, load in zip(SENDERS, loads, strict=True):
        for number in range(load):
            queue.force(who, number)
    left = Counter(dict(zip(SENDERS, loads, strict=True)))
    passed: dict[str, set[str]] = {}
    """For each group that waits, those that had a turn meanwhile."""
    for _ in range(300):
        passed = {who.group: passed.get(who.group, set()) for who, rest in left.items() if rest}
        found = queue.take()
        if found is None:
            break
        assert found[1] is not None
        who = found[1]
        left[who] -= 1
        for group, others in passed.items():
            if group != who.group:
                assert who.group not in others, f"{who.group} had two turns while {group} waited"
                others.add(who.group)
        passed[who.group] = set()
        if data.draw(st.booleans()):
            queue.force(NODE, -1)  # one that never stops sending
            left[NODE] += 1


def test_one_who_floods_does_not_delay_the_others_by_more_than_a_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(10_000):
        assert queue.offer(CLIENTS[0], "flood", 0.0) == "taken"
    assert queue.offer(CLIENTS[0], "flood", 0.0) == "full"
    assert queue.offer(NODE, "heartbeat", 0.0) == "taken"
    assert [event for event, _ in filter(None, (queue.take(), queue.take()))].count("heartbeat") == 1


def test_a_line_that_stays_crowded_is_a_flood_and_a_backlog_that_is_handled_is_none() -> None:
    queue = small()
    for now_s in (0.0, 2.0, 4.9):
        while queue.offer(NODE, 1, now_s) == "taken":
            pass
        assert queue.offer(NODE, 1, now_s) == "full"
        for _ in range(LIMIT // 2):
            queue.take()
    while queue.offer(NODE, 1, 5.0) == "taken":
        pass
    assert queue.offer(NODE, 1, 5.0) == "flooded"
    while queue.take() is not None:
        pass
    while queue.offer(NODE, 1, 6.0) == "taken":
        pass
    assert queue.offer(NODE, 1, 10.9) == "full"

"""Threads that put events and one that takes them: the one that takes never waits for itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from kit.support import wait_until
from unbroken.node.event_queue import EventQueue
from unbroken.node.fair_queue import FairQueue, Sender

NODE = Sender("node", "node")
PEER = Sender("clients", "client-1")
LIMIT = 20


def small(patience_s: float = 5.0, flood_s: float = 60.0) -> EventQueue[object]:
    return EventQueue(FairQueue(LIMIT, 1_000, flood_s), patience_s)


def aside(function: Callable[[], object]) -> Future[object]:
    """Call it on another thread."""
    future: Future[object] = Future()
    threading.Thread(target=lambda: future.set_result(function()), daemon=True).start()
    return future


def fill(queue: EventQueue[object], sender: Sender) -> None:
    for number in range(LIMIT):
        assert aside(partial(queue.put, number, sender)).result(30)


def test_the_loop_does_not_wait_for_itself_in_a_full_queue() -> None:
    queue = small()
    queue.belong()
    fill(queue, NODE)
    assert queue.put_own("own")
    assert queue.put("named", NODE)
    assert queue.get(0) == "own"
    assert [queue.get(0) for _ in range(LIMIT + 1)] == [*range(LIMIT), "named"]
    assert queue.get(0.01) is None


def test_another_thread_has_no_events_of_the_loops_own() -> None:
    queue = small()
    queue.belong()
    assert aside(lambda: queue.put_own("own")).result(30) is False
    assert len(queue) == 0


def test_one_that_waits_for_room_gets_it_and_one_that_gets_none_is_told_in_time() -> None:
    queue = small(patience_s=0.2)
    fill(queue, NODE)
    began = time.monotonic()
    assert aside(lambda: queue.put("late", NODE)).result(30) is False
    assert 0.1 < time.monotonic() - began < 3
    queue = small()
    fill(queue, NODE)
    waiting = aside(lambda: queue.put("last", NODE))
    taken = [queue.get(0) for _ in range(LIMIT)]
    assert waiting.result(30) is True
    assert [*taken, queue.get(1)] == [*range(LIMIT), "last"]


def test_another_link_of_a_peer_ends_the_wait_of_the_one_before() -> None:
    queue = small(patience_s=60)
    first = queue.open(PEER)
    fill(queue, PEER)
    waiting = aside(lambda: first.put("from the first"))
    wait_until(lambda: queue._blocked == 1, 30, "the first one waits")
    queue.open(PEER)
    assert waiting.result(30) is False
    first.close("gone")
    assert len(queue) == LIMIT, "the peer has another link: it is not gone"


def test_a_link_that_ends_is_reported_once_behind_its_messages_however_often_it_comes_back() -> None:
    queue = small()
    for _ in range(100):
        door = queue.open(PEER)
        door.put("message")
        door.close("gone")
        door.close("gone")
        for _ in range(50):
            queue.open(PEER).close("gone")
        if len(queue) >= LIMIT - 2:
            break
        assert (len(queue), queue.opened("clients")) == (len(queue), 0)
    events = [queue.get(0) for _ in range(len(queue))]
    assert events == ["message", "gone"] * (len(events) // 2)


def test_of_a_link_that_floods_only_its_end_is_handled() -> None:
    queue = small(flood_s=0.1)
    door, other = queue.open(PEER), queue.open(NODE)
    fill(queue, PEER)
    other.put("of another")

    def flood() -> bool:
        while door.put("flood"):
            pass
        return door.flooded

    def consume() -> None:
        ended = time.monotonic() + 5
        while not flooding.done() and time.monotonic() < ended:
            while len(queue) > LIMIT // 3:
                queue.get(0)

    flooding = aside(flood)
    consume()
    assert flooding.result(30) is True
    door.close("gone")
    rest = [queue.get(0) for _ in range(len(queue))]
    assert rest[-1] == "gone" and "flood" not in rest


def test_events_of_many_threads_arrive_each_once() -> None:
    queue = small(patience_s=30)
    each, threads = 500, 8

    def send(number: int) -> None:
        for event in range(each):
            assert queue.put((number, event), Sender(f"group-{number % 3}", f"{number}"))

    sending = [aside(partial(send, number)) for number in range(threads)]
    found: dict[int, list[int]] = {number: [] for number in range(threads)}
    deadline = time.monotonic() + 20
    while sum(map(len, found.values())) < each * threads and time.monotonic() < deadline:
        event = queue.get(0.1)
        if isinstance(event, tuple):
            found[event[0]].append(event[1])
    assert all(events == list(range(each)) for events in found.values())
    assert [future.result(30) for future in sending] == [None] * threads

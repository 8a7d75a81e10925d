"""When a node looks at everything after an event, and when it need not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.model_parts import chain
from protocol.test_node import INPUT, MINE, SIBLING, ask, node, unit
from unbroken.protocol.events import Event, LinkLost, Produced, Received, Tick, UnitArrived
from unbroken.protocol.ingress.backpressure import slowest
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Ack, Ping, Progress
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import chained_placement
from unbroken.protocol.values.units import Digest, UnitHeader


def looks(node: NodeProtocol, event: Event, now_ms: float) -> bool:
    """Handle an event; whether everything was looked at, which a known wake-up time does not survive."""
    node.next_wake_ms()
    node.handle(event, now_ms)
    looked = node._wake_ms is None
    assert node.handle(Tick(), now_ms) == [], "something was left undone"
    return looked


def inner() -> NodeProtocol:
    """A node with the first of two segments, so that its results are not for a sink."""
    return node("b", chain((1, 1)), ("a", "b", "c"))


def test_units_and_what_is_said_about_them_need_no_look() -> None:
    b = inner()
    header = UnitHeader(next(iter(b.outboxes.boxes)), 1, 1, 0, Digest(1, 1))
    for event in (UnitArrived(unit(INPUT, 1), "a"), ask(0), Produced(MINE, 1, (header,)), ask(1)):
        assert not looks(b, event, 1), event
    for message in (Ack(header.stream, str(SIBLING), 1), Ping(1), Progress(SIBLING, 1)):
        assert not looks(b, Received("a", message), 1), message


def test_a_question_that_waits_is_answered_in_time_all_the_same() -> None:
    b = inner()
    b.next_wake_ms()
    assert b.handle(ask(0, deadline_ms=50), 1) == [] and b.next_wake_ms() == 50
    assert b.handle(UnitArrived(unit(INPUT, 1), "a"), 2)
    assert b.next_wake_ms() == 50, "it wakes for nothing once, which costs less than to look whenever a unit comes"
    assert b.handle(Tick(), 50) == [] and b.next_wake_ms() is None


def test_what_may_change_anything_is_looked_after() -> None:
    b = inner()
    assert looks(b, LinkLost("c"), 1)
    assert looks(b, Tick(), 2)
    last = node()
    assert looks(last, Produced(MINE, 1, (unit(next(iter(last.outboxes.boxes)), 1),)), 1), "it is for a sink"


@given(
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple),
    steps=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1)), max_size=40),
)
def test_the_slowest_shard_is_found_without_looking_at_all(
    widths: tuple[int, ...], steps: list[tuple[int, int]]
) -> None:
    topology = chain(widths)
    a = node("a", topology)
    a.layout = chained_placement(topology, {"a": "disk of a", "b": "disk of b"})
    assert a.sources is not None
    shards = [shard for part in topology.segments for shard in topology.shards(part)]
    newest = 10
    a.sources.log.pulse = newest
    for place, index in steps:
        shard: ShardId = shards[place % len(shards)]
        replica = ReplicaId(shard, index)
        a.progress[replica] = min(newest, a.progress.get(replica, 0) + 1 + place % 3)
        assert a.pace.in_flight() == newest - slowest(topology, a.layout, a.progress, {}, newest)

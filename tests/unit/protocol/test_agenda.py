"""Which parts have something to do after an event, and that no other part has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kit.protocol_node import INPUT, MINE, SIBLING, ask, node, unit
from kit.topologies import chain
from unbroken.protocol.agenda import Agenda, Stage
from unbroken.protocol.events import Event, LinkLost, Produced, Received, SinkDelivered, Tick, UnitArrived
from unbroken.protocol.ingress.backpressure import slowest
from unbroken.protocol.instructions import Instruction, StartReplica
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Ack, Ping, Progress
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.units import Digest, UnitHeader


def stages(node: NodeProtocol, event: Event, now_ms: float) -> set[Stage]:
    """Handle an event; the stages of the parts that were due."""
    node.next_wake_ms()
    node.handle(event, now_ms)
    ran = {errand.stage for errand in node.agenda.errands if errand.ran}
    assert node.agenda.overlooked(now_ms) == [], "something was left undone"
    return ran


def inner() -> NodeProtocol:
    """A node with the first of two segments, so that its results are not for a sink."""
    out = node("b", chain((1, 1)), ("a", "b", "c"))
    out.handle(Tick(), 0)
    return out


def test_units_and_what_is_said_about_them_leave_nothing_to_do() -> None:
    b = inner()
    header = UnitHeader(next(iter(b.outboxes.boxes)), 1, 1, 0, Digest(1, 1))
    for event in (UnitArrived(unit(INPUT, 1), "a"), ask(0), Produced(MINE, 1, (header,)), ask(1)):
        assert not stages(b, event, 1), event
    for message in (Ack(header.stream, str(SIBLING), 1), Ping(1), Progress(SIBLING, 1)):
        assert not stages(b, Received("a", message), 1), message


def test_a_question_that_waits_is_answered_in_time_all_the_same() -> None:
    b = inner()
    b.next_wake_ms()
    assert b.handle(ask(0, deadline_ms=50), 1) == [] and b.next_wake_ms() == 50
    assert b.handle(UnitArrived(unit(INPUT, 1), "a"), 2)
    assert b.next_wake_ms() == 50, "it wakes for nothing once, which costs less than to look whenever a unit comes"
    assert b.handle(Tick(), 50) == [] and b.next_wake_ms() is None


def test_what_may_change_anything_is_looked_after() -> None:
    b = inner()
    assert stages(b, LinkLost("c"), 1) == {errand.stage for errand in b.agenda.errands}
    assert not stages(b, Tick(), 2)
    last = node("b")
    last.handle(Tick(), 0)
    made = Produced(MINE, 1, (unit(next(iter(last.sinks.deliveries)), 1),))
    assert Stage.SINKS in stages(last, made, 1), "it is for a sink"
    assert Stage.NEWCOMERS not in stages(last, SinkDelivered(made.headers[0].stream, 1), 2), "nobody joins"


@given(
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple),
    steps=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1)), max_size=40),
)
def test_the_slowest_shard_is_found_without_looking_at_all(
    widths: tuple[int, ...], steps: list[tuple[int, int]]
) -> None:
    topology = chain(widths)
    a = node("a", topology)
    a.around.layout = chained_placement(topology, {"a": "disk of a", "b": "disk of b"})
    assert a.sources is not None
    shards = [shard for part in topology.segments for shard in topology.shards(part)]
    newest = 10
    a.sources.log.pulse = newest
    for place, index in steps:
        shard: ShardId = shards[place % len(shards)]
        replica = ReplicaId(shard, index)
        a.advance.reached[replica] = min(newest, a.advance.reached.get(replica, 0) + 1 + place % 3)
        assert a.backpressure.in_flight() == newest - slowest(topology, a.layout, a.advance.reached, {}, newest)


def test_a_part_that_does_not_mark_itself_is_found_out() -> None:
    agenda, todo = Agenda(), list[Instruction]()
    errand = agenda.add(Stage.SINKS, lambda _now_ms: [todo.pop()] if todo else [])
    assert agenda.run(0) == [] and agenda.next_ms() == float("inf")
    todo.append(StartReplica(MINE))
    assert agenda.run(1) == [], "nobody has said that there is something to do"
    assert agenda.overlooked(1) == [StartReplica(MINE)]
    todo.append(StartReplica(MINE))
    errand.mark()
    assert agenda.run(2) == [StartReplica(MINE)] and agenda.overlooked(2) == []


def test_time_and_business_make_a_part_due() -> None:
    agenda, times, busy, ran = Agenda(), [5.0], [False], list[float]()
    errand = agenda.add(Stage.INPUT, lambda now_ms: ran.append(now_ms) or [], lambda: times, lambda: busy[0])  # type: ignore[func-returns-value]
    agenda.run(0)
    assert agenda.next_ms() == 5
    errand.no_later(3)
    for now_ms in (1, 2, 3):
        agenda.run(now_ms)
    assert ran == [0, 3] and agenda.next_ms() == 5
    busy[0] = True
    agenda.run(4)
    assert ran == [0, 3, 4]


def test_an_earlier_part_may_give_a_later_one_something_to_do() -> None:
    agenda, seen = Agenda(), list[str]()
    later = agenda.add(Stage.SOURCES, lambda _now_ms: seen.append("later") or [])  # type: ignore[func-returns-value]
    agenda.add(Stage.INPUT, lambda _now_ms: later.mark() or [], lambda: [1.0])  # type: ignore[func-returns-value]
    agenda.run(0)
    agenda.next_ms()
    seen.clear()
    agenda.run(1)
    assert seen == ["later"]

"""A unit that is damaged in an outbox: offered to no consumer, and replaced by the copy of a sibling if one has it."""

from __future__ import annotations

from dataclasses import replace

from kit.protocol_node import INPUT, MINE, OUTPUT, SECOND, SHARD, node, unit
from unbroken.protocol.events import (
    LayoutChanged,
    LinkLost,
    LinkUp,
    OutboxDamaged,
    PinAsked,
    Produced,
    Received,
    Tick,
    UnitArrived,
    UnitDamaged,
)
from unbroken.protocol.instructions import (
    EndNode,
    Instruction,
    RefusePin,
    RepairUnit,
    Report,
    Send,
    SendUnit,
    StopReplica,
    StoreUnit,
)
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Ack, AskUnit, LacksUnit, Subscribe
from unbroken.protocol.repair.damaged_units import AGAIN_MS, HOPE_MS
from unbroken.protocol.values.notices.replicas import IngressUnitLost, UnitRepaired, UnitWithheld

FINDING = "damaged file: 000000000002.arrow (its checksum is wrong)"
AFTER_MS = HOPE_MS + 1


def producer(units: int = 3, links: tuple[str, ...] = ("a", "b")) -> NodeProtocol:
    """Node b, whose part of the ingress has produced units of the input, which b itself reads."""
    b = node()
    for peer in ("a", "b"):
        b.handle(LinkUp(peer) if peer in links else LinkLost(peer), 0)
    for number in range(1, units + 1):
        b.handle(Produced(SECOND, number, (unit(INPUT, number),)), 0)
    return b


def sent(steps: list[Instruction], to: str) -> list[int]:
    return [step.header.number for step in steps if isinstance(step, SendUnit) and step.to == to]


def asked(steps: list[Instruction]) -> list[tuple[str, object]]:
    return [(step.to, step.message) for step in steps if isinstance(step, Send) and isinstance(step.message, AskUnit)]


def test_a_damaged_unit_is_offered_to_nobody_until_a_sibling_has_sent_it() -> None:
    b = producer()
    steps = b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    assert asked(steps) == [("a", AskUnit(INPUT, 2))]
    assert Report(UnitWithheld(SECOND, INPUT, 2, FINDING)) in steps
    assert b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 2) == [], "it is known"
    assert sent(b.handle(Received("a", Subscribe(INPUT, "s0.0#1", 0)), 3), "a") == [1]
    assert sent(b.handle(Produced(SECOND, 4, (unit(INPUT, 4),)), 4), "a") == []
    b.check()
    steps = b.handle(UnitArrived(unit(INPUT, 2), "a"), 5)
    assert steps[0] == RepairUnit(SECOND, unit(INPUT, 2)) and sent(steps, "a") == [2, 3, 4]
    assert not b.damaged_units.under_way and Report(UnitRepaired(SECOND, INPUT, 2, "a")) in steps
    b.check()


def test_a_unit_that_was_lost_on_the_way_is_sent_when_there_is_a_good_copy() -> None:
    b = producer(0)
    b.handle(Received("a", Subscribe(INPUT, "s0.0#1", 0)), 0)
    steps = [step for number in (1, 2, 3) for step in b.handle(Produced(SECOND, number, (unit(INPUT, number),)), 0)]
    assert sent(steps, "a") == [1, 2, 3]
    b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    assert sent(b.handle(UnitArrived(unit(INPUT, 2), "a"), 2), "a") == [2, 3]


def test_the_copy_of_a_unit_with_other_contents_repairs_nothing() -> None:
    b = producer()
    b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    steps = b.handle(UnitArrived(unit(INPUT, 2, content=9), "a"), 2)
    assert not any(isinstance(step, RepairUnit) for step in steps) and b.damaged_units.under_way


def test_a_consumer_takes_a_damaged_unit_from_a_peer_and_not_from_the_outbox_beside_it() -> None:
    b = producer()
    for number in (1, 2, 3):
        b.handle(UnitArrived(unit(INPUT, number), "b"), 0)
    b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    b.handle(UnitDamaged(MINE, INPUT, 2, FINDING), 1)
    assert sent(b.handle(Received("b", Subscribe(INPUT, str(MINE), 1)), 2), "b") == []
    stale = b.handle(UnitArrived(unit(INPUT, 2), "b"), 3)
    assert not any(isinstance(step, StoreUnit) for step in stale), "it was on its way already"
    steps = b.handle(UnitArrived(unit(INPUT, 2), "a"), 4)
    assert {RepairUnit(SECOND, unit(INPUT, 2)), StoreUnit(MINE, unit(INPUT, 2))} <= set(steps)
    assert b.replicas[MINE].inboxes[INPUT].available == 3


def test_a_sibling_sends_what_it_has_and_says_what_it_lacks() -> None:
    b = producer(2)
    assert b.handle(Received("a", AskUnit(INPUT, 2)), 1)[0] == SendUnit("a", SECOND, unit(INPUT, 2))
    assert b.handle(Received("a", AskUnit(INPUT, 3)), 1)[0] == Send("a", LacksUnit(INPUT, 3, False))
    b.handle(OutboxDamaged(SECOND, INPUT, 1, FINDING), 2)
    assert b.handle(Received("a", AskUnit(INPUT, 1)), 2)[0] == Send("a", LacksUnit(INPUT, 1, True))


def test_a_sibling_that_is_yet_to_produce_a_unit_is_asked_once_more() -> None:
    b = producer()
    b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    b.handle(Received("a", LacksUnit(INPUT, 2, False)), 2)
    assert asked(b.handle(Tick(), AGAIN_MS)) == []
    assert asked(b.handle(Tick(), AGAIN_MS + 1)) == [("a", AskUnit(INPUT, 2))]
    later = b.handle(Tick(), 100 * HOPE_MS)
    assert asked(later) and not any(isinstance(step, EndNode | StopReplica) for step in later)


def test_a_unit_that_all_consumers_have_is_not_missed() -> None:
    b = producer()
    b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    b.handle(Received("a", LacksUnit(INPUT, 2, True)), 2)
    for replica in sorted(b.outboxes.boxes[INPUT].counted):
        b.handle(Received(b.layout.placement[replica], Ack(INPUT, str(replica), 2)), 3)
    assert not any(isinstance(step, EndNode) for step in b.handle(Tick(), AFTER_MS)) and not b.damaged_units.under_way
    assert b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), AFTER_MS) == []


def test_the_ingress_recomputes_a_unit_that_no_other_member_has() -> None:
    b = producer()
    b.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    b.handle(Received("a", LacksUnit(INPUT, 2, True)), 2)
    [end] = [step for step in b.handle(Tick(), AFTER_MS) if isinstance(step, EndNode)]
    assert end.notice == IngressUnitLost(INPUT, 2, FINDING)
    alone = producer(links=("b",))
    alone.handle(OutboxDamaged(SECOND, INPUT, 2, FINDING), 1)
    assert any(isinstance(step, EndNode) for step in alone.handle(Tick(), AFTER_MS)), "nobody can be asked"


def test_a_replica_stops_when_no_sibling_has_the_unit_and_names_the_file() -> None:
    b = producer()
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    b.handle(OutboxDamaged(MINE, OUTPUT, 1, FINDING), 1)
    assert not any(isinstance(step, StopReplica) for step in b.handle(Tick(), AFTER_MS)), "a sibling may return"
    steps = b.handle(Received("a", LacksUnit(OUTPUT, 1, True)), AFTER_MS)
    [stop] = [step for step in steps if isinstance(step, StopReplica)]
    assert stop.replica == MINE and FINDING in stop.reason and "Restart the node" in stop.reason
    assert b.outboxes.boxes[OUTPUT].damaged == {1}, "it is never offered"


def test_a_replica_without_siblings_stops_at_once() -> None:
    b = producer()
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    own = {replica: where for replica, where in b.layout.placement.items() if where == "b"}
    b.handle(LayoutChanged(replace(b.layout, version=b.layout.version + 1, placement=own)), 1)
    steps = b.handle(OutboxDamaged(MINE, OUTPUT, 1, FINDING), 2)
    assert [step.replica for step in steps if isinstance(step, StopReplica)] == [MINE]


def test_a_state_with_a_damaged_unit_is_given_to_no_newcomer() -> None:
    b = producer()
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    b.replicas[MINE].committed = 1
    b.handle(OutboxDamaged(MINE, OUTPUT, 1, FINDING), 1)
    [step] = b.newcomers.pin_asked(PinAsked(SHARD, "c", 1), 2)
    assert isinstance(step, RefusePin) and "damaged" in step.reason

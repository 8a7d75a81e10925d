"""What a node decides about the orders of its shards, case by case; test_leading.py covers the rest."""

from __future__ import annotations

from dataclasses import replace

from kit.topologies import join
from unbroken.protocol.events import GateAsked, LinkLost, LinkUp, Tick, UnitArrived
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.instructions import AnswerGate, Instruction, Send, StopReplica
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Subscribe
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.policies.leader.cuts import LeaderCuts
from unbroken.protocol.policies.leader.instructions import Lead, Publish
from unbroken.protocol.policies.leader.leadership import AHEAD
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered, OrderRefused, OrdersLost
from unbroken.protocol.replica.cuts import PulseCuts
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.cuts import Reach
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.protocol.values.units import Digest, UnitHeader

SHARD = ShardId("join", 0)
LEFT, RIGHT = StreamId(ShardId("left", 0), SHARD), StreamId(ShardId("right", 0), SHARD)
SETTINGS = ProtocolSettings(ring_period_ms=0, order_settle_ms=5, order_lost_ms=50, order_silent_ms=1_000)


def node(me: str, settings: ProtocolSettings = SETTINGS) -> NodeProtocol:
    """Of two nodes, ``b`` hosts replica 0 of the shard and ``a`` replica 1; they are linked."""
    topology = replace(join(1), led=frozenset({"join"}))
    layout = chained_placement(topology, {name: f"disk of {name}" for name in ("a", "b")})
    assert layout.placement[ReplicaId(SHARD, 0)] == "b"
    recovered = {replica: StoredReplica() for replica in layout.hosted(me)}
    sync = InSync(1, "a", frozenset(layout.nodes_of(INGRESS)), 0)
    out = NodeProtocol(me, topology, layout, sync, recovered, settings, f"disk of {me}")
    out.start(0)
    for name in ("a", "b"):
        out.handle(LinkUp(name), 0)
    return out


def arrive(protocol: NodeProtocol, stream: StreamId, number: int, now_ms: float) -> list[Instruction]:
    header = UnitHeader(stream, number, number, number, Digest(1, number))
    return protocol.handle(UnitArrived(header, "a"), now_ms)


def tick(protocol: NodeProtocol, now_ms: float) -> list[Instruction]:
    out = protocol.handle(Tick(), now_ms)
    protocol.check()
    return [step for step in out if isinstance(step, Lead | Publish)]


def known(term: int, leader: str, claim: int = 0, last: int = 0) -> LeaderKnown:
    return LeaderKnown(SHARD, term, leader, last, claim)


def leader() -> NodeProtocol:
    """``b`` leads in term 1."""
    b = node("b")
    arrive(b, LEFT, 1, 0)
    assert tick(b, 5) == []
    assert tick(b, 55) == [Lead(SHARD, 1, 1)]
    b.handle(known(1, "b", claim=1), 60)
    return b


def order(number: int, left: int, right: int, term: int = 1) -> Order:
    return Order(number, {LEFT: left, RIGHT: right}, term)


def test_the_oldest_replica_with_something_to_do_asks_first() -> None:
    a, b = node("a"), node("b")
    assert tick(a, 100) == [], "there is nothing to order"
    for protocol in (a, b):
        arrive(protocol, LEFT, 1, 100)
        assert tick(protocol, 105) == []
    assert tick(b, 155) == [Lead(SHARD, 1, 1)]
    assert tick(a, 155) == []
    assert tick(a, 205) == [Lead(SHARD, 1, 1)], "the other one had its time"


def test_all_that_has_settled_is_ordered_at_once_and_no_more_than_two_ahead() -> None:
    b = leader()
    assert tick(b, 61) == [], "it was ordered with the news"
    arrive(b, LEFT, 2, 70)
    arrive(b, RIGHT, 1, 73)
    assert tick(b, 76) == [Publish(SHARD, 1, (order(2, 2, 0),))]
    for number in range(3, 9):
        arrive(b, LEFT, number, 80)
    assert tick(b, 100) == []
    b.handle(Ordered(SHARD, (order(1, 1, 0), order(2, 2, 0))), 101)
    assert tick(b, 102) == [], f"{AHEAD} orders wait for the query"
    b.handle(GateAsked(ReplicaId(SHARD, 0), "left", 0, 1, 200), 103)
    b.handle(GateAsked(ReplicaId(SHARD, 0), "right", 0, 2, 200), 103)
    steps = b.handle(GateAsked(ReplicaId(SHARD, 0), "left", 1, 3, 200), 104)
    assert Publish(SHARD, 1, (order(3, 8, 1),)) in steps
    assert AnswerGate(3, 2, {LEFT: Reach(2, 2, 2), RIGHT: Reach()}) in steps


def test_a_leader_reads_what_was_ordered_before_it_orders() -> None:
    b = node("b")
    arrive(b, LEFT, 1, 0)
    tick(b, 5)
    tick(b, 55)
    assert not [step for step in b.handle(known(7, "b", claim=1, last=1), 60) if isinstance(step, Publish)]
    arrive(b, LEFT, 2, 61)
    assert tick(b, 70) == []
    steps = b.handle(Ordered(SHARD, (order(1, 1, 0, term=6),)), 71)
    assert Publish(SHARD, 7, (order(2, 2, 0, term=7),)) in steps


def test_a_term_that_an_earlier_process_has_asked_for_is_not_led() -> None:
    b = node("b")
    arrive(b, LEFT, 1, 0)
    tick(b, 5)
    assert tick(b, 55) == [Lead(SHARD, 1, 1)]
    b.handle(known(1, "b"), 60)
    assert not [step for step in tick(b, 70) if isinstance(step, Publish)]


def test_a_leader_that_is_lost_is_replaced_at_once_and_a_silent_one_after_a_while() -> None:
    a = node("a")
    a.handle(known(3, "b"), 0)
    arrive(a, LEFT, 1, 10)
    assert tick(a, 900) == []
    assert tick(a, 1_910) == [Lead(SHARD, 4, 1)]
    a.handle(known(5, "b"), 2_000)
    arrive(a, LEFT, 2, 2_010)
    a.handle(LinkLost("b"), 2_020)
    assert tick(a, 2_040) == []
    assert tick(a, 2_060) == [Lead(SHARD, 6, 2)]


def test_one_that_gives_orders_is_left_in_peace() -> None:
    a = node("a")
    a.handle(known(3, "b"), 0)
    a.handle(LinkLost("b"), 1)
    for number in range(1, 20):
        arrive(a, LEFT, number, 40.0 * number)
        a.handle(Ordered(SHARD, (order(number, number, 0, term=3),)), 40.0 * number + 10)
        assert tick(a, 40.0 * number + 30) == []


def test_a_leader_that_is_refused_does_not_order_until_it_leads_again() -> None:
    b = leader()
    b.handle(OrderRefused(SHARD, 1, "somebody else leads"), 70)
    arrive(b, LEFT, 2, 71)
    assert not [step for step in tick(b, 80) if isinstance(step, Publish)]
    assert tick(b, 140) == [Lead(SHARD, 2, 2)]


def test_a_replica_whose_orders_are_forgotten_has_to_be_built_again() -> None:
    b = node("b")
    reason = f"order 1 of {SHARD} is kept nowhere any more"
    assert StopReplica(ReplicaId(SHARD, 0), reason) in b.handle(OrdersLost(SHARD, 0, 500), 10)


def test_a_follower_waits_for_what_it_has_not_received() -> None:
    inboxes = {LEFT: Inbox(LEFT), RIGHT: Inbox(RIGHT)}
    cuts = LeaderCuts(inboxes, {1: order(1, 2, 1)})
    inboxes[LEFT].arrive(UnitHeader(LEFT, 1, 1, 1, Digest(1, 1)))
    inboxes[RIGHT].arrive(UnitHeader(RIGHT, 1, 1, 1, Digest(1, 1)))
    assert cuts.next(0) is None and cuts.lacking(1) == [LEFT]
    inboxes[LEFT].arrive(UnitHeader(LEFT, 2, 2, 2, Digest(1, 1)))
    assert cuts.next(0) == 1
    assert cuts.cut(1) == {LEFT: Reach(2, 2, 2), RIGHT: Reach(1, 1, 1)}


def test_a_pulse_takes_every_input_to_the_first_unit_that_completes_it() -> None:
    """Units 1 and 2 of a leader-ordered producer are needed for pulse 1; unit 3 completes pulses 2 and 3."""
    inbox = Inbox(LEFT)
    for number, pulse in ((1, 0), (2, 1), (3, 3)):
        inbox.arrive(UnitHeader(LEFT, number, pulse, pulse, Digest(1, number)))
    cuts = PulseCuts({LEFT: inbox})
    assert [cuts.cut(number) for number in (1, 2, 3, 4)] == [
        {LEFT: Reach(2, 1, 1)},
        {LEFT: Reach(3, 3, 3)},
        {LEFT: Reach(3, 3, 3)},
        None,
    ]
    inbox.consume(3)
    assert cuts.cut(3) == {LEFT: Reach(3, 3, 3)}, "there is nothing left for pulse 3"
    assert cuts.cut(4) is None


def test_who_has_nothing_to_order_turns_to_another_producer() -> None:
    """With single delivery a leader would wait for a silent producer for ever: it orders nothing that it lacks."""
    b = node("b", replace(SETTINGS, single_delivery=True, patience_ms=500))
    arrive(b, LEFT, 1, 0)
    b.handle(GateAsked(ReplicaId(SHARD, 0), "left", 0, 1, 10_000.0), 0)

    def asked(now_ms: float) -> list[StreamId]:
        messages = [step.message for step in b.handle(Tick(), now_ms) if isinstance(step, Send)]
        return [message.stream for message in messages if isinstance(message, Subscribe)]

    assert asked(400) == []
    assert asked(600) == [RIGHT], "of the left there is something"

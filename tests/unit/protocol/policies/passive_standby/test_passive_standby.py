"""A passive standby, step by step: copies on offer, acknowledgements at their version, and the way to work."""

from __future__ import annotations

from dataclasses import replace

from kit.topologies import chain
from unbroken.protocol.events import FetchFailed, LayoutChanged, LinkUp, Received, Started, StateArrived, Tick
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.instructions import FetchState, Instruction, Report, Send, SendUnit, StartReplica
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Ack, Claimed, Subscribe
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.policies.passive_standby.copies import PassiveStandby
from unbroken.protocol.policies.passive_standby.messages import Offer
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.recovery import StoredReplica, StoredUnits
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.protocol.values.units import Digest, UnitHeader

SOURCE, SHARD, SINK = ShardId("source", 0), ShardId("s0", 0), ShardId("sink", 0)
INPUT, OUTPUT = StreamId(SOURCE, SHARD), StreamId(SHARD, SINK)
WORKING, HELD = ReplicaId(SHARD, 0), ReplicaId(SHARD, 1)
TOPOLOGY = replace(
    chain((1,)),
    strategies={"s0": Strategy(Ha.PASSIVE, 1, every=2)},
    replicas={"ingress": 2, "s0": 1},
    client_sinks=frozenset({"sink"}),
)
LAYOUT = chained_placement(TOPOLOGY, {name: f"disk of {name}" for name in "abc"})
"""The ingress is on a and b, the segment works on b, and c holds a copy."""


def unit(stream: StreamId, number: int) -> UnitHeader:
    return UnitHeader(stream, number, number, 0, Digest(1, number))


def node(me: NodeId, layout: Layout = LAYOUT) -> NodeProtocol:
    recovered = {replica: StoredReplica() for replica in layout.hosted(me)}
    settings = ProtocolSettings(ring_period_ms=0)
    sync = InSync(1, "a", frozenset("ab"), 0)
    out = NodeProtocol(me, TOPOLOGY, layout, sync, recovered, settings, f"disk of {me}")
    out.handle(Started(), 0)
    for name in "abc":
        out.handle(LinkUp(name), 0)
    return out


def fetches(steps: list[Instruction]) -> list[FetchState]:
    return [step for step in steps if isinstance(step, FetchState)]


def promised(c: NodeProtocol) -> NodeProtocol:
    for producer in "ab":
        c.handle(Received(producer, Claimed(INPUT, HELD, 0, 0)), 0)
    return c


def test_the_first_layout_says_who_holds() -> None:
    assert LAYOUT.placement[WORKING] == "b" and LAYOUT.placement[HELD] == "c"
    assert LAYOUT.held == {HELD} and LAYOUT.full(SHARD) == {WORKING}
    assert node("c").hosted() == []


def test_a_copy_is_fetched_when_it_is_offered_and_acknowledged_when_it_is_here() -> None:
    c = promised(node("c"))
    assert fetches(c.handle(Tick(), 10)) == [], "nothing is offered that is not here"
    assert fetches(c.handle(Received("b", Offer(WORKING, 2)), 20)) == [FetchState(HELD, "b", SHARD, 2, held=True)]
    assert fetches(c.handle(Received("b", Offer(WORKING, 4)), 30)) == [], "one at a time"
    steps = c.handle(StateArrived(HELD, StoredReplica(2), "b", 100), 40)
    assert {step for step in steps if isinstance(step, Send)} == {
        Send(producer, Ack(INPUT, str(HELD), 2)) for producer in "ab"
    }
    assert fetches(steps) == [FetchState(HELD, "b", SHARD, 4, held=True)], "the one that was offered meanwhile"
    assert c.traffic["state"] == 100


def test_a_copy_that_does_not_come_is_asked_for_again() -> None:
    c = promised(node("c"))
    c.handle(Received("b", Offer(WORKING, 2)), 0)
    assert [type(step) for step in c.handle(FetchFailed(HELD, "b", "the link broke"), 10)] == [Report]
    wake = c.next_wake_ms()
    assert wake is not None and fetches(c.handle(Tick(), wake)) == [FetchState(HELD, "b", SHARD, 2, held=True)]


def test_the_copy_goes_to_work_and_clients_that_asked_before_are_served() -> None:
    c = promised(node("c"))
    c.handle(Received("b", Offer(WORKING, 2)), 0)
    c.handle(StateArrived(HELD, StoredReplica(2), "b", 100), 10)
    layout = LAYOUT.without([WORKING]).with_begun(HELD)
    steps = c.handle(LayoutChanged(layout), 20)
    assert fetches(steps) == [FetchState(HELD, "c", SHARD)], "from itself: to open what is here"
    assert c.handle(Received("client-1", Subscribe(OUTPUT, "client-1", 1)), 30) == []
    state = StoredReplica(2, {OUTPUT: StoredUnits(0, (unit(OUTPUT, 1), unit(OUTPUT, 2)))})
    steps = c.handle(StateArrived(HELD, state, "c", 0), 40)
    assert StartReplica(HELD) in steps and SendUnit("client-1", HELD, unit(OUTPUT, 2)) in steps
    assert c.hosted() == [HELD] and not c.policies.held()


def test_a_primary_offers_every_few_units() -> None:
    b = node("b")
    replica = b.replicas[WORKING]
    told: list[int] = []
    for number in range(1, 7):
        replica.produced = replica.committed = number
        told += [step.message.version for step in b.policies.of(PassiveStandby).committed(replica)]  # type: ignore[union-attr]
    assert told == [2, 4, 6]
    assert (
        b.policies.of(PassiveStandby).briefing("c") == [Send("c", Offer(WORKING, 6))]
        and b.policies.of(PassiveStandby).briefing("a") == []
    )

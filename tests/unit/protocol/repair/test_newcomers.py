"""A node that builds replicas, helps others to build theirs, and finds out that it was replaced."""

from __future__ import annotations

from kit.topologies import chain
from unbroken.protocol.events import (
    FetchFailed,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkUp,
    PinAsked,
    Produced,
    Received,
    Started,
    StateArrived,
    UnitArrived,
)
from unbroken.protocol.ingress.log import Admission, InSync, ProposeInSync
from unbroken.protocol.instructions import (
    AbandonFetch,
    DropOutbox,
    DropReplica,
    FetchState,
    Instruction,
    PinState,
    PollSources,
    RefusePin,
    Report,
    ReportCaughtUp,
    Send,
    StartReplica,
    StopReplica,
)
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Ack, Claim, Claimed, Missing, Progress, Serving, Subscribe
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.repair.catchup import Phase
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.recovery import LogState, StoredReplica, StoredUnits
from unbroken.protocol.values.units import Digest, UnitHeader

SOURCE, SHARD, SINK = ShardId("source", 0), ShardId("s0", 0), ShardId("sink", 0)
INPUT, OUTPUT = StreamId(SOURCE, SHARD), StreamId(SHARD, SINK)
TOPOLOGY = chain((1,))
SYNC = InSync(1, "a", frozenset("ab"), 0)
SETTINGS = ProtocolSettings(ring_period_ms=0)
FIRST = chained_placement(TOPOLOGY, {name: f"disk of {name}" for name in "ab"})
"""The ingress is on a (which leads it) and b, the segment on b (replica 0) and a (replica 1)."""


def node(me: NodeId, layout: Layout, recovered: dict[ReplicaId, StoredReplica] | None = None) -> NodeProtocol:
    found = {replica: StoredReplica() for replica in layout.full(SHARD) | layout.full(INGRESS)}
    out = NodeProtocol(me, TOPOLOGY, layout, SYNC, found if recovered is None else recovered, SETTINGS, f"disk of {me}")
    out.handle(Started(), 0)
    out.handle(LinkUp(me), 0)
    return out


def joining_on_c(shard: ShardId) -> tuple[Layout, ReplicaId]:
    """Node b is lost, and a replica is to be built on c."""
    layout, replica = FIRST.without_nodes("b").with_joining(shard, "c")
    return Layout(
        layout.version, {n: f"disk of {n}" for n in "ac"}, layout.placement, layout.next_index, layout.joining
    ), (replica)


def unit(stream: StreamId, number: int) -> UnitHeader:
    return UnitHeader(stream, number, number, 0, Digest(1, number))


def linked(name: NodeId, layout: Layout, *others: NodeId) -> NodeProtocol:
    out = node(name, layout)
    for other in others:
        out.handle(LinkUp(other), 0)
    return out


def messages(steps: list[Instruction], kind: type) -> list[object]:
    return [step.message for step in steps if isinstance(step, Send) and isinstance(step.message, kind)]


# --- building -----------------------------------------------------------------------------------------------


def test_a_newcomer_claims_fetches_starts_and_reports() -> None:
    layout, replica = joining_on_c(SHARD)
    c = node("c", layout)
    assert messages(c.handle(LinkUp("a"), 0), Claim) == [Claim(INPUT, replica, layout.version)]
    assert FetchState(replica, "a", SHARD, 2) in c.handle(Received("a", Claimed(INPUT, replica, 2, 6)), 10)
    state = StoredReplica(4, {OUTPUT: StoredUnits(3, (unit(OUTPUT, 4),))})
    steps = c.handle(StateArrived(replica, state, "a", 1_000), 20)
    assert steps[0] == StartReplica(replica) and Send("a", Serving(replica)) in steps
    assert Send("a", Subscribe(INPUT, str(replica), 4)) in steps and Send("a", Ack(INPUT, str(replica), 4)) in steps
    assert c.handle(Received("a", Claimed(INPUT, replica, 2, 6)), 20) == [], "units 5 and 6 are still to come"
    assert c.handle(GateAsked(replica, "source", 4, 1, 100), 30) == [], "within the lag, but it has yet to do a unit"
    c.handle(UnitArrived(unit(INPUT, 5), "a"), 40)
    c.handle(Produced(replica, 5, (unit(OUTPUT, 5),)), 50)
    done = c.handle(GateAsked(replica, "source", 5, 2, 100), 60)
    assert [step for step in done if isinstance(step, ReportCaughtUp)], (
        "what the query asks next shows a committed unit"
    )
    assert not any(isinstance(step, ReportCaughtUp) for step in c.handle(GateAsked(replica, "source", 5, 2, 100), 60))
    full = layout.with_full([replica])
    assert c.handle(LayoutChanged(full), 70) == [] and not c.newcomers.joins
    assert c.hosted() == [replica]


def test_a_failed_transfer_is_tried_again() -> None:
    layout, replica = joining_on_c(SHARD)
    c = linked("c", layout, "a")
    c.handle(Received("a", Claimed(INPUT, replica, 0, 0)), 0)
    steps = c.handle(FetchFailed(replica, "a", "the link broke"), 10)
    assert [type(step) for step in steps] == [Report]
    wake = c.next_wake_ms()
    assert wake is not None
    assert c.handle(FetchFailed(replica, "a", "told twice"), 10) == []
    assert FetchState(replica, "a", SHARD) in c.handle(LinkUp("a"), wake)


def test_a_layout_that_changes_its_mind_ends_the_transfer_and_what_it_brought() -> None:
    layout, replica = joining_on_c(SHARD)
    c = linked("c", layout, "a")
    c.handle(Received("a", Claimed(INPUT, replica, 0, 0)), 0)
    steps = c.handle(LayoutChanged(layout.without([replica])), 10)
    assert steps == [AbandonFetch(replica), DropReplica(replica)]
    assert c.handle(StateArrived(replica, StoredReplica(3), "a", 1), 20) == [DropReplica(replica)]
    assert not c.hosted()


def test_a_replica_that_counts_without_being_there_is_reported_as_stopped() -> None:
    layout, replica = joining_on_c(SHARD)
    c = linked("c", layout, "a")
    assert [type(s) for s in c.handle(LayoutChanged(layout.with_full([replica])), 0)] == [StopReplica]
    restarted = node("c", layout.with_full([replica]), {})
    assert not restarted.hosted()
    assert [type(s) for s in node("c", layout, {}).start(0)] == []


def test_a_newcomer_that_restarts_goes_on_from_its_disk_and_claims_again() -> None:
    layout, replica = joining_on_c(SHARD)
    c = node("c", layout, {replica: StoredReplica(5)})
    assert c.hosted() == [replica] and c.newcomers.joins[replica].phase is Phase.CATCHING_UP
    assert messages(c.handle(LinkUp("a"), 0), Claim) == [Claim(INPUT, replica, layout.version)]
    asked = c.handle(GateAsked(replica, "source", 5, 1, 100), 0)
    assert not any(isinstance(step, ReportCaughtUp) for step in asked), "nobody keeps anything for it yet"
    assert ReportCaughtUp in [type(s) for s in c.handle(Received("a", Claimed(INPUT, replica, 3, 5)), 0)]


def test_a_newcomer_that_needs_what_is_kept_nowhere_stops() -> None:
    layout, replica = joining_on_c(SHARD)
    ingress, second = layout.with_joining(INGRESS, "d")
    c = node("c", ingress, {replica: StoredReplica(5)})
    c.handle(LinkUp("a"), 0)
    missing = Missing(INPUT, str(replica), 7)
    assert c.handle(Received("a", missing), 0) == [], "d and b may have it"
    c.handle(InSyncChanged(InSync(2, "a", frozenset("a"), 1)), 0)
    steps = c.handle(LayoutChanged(ingress.without([second])), 0)
    assert [step.reason for step in steps if isinstance(step, StopReplica)] == [
        f"unit 6 of {INPUT} is kept nowhere any more"
    ]


def test_a_replica_that_begins_greets_the_others_on_its_own_node() -> None:
    """What is read from it here has come further than its outbox knows."""
    layout, replica = FIRST.without([ReplicaId(INGRESS, 1)]).with_joining(INGRESS, "b")
    mine = ReplicaId(SHARD, 0)
    b = node("b", layout, {mine: StoredReplica(4)})
    b.handle(LinkUp("a"), 0)
    b.handle(InSyncChanged(InSync(2, "a", frozenset("a"), 1)), 0)
    log = LogState(2, (), 2, admission=Admission("a", 2, 2, 1, "2.1"))
    steps = b.handle(StateArrived(replica, StoredReplica(2, log=log), "a", 1), 0)
    assert Send("b", Ack(INPUT, str(mine), 4)) in steps and Send("b", Subscribe(INPUT, str(mine), 4)) in steps


# --- helping ------------------------------------------------------------------------------------------------


def test_a_donor_pins_its_committed_version_and_the_units_that_go_with_it() -> None:
    held = StoredReplica(5, {OUTPUT: StoredUnits(3, tuple(unit(OUTPUT, n) for n in (4, 5, 6)))})
    a = node("a", FIRST, {ReplicaId(SHARD, 1): held})
    assert a.handle(PinAsked(SHARD, "c", 7), 0) == [PinState(7, ReplicaId(SHARD, 1), 5, ((OUTPUT, 3, 5),))]
    [refusal] = a.handle(PinAsked(INGRESS, "c", 8), 0)
    assert isinstance(refusal, RefusePin)


def test_only_a_newcomer_that_the_layout_knows_is_taken_into_the_ingress() -> None:
    layout, replica = joining_on_c(INGRESS)
    a = node("a", FIRST)
    a.handle(InSyncChanged(InSync(2, "a", frozenset("ab"), 1)), 0)
    assert [type(step) for step in a.handle(PinAsked(INGRESS, "c", 1), 0)] == [RefusePin], "an older layout"
    a.handle(LayoutChanged(layout), 0)
    a.handle(InSyncChanged(InSync(3, "a", frozenset("a"), 2)), 0)
    [pin] = [step for step in a.handle(PinAsked(INGRESS, "c", 2), 0) if isinstance(step, PinState)]
    assert pin.admission is not None and pin.admission.leader == "a"
    assert a.sources is not None and set(a.sources.log.learners.known) == {"c"}
    a.handle(LayoutChanged(layout.without([replica])), 0)
    assert not a.sources.log.learners.known, "what the layout has given up is not waited for"


def test_a_leader_that_lost_its_log_is_found_out_by_its_question() -> None:
    layout, _ = FIRST.without([ReplicaId(INGRESS, 0)]).with_joining(INGRESS, "a")
    a, b = node("a", layout), linked("b", layout, "a")
    assert FetchState(ReplicaId(INGRESS, 2), "b", INGRESS) in a.handle(LinkUp("b"), 0)
    steps = b.handle(PinAsked(INGRESS, "a", 1), 0)
    assert [step.proposal.members for step in steps if isinstance(step, ProposeInSync)] == [{"b"}]
    assert any(isinstance(step, RefusePin) for step in steps)


def test_a_member_that_starts_with_a_layout_that_gave_the_leader_up_takes_over() -> None:
    steps: list[Instruction] = []
    layout = FIRST.without([ReplicaId(INGRESS, 0)])
    b = NodeProtocol("b", TOPOLOGY, layout, SYNC, {ReplicaId(INGRESS, 1): StoredReplica()}, disk="disk of b")
    steps += b.handle(Started(), 0)
    assert [step.proposal.leader for step in steps if isinstance(step, ProposeInSync)] == ["b"]


# --- being replaced -----------------------------------------------------------------------------------------


def test_a_node_that_was_replaced_drops_what_it_had() -> None:
    b = node("b", FIRST)
    hosted = b.hosted()
    steps = b.handle(LayoutChanged(FIRST.without_nodes("b")), 0)
    assert [step.replica for step in steps if isinstance(step, DropReplica)] == hosted
    assert not b.hosted() and b.sources is None and not b.outboxes.boxes
    assert b.handle(GateAsked(ReplicaId(SHARD, 0), "source", 0, 1, 9), 0), "a query that is being ended is answered"
    assert b.handle(Produced(ReplicaId(SHARD, 0), 1, (unit(OUTPUT, 1),)), 0) == []


def test_a_layout_that_knows_another_disk_does_not_mean_this_node() -> None:
    b = NodeProtocol("b", TOPOLOGY, FIRST, SYNC, {}, disk="an empty disk")
    assert b.handle(Started(), 0) == [] and b.around.placed_here() == []


# --- news from nodes that are ahead -------------------------------------------------------------------------


def test_what_is_heard_of_a_replica_before_its_layout_is_kept() -> None:
    a = linked("a", FIRST, "b")
    layout, replica = FIRST.without([ReplicaId(SHARD, 0)]).with_joining(SHARD, "b")
    a.handle(Received("b", Serving(replica)), 0)
    a.handle(Received("b", Progress(replica, 9)), 0)
    between = FIRST.without([ReplicaId(SHARD, 0)])
    a.handle(LayoutChanged(between), 0)
    assert a.advance.reached[replica] == 9 and replica in a.around.serving
    a.handle(LayoutChanged(layout), 0)
    assert a.advance.reached[replica] == 9 and replica in a.around.serving
    assert ReplicaId(SHARD, 0) not in a.advance.reached


def test_a_producer_that_is_greeted_before_it_is_known_hears_again_how_things_stand() -> None:
    layout, replica = FIRST.without([ReplicaId(INGRESS, 1)]).with_joining(INGRESS, "b")
    a = node("a", FIRST.without([ReplicaId(INGRESS, 1)]), {ReplicaId(SHARD, 1): StoredReplica(6)})
    a.handle(InSyncChanged(InSync(2, "a", frozenset("a"), 1)), 0)
    a.handle(LinkUp("b"), 0)
    assert messages(a.handle(Received("b", Serving(replica)), 0), Ack) == [], "it is not known to produce anything"
    assert Send("b", Ack(INPUT, str(ReplicaId(SHARD, 1)), 6)) in a.handle(LayoutChanged(layout), 0)


def test_pulses_are_not_held_for_a_shard_whose_progress_was_told_to_another_leader() -> None:
    b = linked("b", FIRST, "a")
    sibling = ReplicaId(SHARD, 1)
    b.handle(Received("a", Progress(sibling, 3)), 0)
    steps = b.handle(InSyncChanged(InSync(2, "b", frozenset("b"), 1)), 0)
    assert any(isinstance(step, PollSources) for step in steps)


def test_stale_units_of_a_restarted_ingress_are_dropped_again() -> None:
    held = StoredReplica(2, {INPUT: StoredUnits(4, (unit(INPUT, 5),))}, log=LogState(2, (), 2))
    ingress = ReplicaId(INGRESS, 0)
    a = node("a", FIRST, {ingress: held})
    assert DropOutbox(ingress, INPUT, (3,)) in a.handle(Produced(ingress, 3, (unit(INPUT, 3),)), 0)
    assert not any(isinstance(s, DropOutbox) for s in a.handle(Produced(ingress, 5, (unit(INPUT, 5),)), 0))

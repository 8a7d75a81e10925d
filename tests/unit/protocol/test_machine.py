"""A node's decisions, case by case; the machine in test_flow_machine.py covers the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.protocol_node import (
    FIRST,
    INPUT,
    MINE,
    OUTPUT,
    SECOND,
    SIBLING,
    SOURCE,
    ask,
    node,
    unit,
)
from kit.topologies import chain, join
from unbroken.errors import InvariantViolation
from unbroken.protocol.events import (
    EntriesPersisted,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    LinkUp,
    Produced,
    PushArrived,
    Received,
    ReplicaStopped,
    SinkDelivered,
    SinkRefused,
    SourcesPolled,
    SubscriberGone,
    Tick,
    UnitArrived,
    UnitDamaged,
)
from unbroken.protocol.ingress.log import Append, AppendAck, InSync, JoinLog, ProposeInSync
from unbroken.protocol.instructions import (
    AnswerGate,
    CommitEntry,
    Deliver,
    DropInbox,
    DropOutbox,
    PersistEntry,
    PollSources,
    Report,
    Send,
    SendUnit,
    StopReplica,
    StoreUnit,
)
from unbroken.protocol.messages import Ack, Delivered, DigestNote, Progress, Serving, Subscribe
from unbroken.protocol.replica.reports import SINK_BACKLOG
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.replicas import CopyDiffers
from unbroken.protocol.values.notices.sinks import SinkStopped, UnitSetAside
from unbroken.protocol.values.units import Digest


def test_a_unit_is_stored_before_the_gate_opens() -> None:
    b = node()
    assert b.handle(ask(0), 0) == []
    header = unit(INPUT, 1)
    assert b.handle(UnitArrived(header, "a"), 1) == [StoreUnit(MINE, header), AnswerGate(1, 1)]
    assert b.handle(UnitArrived(header, "b"), 1) == []


def test_a_unit_from_somebody_who_was_not_asked_for_it_is_left_alone() -> None:
    """A replica that was given up, and does not know it, may produce something else than those in its place."""
    b = node()
    assert b.handle(UnitArrived(unit(INPUT, 1), "c"), 0) == []
    assert b.replicas[MINE].inboxes[INPUT].available == 0


def test_a_unit_of_a_generation_that_is_not_known_here_waits() -> None:
    """Whether this replica's results are to count for it is for the layout to say."""
    b = node()
    b.handle(UnitArrived(replace(unit(INPUT, 1), generation=2), "a"), 0)
    assert b.handle(ask(0), 0) == []
    known = replace(b.layout, version=b.layout.version + 1, generations=(1, 2))
    assert b.handle(LayoutChanged(known), 0) == [AnswerGate(1, 1)]


def test_the_question_after_a_micro_batch_is_its_commit() -> None:
    b = node()
    b.handle(UnitArrived(unit(INPUT, 1), "a"), 0)
    b.handle(ask(0), 0)
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    steps = b.handle(ask(1, ticket=2), 0)
    ack = Ack(INPUT, str(MINE), 1)
    assert steps == [DropInbox(MINE, INPUT, (1,)), Send("a", ack), Send("b", ack)]


def test_a_question_is_answered_at_its_deadline_and_no_wake_time_stays_in_the_past() -> None:
    b = node()
    b.handle(ask(0), 0)
    assert b.next_wake_ms() == 100
    assert b.handle(Tick(), 100) == [AnswerGate(1, 0)]
    assert b.next_wake_ms() is None


def test_link_up_repeats_everything_that_may_have_been_lost() -> None:
    b = node()
    for number in (1, 2):
        b.handle(UnitArrived(unit(INPUT, number), "a"), 0)
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    b.handle(SinkDelivered(OUTPUT, 1), 0)
    b.handle(ask(1), 0)
    sent = [step.message for step in b.handle(LinkUp("a"), 0) if isinstance(step, Send)]
    assert isinstance(sent.pop(), JoinLog | AppendAck), "the ingress"
    assert sent == [
        Subscribe(INPUT, str(MINE), 2),
        Ack(INPUT, str(MINE), 1),
        Progress(MINE, 1),
        Delivered(OUTPUT, 1),
        DigestNote(MINE, OUTPUT, 1, unit(OUTPUT, 1).digest),
        Serving(SECOND),
        Serving(MINE),
    ]


def test_a_subscription_outlives_neither_its_link_nor_a_newer_one() -> None:
    a = node("a")
    a.handle(Received("b", Subscribe(INPUT, str(MINE), 0)), 0)
    ingress = ReplicaId(INGRESS, 0)
    first, second, third = (unit(INPUT, n) for n in (1, 2, 3))
    assert SendUnit("b", FIRST, first) in a.handle(Produced(ingress, 1, (first,)), 0)
    a.handle(SubscriberGone("b"), 0)
    assert not any(isinstance(s, SendUnit) for s in a.handle(Produced(ingress, 2, (second,)), 0))
    steps = a.handle(Received("b", Subscribe(INPUT, str(MINE), 0)), 0)
    assert [s.header for s in steps if isinstance(s, SendUnit)] == [first, second], "sent again after the loss"
    assert SendUnit("b", FIRST, third) in a.handle(Produced(ingress, 3, (third,)), 0)
    assert a.handle(Received("b", Subscribe(INPUT, str(MINE), 3)), 0) == [], "a duplicate link gets no unit twice"


def test_an_early_acknowledgement_trims_the_unit_when_it_is_produced() -> None:
    a = node("a")
    a.handle(Received("b", Subscribe(INPUT, str(MINE), 0)), 0)
    for host, replica in (("b", MINE), ("a", SIBLING)):
        a.handle(Received(host, Ack(INPUT, str(replica), 1)), 0)
    steps = a.handle(Produced(FIRST, 1, (unit(INPUT, 1),)), 0)
    assert DropOutbox(FIRST, INPUT, (1,)) in steps
    assert not any(isinstance(step, SendUnit) for step in steps)
    assert any(isinstance(s, Send) and isinstance(s.message, DigestNote) for s in steps), "still compared"


def test_a_layout_without_a_replica_lets_go_of_what_was_kept_for_it() -> None:
    a = node("a", chain((1, 1)), ("a", "b", "c"))
    stream = next(s for s in a.outboxes.boxes if s.producer == SOURCE)
    a.handle(Produced(ReplicaId(INGRESS, 0), 1, (unit(stream, 1),)), 0)
    keeps, loses = sorted(a.layout.counted(stream.consumer))
    a.handle(Received("b", Ack(stream, str(keeps), 1)), 0)
    assert list(a.outboxes.boxes[stream].headers) == [1]
    layout = a.layout.without([loses])
    assert DropOutbox(FIRST, stream, (1,)) in a.handle(LayoutChanged(layout), 0)
    assert a.handle(LayoutChanged(layout), 0) == []


def test_a_sibling_that_delivered_ahead_saves_delivery_and_disk() -> None:
    b = node()
    assert b.handle(Received("a", Delivered(OUTPUT, 2)), 0) == []
    for number in (1, 2):
        steps = b.handle(Produced(MINE, number, (unit(OUTPUT, number),)), 0)
        assert DropOutbox(MINE, OUTPUT, (number,)) in steps
        assert not any(isinstance(step, Deliver) for step in steps)
    assert Deliver(MINE, unit(OUTPUT, 3)) in b.handle(Produced(MINE, 3, (unit(OUTPUT, 3),)), 0)
    b.check()


def test_a_unit_stays_on_disk_while_the_sink_reads_it() -> None:
    b = node()
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    assert b.handle(Received("a", Delivered(OUTPUT, 1)), 0) == []
    assert DropOutbox(MINE, OUTPUT, (1,)) in b.handle(SinkDelivered(OUTPUT, 1), 0)


def test_the_second_replica_delivers_after_the_hedge_when_nobody_reports() -> None:
    a = node("a")
    a.handle(LinkUp("b"), 0)
    a.handle(Produced(SIBLING, 1, (unit(OUTPUT, 1),)), 10)
    assert Deliver(SIBLING, unit(OUTPUT, 1)) not in a.handle(Tick(), 59)
    assert Deliver(SIBLING, unit(OUTPUT, 1)) in a.handle(Tick(), 60)


def test_the_second_replica_does_not_hedge_for_one_that_is_given_up() -> None:
    a = node("a")
    a.handle(LayoutChanged(a.layout.without_nodes(["b"])), 0)
    assert Deliver(SIBLING, unit(OUTPUT, 1)) in a.handle(Produced(SIBLING, 1, (unit(OUTPUT, 1),)), 10)


def test_a_divergent_replica_falls_silent() -> None:
    a = node("a")
    a.handle(Received("x", Subscribe(OUTPUT, "x", 0)), 0)
    a.handle(Produced(SIBLING, 1, (unit(OUTPUT, 1),)), 0)
    steps = a.handle(Received("b", DigestNote(MINE, OUTPUT, 1, Digest(1, 2))), 0)
    assert [type(step) for step in steps[:2]] == [Report, StopReplica]
    assert a.handle(Received("b", DigestNote(MINE, OUTPUT, 1, Digest(1, 2))), 0) == []
    assert a.handle(Produced(SIBLING, 2, (unit(OUTPUT, 2),)), 0) == []
    assert a.handle(Received("x", Subscribe(OUTPUT, "x", 0)), 0) == []
    assert not any(isinstance(step, Deliver) for step in a.handle(Tick(), 1_000))
    assert a.handle(UnitArrived(unit(INPUT, 1), "b"), 0) == []


def test_a_failed_query_still_hands_on_what_it_had_produced() -> None:
    b = node()
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    b.handle(SinkDelivered(OUTPUT, 1), 0)
    b.handle(Produced(MINE, 2, (unit(OUTPUT, 2),)), 0)
    b.handle(Produced(MINE, 3, (unit(OUTPUT, 3),)), 0)
    assert [type(step) for step in b.handle(ReplicaStopped(MINE, "out of memory"), 0)] == [Report, StopReplica]
    assert b.handle(ReplicaStopped(MINE, "out of memory"), 0) == [], "told once"
    assert Deliver(MINE, unit(OUTPUT, 3)) in b.handle(SinkDelivered(OUTPUT, 2), 0)
    assert b.handle(Produced(MINE, 4, (unit(OUTPUT, 4),)), 0) == []


def test_pulses_are_polled_one_at_a_time_and_logged() -> None:
    a = node("a")
    assert a.handle(Tick(), 0) == [PollSources(1)]
    assert a.next_wake_ms() is None and a.handle(Tick(), 500) == []
    steps = a.handle(SourcesPolled(1, b"cut", False), 510)
    assert isinstance(steps[0], PersistEntry)
    assert a.handle(Received("b", AppendAck(2, 1)), 520) == [], "it is not on the disk of this node"
    steps = a.handle(EntriesPersisted(1, 1), 525)
    assert isinstance(steps[0], CommitEntry)


def test_a_report_of_the_disk_of_an_earlier_log_counts_for_nothing() -> None:
    a = node("a")
    a.handle(PushArrived(b"rows"), 0)
    a.handle(Received("b", AppendAck(2, 1)), 0)
    assert a.handle(EntriesPersisted(0, 1), 0) == []
    assert isinstance(a.handle(EntriesPersisted(1, 1), 0)[0], CommitEntry)


def test_a_damaged_unit_is_fetched_once_more() -> None:
    b = node()
    for peer in ("a", "b"):
        b.handle(LinkUp(peer), 0)
    for number in (1, 2, 3):
        b.handle(UnitArrived(unit(INPUT, number), "a"), 0)
    b.handle(ask(0), 0)
    steps = b.handle(UnitDamaged(MINE, INPUT, 2, "its checksum is wrong"), 1)
    assert DropInbox(MINE, INPUT, (2,)) in steps
    asked = {step.to: step.message for step in steps if isinstance(step, Send)}
    assert asked == dict.fromkeys(("a", "b"), Subscribe(INPUT, str(MINE), 1))
    assert b.replicas[MINE].inboxes[INPUT].available == 1
    assert StoreUnit(MINE, unit(INPUT, 2)) in b.handle(UnitArrived(unit(INPUT, 2), "a"), 2)
    assert b.handle(UnitArrived(unit(INPUT, 3), "a"), 2) == []
    assert b.replicas[MINE].inboxes[INPUT].available == 3
    b.check()
    assert b.handle(UnitDamaged(MINE, INPUT, 9, "it was consumed long ago"), 3) == []


def test_a_late_copy_that_differs_from_what_was_consumed_is_reported() -> None:
    b = node()
    b.handle(UnitArrived(unit(INPUT, 1), "a"), 0)
    b.handle(ask(0), 0)
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    b.handle(ask(1, ticket=2), 0)
    assert b.handle(UnitArrived(unit(INPUT, 1), "b"), 1) == []
    [report] = b.handle(UnitArrived(unit(INPUT, 1, content=2), "b"), 1)
    assert report == Report(CopyDiffers(INPUT, 1, "b"))


def test_pulses_are_held_while_too_many_are_in_flight() -> None:
    a = node("a")
    assert a.sources is not None
    now = 0.0
    while a.backpressure.in_flight() < a.sources.pulse.in_flight_bound:
        [poll] = a.handle(Tick(), now)
        assert isinstance(poll, PollSources)
        a.handle(SourcesPolled(poll.pulse, b"", False), now)
        now += 1_000
    assert a.handle(Tick(), now) == []
    assert a.next_wake_ms() is None, "a held pulse waits for progress, not for time"
    assert a.handle(Received("b", Progress(MINE, 1)), now) == [PollSources(a.sources.pulse.in_flight_bound + 1)]


def test_a_poll_that_comes_back_after_the_leader_has_changed_is_dropped() -> None:
    a = node("a")
    a.handle(Tick(), 0)
    a.handle(InSyncChanged(InSync(3, "b", frozenset("b"), 2)), 0)
    assert a.handle(SourcesPolled(1, b"cut", False), 10) == []
    assert a.sources is not None
    assert not a.sources.polling and a.next_wake_ms() is None


def test_a_follower_takes_over_and_cuts_at_once() -> None:
    b = node("b")
    assert b.handle(Received("a", Append(1, None, 0)), 0) == []
    grace = ProtocolSettings().grace_ms
    assert b.handle(LinkLost("a"), 0) == []
    assert b.next_wake_ms() == grace
    [proposal] = b.handle(Tick(), grace)
    assert isinstance(proposal, ProposeInSync)
    steps = b.handle(InSyncChanged(proposal.proposal), grace)
    assert PollSources(1) in steps and any(isinstance(step, Report) for step in steps)


def test_a_link_that_comes_back_in_time_costs_no_member() -> None:
    b = node("b")
    b.handle(LinkLost("a"), 0)
    b.handle(LinkUp("a"), 50)
    assert b.handle(Tick(), 10_000) == []


def test_a_refused_unit_is_told_of_once_and_the_next_one_is_delivered() -> None:
    b = node("b")
    b.handle(LinkUp("a"), 0)
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    b.handle(Produced(MINE, 2, (unit(OUTPUT, 2),)), 0)
    steps = b.handle(SinkRefused(OUTPUT, 1, "no such date"), 10)
    reports = [step.notice for step in steps if isinstance(step, Report)]
    assert reports == [UnitSetAside(OUTPUT, 1, "no such date")]
    assert Deliver(MINE, unit(OUTPUT, 2)) in steps and Send("a", Delivered(OUTPUT, 1)) in steps
    assert DropOutbox(MINE, OUTPUT, (1,)) in steps
    assert b.counters["units_set_aside"] == 1


def test_a_sink_that_stops_neither_holds_up_the_flow_nor_fills_the_disk() -> None:
    b = node("b")
    b.handle(LinkUp("a"), 0)
    b.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    steps = b.handle(SinkRefused(OUTPUT, 1, "no such date", stops=True), 10)
    assert Send("a", Delivered(OUTPUT, 1, 1)) in steps and Report(SinkStopped(OUTPUT, 1, "no such date")) in steps
    for number in range(2, 3 * SINK_BACKLOG):
        steps = b.handle(Produced(MINE, number, (unit(OUTPUT, number),)), 20)
        assert not any(isinstance(step, Deliver) for step in steps)
        b.check()
    assert b.advance.reached[MINE] >= 3 * SINK_BACKLOG - 2 and len(b.outboxes.boxes[OUTPUT].headers) <= 1
    # Who is told of it stops, too: a unit after the one that is missing must not be written.
    other = node("b")
    other.handle(Produced(MINE, 1, (unit(OUTPUT, 1),)), 0)
    other.handle(Produced(MINE, 2, (unit(OUTPUT, 2),)), 0)
    other.handle(SinkDelivered(OUTPUT, 1), 0)
    other.handle(Received("a", Delivered(OUTPUT, 1, 1)), 0)
    other.handle(SinkDelivered(OUTPUT, 2), 0)
    steps = other.handle(Produced(MINE, 3, (unit(OUTPUT, 3),)), 1_000)
    assert not any(isinstance(step, Deliver) for step in steps)


def test_a_sink_that_takes_nothing_holds_the_pulse() -> None:
    b = node("b")
    for number in range(1, SINK_BACKLOG + 3):
        b.handle(Produced(MINE, number, (unit(OUTPUT, number),)), 0)
    assert b.advance.reached[MINE] == SINK_BACKLOG
    b.handle(SinkDelivered(OUTPUT, 1), 0)
    assert b.advance.reached[MINE] == SINK_BACKLOG + 1


def test_an_ingress_member_that_never_linked_is_given_up_with_the_layout() -> None:
    a = node("a")
    steps = a.handle(LayoutChanged(a.layout.without_nodes(["b"])), 0)
    assert any(isinstance(step, ProposeInSync) and step.proposal.members == {"a"} for step in steps)


def test_an_ingress_member_that_only_the_layout_gave_up_is_still_listened_to() -> None:
    b = node("b")
    b.handle(LayoutChanged(b.layout.without_nodes(["a"])), 0)
    assert Send("a", Subscribe(INPUT, str(MINE), 0)) in b.handle(LinkUp("a"), 0)


def test_an_older_in_sync_document_changes_nothing() -> None:
    b = node("b")
    b.handle(InSyncChanged(InSync(2, "b", frozenset("b"), 1)), 0)
    b.handle(InSyncChanged(InSync(1, "a", frozenset("ab"), 0)), 0)
    assert b.sync.version == 1


def test_pushed_rows_are_logged_by_the_leader_only() -> None:
    assert isinstance(node("a").handle(PushArrived(b"rows"), 0)[0], PersistEntry)
    assert isinstance(node("b").handle(PushArrived(b"rows"), 0)[0], Report)


def test_two_source_instances_are_told_the_same_across_a_deadline() -> None:
    b = node("b", join())
    mine = next(iter(b.replicas))
    left, right = b.replicas[mine].inputs
    b.handle(GateAsked(mine, "left", 0, 1, 100), 0)
    assert b.handle(Tick(), 100) == [AnswerGate(1, 0)]
    b.handle(UnitArrived(unit(left, 1), "a"), 101)
    b.handle(UnitArrived(unit(right, 1), "a"), 101)
    assert b.handle(GateAsked(mine, "right", 0, 2, 200), 102) == [AnswerGate(2, 0)]
    assert b.handle(GateAsked(mine, "left", 0, 3, 300), 103) == [AnswerGate(3, 1)]
    assert b.handle(GateAsked(mine, "right", 0, 4, 300), 104) == [AnswerGate(4, 1)]


def test_a_replica_that_counts_on_a_node_out_of_reach_is_found() -> None:
    b = node()
    b.check()
    b.around.links.discard("a")
    with pytest.raises(InvariantViolation, match="cannot be reached"):
        b.check()

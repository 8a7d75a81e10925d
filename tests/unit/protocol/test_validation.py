"""What a node refuses, case by case; test_nonsense.py has the flows that nonsense is thrown at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from kit.protocol_node import INPUT, MINE, OUTPUT, SHARD, SIBLING, ask, node, unit
from unbroken.codecs.derivation import concrete
from unbroken.observe.notices import text_of
from unbroken.protocol.events import Event, GateAsked, PinAsked, Received, Tick, UnitArrived
from unbroken.protocol.ingress.log import Append, AppendAck, Held, Recall, Tip
from unbroken.protocol.instructions import AnswerGate, DropInbox, RefuseGate, RefusePin, Report
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Ack, Claimed, DigestNote, Message, Missing, Ping, Serving, Subscribe
from unbroken.protocol.policies.passive_standby.messages import Offer
from unbroken.protocol.validation import MOST_REPORTS, TERMS_AHEAD, Stale
from unbroken.protocol.values.cuts import Reach
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices.processes import MessageRefused
from unbroken.protocol.values.units import Digest
from unbroken_lab.sim.steps.nonsense import KINDS

NOWHERE = StreamId(ShardId("nowhere", 0), SHARD)
FORKED = StreamId(ShardId("source~", 0), SHARD)


def refused(node: NodeProtocol, event: Event) -> str | None:
    """Why an event is refused; nothing else may follow from it, and it changes nothing that others see."""
    node.handle(Tick(), 0)
    assert node.next_wake_ms() != 0
    before = node.counters["messages_refused"]
    steps = node.handle(event, 0)
    if node.counters["messages_refused"] == before:
        return None
    node.check()
    reasons: list[str] = []
    for step in steps:
        assert isinstance(step, Report | RefuseGate | RefusePin)
        reasons.append(step.reason if isinstance(step, RefuseGate | RefusePin) else text_of(step.notice))
    return "; ".join(reasons)


def test_every_kind_of_message_is_thrown_at_flows() -> None:
    assert {*concrete(get_args(Message))} | {UnitArrived, GateAsked, PinAsked} == set(KINDS)


UNITS: dict[str, dict[str, Any]] = {
    "number": {"number": -1, "pulse": -1},
    "zero": {"number": 0, "pulse": 0},
    "pulse": {"pulse": 2},
    "stream": {"stream": NOWHERE},
    "backwards": {"stream": StreamId(SHARD, INPUT.producer)},
    "shard": {"stream": StreamId(INPUT.producer, ShardId("s0", 7))},
    "generation": {"generation": 0},
    "late generation": {"generation": 10**9},
    "layout": {"layout": 10**9},
    "cut time": {"cut_ms": 2**60},
    "size": {"size": -1},
    "rows": {"digest": Digest(-1, 0)},
    "digest": {"digest": Digest(1, 2**64)},
    "fold": {"fold": -1},
    "tentative in a stable stream": {"stable": False},
    "tentative of no pulse": {"stream": FORKED, "stable": False, "since": 1},
}


@pytest.mark.parametrize("changes", UNITS.values(), ids=UNITS)
def test_a_unit_with_an_absurd_header_is_refused(changes: dict[str, Any]) -> None:
    b = node()
    assert refused(b, UnitArrived(replace(unit(INPUT, 1), **changes), "a"))
    assert refused(b, UnitArrived(unit(INPUT, 1), "a")) is None
    assert b.replicas[MINE].inboxes[INPUT].available == 1


MESSAGES: dict[str, Message] = {
    "a replica of another node": Ack(INPUT, str(MINE), 1),
    "no reader": Ack(INPUT, "somebody", 1),
    "a reader of something else": Ack(OUTPUT, str(SIBLING), 1),
    "far ahead": Ack(INPUT, str(SIBLING), 2**40),
    "negative": Subscribe(INPUT, str(SIBLING), -1),
    "no subscriber": Missing(INPUT, "?", 1),
    "a stream that is not read": Missing(OUTPUT, str(MINE), 1),
    "a stream that does not exist": Claimed(NOWHERE, MINE, 1, 1),
    "a part that cannot be": DigestNote(ReplicaId(ShardId("s0@x", 0), 0), OUTPUT, 1, Digest(1, 1)),
    "the unit of another part": DigestNote(SIBLING, INPUT, 1, Digest(1, 1)),
    "a replica that is never placed": Serving(ReplicaId(SHARD, 10**9)),
    "a version that is never committed": Offer(SIBLING, 2**60),
    "a term of the far future": Append(TERMS_AHEAD + 10, None, 0),
    "a leader of the far future": Recall(10**9),
    "more than there is": AppendAck(2, 2**30),
    "more committed than held": Held(1, Tip(1, 3), 4),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_message_that_no_node_sends_is_refused(message: Message) -> None:
    a = node("a")
    reason = refused(a, Received("b", message)) or refused(node("b"), Received("a", message))
    assert reason is not None and type(message).__name__ in reason


def test_the_same_is_taken_from_the_node_whose_replica_it_is() -> None:
    a = node("a")
    assert refused(a, Received("b", Ack(INPUT, str(MINE), 0))) is None
    assert refused(a, Received("b", Serving(MINE))) is None
    assert refused(a, Received("b", Serving(ReplicaId(SHARD, 2)))) is None, "a later layout may place it"
    assert refused(a, Received("b", Serving(ReplicaId(ShardId("s0@2", 0), 0)))) is None, "and have other code"
    assert refused(a, Received("client-1", Subscribe(OUTPUT, "client-1", 0))) is None


def test_what_is_gone_is_not_reported() -> None:
    """A peer may not have heard yet that code has been replaced."""
    a = node("a")
    a.around.layout = replace(a.layout, generation=2, generations=(2,))
    a.around.topology = replace(a.topology, segments={"s0@2": 1}, edges=(("source", "s0@2"), ("s0@2", "sink")))
    late = Received("b", Subscribe(INPUT, "s0.0#9", 0))
    reason = a.validation.refusal(late)
    assert isinstance(reason, Stale) and a.validation.refuse(late, reason) == []
    assert a.counters["messages_refused"] == 1


def test_a_peer_is_reported_once_for_each_kind() -> None:
    b = node()
    nonsense = Received("a", Serving(ReplicaId(ShardId("nowhere", 0), 0)))
    notice = MessageRefused("b", "a", "Serving", "there is no nowhere.0 in the flow")
    assert Report(notice) in b.handle(nonsense, 0)
    assert refused(b, nonsense) == ""
    assert refused(b, Received("a", Recall(-1)))
    for number in range(2 * MOST_REPORTS):
        refused(b, Received(f"client-{number}", Recall(-1)))
    assert len(b.validation.reported) == MOST_REPORTS
    assert b.counters["messages_refused"] == 3 + 2 * MOST_REPORTS


def test_a_long_reason_is_cut_short() -> None:
    b = node()
    sentence = refused(b, Received("a", Subscribe(INPUT, "x" * 10**6, 0)))
    assert sentence is not None and len(sentence) < 400


def test_a_ping_of_any_number_is_answered() -> None:
    assert refused(node(), Received("a", Ping(-5))) is None


# --- the gate --------------------------------------------------------------------------------------------


def test_a_question_that_no_query_asks_is_refused() -> None:
    b = node()
    b.handle(UnitArrived(unit(INPUT, 1), "a"), 0)
    assert b.handle(ask(0, ticket=1), 0) == [AnswerGate(1, 1)]
    assert refused(b, ask(2, ticket=2)), "it was given to nobody"
    assert refused(b, ask(-1, ticket=3))
    assert refused(b, ask(2**63, ticket=4)) is not None
    assert b.replicas[MINE].committed == 0
    assert b.handle(ask(1, ticket=5), 0)[0] == DropInbox(MINE, INPUT, (1,)), "what it was given it may have committed"
    assert refused(b, ask(0, ticket=6)) is not None, "a committed micro-batch is not asked for once more"
    assert b.replicas[MINE].committed == 1


def test_a_question_of_a_query_that_is_not_here_is_refused() -> None:
    b = node()
    nowhere = replace(ask(0), replica=ReplicaId(ShardId("nowhere", 0), 0))
    assert b.handle(nowhere, 0)[0] == RefuseGate(1, "there is no nowhere.0 in the flow")
    ended = replace(ask(3), replica=SIBLING)
    assert b.handle(ended, 0) == [AnswerGate(1, 3)], "one that is being ended must not wait"


def test_the_first_question_of_a_query_may_commit_what_was_planned_before() -> None:
    b = node()
    assert refused(b, ask(1)), "its units are not here"
    b.handle(UnitArrived(unit(INPUT, 1), "a"), 0)
    assert refused(b, replace(ask(1), cut={NOWHERE: Reach(1)})), "a cut of other inputs"
    assert refused(b, replace(ask(1), cut={INPUT: Reach(2)})) is not None, "a cut of what is not here"
    assert refused(b, ask(1)) is None
    assert b.replicas[MINE].committed == 1


def test_a_newcomer_that_needs_what_is_not_read_is_refused() -> None:
    b = node()
    steps = b.handle(PinAsked(SHARD, "a", 1, 0, ((NOWHERE, 1),)), 0)
    assert steps[0] == RefusePin(1, f"{SHARD} does not read {NOWHERE}")


def test_nothing_is_left_of_a_refused_message() -> None:
    """Refusals come before anything is changed: all parts are as before."""
    b, untouched = node(), node()
    for message in MESSAGES.values():
        b.handle(Received("stranger", message), 0)
    for name in ("links", "serving", "sync", "layout"):
        assert getattr(b.around, name) == getattr(untouched.around, name), name
    for name in ("reached", "ahead", "moved"):
        assert getattr(b.advance, name) == getattr(untouched.advance, name), name
    assert (b.reports.snapshots, b.replicas.keys()) == (untouched.reports.snapshots, untouched.replicas.keys())
    assert b.outboxes.boxes == untouched.outboxes.boxes
    assert b.outboxes.claims == [] and not b.outboxes.early

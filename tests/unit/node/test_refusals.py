"""A peer with the token that sends nonsense to a real node: it is told so, and the node's loop works on."""

from __future__ import annotations

import threading

import pyarrow.flight as flight
import pytest

from kit.lone_node import node
from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import Member
from unbroken.errors import InvariantViolation
from unbroken.node.node import Node
from unbroken.protocol.events import Received
from unbroken.protocol.messages import Missing, Ping, Serving
from unbroken.protocol.values.cuts import BatchCut, Reach
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices.processes import EventUnhandled, MessageRefused
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client
from unbroken.transport.calls import GATE_ANSWER, GateAnswer, GateQuestion, call

__all__ = ["node"]

SEGMENT = "seg.0#0"


def ask(node: Node, replica: str, start: int, cut: BatchCut) -> GateAnswer:
    question = GateQuestion(ReplicaId.parse(replica), "anybody", start, cut)
    with open_client(node.server.address, credentials(TOKEN)) as client:
        return GATE_ANSWER.decode(call(client, question, 30))


QUESTIONS: dict[str, tuple[str, int, BatchCut]] = {
    "a micro-batch that was given to nobody": (SEGMENT, 4711, {}),
    "a negative one": (SEGMENT, -1, {}),
    "a cut of other inputs": (SEGMENT, 1, {StreamId.parse("nowhere.0>seg.0"): Reach(1, 1, 1)}),
    "a replica that is not in the flow": ("nowhere.0#0", 0, {}),
    "a part that cannot be": ("seg@x.0#0", 0, {}),
}


@pytest.mark.parametrize(("replica", "start", "cut"), QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_that_no_query_asks_is_refused(node: Node, replica: str, start: int, cut: BatchCut) -> None:
    with pytest.raises(flight.FlightError, match="the gate refuses the question"):
        ask(node, replica, start, cut)
    assert ask(node, SEGMENT, 0, {}).offset == 0, "the query itself is answered"
    assert any(thread.name == "loop" for thread in threading.enumerate())


def test_nonsense_of_a_member_is_reported_once_and_the_loop_works_on(node: Node) -> None:
    node.members["node-2"] = Member("node-2", "nowhere:1", "", "nowhere", 1, "first")
    inbox = node.service.linked("node-2")
    for _ in range(3):
        assert inbox.put(Missing(StreamId.parse("g.0>seg.0"), "nobody", 1))
        assert inbox.put(Serving(ReplicaId(ShardId("nowhere", 0), 0)))
    assert inbox.put(Ping(1))
    wait_until(lambda: node.status().counters.get("messages_refused") == 6, 30, "all are refused")
    told = [each.notice for each in node.story if isinstance(each.notice, MessageRefused)]
    assert [(each.peer, each.message) for each in told] == [("node-2", "Missing"), ("node-2", "Serving")]
    assert node.status().counters["messages_refused"] == 6


def test_a_broken_invariant_ends_the_loop_and_names_the_message(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = node.protocol
    assert protocol is not None

    def fail(*_: object) -> None:
        raise InvariantViolation("the outbox has a hole")

    with monkeypatch.context() as patch:
        patch.setitem(protocol._handlers, Received, fail)
        with pytest.raises(InvariantViolation):
            node._handle(Received("node-2", Ping(1)), None)
    why = "InvariantViolation: the outbox has a hole"
    assert EventUnhandled("node-1", "Ping from node-2", why) in [each.notice for each in node.story]

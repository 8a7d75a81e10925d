"""A peer with the token that sends nonsense to a real node: it is told so, and the node's loop works on."""

from __future__ import annotations

import json
import threading
from typing import Any

import pyarrow.flight as flight
import pytest

from cluster.lone_node import node
from support import TOKEN, wait_until
from unbroken.coordination.documents import Member
from unbroken.errors import InvariantViolation
from unbroken.node.node import Node
from unbroken.protocol.events import Received
from unbroken.protocol.messages import Missing, Ping, Serving
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client

__all__ = ["node"]

SEGMENT = "seg.0#0"


def ask(node: Node, replica: str, start: dict[str, Any]) -> dict[str, Any]:
    question = {"replica": replica, "instance": "anybody", "start": start}
    with open_client(node.server.address, credentials(TOKEN)) as client:
        results = list(client.do_action(flight.Action("gate", json.dumps(question).encode())))
    answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
    return answer


QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "a micro-batch that was given to nobody": (SEGMENT, {"cut": 4711}),
    "a negative one": (SEGMENT, {"cut": -1}),
    "a cut of other inputs": (SEGMENT, {"cut": 1, "units": {"nowhere.0>seg.0": [1, 1, 1, 0]}}),
    "a replica that is not in the flow": ("nowhere.0#0", {"cut": 0}),
    "a part that cannot be": ("seg@x.0#0", {"cut": 0}),
}


@pytest.mark.parametrize(("replica", "start"), QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_that_no_query_asks_is_refused(node: Node, replica: str, start: dict[str, Any]) -> None:
    with pytest.raises(flight.FlightError, match="the gate refuses the question"):
        ask(node, replica, start)
    assert ask(node, SEGMENT, {"cut": 0}) == {"cut": 0}, "the query itself is answered"
    assert any(thread.name == "loop" for thread in threading.enumerate())


def test_nonsense_of_a_member_is_reported_once_and_the_loop_works_on(node: Node) -> None:
    node.members["node-2"] = Member("node-2", "nowhere:1", "", "nowhere", 1, "first")
    inbox = node.linked("node-2")
    for _ in range(3):
        assert inbox.put(Missing(StreamId.parse("g.0>seg.0"), "nobody", 1))
        assert inbox.put(Serving(ReplicaId(ShardId("nowhere", 0), 0)))
    assert inbox.put(Ping(1))
    protocol = node.protocol
    assert protocol is not None
    wait_until(lambda: protocol.counters["messages_refused"] == 6, 10, "all are refused")
    told = [sentence for _, sentence in node.story if "makes no sense" in sentence]
    assert len(told) == 2 and all("node-2" in sentence for sentence in told)
    assert node.status()["counters"]["messages_refused"] == 6


def test_a_broken_invariant_ends_the_loop_and_names_the_message(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = node.protocol
    assert protocol is not None

    def fail(*_: object) -> None:
        raise InvariantViolation("the outbox has a hole")

    with monkeypatch.context() as patch:
        patch.setitem(protocol._handlers, Received, fail)
        with pytest.raises(InvariantViolation):
            node._handle(protocol, Received("node-2", Ping(1)), None)
    sentence = "node-1 ends, as it cannot handle Ping from node-2: InvariantViolation: the outbox has a hole"
    assert sentence in [told for _, told in node.story]

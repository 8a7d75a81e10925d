"""Threads other than the loop never read the protocol object: they see a view of it, or ask the loop."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.lone_node import node as node
from kit.loop_guard import LoopGuard, guarded
from kit.support import TOKEN, wait_until
from unbroken.connectors.push.source import PushBatch
from unbroken.coordination.documents import Member
from unbroken.errors import UnbrokenError
from unbroken.node.inquiries import Inquiry, ProtocolView
from unbroken.node.node import Node
from unbroken.node.replicas.retired_replicas import Retiring
from unbroken.node.service_manager import Supervision
from unbroken.observe.metrics.server import MetricsServer
from unbroken.observe.status.codec import decode_node
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.messages import Ping
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client
from unbroken.transport.calls import StatusQuestion, call

SEG = ReplicaId(ShardId("seg", 0), 0)


@pytest.fixture
def guard() -> Iterator[LoopGuard]:
    with guarded() as found:
        yield found


def lead(asked: Node) -> None:
    """What ZooKeeper answers to the only member of an ingress."""
    asked.on_in_sync(InSync(2, asked.name, frozenset({asked.name}), 1))
    wait_until(lambda: asked.view is not None and asked.view.leading, 30, "the ingress is led")


def ask_everything(asked: Node) -> None:
    client = open_client(asked.server.address, credentials(TOKEN))
    assert decode_node(call(client, StatusQuestion(), 5), asked.name).placed
    client.close()
    metrics = MetricsServer("127.0.0.1", 0, "x", asked.name, status=asked.status, silence_s=asked.silence_s)
    metrics.start()
    for path in ("/metrics", "/ready", "/live"):
        connection = http.client.HTTPConnection("127.0.0.1", metrics.port, timeout=5)
        connection.request("GET", path)
        assert connection.getresponse().read()
        connection.close()
    metrics.stop()
    Supervision(asked.silence_s, hung=asked.hung).beat()
    with pytest.raises(UnbrokenError, match="is not here"):
        asked.cut_header(SEG, 1_000_000, {})
    asked.service._units._verify_outbox(StreamId.parse("g.0>seg.0"), 1)
    Retiring(asked, asked.dirs, lambda: asked.view).look(time.monotonic())
    ingress = asked.ingress
    assert ingress is not None
    assert ingress.submit(PushBatch("g", "p", 1, b""), 0.1).status in ("refused", "not-leader")
    asked.on_members({"node-2": Member("node-2", "nowhere:1", "", "nowhere", 1, "first")})
    assert asked.disk_document()


def test_no_thread_but_the_loop_reads_the_protocol(guard: LoopGuard, node: Node) -> None:
    node.members["node-2"] = Member("node-2", "nowhere:1", "", "nowhere", 1, "first")
    inbox = node.service.linked("node-2")
    assert inbox.put(Ping(1))
    lead(node)
    ask_everything(node)
    wait_until(lambda: (found := node.status().ingress) is not None and found.pulse > 0, 30, "pulses are cut")
    assert guard.guarded > 20, "the parts of the protocol are guarded"
    assert not guard.reads, "\n".join(f"{what}: {where}" for what, where in guard.reads.items())


def test_the_guard_sees_a_read(guard: LoopGuard, node: Node) -> None:
    protocol = node.protocol
    assert protocol is not None
    wait_until(lambda: guard.guarded > 20, 30, "the loop has turned")
    assert protocol.layout.version
    assert len(protocol.outboxes.boxes)
    assert {("NodeProtocol", "layout"), ("NodeProtocol", "outboxes")} <= set(guard.reads)


def test_the_loop_answers_and_a_question_that_fails_does_not_end_it(node: Node) -> None:
    loop = node.inquire(lambda _: threading.current_thread().name)
    assert loop == "loop"
    with pytest.raises(ZeroDivisionError):
        node.inquire(lambda _: 1 // 0)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: node.inquire(lambda _: number), range(200)))
    assert found == list(range(200))


def test_the_view_is_made_anew_only_when_something_has_changed(node: Node) -> None:
    lead(node)
    first = node.view
    assert node.inquire(lambda protocol: ProtocolView.of(protocol, first) is first)
    assert node.inquire(lambda protocol: ProtocolView.of(protocol, None) is not first)


def test_a_busy_loop_does_not_hold_a_status_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken.node.node.STATUS_WAIT_S", 0.1)
    wait_until(lambda: node.status().placed, 30, "the node has its place")
    before, go_on, busy = node.status(), threading.Event(), threading.Event()

    def work(_: Any) -> None:
        busy.set()
        go_on.wait(20)

    worker = threading.Thread(target=node.inquire, args=(work,))
    worker.start()
    try:
        assert busy.wait(30)
        began = time.monotonic()
        assert node.status().time_ms == before.time_ms
        assert time.monotonic() - began < 5
    finally:
        go_on.set()
        worker.join(30)
    wait_until(lambda: (node.status().time_ms or 0) > (before.time_ms or 0), 30, "the loop answers again")


def test_nobody_waits_for_the_loop_of_a_node_that_ends(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    began = time.monotonic()
    with pytest.raises(UnbrokenError, match="does not answer"):
        Inquiry(lambda _: 1).wait(60, stopping)
    assert time.monotonic() - began < 10

"""A peer that sends more than a node can handle: the node's loop, its other links and its probes work on.

A real node with its server and its loop; without Spark and ZooKeeper.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from kit.lone_node import node
from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import Member
from unbroken.node.node import Node
from unbroken.node.peers import MOST_CLIENTS
from unbroken.observe.metrics.server import MetricsServer
from unbroken.protocol.ingress.log import Append
from unbroken.protocol.messages import Ack, Message, Ping, Progress, Subscribe
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.notices.processes import PeerFlooding
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.certificates import credentials
from unbroken.transport import server as server_module
from unbroken.transport.auth import open_client
from unbroken.transport.codec import HELLO, MESSAGE, Hello
from unbroken.transport.link import Link, LinkHandlers, WholeUnit

OUT = StreamId.parse("seg.0>out.0")
EVENTS = 100_000
__all__ = ["node"]


FLOODING = PeerFlooding("node-1", "client-attacker")


def exchange(node: Node, peer: str) -> tuple[flight.FlightClient, flight.FlightStreamWriter, flight.FlightStreamReader]:
    client = open_client(node.server.address, credentials(TOKEN))
    descriptor = flight.FlightDescriptor.for_command(HELLO.encode(Hello(peer)))
    return client, *client.do_exchange(descriptor)


def flood(node: Node, peer: str, ended: threading.Event) -> int:
    """Send pings without reading or waiting, over a new link whenever one is dropped; how many were sent."""
    message, sent = MESSAGE.encode(Ping(1)), 0
    while sent < EVENTS and not ended.is_set():
        client, writer, _ = exchange(node, peer)
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            while sent < EVENTS and not ended.is_set():
                writer.write_metadata(message)
                sent += 1
        client.close()
    return sent


def live(server: MetricsServer) -> tuple[int, float]:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/live")
        return connection.getresponse().status, time.monotonic() - began


def test_a_hundred_thousand_events_of_one_peer_leave_the_node_at_work(node: Node) -> None:
    probes = MetricsServer("127.0.0.1", 0, "x", "node-1", status=node.status, silence_s=node.silence_s)
    probes.start()
    told: list[str] = []

    def no_unit(peer: str, header: UnitHeader) -> WholeUnit:
        return WholeUnit(peer, header, lambda *_: None)

    handlers = LinkHandlers(up=lambda _: told.append("up"), lost=lambda _: told.append("lost"), unit=no_unit)
    other = Link(
        "client-other",
        "node-1",
        node.server.address,
        TOKEN,
        handlers,
        heartbeat_s=0.1,
        timeout_s=node.settings.link_timeout / 1000,
    )
    other.start()
    ended = threading.Event()
    attack = threading.Thread(target=flood, args=(node, "client-attacker", ended), daemon=True)
    try:
        wait_until(lambda: told == ["up"], 30, "another link")
        attack.start()
        heard, slowest_s, silence_s = 0, 0.0, 0.0
        while attack.is_alive():
            heard += 1
            other.send(Subscribe(OUT, "client-other", 0, 0))
            other.check_alive()
            code, took_s = live(probes)
            assert code == 200
            slowest_s, silence_s = max(slowest_s, took_s), max(silence_s, node.silence_s() or 0.0)
            assert heard < 100_000
        wait_until(lambda: len(node._events) == 0, 20, "all events are handled")
        assert heard > 3 and slowest_s < 3 and silence_s < 3
        assert told == ["up"], "the other link was never lost"
        assert [each.notice for each in node.story].count(FLOODING) <= 1
    finally:
        ended.set()
        attack.join(30)
        other.close()
        probes.stop()


def test_a_peer_that_floods_loses_its_link_and_its_events(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Event()
    handle = node._handle

    def handle_slowly(*arguments: object) -> None:
        slow.wait(0.001)
        handle(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(node, "_handle", handle_slowly)
    ended = threading.Event()
    attack = threading.Thread(target=flood, args=(node, "client-attacker", ended), daemon=True)
    attack.start()
    try:
        wait_until(
            lambda: [each.notice for each in node.story].count(FLOODING) == 1, 30, lambda: f"{len(node._events)} wait"
        )
    finally:
        ended.set()
        slow.set()
        attack.join(30)
    wait_until(lambda: not node._events.opened("clients") and not len(node._events), 30, "no link and no event is left")


@pytest.mark.parametrize(
    ("peer", "why"),
    [
        ("node-1", "name of this node"),
        ("stranger", "no member"),
        ("client-", "no member"),
        ("client-" + "x" * 65, "no"),
    ],
)
def test_names_that_belong_to_others_or_to_none_are_refused(node: Node, peer: str, why: str) -> None:
    client, writer, reader = exchange(node, peer)
    with pytest.raises(flight.FlightUnauthorizedError, match=why):
        reader.read_chunk()
    with contextlib.suppress(flight.FlightError, pa.ArrowException):
        writer.close()
    client.close()


def test_members_are_let_in_also_when_they_have_left_zookeeper(node: Node) -> None:
    member = Member("node-2", "127.0.0.1:1", "", "here", 1, "x")
    node.members = {"node-2": member}
    node.service.linked("node-2").close()
    node.links._known.add("node-2")
    node.members = {}
    node.service.linked("node-2").close()


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        (Subscribe(OUT, "client-a", 0), True),
        (Ack(OUT, "client-a", 0), True),
        (Ping(1), True),
        (Ack(OUT, "seg.0#0", 7), False),
        (Subscribe(OUT, "client-b", 0), False),
        (Append(9, None, 5), False),
        (Progress(ReplicaId.parse("seg.0#0"), 5), False),
    ],
)
def test_a_client_speaks_for_itself_only(node: Node, message: Message, taken: bool) -> None:
    inbox = node.service.linked("client-a")
    assert inbox.put(message) is taken
    inbox.close()


def test_a_bounded_number_of_clients_is_linked_at_a_time(node: Node) -> None:
    inboxes = [node.service.linked(f"client-{number}") for number in range(MOST_CLIENTS)]
    with pytest.raises(Exception, match=f"too many clients .*: {MOST_CLIENTS}"):
        node.service.linked("client-more")
    node.service.linked("client-7").close()  # one that links anew replaces itself
    inboxes[0].close()
    node.service.linked("client-more").close()
    node.service.linked("client-and-more").close()


def test_a_peer_that_does_not_close_its_side_is_cut_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GOODBYE_S", 0.2)
    client, _writer, reader = exchange(node, "client-mute")
    reader.read_chunk()
    wait_until(lambda: "client-mute" in node.server._links, 30, "the link")
    node.server._close(node.server._links["client-mute"])

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "from-client-mute"]

    wait_until(lambda: not threads(), 30, "the thread that reads from the peer ends although that says nothing")
    client.close()

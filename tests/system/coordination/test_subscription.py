"""Subscriptions to nodes that are only a server and an outbox, with a real ZooKeeper."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient

from kit.support import TOKEN, wait_until
from kit.topologies import chain
from unbroken.client import Reconciled, Result, Subscription, SubscriptionEvent, Undo, push_addresses, subscribe
from unbroken.client import hosts as client_hosts
from unbroken.client import subscription as client_module
from unbroken.coordination.documents import FLOW, LAYOUT, Member, connect, flow_document, root_of
from unbroken.data.unit_store import encode_unit
from unbroken.errors import UnbrokenError
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.messages import Ack, Message, Subscribe
from unbroken.protocol.output.outbox import Outbox
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.testing.network.proxies import Proxies
from unbroken.transport.calls import GateAnswer, GateQuestion, PinQuestion, PinTicket, UnitTicket
from unbroken.transport.server import NodeServer

pytestmark = pytest.mark.cluster

STREAM = StreamId(ShardId("s0", 0), ShardId("sink", 0))
PRODUCER = ReplicaId(STREAM.producer, 0)
FORK = StreamId(ShardId("s0~", 0), STREAM.consumer)
TOPOLOGY = replace(chain((1,)), client_sinks=frozenset({"sink"}))
flows = (f"flow-{number}" for number in itertools.count())


class Inbox:
    """The messages of a subscriber's latest link."""

    def __init__(self, host: Host, peer: str) -> None:
        self._host = host
        self._peer = peer

    def put(self, message: Message) -> bool:
        if self._host.latest.get(self._peer) is not self:
            return False
        self._host.message_arrived(self._peer, message)
        return True

    def close(self) -> None:
        if self._host.latest.get(self._peer) is self:
            del self._host.latest[self._peer]
            self._host.subscriber_gone(self._peer)


class Host:
    """A node of which only the outbox to the sink is there."""

    def __init__(self, name: str, retain: int = 1_000) -> None:
        self.name = name
        self._box = Outbox(STREAM, frozenset(), retain=retain)
        self._routes: dict[str, str] = {}
        self.heard: dict[str, int] = {}
        self.latest: dict[str, Inbox] = {}
        self._lock = threading.Lock()
        self.server = NodeServer("127.0.0.1", 0, TOKEN, self, 0.1)

    def produce(self, through: int, *, final: bool = False) -> None:
        with self._lock:
            for number in range(self._box.last + 1, through + 1):
                self._box.add(
                    UnitHeader(STREAM, number, number, 0, Digest(1, number), final=final and number == through)
                )
            self._box.trim()
            self._send()

    def show(self, *pulses: int) -> None:
        """Give out tentative results, each right behind the one before it."""
        with self._lock:
            for pulse in pulses:
                header = UnitHeader(FORK, 1, pulse, 0, Digest(1, 0), stable=False, since=pulse - 1)
                for subscriber, heard in self.heard.items():
                    if 0 <= heard < pulse:
                        self.heard[subscriber] = pulse
                        self.server.send_unit(self._routes[subscriber], PRODUCER, header)

    def join(self, zk: KazooClient, flow: str) -> None:
        path = f"{root_of(flow)}/members/{self.name}"
        member = Member(self.name, self.server.address, "127.0.0.1:7", "here", 1, "x")
        if zk.exists(path):
            zk.delete(path)
        zk.create(path, member.to_bytes(), makepath=True)

    def _send(self) -> None:
        for subscriber, number in self._box.sends():
            self.server.send_unit(self._routes[subscriber], PRODUCER, self._box.headers[number])

    def linked(self, peer: str) -> Inbox:
        inbox = self.latest[peer] = Inbox(self, peer)
        return inbox

    def message_arrived(self, sender: str, message: Message) -> None:
        with self._lock:
            if isinstance(message, Subscribe):
                self._routes[message.subscriber] = sender
                self._box.subscribe(message.subscriber, message.after)
                self.heard[message.subscriber] = message.heard
            elif isinstance(message, Ack):
                self._box.ack(message.subscriber, message.through)
            self._send()

    def subscriber_gone(self, sender: str) -> None:
        self._box.unsubscribe(sender)

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        return encode_unit(header, pa.table({"n": [header.number]}))

    def pin(self, question: PinQuestion) -> bytes:
        raise NotImplementedError

    def read_pin(self, ticket: PinTicket) -> Any:
        raise NotImplementedError

    def release_pin(self, pin: str) -> bool:
        raise NotImplementedError

    def ask_gate(self, question: GateQuestion) -> GateAnswer:
        raise NotImplementedError

    def read_inbox(self, ticket: UnitTicket) -> pa.Table:
        raise NotImplementedError

    def encoded_status(self) -> bytes:
        raise NotImplementedError

    def wish(self, request: SkipRequest) -> str | None:
        return None

    def journal(self) -> bytes:
        return b""

    def request_stop(self) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with EmbeddedZooKeeper(directory / "zk", directory / "zk.log") as running:
        yield running.address


@pytest.fixture(scope="module")
def zk(address: str) -> Iterator[KazooClient]:
    client = connect(address, 10, token=TOKEN)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    made: list[Host] = []
    yield made
    for host in made:
        host.server.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return path


def flow_on(zk: KazooClient, *hosts: Host) -> str:
    """A flow with a layout on nodes a and b, of which ``hosts`` have joined."""
    flow = next(flows)
    zk.create(f"{root_of(flow)}/layout", LAYOUT.encode(chained_placement(TOPOLOGY, {"a": "", "b": ""})), makepath=True)
    zk.create(f"{root_of(flow)}/topology", FLOW.encode(flow_document(TOPOLOGY, RunIdentity("run"))))
    for host in hosts:
        host.join(zk, flow)
    return flow


def take(results: Subscription, count: int) -> list[int]:
    got: list[Result] = []

    def enough() -> bool:
        result = results.next(0.1)
        if result is not None:
            got.append(result)
        return len(got) >= count

    wait_until(enough, 30, lambda: f"{count} results, got {len(got)}")
    assert [result.table.column("n")[0].as_py() for result in got] == [result.header.number for result in got]
    return [result.header.number for result in got]


def test_results_are_iterated_over_to_the_end(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path
) -> None:
    hosts += [Host("a"), Host("b")]
    flow = flow_on(zk, *hosts)
    for host in hosts:
        host.produce(100, final=True)
    results = subscribe(address, flow, "sink", token_file)
    assert [result.header.number for result in results] == list(range(1, 101))
    assert results.ended and results.next(None) is None
    assert push_addresses(address, flow, token_file) == ["127.0.0.1:7", "127.0.0.1:7"]


def test_a_late_subscriber_begins_with_the_oldest_unit_kept(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path
) -> None:
    hosts += [Host("a", retain=10), Host("b", retain=10)]
    flow = flow_on(zk, *hosts)
    for host in hosts:
        host.produce(500)
    with subscribe(address, flow, "sink", token_file) as results:
        assert take(results, 10) == list(range(491, 501))
        hosts[0].produce(501)
        assert take(results, 1) == [501]


def test_a_place_that_is_not_kept_is_refused(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path
) -> None:
    hosts += [Host("a", retain=10), Host("b", retain=10)]
    flow = flow_on(zk, *hosts)
    for host in hosts:
        host.produce(500)
    with subscribe(address, flow, "sink", token_file, after=495) as results:
        assert take(results, 5) == list(range(496, 501))
    with (
        subscribe(address, flow, "sink", token_file, after=20) as results,
        pytest.raises(UnbrokenError, match=r"unit 21 of s0\.0>sink\.0 is not kept any more.*after=0"),
    ):
        results.next(10)


def test_a_node_that_joins_or_moves_is_linked(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_hosts, "REFRESH_S", 0.1)
    hosts += [Host("a"), Host("b"), Host("a")]
    first, second, moved = hosts
    flow = flow_on(zk, first)
    first.produce(3)
    with subscribe(address, flow, "sink", token_file) as results:
        assert take(results, 3) == [1, 2, 3]
        second.join(zk, flow)
        second.produce(5)
        assert take(results, 2) == [4, 5]
        first.server.close()
        second.server.close()
        moved.join(zk, flow)
        moved.produce(7)
        assert take(results, 2) == [6, 7]


def test_a_client_reaches_nodes_by_its_routes_and_outlives_their_cuts(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_hosts, "LINK_TIMEOUT_S", 1.0)
    hosts += [Host("a"), Host("b")]
    first, second = hosts
    flow = flow_on(zk, *hosts)
    first.produce(3)
    with Proxies(["client", "a", "b"]) as network:
        ways = [f"{h.name}={network.way('client', h.name, int(h.server.address.rpartition(':')[2]))}" for h in hosts]
        with subscribe(address, flow, "sink", token_file, routes=ways) as results:
            assert take(results, 3) == [1, 2, 3]
            network.cut("client", "a")
            first.produce(9)
            second.produce(5)
            assert take(results, 2) == [4, 5], "what the other one has comes from there"
            assert results.next(1.0) is None, "there is another way than the one that is cut"
            network.cut("client", "b")
            second.produce(11)
            assert results.next(1.0) is None
            network.heal_all()
            assert take(results, 6) == [6, 7, 8, 9, 10, 11]


def test_what_is_no_route_is_told_before_anything_is_asked(token_file: Path) -> None:
    with pytest.raises(UnbrokenError, match="'a' is not a route; write NODE=HOST:PORT"):
        subscribe("127.0.0.1:1", "flow", "sink", token_file, routes=["a"])


def test_closing_does_not_wait_for_the_reader(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "BUFFERED_UNITS", 2)
    hosts += [Host("a"), Host("b")]
    flow = flow_on(zk, *hosts)
    for host in hosts:
        host.produce(50)
    results = subscribe(address, flow, "sink", token_file)
    wait_until(results._results.full, 30, "the queue to be full")
    since = time.monotonic()
    results.close()
    assert time.monotonic() - since < 20
    links = results._hosts._links.values()
    wait_until(lambda: not any(link._thread.is_alive() for link in links), 30, "the links to end")


def told(results: Subscription, count: int) -> list[str]:
    """The next events in short: s, t and c for stable, tentative and corrected results, u and r for the marks."""
    got: list[SubscriptionEvent] = []

    def enough() -> bool:
        event = results.next_event(0.1)
        if event is not None:
            got.append(event)
        return len(got) >= count

    wait_until(enough, 30, lambda: f"{count} events, got {got}")
    out: list[str] = []
    for event in got:
        match event:
            case Result():
                out.append(f"{'c' if event.correction else event.status[0]}{event.header.pulse}")
                assert event.header.stream == STREAM
            case Undo():
                out.append(f"u{event.after_pulse}")
            case Reconciled():
                out.append(f"r{event.pulse}")
    return out


def test_tentative_results_come_and_are_corrected(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path
) -> None:
    hosts += [Host("a"), Host("b")]
    first, second = hosts
    flow = flow_on(zk, *hosts)
    first.produce(2)
    with (
        subscribe(address, flow, "sink", token_file, silence_s=0.5) as results,
        subscribe(address, flow, "sink", token_file, stable_only=True) as stable,
    ):
        wait_until(lambda: len(first.heard) == len(second.heard) == 2, 30, "both to be asked by both")
        assert sorted(first.heard.values()) == [-1, 0]
        assert told(results, 2) == ["s1", "s2"]
        first.show(3, 4)
        assert told(results, 2) == ["t3", "t4"]
        second.show(3, 4, 5, 6)
        assert told(results, 2) == ["t5", "t6"], "the first one has been silent"
        first.produce(5)
        assert told(results, 4) == ["u2", "c3", "c4", "c5"]
        second.produce(6)
        assert told(results, 2) == ["c6", "r6"]
        first.produce(7, final=True)
        assert [event.header.pulse for event in results] == [7] and results.ended
        assert take(stable, 7) == list(range(1, 8))


def test_after_a_link_was_lost_nothing_tentative_comes_twice(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_hosts, "REFRESH_S", 0.1)
    hosts += [Host("a"), Host("b"), Host("a")]
    first, second, moved = hosts
    flow = flow_on(zk, first, second)
    with subscribe(address, flow, "sink", token_file, silence_s=30) as results:
        wait_until(lambda: first.heard and second.heard, 30, "both to be asked")
        first.show(1, 2)
        assert told(results, 2) == ["t1", "t2"]
        second.show(1, 2, 3)
        first.server.close()
        assert told(results, 1) == ["t3"], "the second is turned to as soon as the first is lost"
        moved.join(zk, flow)
        wait_until(lambda: moved.heard, 30, "the node that moved to be asked")
        assert list(moved.heard.values()) == [3]
        second.server.close()
        moved.show(1, 2, 3, 4)
        assert told(results, 1) == ["t4"]
        moved.produce(4, final=True)
        assert told(results, 6) == ["u0", "c1", "c2", "c3", "c4", "r4"]
        assert list(results.events()) == []


def test_sinks_that_cannot_be_read_are_refused(
    address: str, zk: KazooClient, hosts: list[Host], token_file: Path
) -> None:
    flow = flow_on(zk)
    with pytest.raises(UnbrokenError, match="has no sink 'life'; sinks that can be read: sink"):
        subscribe(address, flow, "life", token_file)
    zk.set(f"{root_of(flow)}/topology", FLOW.encode(flow_document(chain((1,)), RunIdentity("run"))))
    with pytest.raises(UnbrokenError, match=r"written by the nodes.*Client\(\)"):
        subscribe(address, flow, "sink", token_file)

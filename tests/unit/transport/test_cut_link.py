"""Links through a network that is cut: neither end hears of it, and nothing ends that is still in use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kit.links import HEARTBEAT_S, TIMEOUT_S, TOKEN, Service, Watched, threads_of
from kit.support import wait_until
from unbroken.protocol.messages import Ping
from unbroken.testing.network.proxies import Proxies
from unbroken.transport import server as server_module
from unbroken.transport.server import NodeServer

DEADLINE_S = 20.0


class Counting(NodeServer):
    """A server that counts the links it serves."""

    def __init__(self, service: Service) -> None:
        self.served = 0
        self._counting = threading.Lock()
        super().__init__("127.0.0.1", 0, TOKEN, service, HEARTBEAT_S)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._counting:
            self.served += 1
        try:
            super().do_exchange(context, descriptor, reader, writer)
        finally:
            with self._counting:
                self.served -= 1


@pytest.fixture
def network() -> Iterator[Proxies]:
    with Proxies(["me", "server"]) as made:
        yield made


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[Counting]:
    made = Counting(service)
    yield made
    if not made.stuck:
        made.close()


def test_a_link_that_is_replaced_during_a_cut_is_served_until_its_end_is_heard_of(
    network: Proxies, server: Counting, service: Service
) -> None:
    with Watched(network.way("me", "server", server.port), "cut", timeout_s=60) as cut:
        cut.wait_for("up")
        network.cut("me", "server")
        with Watched(server.address, "direct", timeout_s=60) as direct:
            direct.wait_for("up")
            direct.link.send(Ping(1))
            wait_until(lambda: service.messages == [("me", Ping(1))], DEADLINE_S, "a message over the second link")
            assert server.served == 2
            # What was said over the first link is heard of late, and counts for nothing.
            cut.link.send(Ping(2))
            network.heal("me", "server")
            cut.wait_for("up", "lost", deadline_s=DEADLINE_S)
            assert ("me", Ping(2)) not in service.messages
    wait_until(lambda: server.served == 0, DEADLINE_S, "both links to end")


def test_a_link_comes_back_after_a_cut(network: Proxies, server: Counting, service: Service) -> None:
    with Watched(network.way("me", "server", server.port), "server") as watched:
        watched.wait_for("up")
        assert watched.link.silence_s() < TIMEOUT_S
        network.cut("me", "server")
        watched.wait_for("up", "lost", deadline_s=DEADLINE_S)
        assert watched.link.silence_s() > TIMEOUT_S
        network.heal("me", "server")
        watched.wait_for("up", "lost", "up", deadline_s=DEADLINE_S)
        assert watched.link.silence_s() < TIMEOUT_S
        watched.link.send(Ping(1))
        wait_until(lambda: ("me", Ping(1)) in service.messages, DEADLINE_S, "a message over the link")
    wait_until(lambda: not threads_of("me"), DEADLINE_S, "the threads of the link to end")


def test_a_server_that_closes_does_not_wait_for_a_peer_behind_a_cut(
    network: Proxies, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SHUTDOWN_S", 0.3)
    with Watched(network.way("me", "server", server.port), "server", timeout_s=60) as watched:
        watched.wait_for("up")
        network.cut("me", "server")
        server.close()
        assert server.stuck and server.served == 1, "the call ended before the peer was heard of"
        network.heal("me", "server")
        wait_until(lambda: not server.stuck, DEADLINE_S, "the server to end")
        assert server.served == 0

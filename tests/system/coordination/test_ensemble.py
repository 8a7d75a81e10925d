"""Nodes and an ensemble of three ZooKeeper servers, as deployments have one: the loss of a server is no loss."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.coordination import Node, lost, notices
from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import connect, read_members
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.protocol.values.notices.placement import NodeReady

pytestmark = pytest.mark.cluster

SERVERS = 3
STARTED_S = 60.0


class Server(EmbeddedZooKeeper):
    """One of several servers, which know each other by their ports."""

    def __init__(self, directory: Path, number: int, peers: list[tuple[int, int]]) -> None:
        super().__init__(directory / f"zk-{number}", directory / f"zk-{number}.log", port=free_ports(1)[0])
        self.number = number
        self._peers = peers

    @property
    def leads(self) -> bool:
        """By its own word; one that does not answer does not."""
        try:
            with socket.create_connection((self.host, self.port), timeout=30) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return False
        return b"Mode: leader" in answer

    def _write_config(self, port: int) -> Path:
        config = super()._write_config(port)
        named = [f"server.{number}=127.0.0.1:{a}:{b}\n" for number, (a, b) in enumerate(self._peers, 1)]
        config.write_text(f"{config.read_text()}initLimit=40\nsyncLimit=10\n{''.join(named)}")
        (self.data_dir / "data").mkdir(exist_ok=True)
        (self.data_dir / "data" / "myid").write_text(f"{self.number}\n")
        return config


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in taken]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    ports = free_ports(2 * SERVERS)
    peers = list(zip(ports[:SERVERS], ports[SERVERS:], strict=True))
    found = [Server(tmp_path, number, peers) for number in range(1, SERVERS + 1)]
    try:
        with ThreadPoolExecutor(SERVERS) as pool:
            # A server serves when most of them are there, so none can be waited for before the others are started.
            list(pool.map(lambda server: server.start(STARTED_S), found))
        yield found
    finally:
        for server in found:
            server.stop()


def test_the_loss_of_the_leading_server_is_no_loss_of_a_node(servers: list[Server]) -> None:
    addresses = ",".join(server.address for server in servers)
    with Node("a", addresses, "kept") as a, Node("b", addresses, "kept") as b:
        wait_until(lambda: all(node.layouts and node.syncs for node in (a, b)), 20, "the first layout")
        leader = next(server for server in servers if server.leads)
        leader.kill9()
        rest = [server for server in servers if server is not leader]
        wait_until(lambda: any(server.leads for server in rest), 30, "another server to lead")
        a.coordination.report(NodeReady("those that are left"))
        zk = connect(",".join(server.address for server in rest), 10, token=TOKEN)
        try:
            wait_until(lambda: NodeReady("those that are left") in notices(zk, "kept"), 30, "the report")
            wait_until(lambda: set(read_members(zk, "kept")) == {"a", "b"}, 20, "both members to be there")
            assert lost(zk, "kept") == set()
            leader.start(STARTED_S)
            a.coordination.close()
            wait_until(lambda: "s0.0#1" in lost(zk, "kept"), 30, "b to decide without a")
        finally:
            zk.stop()
            zk.close()

"""The embedded server with a real client: data survive kill -9, and failures to start are explained."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from kit.support import wait_until
from unbroken.local.zookeeper_server import EmbeddedZooKeeper, ZooKeeperError, serves

pytestmark = pytest.mark.cluster


@contextmanager
def client(address: str) -> Iterator[KazooClient]:
    connection = KazooClient(hosts=address, timeout=4)
    connection.start(timeout=20)
    try:
        yield connection
    finally:
        connection.stop()
        connection.close()


def test_data_survive_kill9_and_the_server_only_listens_on_loopback(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log")
    with server:
        address, pid = server.address, server.pid
        assert pid is not None
        listening = [each.laddr for each in psutil.Process(pid).net_connections() if each.status == "LISTEN"]
        assert [(each.ip.removeprefix("::ffff:"), each.port) for each in listening] == [("127.0.0.1", server.port)]
        with client(address) as before:
            before.create("/unbroken/layout", b"version 1", makepath=True)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not server.alive(), 15, "the death of the server to be noticed")
        server.start()
        assert server.address == address
        assert server.pid != pid
        with client(address) as after:
            assert after.get("/unbroken/layout")[0] == b"version 1"
    assert not server.alive()


def test_another_server_object_continues_on_the_same_directory_and_port(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log") as first:
        port = first.port
        with client(first.address) as before:
            before.create("/kept", b"yes")
    with (
        EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log", port=port) as second,
        client(second.address) as after,
    ):
        assert after.get("/kept")[0] == b"yes"


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log", port=port)
        with pytest.raises(ZooKeeperError, match=f"127.0.0.1:{port}"):
            server.start()


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "zk").mkdir()
    (tmp_path / "zk" / "data").write_text("a file where the server wants a directory")
    server = EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log")
    with pytest.raises(ZooKeeperError, match=r"(?s)ended with code.*QuorumPeerMain|zk/data"):
        server.start()
    assert not server.alive()


def test_a_killed_server_is_gone_and_can_be_started_at_once(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log") as server:
        before = server.pid
        server.kill9()
        assert not server.alive()
        server.start()
        assert server.pid not in (None, before) and serves(server.host, server.port)

"""What a node tells systemd: a real socket listens."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unbroken.node.service_manager import STUCK_S, Supervision
from unbroken.observe.metrics import server

FAST = {"WATCHDOG_USEC": "20000"}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(10)
        listening.bind(str(tmp_path / "notify"))
        yield str(tmp_path / "notify"), listening


def told(listening: socket.socket, wanted: str) -> str:
    """The next datagram with this in it; the socket's time-out is the deadline."""
    while wanted not in (text := listening.recv(1000).decode()):
        pass
    return text


def test_a_node_is_ready_beats_and_ends(manager: tuple[str, socket.socket]) -> None:
    name, listening = manager
    silence: list[float | None] = [None]
    supervision = Supervision(lambda: silence[0], {"NOTIFY_SOCKET": name, **FAST})
    supervision.ready()
    assert listening.recv(1000) == b"READY=1"
    assert "WATCHDOG=1" in told(listening, "waits for its place")
    silence[0] = 0.1
    assert "WATCHDOG=1" in told(listening, "STATUS=works")
    supervision.stopping()
    told(listening, "STOPPING=1")


def test_a_stuck_node_does_not_say_that_it_is_well() -> None:
    assert "WATCHDOG" not in Supervision(lambda: STUCK_S, {}).beat()
    assert "has not turned for 30 s" in Supervision(lambda: STUCK_S, {}).beat()
    assert STUCK_S == server.STUCK_S, "probes and the watchdog agree on when a node is stuck"


def test_nothing_is_told_where_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quiet = Supervision(lambda: None, {})
    quiet.ready()
    quiet.stopping()
    assert not caplog.records
    gone = Supervision(lambda: None, {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    gone.stopping()
    gone.stopping()
    assert len(caplog.records) == 1, "once is enough"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has sockets without a path")
def test_the_abstract_namespace() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(10)
        listening.bind("\0unbroken-test-supervision")
        Supervision(lambda: None, {"NOTIFY_SOCKET": "@unbroken-test-supervision"}).stopping()
        assert b"STOPPING=1" in listening.recv(1000)

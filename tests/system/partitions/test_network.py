"""The tools themselves: what is cut does not arrive, everything else does, and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.support import wait_until
from unbroken.local.processes import spawn
from unbroken.testing.network import namespaces
from unbroken.testing.network.namespaces import NamespaceNetwork, available
from unbroken.testing.network.partitions import HERE, Partitions
from unbroken.testing.network.proxies import Proxies

SILENCE_S = 0.3
"""How long nothing has to be heard for a cut to be believed; what is not cut arrives within a millisecond."""

ARRIVAL_S = 20.0
"""TCP sends again after up to twice the time that a cut took."""

allowed, why_not = available()
needs_namespaces = pytest.mark.skipif(not allowed, reason=why_not)


@pytest.fixture(params=[pytest.param(NamespaceNetwork, marks=needs_namespaces), Proxies])
def network(request: pytest.FixtureRequest) -> Iterator[Partitions]:
    make: Callable[[list[str]], Partitions] = request.param
    with make(["a", "b", "c"]) as made:
        yield made


class Line:
    """A connection that ``a`` has opened to ``b``."""

    def __init__(self, network: Partitions, a: str, b: str) -> None:
        host = network.host(b)
        self.listener = network.within(b, lambda: socket.create_server((host, 0)))
        way, port = network.way(a, b, self.listener.getsockname()[1]).rsplit(":", 1)
        self.near = network.within(a, lambda: socket.create_connection((way, int(port)), timeout=ARRIVAL_S))
        self.listener.settimeout(ARRIVAL_S)
        self.far, _ = self.listener.accept()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.near, self.far, self.listener):
            each.close()


def arrives(at: socket.socket, text: bytes) -> bool:
    """Whether exactly this is what arrives next."""
    at.settimeout(ARRIVAL_S)
    got = b""
    while len(got) < len(text) and (piece := at.recv(len(text) - len(got))):
        got += piece
    return got == text


def silent(at: socket.socket) -> bool:
    """Whether neither a byte nor the end of the connection is heard."""
    readable, _, _ = select.select([at], [], [], SILENCE_S)
    return not readable


def test_what_is_not_cut_arrives(network: Partitions) -> None:
    for a, b in [("a", "b"), ("b", "a"), (HERE, "c"), ("c", HERE)]:
        with Line(network, a, b) as line:
            line.near.sendall(b"there")
            assert arrives(line.far, b"there")
            line.far.sendall(b"back")
            assert arrives(line.near, b"back")
            line.near.close()
            assert line.far.recv(1) == b""


def test_a_cut_is_silent_and_a_connection_outlives_it(network: Partitions) -> None:
    with Line(network, "a", "b") as line, Line(network, "a", "c") as other:
        network.cut("b", "a")
        line.near.sendall(b"there")
        line.far.sendall(b"back")
        assert silent(line.far) and silent(line.near)
        other.near.sendall(b"still there")
        assert arrives(other.far, b"still there")
        network.heal("a", "b")
        assert arrives(line.far, b"there") and arrives(line.near, b"back")


def test_one_direction_can_be_cut_alone(network: Partitions) -> None:
    with Line(network, "a", "b") as line:
        network.cut("a", "b", one_way=True)
        assert network.is_cut("a", "b") and not network.is_cut("b", "a")
        line.near.sendall(b"there")
        line.far.sendall(b"back")
        assert arrives(line.near, b"back")
        assert silent(line.far)
        network.heal("a", "b", one_way=True)
        assert arrives(line.far, b"there")


def test_the_end_of_a_connection_does_not_pass_a_cut(network: Partitions) -> None:
    with Line(network, "a", "b") as line:
        network.cut("a", "b")
        line.near.close()
        assert silent(line.far)
        network.heal_all()
        line.far.settimeout(ARRIVAL_S)
        assert line.far.recv(1) == b""


def test_an_isolated_member_is_heard_by_nobody_else(network: Partitions) -> None:
    with Line(network, "a", "b") as ab, Line(network, HERE, "a") as ha, Line(network, "c", "a") as ca:
        network.isolate("a", but=["c"])
        ab.near.sendall(b"1")
        ha.far.sendall(b"2")
        ca.far.sendall(b"3")
        assert arrives(ca.near, b"3")
        assert silent(ab.far) and silent(ha.near)
        network.heal_all()
        assert arrives(ab.far, b"1") and arrives(ha.near, b"2")


@pytest.mark.parametrize("lost", [("a", "b"), ("b", "a")])
def test_no_connection_is_opened_through_a_cut(network: Partitions, lost: tuple[str, str]) -> None:
    host = network.host("b")
    with network.within("b", lambda: socket.create_server((host, 0))) as listener:
        way, port = network.way("a", "b", listener.getsockname()[1]).rsplit(":", 1)
        network.cut(*lost, one_way=True)
        with network.within("a", socket.socket) as near:
            near.setblocking(False)
            near.connect_ex((way, int(port)))
            # The handshake of a real one-way cut may be over for the one who listens; nothing can be said yet.
            assert silent(near)
            network.heal_all()
            listener.settimeout(ARRIVAL_S)
            far, _ = listener.accept()
            near.settimeout(ARRIVAL_S)
            wait_until(lambda: _sent(near, b"hello"), ARRIVAL_S, "the connection")
            with far:
                assert arrives(far, b"hello")


def _sent(at: socket.socket, text: bytes) -> bool:
    with contextlib.suppress(BlockingIOError, BrokenPipeError, OSError):
        at.sendall(text)
        return True
    return False


def test_more_than_buffers_hold_is_held_up_and_comes_whole(network: Partitions) -> None:
    pattern = os.urandom(1 << 16)
    count = 256
    with Line(network, "a", "b") as line:
        network.cut("a", "b")
        sender = threading.Thread(target=line.near.sendall, args=(pattern * count,), daemon=True)
        sender.start()
        assert silent(line.far)
        assert sender.is_alive(), "what was sent is somewhere"
        network.heal("a", "b")
        for _ in range(count):
            assert arrives(line.far, pattern)
        sender.join(ARRIVAL_S)


def test_mistakes_are_told(network: Partitions) -> None:
    with pytest.raises(ValueError, match="no nobody in this network"):
        network.cut("a", "nobody")
    with pytest.raises(ValueError, match="from itself"):
        network.cut("a", "a")
    with pytest.raises(ValueError, match="different names"):
        type(network)(["a", "a"])


def test_commands_run_in_their_place(network: Partitions, tmp_path: Path) -> None:
    port = network.free_port("b")
    host = network.host("b")
    serve = (
        f"import socket; s = socket.create_server(({host!r}, {port})); c, _ = s.accept(); c.sendall(b'hi'); s.recv(1)"
    )
    server = spawn([*network.enter("b"), sys.executable, "-c", serve], log_file=tmp_path / "server.log")
    try:
        way, at = network.way("a", "b", port).rsplit(":", 1)

        def answered() -> bool:
            assert server.alive(), (tmp_path / "server.log").read_text()
            with contextlib.suppress(OSError):
                line = network.within("a", lambda: socket.create_connection((way, int(at)), timeout=ARRIVAL_S))
                with line:
                    return line.recv(2) == b"hi"
            return False

        wait_until(answered, ARRIVAL_S, "an answer")
    finally:
        server.stop(0)


@needs_namespaces
def test_nothing_stays_behind() -> None:
    before = _left(os.getpid())
    with NamespaceNetwork(["x"]) as first, NamespaceNetwork(["x", "y"]) as second:
        assert first.host("x") != second.host("x")
        assert len(_left(os.getpid())) == len(before) + 2 + 3 + 2
    wait_until(lambda: _left(os.getpid()) == before, ARRIVAL_S, "namespaces and links to be removed")
    first.close()


@needs_namespaces
def test_what_a_killed_process_has_left_is_removed() -> None:
    text = (
        "from unbroken.testing.network.namespaces import NamespaceNetwork\n"
        "n = NamespaceNetwork(['x']); print(1, flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == b"1\n"
        assert len(_left(killed.pid)) == 3
        namespaces.remove_stale()
        assert len(_left(killed.pid)) == 3, "those of a process that lives are its own"
        killed.kill()
    namespaces.remove_stale()
    wait_until(lambda: not _left(killed.pid), ARRIVAL_S, "namespaces and links to be removed")


def _left(process: int) -> list[str]:
    links = [str(link["ifname"]) for link in namespaces._json("link", "show")]
    names = [*namespaces._namespaces(), *links]
    return [name for name in names if name.startswith((f"unbroken-{process}-", f"ub{process}-"))]


def test_the_reason_for_skipping_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    possible, reason = available.__wrapped__()
    assert not possible and "missing: ip, nsenter" in reason

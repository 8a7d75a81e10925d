"""Connections of strangers to a node's port: they are bounded, and keep neither peers nor files from the node."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.links import Service, Watched, serve
from kit.support import TOKEN, wait_until
from unbroken.node.open_files import raise_open_files
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client
from unbroken.transport.calls import StatusQuestion, call
from unbroken.transport.connections import MOST_STRANGERS, Address, Strangers, address_of, connections

DEADLINE_S = 20.0


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:99", ("10.0.0.1", 99)),
        ("ipv6:%5B::1%5D:99", ("::1", 99)),
        ("ipv6:[::ffff:10.0.0.1]:99", ("10.0.0.1", 99)),
    ],
)
def test_addresses_as_grpc_writes_them(peer: str, address: Address) -> None:
    assert address_of(peer) == address


def at(*ports: int) -> list[Address]:
    return [("10.0.0.1", port) for port in ports]


def test_the_oldest_strangers_are_cut_and_none_that_has_called() -> None:
    strangers = Strangers(2)
    assert strangers.beyond(at(5, 6)) == []
    strangers.called(at(5)[0])
    assert strangers.beyond(at(9, 8, 5, 6)) == at(6)
    assert strangers.beyond(at(5, 8, 9)) == []


def test_a_connection_that_has_ended_is_forgotten() -> None:
    strangers = Strangers(0)
    strangers.called(at(5)[0])
    assert strangers.beyond([]) == [] and len(strangers) == 0
    assert strangers.beyond(at(5)) == at(5), "another one from the same port"


@given(st.lists(st.tuples(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)))), st.integers(0, 5))
def test_strangers_never_exceed_the_bound_and_callers_stay(rounds: list[tuple[set[int], set[int]]], most: int) -> None:
    strangers = Strangers(most)
    for present, callers in rounds:
        for port in callers & present:
            strangers.called(at(port)[0])
        cut = strangers.beyond(at(*present))
        assert not set(cut) & set(at(*callers & present))
        assert len(strangers) <= len(present)
        assert len(present) - len(cut) - len(strangers) <= most


def status(address: str) -> bytes:
    with open_client(address, credentials(TOKEN)) as client:
        return call(client, StatusQuestion(), DEADLINE_S)


def test_silent_connections_are_bounded_and_links_and_calls_are_served() -> None:
    server = serve(Service())
    with (
        contextlib.closing(server),
        Watched(server.address, "peer", timeout_s=60) as link,
        contextlib.ExitStack() as held,
    ):
        link.wait_for("up")
        for _ in range(400):
            held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        wait_until(lambda: len(list(connections(server.port))) <= MOST_STRANGERS + 3, DEADLINE_S, "the cut")
        assert b"served" in status(server.address)
        assert link.events == ["up"]


FLOODED = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from kit.links import Service, serve
server = serve(Service())
print(server.port, flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 20
while True:
    try:
        with open("kept", "wb") as file:
            os.fsync(file.fileno())
        if len(os.listdir("/dev/fd")) < 250:
            break
    except OSError:
        pass
    if time.monotonic() > deadline:
        sys.exit("no file can be opened")
    time.sleep(0.05)
print("opened", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_a_process_that_strangers_have_left_no_file_opens_files_again(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", FLOODED], cwd=tmp_path, env=environment, text=True, stdin=-1, stdout=-1
    ) as node:
        assert node.stdin is not None and node.stdout is not None
        try:
            port = int(node.stdout.readline())
            with contextlib.ExitStack() as held:
                for _ in range(400):
                    held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                node.stdin.write("\n")
                node.stdin.flush()
                assert node.stdout.readline() == "opened\n"
                assert b"served" in status(f"127.0.0.1:{port}")
        finally:
            node.kill()


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_open_files(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        assert raise_open_files(200) == 300, "it is never lowered"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

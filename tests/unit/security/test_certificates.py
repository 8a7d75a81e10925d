"""Connections between processes of a flow: strangers are refused before anything is read, and learn nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from kit.links import Service, Watched, serve
from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import Member
from unbroken.security.certificates import HOST_NAME, Credentials, credentials
from unbroken.transport.auth import open_client
from unbroken.transport.calls import StatusQuestion, action_of
from unbroken.transport.server import NodeServer

OTHER = "another token, as long as it has to be"
SENT_MB = 700
GROWTH_MB = 64
"""A refused call may cost the node this much at most; each of these would otherwise cost twice its size."""


@pytest.fixture
def server() -> Iterator[NodeServer]:
    server = serve(Service())
    yield server
    server.close()


def status(client: flight.FlightClient, body: bytes | None = None, timeout_s: float = 5) -> Any:
    action = action_of(StatusQuestion()) if body is None else flight.Action("status-question", body)
    (answer,) = client.do_action(action, flight.FlightCallOptions(timeout=timeout_s))
    return json.loads(answer.body.to_pybytes())


def strangers(address: str) -> dict[str, flight.FlightClient]:
    mine, theirs = credentials(TOKEN), credentials(OTHER)
    encrypted = f"grpc+tls://{address}"
    named = {"tls_root_certs": mine.authority, "override_hostname": HOST_NAME}
    return {
        "in clear": flight.connect(f"grpc://{address}"),
        "without a certificate": flight.connect(encrypted, **named),
        "with another one": flight.connect(encrypted, cert_chain=theirs.certificate, private_key=theirs.key, **named),
        "of another flow": open_client(address, theirs),
        "that trusts all": flight.connect(encrypted, disable_server_verification=True),
        "with the authority as its own": flight.connect(
            encrypted, cert_chain=mine.authority, private_key=theirs.key, **named
        ),
    }


def test_processes_of_a_flow_reach_each_other(server: NodeServer) -> None:
    credentials.cache_clear()  # as in another process: the same authority, another certificate
    given = Credentials.from_text(credentials(TOKEN).to_text())
    client = open_client(server.address, given)
    assert status(client) == {"node": "served"}
    client.close()


@pytest.mark.parametrize("who", strangers("127.0.0.1:1"))
def test_a_stranger_is_refused(server: NodeServer, who: str) -> None:
    client = strangers(server.address)[who]
    with pytest.raises((flight.FlightUnavailableError, flight.FlightInternalError, OSError)):
        status(client)
    with pytest.raises((flight.FlightUnavailableError, flight.FlightInternalError, OSError)):
        list(client.list_flights())
    client.close()
    with Watched(server.address, "friend") as watched:
        watched.wait_for("up")


@pytest.fixture
def node() -> Iterator[tuple[str, psutil.Process]]:
    """A node's server in a process of its own: its address, and the process."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from kit.links import Service, serve; "
        "server = serve(Service()); print(server.address, flush=True); sys.stdin.read(); server.close()"
    )
    command = [sys.executable, "-c", code, *sys.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
        process.kill()


@pytest.mark.parametrize("who", ["in clear", "without a certificate"])
def test_a_call_without_the_token_costs_no_memory(node: tuple[str, psutil.Process], who: str) -> None:
    address, process = node
    friend = open_client(address, credentials(TOKEN))
    status(friend)
    client = strangers(address)[who]
    before, peak, ended = process.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.005):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    # With time enough to send everything: what is refused is refused before.
    with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
        status(client, bytes(SENT_MB << 20), timeout_s=60)
    ended.set()
    watcher.join(timeout=30)
    assert peak - before < GROWTH_MB << 20
    assert status(friend) == {"node": "served"}
    for each in (friend, client):
        each.close()


def test_an_invented_member_learns_nothing() -> None:
    """A process at an address that someone wrote into ZooKeeper is sent a handshake, and neither token nor message."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard: list[bytes] = []

        def listen() -> None:
            connection, _ = listener.accept()
            connection.settimeout(1)
            while len(heard) < 100:
                try:
                    data = connection.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                heard.append(data)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        member = Member("zz", f"127.0.0.1:{listener.getsockname()[1]}", "", "h", 1, "i")
        with Watched(member.address, "zz"):
            wait_until(lambda: heard, 30, "a connection")
            thread.join(timeout=30)
        said = b"".join(heard)
        assert said[:1] == b"\x16", "a TLS handshake"
        assert TOKEN.encode() not in said and b"authorization" not in said.lower()


def test_an_invented_server_is_not_called() -> None:
    """One that speaks TLS and asks for no certificate gets no call."""
    seen: list[Any] = []

    class Calls(flight.ServerMiddlewareFactory):  # type: ignore[misc]
        def start_call(self, info: Any, headers: Any) -> None:
            seen.append(headers)

    theirs = credentials(OTHER)
    fake = flight.FlightServerBase(
        "grpc+tls://127.0.0.1:0", tls_certificates=[(theirs.certificate, theirs.key)], middleware={"calls": Calls()}
    )
    client = open_client(f"127.0.0.1:{fake.port}", credentials(TOKEN))
    with pytest.raises(flight.FlightUnavailableError):
        status(client)
    client.close()
    fake.shutdown()
    assert seen == []

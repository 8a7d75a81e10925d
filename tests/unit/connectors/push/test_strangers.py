"""Connections that are slow, half open or too many: pushes of others are taken all the same. Real sockets."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from kit.support import wait_until
from unbroken.client import PushClient
from unbroken.connectors.push.http import BodyLimits, PushOutcome, PushServer
from unbroken.connectors.push.source import Push, PushBatch
from unbroken.transport.http.deadlines import HttpLimits

TOKEN = "a token that is as long as a real one has to be"
SOURCES = {"pushed": Push("user string, n long", max_body_bytes=100_000)}
HALF = b"POST /push/pushed HTTP/1.1\r\nHost: x\r\nX-A: "
HEAD = b"POST /push/pushed HTTP/1.1\r\nHost: x\r\nX-Producer-Id: p\r\nX-Sequence: 1\r\nContent-Length: %d\r\n"
TRUSTED = HEAD + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
STRANGE = HEAD + b"\r\n"
SESSION = b"POST /session HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"


@contextlib.contextmanager
def serving(
    limits: HttpLimits = HttpLimits(header_s=0.5),  # noqa: B008
    bodies: BodyLimits | None = None,
    submitting: threading.Event | None = None,
) -> Iterator[PushServer]:
    def submit(batch: PushBatch, timeout_s: float) -> PushOutcome:
        if submitting is not None and b"waits" in batch.rows:
            submitting.wait(timeout_s)
        return PushOutcome("logged")

    with PushServer("127.0.0.1", 0, TOKEN, submit, sources=SOURCES, limits=limits, bodies=bodies) as server:
        yield server


def push(server: PushServer, body: bytes = b'{"user":"a"}', timeout_s: float = 30) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Producer-Id": "p", "X-Sequence": "1"}
        connection.request("POST", "/push/pushed", body, headers)
        return connection.getresponse().status


def connect(server: PushServer, text: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(text)
    return connection


def ended(connection: socket.socket) -> bool:
    """Whether the server has closed it."""
    connection.settimeout(0.01)
    try:
        return connection.recv(65_536) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_300_half_open_connections_do_not_stop_pushes_and_are_closed() -> None:
    with serving(HttpLimits(header_s=1.0)) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server, HALF)) for _ in range(300)]
        assert [push(server) for _ in range(20)] == [200] * 20
        wait_until(lambda: all(map(ended, connections)), 30, "their end")
        assert push(server) == 200


@contextlib.contextmanager
def slow_sessions(server: PushServer, addresses: tuple[str, ...], each: int) -> Iterator[list[str]]:
    """Keep connections open that each owe the rest of a request for a session; those that are closed are replaced.

    Yields the address of each that was opened.

    They are dialled at a pace, because the server shares this process.
    """
    over, opened = threading.Event(), list[str]()

    def dial(address: str) -> None:
        with contextlib.ExitStack() as stack:
            pool: list[socket.socket] = []
            while not over.wait(0.01):
                gone, _, _ = select.select(pool, [], [], 0)
                for one in gone:
                    pool.remove(one)
                    one.close()
                for _ in range(min(each - len(pool), 5)):
                    one = stack.enter_context(socket.socket())
                    one.settimeout(2)
                    with contextlib.suppress(OSError):
                        one.bind((address, 0))
                        one.connect(("127.0.0.1", server.port))
                        one.sendall(SESSION)
                        pool.append(one)
                        opened.append(address)

    threads = [threading.Thread(target=dial, args=(address,)) for address in addresses]
    for thread in threads:
        thread.start()
    try:
        yield opened
    finally:
        over.set()
        for thread in threads:
            thread.join(20)


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("127.0.0.2", "127.0.0.3", "127.0.0.4")])
def test_slow_requests_for_sessions_do_not_stop_pushes(addresses: tuple[str, ...]) -> None:
    """Neither those of a producer with the token nor those of a client, which opens a session of its own."""
    with serving(HttpLimits()) as server, slow_sessions(server, addresses, 300) as opened:
        wait_until(lambda: len(opened) > 250 * len(addresses), 20, "many of them")
        assert [push(server) for _ in range(20)] == [200] * 20
        for number in range(5):
            client = PushClient([f"127.0.0.1:{server.port}"], TOKEN, "pushed", deadline_s=10)
            with contextlib.closing(client):
                client.send([{"user": "a", "n": number}])


def test_a_push_under_way_stays_while_strangers_come_and_go() -> None:
    submitting, codes = threading.Event(), list[int]()
    with serving(HttpLimits(most=16, most_each=8), submitting=submitting) as server:
        first = threading.Thread(target=lambda: codes.append(push(server, b'{"user":"waits"}', 20)))
        first.start()
        with slow_sessions(server, ("127.0.0.1",), 50) as opened:
            wait_until(lambda: len(opened) > 100, 20, "many of them")
        submitting.set()
        first.join(20)
        assert codes == [200]


def test_the_body_of_a_request_for_a_session_has_a_second() -> None:
    with serving(HttpLimits()) as server, connect(server, SESSION) as slow:
        began = time.monotonic()
        assert b" 400 " in slow.recv(65_536)
        assert time.monotonic() - began < 3


def test_a_kept_connection_may_be_silent_but_not_send_half_a_header() -> None:
    with serving(HttpLimits(header_s=0.3)) as server:
        body = b'{"user":"a"}'
        with connect(server, TRUSTED % len(body) + body) as connection:
            assert b" 200 " in connection.recv(65_536)
            assert not ended(connection)
            silent = time.monotonic()
            wait_until(lambda: time.monotonic() - silent > 0.6, 30, "a while")
            assert not ended(connection)
            connection.settimeout(10)
            connection.sendall(HALF)
            wait_until(lambda: ended(connection), 30, "the end of the half-open one")


@pytest.mark.parametrize("size", [1_000, 90_000])
def test_a_body_has_to_arrive_at_a_rate(size: int) -> None:
    limits = BodyLimits(grace_s=0.4, floor_bytes_s=20_000)
    with serving(bodies=limits) as server, connect(server, TRUSTED % size) as slow:
        began, answer = time.monotonic(), b""
        slow.settimeout(0.05)
        while b"\r\n\r\n" not in answer and time.monotonic() - began < 10:
            with contextlib.suppress(OSError):
                slow.sendall(b" ")
                answer += slow.recv(65_536)
        assert b" 408 " in answer and 0.3 < time.monotonic() - began < 5
        assert limits.held == 0
        assert push(server) == 200


def is_past(due: float) -> bool:
    return time.monotonic() >= due


def test_a_large_body_on_a_slow_line_is_taken_though_it_takes_longer_than_the_grace() -> None:
    body = b'{"user":"' + b"a" * 60_000 + b'"}'
    limits = BodyLimits(grace_s=0.3, floor_bytes_s=40_000)
    with serving(bodies=limits) as server, connect(server, TRUSTED % len(body)) as slow:
        began = time.monotonic()
        for start in range(0, len(body), 3_000):
            slow.sendall(body[start : start + 3_000])
            due = began + (start + 3_000) / 60_000
            wait_until(partial(is_past, due), 30, "the line")
        assert time.monotonic() - began > 0.6
        assert b" 200 " in slow.recv(65_536)


@pytest.mark.parametrize("drips", [True, False])
def test_a_stranger_that_is_refused_cannot_stay_by_owing_its_body(drips: bool) -> None:
    with serving(HttpLimits(header_s=0.4)) as server, connect(server, STRANGE % 90_000) as stranger:
        began = time.monotonic()
        assert b" 401 " in stranger.recv(65_536)
        while not ended(stranger) and time.monotonic() - began < 10:
            with contextlib.suppress(OSError):
                stranger.sendall(b" " if drips else b"")
        assert time.monotonic() - began < 5


def test_bodies_in_flight_are_bounded_and_given_back() -> None:
    limits, submitting = BodyLimits(in_flight=150_000), threading.Event()
    body = b'{"user":"waits' + b"a" * 80_000 + b'"}'
    codes: list[int] = []
    with serving(bodies=limits, submitting=submitting) as server:
        first = threading.Thread(target=lambda: codes.append(push(server, body, 20)))
        first.start()
        wait_until(lambda: limits.held > 80_000, 30, "the first one to be held")
        assert push(server, body) == 503
        assert push(server) == 200, "a small one has room"
        submitting.set()
        first.join(30)
        assert codes == [200]
        wait_until(lambda: limits.held == 0, 30, lambda: f"{limits.held} bytes are held")
        assert push(server, body) == 200
        with connect(server, TRUSTED % 90_000 + b" " * 50_000):
            wait_until(lambda: limits.held >= 50_000, 30, "half a body")
        wait_until(lambda: limits.held == 0, 30, lambda: f"{limits.held} bytes are held of one that has left")
        assert push(server, b" " * 200_000) == 413
        wait_until(lambda: limits.held == 0, 30, lambda: f"{limits.held} bytes are held of one that is too large")


def test_one_that_does_not_read_its_answers_is_closed() -> None:
    with serving(HttpLimits(header_s=5, stall_s=0.3)) as server:
        with socket.socket() as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            rude.settimeout(0.2)
            rude.connect(("127.0.0.1", server.port))

            def refused() -> bool:
                try:
                    rude.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)
                except TimeoutError:
                    return False
                except OSError:
                    return True
                return False

            wait_until(refused, 60, "its end")
        assert push(server) == 200

"""Challenge and response: who proves what, and what a listener, a relay or a stranger can do with it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.support import TOKEN
from unbroken.client import PushClient
from unbroken.connectors.push.http import PushOutcome, PushServer
from unbroken.connectors.push.source import Push, PushBatch
from unbroken.errors import UnbrokenError
from unbroken.security.challenge import CHALLENGE_S, SESSION_S, Doorkeeper, NotProven, Producer

OTHER = "another token, as long as it has to be"
HERE = "10.0.0.5:7070"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def opened(keeper: Doorkeeper, producer: Producer) -> str:
    return str(keeper.answer(producer.answer(keeper.answer(producer.question())))["session"])


def test_both_sides_prove_that_they_have_the_token() -> None:
    keeper = Doorkeeper(TOKEN)
    assert keeper.admits(opened(keeper, Producer.of(TOKEN, HERE)))
    said = keeper.answer(Producer.of(TOKEN, HERE).question())
    assert TOKEN not in json.dumps(said)
    with pytest.raises(NotProven, match=f"{HERE} does not prove"):
        Producer.of(OTHER, HERE).answer(keeper.answer(Producer.of(OTHER, HERE).question()))


def test_a_stranger_gets_no_session() -> None:
    keeper, stranger = Doorkeeper(TOKEN), Producer.of(OTHER, HERE)
    challenge = keeper.answer(stranger.question())
    for proof in ("", "0" * 64, str(challenge["proof"])):
        with pytest.raises(NotProven):
            keeper.answer({**stranger.question(), "answer": challenge["nonce"], "proof": proof})
    assert not any(keeper.admits(session) for session in ("", "x", str(challenge["nonce"]), f"9e9:x:{'0' * 64}"))


def test_a_proof_is_good_once_and_for_one_address_and_one_server() -> None:
    keeper, another = Doorkeeper(TOKEN), Doorkeeper(TOKEN)
    producer = Producer.of(TOKEN, HERE)
    proof = producer.answer(keeper.answer(producer.question()))
    for elsewhere in ({**proof, "address": "10.0.0.9:7070"}, {**proof, "nonce": "0" * 32}):
        with pytest.raises(NotProven):
            keeper.answer(elsewhere)
    with pytest.raises(NotProven):
        another.answer(proof)
    session = keeper.answer(proof)["session"]
    with pytest.raises(NotProven, match="answered before"):
        keeper.answer(proof)
    assert keeper.admits(session) and not another.admits(session)


def test_a_proof_for_another_address_does_not_convince_a_producer() -> None:
    """A server in between asks the real one for its proof, which covers the address that the producer means."""
    real, producer = Doorkeeper(TOKEN), Producer.of(TOKEN, "10.0.0.9:7070")
    relayed = real.answer({**producer.question(), "address": HERE})
    with pytest.raises(NotProven):
        producer.answer(relayed)


def test_challenges_and_sessions_end() -> None:
    clock = Clock()
    keeper, producer = Doorkeeper(TOKEN, clock), Producer.of(TOKEN, HERE)
    session = opened(keeper, producer)
    late = producer.answer(keeper.answer(producer.question()))
    clock.now += CHALLENGE_S + 1
    with pytest.raises(NotProven, match="too late"):
        keeper.answer(late)
    clock.now += SESSION_S - CHALLENGE_S - 2
    assert keeper.admits(session)
    clock.now += 2
    assert not keeper.admits(session)


@given(st.dictionaries(st.sampled_from(["nonce", "address", "answer", "proof"]), st.text() | st.integers() | st.none()))
def test_any_message_is_answered_or_refused(message: dict[str, Any]) -> None:
    with contextlib.suppress(NotProven):
        assert "session" not in Doorkeeper(TOKEN).answer(message)


@given(st.text())
def test_any_session_is_looked_at(session: str) -> None:
    assert not Doorkeeper(TOKEN).admits(session)


# --- over HTTP ----------------------------------------------------------------------------------------------


@pytest.fixture
def batches() -> list[PushBatch]:
    return []


@pytest.fixture
def server(batches: list[PushBatch]) -> Iterator[PushServer]:
    def submit(batch: PushBatch, deadline_s: float) -> PushOutcome:
        batches.append(batch)
        return PushOutcome("logged")

    with PushServer("127.0.0.1", 0, TOKEN, submit, sources={"clicks": Push("n long")}) as running:
        yield running


class Recording(BaseHTTPRequestHandler):
    """A server that someone invented: remembers everything that it is sent, and relays it if it is told where to."""

    heard: list[bytes]
    relay: str | None = None
    leader: str | None = None

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.heard += [str(self.headers).encode(), body]
        code, answer = 401, b"{}"
        if self.leader is not None and self.path != "/session":
            code, answer = 503, json.dumps({"status": "not-leader", "leader": self.leader}).encode()
        elif self.relay is not None:
            connection = http.client.HTTPConnection(self.relay, timeout=5)
            connection.request("POST", self.path, body, {"Authorization": self.headers.get("Authorization", "")})
            response = connection.getresponse()
            code, answer = response.status, response.read()
            connection.close()
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def invented() -> Iterator[tuple[str, type[Recording]]]:
    handler = type("Handler", (Recording,), {"heard": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{fake.server_address[1]}", handler
        fake.shutdown()


def test_a_client_pushes_without_sending_the_token(server: PushServer, batches: list[PushBatch]) -> None:
    for address in (server.address, f"localhost:{server.port}"):
        with PushClient([address], TOKEN, "clicks", deadline_s=5) as client:
            assert client.send([{"n": 1}]) == 1 and client.send([{"n": 2}]) == 2
            assert list(client._sessions) == [address]
            client._sessions[address] = ("forgotten", client._sessions[address][1])  # as after a restart
            assert client.send([{"n": 3}]) == 3
    assert len(batches) == 6


@pytest.mark.parametrize("relays", [False, True])
def test_an_invented_node_gets_neither_token_nor_rows_nor_session(
    server: PushServer, batches: list[PushBatch], invented: tuple[str, type[Recording]], relays: bool
) -> None:
    address, handler = invented
    handler.relay = server.address if relays else None
    with PushClient([address, server.address], TOKEN, "clicks", deadline_s=10) as client:
        client.send([{"n": 7}])
    assert len(batches) == 1, "by the real one"
    said = b"".join(handler.heard)
    assert handler.heard and TOKEN.encode() not in said and b'"n":7' not in said
    assert b"Bearer" not in said and b"Session " not in said
    with PushClient([address], TOKEN, "clicks", deadline_s=1) as client, pytest.raises(UnbrokenError):
        client.send([{"n": 8}])


def test_a_client_that_trusts_its_addresses_does_not_trust_those_that_it_is_told(
    invented: tuple[str, type[Recording]],
) -> None:
    address, handler = invented
    seen: list[bytes] = []
    second = type("Second", (Recording,), {"heard": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), second) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        handler.leader = f"127.0.0.1:{fake.server_address[1]}"
        with PushClient([address], TOKEN, "clicks", deadline_s=1, bearer=True) as client, pytest.raises(UnbrokenError):
            client.send([{"n": 8}])
        fake.shutdown()
    assert TOKEN.encode() in b"".join(handler.heard), "the user gave that address"
    assert seen and TOKEN.encode() not in b"".join(seen)


@pytest.mark.parametrize("address", ["10.0.0.9:{port}", "127.0.0.1:1", "", "{port}", "example.org:{port}"])
def test_a_node_proves_nothing_for_another_address(server: PushServer, address: str) -> None:
    connection = http.client.HTTPConnection(server.address, timeout=5)
    message = {"nonce": "n", "address": address.format(port=server.port)}
    connection.request("POST", "/session", json.dumps(message))
    response = connection.getresponse()
    assert response.status == 421 and b"proof" not in response.read()
    connection.close()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"null", b"5", b"[" * 100_000, b'{"address": 5}', b"\xff", b"x" * 9_000]
)
def test_garbage_is_refused(server: PushServer, body: bytes) -> None:
    connection = http.client.HTTPConnection(server.address, timeout=5)
    connection.request("POST", "/session", body)
    assert connection.getresponse().status in (400, 421)
    connection.close()

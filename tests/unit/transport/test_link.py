"""Links between real servers over loopback: what is sent arrives, and breaks and silence are noticed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from kit.links import PRODUCER, STREAM, TIMEOUT_S, TOKEN, Service, Watched, content, header, serve, threads_of
from kit.places import TESTS
from kit.support import wait_until
from unbroken.data.unit_store import HEADER
from unbroken.errors import UnbrokenError
from unbroken.protocol.ingress.log import Append, Entry
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.messages import Ack, Message, Progress, Subscribe
from unbroken.protocol.values.cuts import Reach
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.certificates import credentials
from unbroken.transport import link as link_module
from unbroken.transport import server as server_module
from unbroken.transport.auth import open_client
from unbroken.transport.calls import (
    GATE_ANSWER,
    SKIP_ANSWER,
    GateAnswer,
    GateQuestion,
    SkipAnswer,
    StatusQuestion,
    StopQuestion,
    UnitTicket,
    call,
    ticket_of,
)
from unbroken.transport.server import NodeServer

REPLICA = ReplicaId(ShardId("seg", 0), 1)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[NodeServer]:
    server = serve(service)
    yield server
    server.close()


def test_messages_and_units_arrive_in_order(server: NodeServer, service: Service) -> None:
    sent: list[Message] = [Subscribe(STREAM, str(REPLICA), 0)]
    sent += [Ack(STREAM, str(REPLICA), number) for number in range(200)]
    sent += [Append(1, Entry(1, 1, os.urandom(100_000), 0), 0), Progress(REPLICA, 5)]
    with Watched(server.address, "order") as watched:
        watched.wait_for("up")
        for message in sent:
            watched.link.send(message)
        for number in range(1, 301):
            server.send_unit("me", PRODUCER, header(number))
        wait_until(lambda: len(service.messages) >= len(sent), 30, "all messages")
        wait_until(lambda: len(watched.units) >= 300, 30, "all units")
        assert service.messages == [("me", message) for message in sent]
        assert [unit[0] for unit in watched.units] == [header(number) for number in range(1, 301)]
        assert all(data == content(unit)[:16] for unit, _, data in watched.units)
        assert watched.events == ["up"]


def test_two_nodes_reach_each_other_both_ways() -> None:
    services = {name: Service() for name in "ab"}
    servers = {name: serve(service) for name, service in services.items()}
    with Watched(servers["b"].address, "pair-b") as a, Watched(servers["a"].address, "pair-a") as b:
        a.wait_for("up")
        b.wait_for("up")
        a.link.send(Progress(REPLICA, 1))
        b.link.send(Progress(REPLICA, 2))
        servers["a"].send_unit("me", PRODUCER, header(1))
        servers["b"].send_unit("me", PRODUCER, header(2))
        wait_until(lambda: a.units and b.units and all(s.messages for s in services.values()), 30, "both ways")
        assert services["b"].messages == [("me", Progress(REPLICA, 1))]
        assert services["a"].messages == [("me", Progress(REPLICA, 2))]
        assert (a.units[0][0], b.units[0][0]) == (header(2), header(1))
    for each in servers.values():
        each.close()


def test_an_idle_link_stays_up(server: NodeServer) -> None:
    with Watched(server.address, "idle", timeout_s=0.5) as watched:
        watched.wait_for("up")
        since = time.monotonic()
        wait_until(lambda: time.monotonic() - since > 1.5, 30, "three times the timeout")
        assert watched.events == ["up"]


def test_units_that_were_trimmed_are_left_out(server: NodeServer, service: Service) -> None:
    service.trimmed = {2}
    with Watched(server.address, "trimmed") as watched:
        watched.wait_for("up")
        for number in (1, 2, 3):
            server.send_unit("me", PRODUCER, header(number))
        wait_until(lambda: len(watched.units) == 2, 30, "units 1 and 3")
        assert [unit[0].number for unit in watched.units] == [1, 3]
    server.send_unit("nobody", PRODUCER, header(1))  # a peer without a link subscribes again when it comes


def test_a_large_unit_passes(server: NodeServer) -> None:
    size = 50_000_000
    with Watched(server.address, "large") as watched:
        watched.wait_for("up")
        server.send_unit("me", PRODUCER, header(1, size))
        server.send_unit("me", PRODUCER, header(2))
        wait_until(lambda: len(watched.units) == 2, 30, "a unit of 50 MB and the one behind it")
        assert [(unit.number, length) for unit, length, _ in watched.units] == [(1, size), (2, 8)]
        assert watched.events == ["up"]


def test_a_unit_without_an_end_is_not_put_together(server: NodeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MOST_UNIT_BYTES", 4 * server_module.PIECE_BYTES)
    with Watched(server.address, "endless") as watched:
        watched.wait_for("up")
        server.send_unit("me", PRODUCER, header(1, 4 * server_module.PIECE_BYTES))
        wait_until(lambda: len(watched.units) == 1, 30, "a unit that is as large as it may be")
        server.send_unit("me", PRODUCER, header(2, 5 * server_module.PIECE_BYTES))
        watched.wait_for("up", "lost", "up")
        server.send_unit("me", PRODUCER, header(3))
        wait_until(lambda: len(watched.units) == 2, 30, "a unit behind it")
        assert [unit[0].number for unit in watched.units] == [1, 3]


@pytest.mark.parametrize("token", ["x" * 40, f"{TOKEN} ", TOKEN[:-1]])
def test_a_wrong_token_is_refused_everywhere(server: NodeServer, service: Service, token: str) -> None:
    with Watched(server.address, "intruder", token=token) as watched:
        watched.link.send(Progress(REPLICA, 1))
        client = open_client(server.address, credentials(token))
        options = flight.FlightCallOptions(timeout=5)
        with pytest.raises(flight.FlightUnavailableError):
            call(client, StatusQuestion(), 5)
        with pytest.raises(flight.FlightUnavailableError):
            client.do_get(flight.Ticket(b"{}"), options).read_all()
        with pytest.raises(flight.FlightUnavailableError):
            call(client, StopQuestion(), 5)
        client.close()
        assert (watched.events, service.messages, service.stops) == ([], [], 0)


def test_questions_are_answered(server: NodeServer, service: Service) -> None:
    client = open_client(server.address, credentials(TOKEN))
    options = flight.FlightCallOptions(timeout=5)

    cut = {STREAM: Reach(4, 4, 9)}
    assert GATE_ANSWER.decode(call(client, GateQuestion(REPLICA, "i", 4, cut), 5)) == GateAnswer(5, cut)
    assert SKIP_ANSWER.decode(call(client, SkipRequest("hold", "source", 3), 5)) == SkipAnswer(None)
    assert call(client, StatusQuestion(), 5) == b'{"node":"served"}'
    assert call(client, StopQuestion(), 5) == b"" and service.stops == 1
    unit = client.do_get(ticket_of(UnitTicket(REPLICA, STREAM, 3)), options).read_all()
    assert unit.to_pydict() == {"n": [3], "replica": [str(REPLICA)], "stream": [str(STREAM)]}
    client.close()


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("destroy", b"", "there is no action 'destroy'"),
        ("stop-question", b"", "this is no stop-question"),
        ("stop-question", b"status-question/1 \x90", "this is no stop-question"),
        ("stop-question", b"stop-question/2 \x90", "of version 2 .* version 1 is known here.* Run the same version"),
        ("release-question", b"release-question/1 \x91\x05", "Expected `str`, got `int`"),
        ("stop-question", b"stop-question/1 \x91\x05", "at most length 0"),
        ("gate-question", b"gate-question/1 \x94\xa1r\xa1i\x04\x80", "cannot be read"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_the_reason(
    server: NodeServer, service: Service, kind: str, body: bytes, reason: str
) -> None:
    options = flight.FlightCallOptions(timeout=5)
    with open_client(server.address, credentials(TOKEN)) as client:
        with pytest.raises(flight.FlightServerError, match=reason):
            list(client.do_action(flight.Action(kind, body), options))
        with pytest.raises(flight.FlightServerError, match="this is no ticket"):
            client.do_get(flight.Ticket(body or b"{}"), options).read_all()
    assert service.stops == 0


def test_garbage_ends_the_link_and_nothing_else(server: NodeServer, service: Service) -> None:
    with Watched(server.address, "garbage") as watched:
        watched.wait_for("up")
        watched.link._outgoing.put(b'["ack",5,"r",1]\n')
        watched.wait_for("up", "lost", "up")
        watched.link.send(Progress(REPLICA, 1))
        wait_until(lambda: service.messages, 30, "a message over the link that came back")


def test_the_link_comes_back_when_the_server_does(service: Service) -> None:
    first = serve(service)
    port = first.port
    with Watched(first.address, "restarted") as watched:
        watched.wait_for("up")
        first.close()
        watched.wait_for("up", "lost")
        assert service.gone == ["me"]
        second = serve(service, port)
        watched.wait_for("up", "lost", "up")
        watched.link.send(Progress(REPLICA, 9))
        second.send_unit("me", PRODUCER, header(4))
        wait_until(lambda: watched.units and service.messages, 30, "traffic after the restart")
        second.close()


def test_a_link_waits_for_a_server_that_is_not_there_yet(service: Service) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Watched(f"127.0.0.1:{port}", "late") as watched:
        watched.link.send(Progress(REPLICA, 1))
        watched.link.drop()
        late = serve(service, port)
        watched.wait_for("up")
        late.close()


def test_a_second_link_of_the_same_peer_replaces_the_first(server: NodeServer) -> None:
    with Watched(server.address, "twice-1") as old:
        old.wait_for("up")
        with Watched(server.address, "twice-2") as young:
            young.wait_for("up")
            old.wait_for("up", "lost")


@pytest.fixture
def frozen() -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own; thawed and ended afterwards."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(TESTS / "kit" / "frozen_server.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate(timeout=30)


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_frozen_peer_is_noticed_within_the_timeout_and_used_again_when_it_thaws(
    frozen: subprocess.Popen[str],
) -> None:
    with Watched(address_of(frozen), "frozen") as watched:
        watched.wait_for("up")
        frozen.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        watched.wait_for("up", "lost", deadline_s=30)
        # Noticed after the timeout, not before it; the rest is the owner's interval and a busy machine.
        assert TIMEOUT_S * 0.8 < time.monotonic() - since < TIMEOUT_S + 2
        frozen.send_signal(signal.SIGCONT)
        watched.wait_for("up", "lost", "up", deadline_s=30)


def test_a_killed_peer_is_noticed_at_once(frozen: subprocess.Popen[str]) -> None:
    with Watched(address_of(frozen), "killed", timeout_s=60) as watched:
        watched.wait_for("up")
        frozen.kill()
        watched.wait_for("up", "lost", deadline_s=30)


def test_a_listener_that_never_answers_holds_nothing_up() -> None:
    """It accepts connections and says nothing: the link never comes up, and can be closed."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with Watched(f"127.0.0.1:{listener.getsockname()[1]}", "mute") as watched:
            since = time.monotonic()
            wait_until(lambda: time.monotonic() - since > 2 * TIMEOUT_S, 30, "twice the timeout")
            assert watched.events == []
            watched.link.send(Progress(REPLICA, 1))
        wait_until(lambda: not threads_of("mute"), 30, lambda: f"the end of {threads_of('mute')}")


def test_closing_both_sides_leaves_no_thread(service: Service) -> None:
    server = serve(service)
    with Watched(server.address, "closing") as watched:
        watched.wait_for("up")
        wait_until(lambda: len(threads_of("closing")) == 3, 30, "the threads of the link and its owner")
        assert threads_of("me")
        since = time.monotonic()
    server.close()
    wait_until(lambda: not threads_of("closing") and not threads_of("me"), 30, lambda: str(threads_of("closing")))
    assert time.monotonic() - since < 5


def test_links_can_be_closed_at_any_moment(server: NodeServer) -> None:
    """Ending a stream from two threads at once would abort the whole process, so this is done many times."""
    for number in range(30):
        with Watched(server.address, "sudden") as watched:
            if number % 2:
                watched.wait_for("up")
                watched.link.send(Progress(REPLICA, number))
        wait_until(lambda: not threads_of("sudden"), 30, lambda: f"the end of {threads_of('sudden')}")


def test_a_link_with_a_full_queue_can_be_dropped_and_closed(
    frozen: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "OUTGOING_LIMIT", 5)
    with Watched(address_of(frozen), "full", timeout_s=60) as watched:
        watched.wait_for("up")
        frozen.send_signal(signal.SIGSTOP)
        for number in range(60):
            watched.link.send(Append(1, Entry(number, 1, bytes(1_000_000)), 0))
        watched.wait_for("up", "lost", deadline_s=30)
        frozen.send_signal(signal.SIGCONT)
        watched.wait_for("up", "lost", "up", deadline_s=20)
    wait_until(lambda: not threads_of("full"), 30, lambda: f"the end of {threads_of('full')}")


def test_a_server_closes_while_its_peer_is_up(service: Service) -> None:
    server = serve(service)
    with Watched(server.address, "abandoned") as watched:
        watched.wait_for("up")
        since = time.monotonic()
        server.close()
        assert time.monotonic() - since < 5
        watched.wait_for("up", "lost")
    wait_until(lambda: not threads_of("abandoned") and not threads_of("me"), 30, "the end of all threads")


def test_a_peer_that_does_not_read_is_given_up(
    server: NodeServer, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "OUTGOING_LIMIT", 4)
    with Watched(server.address, "slow") as watched:
        watched.wait_for("up")
        for number in range(1, 50):
            server.send_unit("me", PRODUCER, header(number, 5_000_000))
        wait_until(lambda: service.gone, 30, "the link given up")
        watched.wait_for("up", "lost", "up")


class Taken:
    """What becomes of the units that arrive over a link."""

    def __init__(self) -> None:
        self.whole: list[bytes] = []
        self.abandoned: list[bytes] = []
        self._parts: list[bytes] = []

    def begin(self, peer: str, header: UnitHeader) -> Taken:
        self._parts = []
        return self

    def add(self, piece: pa.Buffer) -> None:
        self._parts.append(piece.to_pybytes())

    def finish(self) -> None:
        self.whole.append(b"".join(self._parts))

    def abandon(self) -> None:
        self.abandoned.append(b"".join(self._parts))


def first(size: int) -> bytes:
    return server_module.UNIT_SIZE.pack(size) + HEADER.encode(header(1))


def test_pieces_make_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MOST_UNIT_BYTES", 1_000)
    taken = Taken()
    pieces = link_module.UnitPieces("peer", taken.begin)
    for unit in range(3):
        pieces.add(pa.py_buffer(b"%d" % unit * 600), first(1_000))
        pieces.add(pa.py_buffer(b"b" * 400), server_module.MORE)
        assert taken.whole[-1] == b"%d" % unit * 600 + b"b" * 400
    pieces.abandon()
    assert not taken.abandoned, "nothing was under way"
    pieces.add(pa.py_buffer(b"c" * 600), first(1_000))
    pieces.abandon()
    assert taken.abandoned == [b"c" * 600] and len(taken.whole) == 3


@pytest.mark.parametrize(
    "arriving",
    [
        [(b"a" * 100, 1_001)],
        [(b"a" * 101, 100)],
        [(b"a" * 60, 100), (b"b" * 41, None)],
        [(b"a" * 60, 100), (b"", None)],
        [(b"a" * 60, 100), (b"b" * 100, 100)],
        [(b"", 0)],
        [(b"a", None)],
    ],
    ids=["larger", "longer", "beyond", "empty", "unfinished", "nothing", "headless"],
)
def test_pieces_that_make_no_unit_are_refused(
    arriving: list[tuple[bytes, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MOST_UNIT_BYTES", 1_000)
    taken = Taken()
    pieces = link_module.UnitPieces("peer", taken.begin)
    *good, last = [(pa.py_buffer(data), server_module.MORE if size is None else first(size)) for data, size in arriving]
    for piece in good:
        pieces.add(*piece)
    with pytest.raises(UnbrokenError, match="peer sends"):
        pieces.add(*last)
    assert not taken.whole


def test_a_piece_is_sent_and_taken_without_a_copy() -> None:
    whole = pa.py_buffer(bytes(range(200)))
    piece = whole.slice(64, 100)
    batch = server_module.piece_batch(piece)
    batch.validate(full=True)
    assert server_module.piece_in(batch).address == piece.address
    assert server_module.piece_in(batch).equals(piece)


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"unit": pa.array([b"a", b"b"], pa.large_binary())}),
        pa.record_batch({"unit": pa.array([None], pa.large_binary())}),
        pa.record_batch({"unit": pa.array([b"a"], pa.binary())}),
        pa.record_batch({"other": pa.array([b"a"], pa.large_binary())}),
    ],
)
def test_a_batch_that_is_no_piece_is_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(UnbrokenError, match="no piece"):
        server_module.piece_in(batch)

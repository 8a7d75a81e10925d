"""The HTTP front checks requests and says what became of them; clients get every batch logged once."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kit.support import TOKEN
from unbroken.client import PushClient
from unbroken.connectors.push.http import ARROW_TYPE, PushOutcome, PushServer
from unbroken.connectors.push.ledger import PushLedger
from unbroken.connectors.push.source import Push, PushBatch
from unbroken.errors import UnbrokenError

OTHER = "another token, as long as it has to be"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Producer-Id": "p", "X-Sequence": "1"}
SOURCES = {"clicks": Push("n long", max_body_bytes=1000)}


class Log:
    """Stands for the ingress log of a node: logs what the ledger takes for new, unless told to answer otherwise."""

    def __init__(self) -> None:
        self.batches: list[PushBatch] = []
        self.ledger = PushLedger()
        self.answers: list[PushOutcome | Exception] = []
        self.lose_next_answer = False
        self.asked = 0

    def submit(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        self.asked += 1
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if self.ledger.accept(batch.producer, batch.sequence) == "duplicate":
            return PushOutcome("duplicate")
        self.batches.append(batch)
        if self.lose_next_answer:
            self.lose_next_answer = False
            return PushOutcome("timeout")
        return PushOutcome("logged")


@contextmanager
def serving(submit: Callable[[PushBatch, float], PushOutcome], port: int = 0) -> Iterator[PushServer]:
    server = PushServer("127.0.0.1", port, TOKEN, submit, sources=SOURCES)
    server.start()
    try:
        yield server
    finally:
        assert server.stop(10)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def server(log: Log) -> Iterator[PushServer]:
    with serving(log.submit) as server:
        yield server


def request(
    server: PushServer,
    body: bytes = b'{"n":1}',
    path: str = "/push/clicks",
    method: str = "POST",
    **headers: str | None,
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    sent = dict(HEADERS)
    for name, text in headers.items():
        sent.pop(name.replace("_", "-"), None)
        if text is not None:
            sent[name.replace("_", "-")] = text
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        content = response.read()
        value = json.loads(content) if content.startswith(b"{") else {}
        return response.status, value, response.headers
    finally:
        connection.close()


def test_rows_are_logged_and_a_resend_is_acknowledged_again(server: PushServer, log: Log) -> None:
    assert request(server)[:2] == (200, {"status": "logged"})
    assert request(server)[:2] == (200, {"status": "duplicate"})
    assert log.batches == [PushBatch("clicks", "p", 1, b'{"n":1}')]
    assert request(server, b"", "/health", "GET")[:2] == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"Authorization": None}, 401, "Bearer"),
        ({"Authorization": "Bearer wrong"}, 401, "Bearer"),
        ({"Authorization": "Bearer \xe4"}, 401, "Bearer"),
        ({"path": "/push/other"}, 404, "no pushed source 'other'; there are: clicks"),
        ({"X_Producer_Id": None}, 400, "X-Producer-Id"),
        ({"X_Producer_Id": "x" * 201}, 400, "X-Producer-Id"),
        ({"X_Sequence": None}, 400, "X-Sequence"),
        ({"X_Sequence": "-1"}, 400, "X-Sequence"),
        ({"X_Sequence": "9" * 19}, 400, "X-Sequence"),
        ({"body": b"x" * 1001}, 413, "larger than 1000"),
        ({"body": b"x" * 5_000_000}, 413, "larger than 1000"),
        ({"Content_Type": ARROW_TYPE}, 400, "not an Arrow IPC stream"),
    ],
)
def test_wrong_requests_are_explained(
    server: PushServer, log: Log, change: dict[str, Any], code: int, says: str
) -> None:
    status, answer, _ = request(server, **change)
    assert status == code and says in answer["detail"]
    assert log.asked == 0


def test_arrow_bodies_are_taken(server: PushServer, log: Log) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        writer.write_table(pa.table({"n": [1]}))
    assert request(server, bytes(sink.getvalue()), Content_Type=ARROW_TYPE)[0] == 200
    assert log.batches[0].format == "arrow"


def test_outcomes_become_answers(server: PushServer, log: Log) -> None:
    log.answers = [
        PushOutcome("not-leader", "10.0.0.1:7000"),
        PushOutcome("timeout"),
        PushOutcome("refused", detail="too much is waiting"),
        RuntimeError("boom"),
    ]
    status, answer, headers = request(server)
    assert (status, answer["leader"], headers["Retry-After"]) == (503, "10.0.0.1:7000", "1")
    assert request(server)[0] == 504
    assert request(server)[1] == {"status": "refused", "detail": "too much is waiting"}
    status, answer, _ = request(server)
    assert status == 500 and "boom" in answer["detail"]


def test_a_paused_flow_says_so_and_when_to_come_back(server: PushServer, log: Log) -> None:
    log.answers = [PushOutcome("paused", None, "the flow is paused (Kafka moves)")]
    status, answer, headers = request(server)
    assert (status, answer["status"], headers["Retry-After"]) == (503, "paused", "10")
    assert "Kafka moves" in answer["detail"]


def test_a_client_waits_for_the_end_of_a_pause(server: PushServer, log: Log) -> None:
    log.answers = [PushOutcome("paused", None, "the flow is paused")] * 3
    assert PushClient([server.address], TOKEN, "clicks", deadline_s=20).send([{"n": 1}]) == 1
    log.answers = [PushOutcome("paused", None, "the flow is paused")] * 100
    with pytest.raises(UnbrokenError, match="HTTP 503 paused, the flow is paused"):
        PushClient([server.address], TOKEN, "clicks", deadline_s=2.0).send([{"n": 1}])


def test_requests_wait_side_by_side(log: Log) -> None:
    meeting = threading.Barrier(8, timeout=20)

    def submit(batch: PushBatch, timeout_s: float) -> PushOutcome:
        meeting.wait()
        return PushOutcome("logged")

    with serving(submit) as server:
        codes: list[int] = []
        threads = [threading.Thread(target=lambda: codes.append(request(server)[0])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert codes == [200] * 8


def test_the_server_leaves_signals_alone_frees_its_port_and_says_when_it_is_taken(log: Log) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with serving(log.submit) as server:
        port = server.port
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        with pytest.raises(UnbrokenError, match=f"127.0.0.1:{port}.*Choose another port"):
            PushServer("127.0.0.1", port, TOKEN, log.submit, sources=SOURCES).start()
    with serving(log.submit, port) as again:
        assert request(again)[0] == 200
    assert PushServer("127.0.0.1", 0, TOKEN, log.submit, sources=SOURCES).stop()


def client(*servers: PushServer | str, **options: Any) -> PushClient:
    addresses = [server if isinstance(server, str) else server.address for server in servers]
    return PushClient(addresses, TOKEN, "clicks", "p", **{"deadline_s": 20, "attempt_s": 5, **options})


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_client_numbers_its_batches(server: PushServer, log: Log) -> None:
    with client(server) as sender:
        assert [sender.send([{"n": 1}, {"n": 2}]), sender.send(b'{"n":3}\n'), sender.send([])] == [1, 2, 3]
    assert [batch.rows for batch in log.batches] == [b'{"n":1}\n{"n":2}\n', b'{"n":3}\n', b""]
    with client(server, next_sequence=3) as sender:
        assert sender.send([{"n": 9}]) == 3
    assert len(log.batches) == 3


def test_a_client_goes_to_another_node_when_one_is_gone(log: Log) -> None:
    with serving(log.submit) as first, serving(log.submit) as second:
        sender = client(first, second)
        sender.send([{"n": 1}])
        assert first.stop(10)
        sender.send([{"n": 2}])
        sender.send([{"n": 3}])
        sender.close()
    assert [batch.sequence for batch in log.batches] == [1, 2, 3]


def test_a_client_follows_the_leader_even_to_an_address_it_was_not_given(log: Log) -> None:
    leader: list[str] = []
    other = Log()

    def follower(batch: PushBatch, timeout_s: float) -> PushOutcome:
        other.asked += 1
        return PushOutcome("not-leader", leader[0])

    with serving(log.submit) as first, serving(follower) as second:
        leader.append(first.address)
        with client(second) as sender:
            sender.send([{"n": 1}])
            sender.send([{"n": 2}])
    assert [batch.sequence for batch in log.batches] == [1, 2]
    assert other.asked == 1


def test_a_batch_whose_acknowledgement_was_lost_is_logged_once(server: PushServer, log: Log) -> None:
    log.lose_next_answer = True
    with client(server) as sender:
        assert sender.send([{"n": 1}]) == 1
    assert len(log.batches) == 1 and log.asked == 2


def test_nodes_that_name_each_other_do_not_keep_a_client_busy(log: Log) -> None:
    asked: list[str] = []
    addresses: list[str] = []

    def first(batch: PushBatch, timeout_s: float) -> PushOutcome:
        asked.append("first")
        return PushOutcome("not-leader", addresses[1])

    def second(batch: PushBatch, timeout_s: float) -> PushOutcome:
        asked.append("second")
        return PushOutcome("not-leader", addresses[0])

    with serving(first) as one, serving(second) as two:
        addresses += [one.address, two.address]
        with client(one, two, deadline_s=0.5) as sender, pytest.raises(UnbrokenError) as error:
            sender.send([{"n": 1}])
    for address in addresses:
        assert f"{address} said: HTTP 503 not-leader" in str(error.value)
    assert len(asked) < 20


def test_what_could_not_be_logged_is_in_doubt_until_it_is_decided(log: Log) -> None:
    port = free_port()
    sender = client(f"127.0.0.1:{port}", deadline_s=0.2)
    with pytest.raises(UnbrokenError, match=f"127.0.0.1:{port} said: ConnectionRefusedError"):
        sender.send([{"n": 1}])
    with pytest.raises(UnbrokenError, match="Batch 1 is in doubt"):
        sender.send([{"n": 2}])
    with serving(log.submit, port):
        assert sender.send([{"n": 1}]) == 1
        assert sender.resend() is None
        assert sender.send([{"n": 2}]) == 2
        sender.close()
    with pytest.raises(UnbrokenError):
        sender.send([{"n": 3}])
    sender.abandon()
    assert sender.next_sequence == 4


def test_a_refused_batch_is_an_error_at_once(server: PushServer, log: Log) -> None:
    with PushClient([server.address], OTHER, "clicks") as sender, pytest.raises(UnbrokenError, match="does not prove"):
        sender.send([{"n": 1}])
    with (
        PushClient([server.address], OTHER, "clicks", bearer=True) as sender,
        pytest.raises(UnbrokenError, match="HTTP 401"),
    ):
        sender.send([{"n": 1}])
    with client(server) as sender:
        with pytest.raises(UnbrokenError, match="refused batch 1: HTTP 413"):
            sender.send(b"x" * 3000)
        assert sender.send([{"n": 1}]) == 2
    assert log.asked == 1


@pytest.mark.parametrize("address", ["", "host", "https://host:1", "host:x", "host:99999"])
def test_wrong_addresses_are_explained(address: str) -> None:
    with pytest.raises(UnbrokenError, match="host:port"):
        PushClient([address], TOKEN, "clicks")
    with pytest.raises(UnbrokenError, match="at least one"):
        PushClient([], TOKEN, "clicks")


def test_rows_may_hold_times_decimals_and_bytes_but_nothing_unknown(server: PushServer, log: Log) -> None:
    import datetime as dt
    from decimal import Decimal

    with client(server) as sender:
        row = {"t": dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "d": dt.date(2024, 1, 2), "m": Decimal("1.5"), "z": b"a"}
        sender.send([row])
        with pytest.raises(UnbrokenError, match="A object cannot be sent"):
            sender.send([{"x": object()}])
    assert json.loads(log.batches[0].rows) == {
        "t": "2024-01-02T00:00:00+00:00",
        "d": "2024-01-02",
        "m": "1.5",
        "z": "YQ==",
    }


def test_what_becomes_too_large_is_refused_before_it_is_logged() -> None:
    zeros = pa.table({"n": np.zeros(20_000_000, np.int64)})
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, zeros.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(zeros)
    small = body.getvalue().to_pybytes()
    log = Log()
    server = PushServer("127.0.0.1", 0, TOKEN, log.submit, sources={"clicks": Push("n long")})
    with server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", "/push/clicks", small, {**HEADERS, "Content-Type": ARROW_TYPE})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
    assert len(small) < 10_000 and (answer.status, said["status"], log.asked) == (413, "too-large", 0)
    assert "max_decoded_bytes" in said["detail"] and len(said["detail"]) < 600

"""The endpoint as monitoring systems see it: over HTTP, on a port of its own, from a status that is given."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kit.statuses import replica, running
from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.observe.metrics import server as module
from unbroken.observe.metrics.server import AT_ONCE, LIMITS, STUCK_S, MetricsServer
from unbroken.observe.status.node import NodeStatus
from unbroken.transport.http.deadlines import HttpLimits

DEADLINE_S = 20


@dataclass
class Asked:
    """A server, and what it is told."""

    status: NodeStatus = field(default_factory=running)
    silence_s: float | None = None
    failure: Exception | None = None
    hung: str | None = None
    limits: HttpLimits = LIMITS

    def __post_init__(self) -> None:
        told: dict[str, Any] = {"status": self.ask, "silence_s": lambda: self.silence_s, "hung": lambda: self.hung}
        self.server = MetricsServer("127.0.0.1", 0, "counted", "a", limits=self.limits, **told)
        self.server.start()

    def ask(self) -> NodeStatus:
        if self.failure is not None:
            raise self.failure
        return self.status

    def get(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def asked() -> Iterator[Asked]:
    out = Asked()
    yield out
    assert out.server.stop()


def test_metrics_are_in_the_format_of_prometheus(asked: Asked) -> None:
    code, kind, text = asked.get("/metrics")
    assert code == 200 and kind.startswith("text/plain; version=")
    assert 'unbroken_replica_lag_units{flow="counted",node="a",replica="sums.0#1",shard="sums.0"} 2.0' in text
    assert "# TYPE unbroken_failovers_total counter" in text
    assert "process_resident_memory_bytes" in text


def test_ready_tells_what_is_missing(asked: Asked) -> None:
    code, kind, text = asked.get("/ready")
    assert (code, kind) == (200, "application/json") and json.loads(text)["ready"] is True
    code, _, text = asked.get("/ready?max_lag=100ms")
    assert code == 503
    assert json.loads(text)["missing"][0]["what"] == "sums.0#1"
    code, _, text = asked.get("/ready?max_lag=soon")
    assert code == 400 and "not a duration" in json.loads(text)["error"]
    assert asked.get("/ready", "HEAD")[0::2] == (200, "")


def test_a_status_that_cannot_be_had_is_not_readiness(asked: Asked) -> None:
    asked.failure = UnbrokenError("the node is on strike")
    code, _, text = asked.get("/ready")
    assert code == 503 and "on strike" in json.loads(text)["missing"][0]["why"]
    code, _, text = asked.get("/metrics")
    assert code == 503 and "on strike" in text
    asked.failure = RuntimeError("a mistake")
    assert asked.get("/metrics")[0] == 500
    asked.failure = None
    assert asked.get("/metrics")[0] == 200


def test_a_node_is_alive_as_long_as_its_loop_turns(asked: Asked) -> None:
    assert asked.get("/live")[0] == 200, "it starts"
    asked.silence_s = 0.2
    assert asked.get("/live")[0] == 200
    asked.silence_s = STUCK_S + 1
    code, _, text = asked.get("/live")
    assert code == 503 and json.loads(text)["why"] == "its loop has not turned for 31 s"


def test_nothing_else_is_there_and_nothing_can_be_changed(asked: Asked) -> None:
    assert asked.get("/")[0] == 200
    assert asked.get("/push/numbers")[0] == 404
    for path in ("/ready", "/metrics", "/"):
        assert asked.get(path, "POST")[0] == 405


def test_a_port_that_is_taken_is_an_error_that_says_so(asked: Asked) -> None:
    other = MetricsServer("127.0.0.1", asked.server.port, "counted", "b", status=running, silence_s=lambda: None)
    with pytest.raises(UnbrokenError, match=rf"cannot listen for metrics on 127\.0\.0\.1:{asked.server.port}"):
        other.start()
    assert other.stop(), "there is nothing to stop"


def test_a_server_that_has_stopped_leaves_no_thread_and_no_port() -> None:
    asked = Asked()
    assert asked.get("/live")[0] == 200
    name = f"metrics {asked.server.port}"
    assert any(thread.name == name for thread in threading.enumerate())
    assert asked.server.stop() and asked.server.stop()
    assert not any(thread.name == name for thread in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        asked.get("/live")


def drip(port: int, count: int, ended: threading.Event, source: str, again: bool) -> threading.Thread:
    """Connections that send a byte now and then, for ever; ``again``: another one for each that is closed."""

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))

    connections = [connect() for _ in range(count)]

    def work() -> None:
        while not ended.wait(0.02):
            for number, connection in enumerate(connections):
                try:
                    connection.sendall(b"G")
                except OSError:
                    connection.close()
                    with contextlib.suppress(OSError):
                        connections[number] = connect() if again else connection
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("count", "source", "again"),
    [
        (16, "127.0.0.1", True),
        (300, "127.0.0.1", False),
        # From an address of its own, where others have one: a storm from the prober's is limited with the prober.
        pytest.param(300, "127.0.0.2", True, marks=pytest.mark.skipif(sys.platform != "linux", reason="one loopback")),
    ],
)
def test_slow_connections_do_not_take_the_probes_away(count: int, source: str, again: bool) -> None:
    asked, ended = Asked(limits=HttpLimits(most=64, most_each=32, header_s=1.0)), threading.Event()
    dripping = drip(asked.server.port, count, ended, source, again)
    try:
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert [asked.get(path)[0] for path in ("/live", "/ready", "/metrics")] == [200, 200, 200]
    finally:
        ended.set()
        dripping.join(30)
        assert asked.server.stop()


def test_the_deadline_is_for_the_whole_header_and_not_for_each_byte() -> None:
    asked = Asked(limits=HttpLimits(header_s=0.4))
    try:
        with socket.create_connection(("127.0.0.1", asked.server.port)) as connection:
            connection.settimeout(0.1)
            began, text = time.monotonic(), b"GET /live HTTP/1.1\r\nX-Long: "
            closed = False
            while not closed and time.monotonic() - began < 10:
                try:
                    connection.sendall(text)
                    text = b"a"
                    closed = connection.recv(1) == b""
                except TimeoutError:
                    continue
                except OSError:
                    closed = True
        assert closed and 0.3 < time.monotonic() - began < 5
    finally:
        assert asked.server.stop()


def test_a_status_that_does_not_answer_leaves_live_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    monkeypatch.setattr("unbroken.observe.metrics.collector.FRESH_S", 0.0)
    asked, answered = Asked(), threading.Event()
    monkeypatch.setattr(asked.server.app._facts, "read", lambda: answered.wait(DEADLINE_S) and running())
    try:
        codes: list[int] = []
        askers = [threading.Thread(target=lambda: codes.append(asked.get("/ready")[0])) for _ in range(3 * AT_ONCE)]
        for asker in askers:
            asker.start()
        assert asked.get("/live")[0] == 200
        for asker in askers:
            asker.join(DEADLINE_S)
        assert codes == [503] * len(askers)
        assert asked.get("/live")[0] == 200
        answered.set()
        wait_until(lambda: asked.get("/ready")[0] == 200, DEADLINE_S, "places are free once the status answers")
    finally:
        answered.set()
        assert asked.server.stop()


def test_the_addresses_of_ipv6_are_written_as_such() -> None:
    assert MetricsServer("::1", 4711, "f", "n", status=running, silence_s=lambda: None).address == "[::1]:4711"


def test_a_replica_that_lags_is_seen_by_whoever_asks_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken.observe.metrics.collector.FRESH_S", 0.0)
    assert asked.get("/ready")[0] == 200
    asked.status = running(replicas=[replica(lag_ms=9_000.0)])
    assert asked.get("/ready")[0] == 503


def test_a_thread_that_hangs_ends_the_life_of_a_node_whose_loop_turns(asked: Asked) -> None:
    asked.silence_s = 0.1
    assert asked.get("/live")[0] == 200
    asked.hung = "its thread for source clicks has not come back from a call for 901 s"
    code, _, text = asked.get("/live")
    assert code == 503 and json.loads(text)["why"] == asked.hung

"""The endpoint as monitoring systems see it: over HTTP, on a port of its own, from a status that is given."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from metrics.statuses import replica, running
from support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.metrics import server as module
from unbroken.metrics.server import MAX_CONNECTIONS, STUCK_S, MetricsServer

DEADLINE_S = 20


@dataclass
class Asked:
    """A server, and what it is told."""

    status: dict[str, Any] = field(default_factory=running)
    silence_s: float | None = None
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self.server = MetricsServer("127.0.0.1", 0, "counted", "a", status=self.ask, silence_s=lambda: self.silence_s)
        self.server.start()

    def ask(self) -> dict[str, Any]:
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
    other = MetricsServer("127.0.0.1", asked.server.port, "counted", "b", status=dict, silence_s=lambda: None)
    with pytest.raises(UnbrokenError, match=rf"cannot listen for metrics on 127\.0\.0\.1:{asked.server.port}"):
        other.start()
    assert other.stop(), "there is nothing to stop"


def test_a_server_that_has_stopped_leaves_no_thread_and_no_port() -> None:
    asked = Asked()
    assert asked.get("/live")[0] == 200
    name = f"metrics-{asked.server.port}"
    assert any(thread.name == name for thread in threading.enumerate())
    assert asked.server.stop() and asked.server.stop()
    assert not any(thread.name == name for thread in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        asked.get("/live")


def test_those_who_connect_and_say_nothing_keep_nobody_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.5)
    asked = Asked()
    try:
        silent = [socket.create_connection(("127.0.0.1", asked.server.port)) for _ in range(2 * MAX_CONNECTIONS)]

        def answered() -> bool:
            try:
                return asked.get("/live")[0] == 200
            except (OSError, http.client.HTTPException):
                return False

        wait_until(answered, DEADLINE_S, "an answer")
        for connection in silent:
            connection.close()
    finally:
        assert asked.server.stop()


def test_the_addresses_of_ipv6_are_written_as_such() -> None:
    assert MetricsServer("::1", 4711, "f", "n", status=dict, silence_s=lambda: None).address == "[::1]:4711"


def test_a_replica_that_lags_is_seen_by_whoever_asks_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken.metrics.collector.FRESH_S", 0.0)
    assert asked.get("/ready")[0] == 200
    asked.status = running(replicas=[replica(lag_ms=9_000.0)])
    assert asked.get("/ready")[0] == 503

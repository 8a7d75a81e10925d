"""The HTTP endpoint of a node for monitoring systems: ``/metrics``, ``/ready`` and ``/live``.

It can only be read, so it asks for no token; it listens on the node's own address.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from unbroken.errors import UnbrokenError
from unbroken.metrics.collector import Facts, NodeCollector, Status
from unbroken.metrics.readiness import Lack, Readiness, max_lag_of, readiness

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
"""Questions that are answered at the same time; a further one is turned away. A few scrapers and probes is what to
expect, and each question has a thread."""

IDLE_S = 10.0
"""How long a connection may be silent. One request is answered on each."""

STUCK_S = 30.0
"""Silence of the node's loop after which the node does not count as alive. The loop looks around five times a second,
and the longest thing it does between is to write a file."""

Answer = tuple[int, str, bytes]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_TEXTS = {200: "200 OK", 400: "400 Bad Request", 404: "404 Not Found", 405: "405 Method Not Allowed"}
_TEXTS |= {500: "500 Internal Server Error", 503: "503 Service Unavailable"}

_INDEX = """An Unbroken node.
/metrics             for Prometheus
/ready?max_lag=5s    200 when the replicas of this node have caught up, else 503 and what is missing
/live                200 as long as this node works
"""


class MetricsServer:
    """Serves one node's metrics from a thread of its own.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one, see ``address`` after `start`.
    status
        Asked when somebody wants to know; it may take a while.
    silence_s
        How long the node's loop has not turned; None while it has not begun. It answers at once.
    """

    def __init__(
        self,
        host: str,
        port: int,
        flow: str,
        node: str,
        *,
        status: Callable[[], Status],
        silence_s: Callable[[], float | None],
    ) -> None:
        self.host = host
        self.port = port
        facts = Facts(status)
        registry = CollectorRegistry()
        registry.register(NodeCollector(flow, node, facts))
        ProcessCollector(registry=registry)
        self._site = _Site(node, facts, silence_s, make_wsgi_app(registry))
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def start(self) -> None:
        """Listen and answer; UnbrokenError if the port cannot be had."""
        kind = _Server6 if ":" in self.host else _Server
        try:
            server = make_server(self.host, self.port, self._site, server_class=kind, handler_class=_Handler)
        except (OSError, OverflowError) as error:
            raise UnbrokenError(
                f"cannot listen for metrics on {self.address}: {error}. Choose another port with --metrics-port or "
                "the setting metrics_port; 0 takes a free one."
            ) from error
        self.port = server.server_port
        self._server = server
        # It is told to stop by a flag that it looks at this often.
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.2}, name=f"metrics-{self.port}", daemon=True
        )
        self._thread.start()

    def stop(self, deadline_s: float = 2.0) -> bool:
        """Stop listening and end the thread; False if it did not end in time (it ends with the process).

        Answers that are being given end with their connections, after ``IDLE_S`` at the latest, or with the process.
        """
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return True
        server.ask_to_stop()
        thread.join(deadline_s)
        server.server_close()
        return not thread.is_alive()


class _Server(ThreadingWSGIServer):
    """One thread for each question, and not more questions than ``MAX_CONNECTIONS`` at a time."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(*arguments, **named)

    def server_bind(self) -> None:
        """As usual, without asking the name service who this is: that can take as long as it likes."""
        self.server_name = str(self.server_address[0])
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_port = self.server_address[1]
        self.setup_environ()

    def ask_to_stop(self) -> None:
        """Without waiting, which ``shutdown`` does for as long as it takes."""
        threading.Thread(target=self.shutdown, name="metrics-stop", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()  # There is no thread that would do it.
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the asker's business."""
        log.debug("a question about metrics was not answered", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """What is asked every few seconds is not worth a line."""


class _Site:
    """Finds the answer to a request."""

    def __init__(self, node: str, facts: Facts, silence_s: Callable[[], float | None], metrics: WsgiApp) -> None:
        self._node = node
        self._facts = facts
        self._silence_s = silence_s
        self._metrics = metrics

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        try:
            if path == "/metrics" and method == "GET":
                return self._metrics(environ, start_response)
            code, kind, body = self._answer(method, path, environ.get("QUERY_STRING", ""))
        except UnbrokenError as error:
            code, kind, body = _text(503, f"{error}\n")
        except Exception as error:
            log.exception("a question about metrics failed")
            code, kind, body = _text(500, f"{type(error).__name__}: {error}\n")
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        start_response(_TEXTS[code], headers)
        return [b"" if method == "HEAD" else body]

    def _answer(self, method: str, path: str, query: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return _text(405, f"{method} is not possible here; use GET\n")
        match path:
            case "/ready":
                return self._ready(query)
            case "/live":
                return self._live()
            case "/":
                return _text(200, _INDEX)
            case "/metrics":
                return _text(405, "use GET\n")
        return _text(404, f"there is no {path}\n{_INDEX}")

    def _ready(self, query: str) -> Answer:
        try:
            max_lag_ms = max_lag_of(query)
        except ValueError as error:
            return _json(400, {"error": str(error)})
        try:
            found = readiness(self._facts.read(), max_lag_ms)
        except UnbrokenError as error:
            found = Readiness(self._node, max_lag_ms, (Lack(self._node, str(error)),))
        return _json(200 if found.ready else 503, found.to_json())

    def _live(self) -> Answer:
        silence_s = self._silence_s()
        if silence_s is None or silence_s < STUCK_S:
            return _json(200, {"node": self._node, "live": True})
        why = f"its loop has not turned for {silence_s:.0f} s"
        return _json(503, {"node": self._node, "live": False, "why": why})


def _text(code: int, text: str) -> Answer:
    return code, "text/plain; charset=utf-8", text.encode()


def _json(code: int, value: Mapping[str, Any]) -> Answer:
    return code, "application/json", json.dumps(value).encode() + b"\n"

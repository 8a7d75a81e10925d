"""The HTTP endpoint of a node for monitoring systems: ``/metrics``, ``/ready`` and ``/live``.

It can only be read, so it asks for no token; it listens on the node's own address. What strangers can use up is
bounded, see `unbroken.transport.http.deadlines`, and each kind of question has places of its own: no number of scrapes,
nor a status that does not answer, takes ``/live`` away, which a cluster manager takes for the death of the node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from unbroken.errors import UnbrokenError
from unbroken.observe.metrics.collector import Facts, NodeCollector
from unbroken.observe.status.node import NodeStatus
from unbroken.observe.status.readiness import Lack, Readiness, max_lag_of, readiness
from unbroken.transport.http.deadlines import HttpLimits
from unbroken.transport.http.server import AppServer

log = logging.getLogger(__name__)

LIMITS = HttpLimits(most=64, most_each=32, header_s=5.0, stall_s=10.0)
"""A few scrapers and probes is what to expect."""

AT_ONCE = 8
"""Questions of one kind that are answered at a time, each by a thread; a further one is turned away."""

ANSWER_S = 10.0
"""How long an answer may take; the work ends when the node has answered."""

STUCK_S = 30.0
"""Silence of the node's loop after which the node does not count as alive. The loop looks around five times a second,
and the longest thing it does between is to write a file."""

HttpAnswer = tuple[int, str, bytes]

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
    hung
        Which other thread has hung for so long that only a restart helps; None if none has. It answers at once.
    """

    def __init__(
        self,
        host: str,
        port: int,
        flow: str,
        node: str,
        *,
        status: Callable[[], NodeStatus],
        silence_s: Callable[[], float | None],
        hung: Callable[[], str | None] = lambda: None,
        limits: HttpLimits = LIMITS,
    ) -> None:
        self._limits = limits
        self.host = host
        self.port = port
        facts = Facts(status)
        registry = CollectorRegistry()
        registry.register(NodeCollector(flow, node, facts))
        ProcessCollector(registry=registry)
        self.app = _Site(node, facts, silence_s, hung, registry)
        self._server: AppServer | None = None

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def start(self) -> None:
        """Listen and answer; UnbrokenError if the port cannot be had."""
        server = AppServer(self.app, self.host, self.port, "metrics", limits=self._limits)
        try:
            server.start()
        except (UnbrokenError, OverflowError) as error:
            raise UnbrokenError(
                f"cannot listen for metrics on {self.address}: {error} Choose another port with --metrics-port or "
                "the setting metrics_port; 0 takes a free one."
            ) from error
        self.port = server.port
        self._server = server

    def stop(self, deadline_s: float = 2.0) -> bool:
        """Stop listening and end the thread; False if it did not end in time (it ends with the process)."""
        if self._server is None:
            return True
        return self._server.stop(deadline_s)


class _Desk:
    """Answers one kind of question, a few at a time, each within a deadline.

    The threads are daemons: one whose question is never answered must not keep the process from ending. It keeps its
    place until then.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._free = threading.BoundedSemaphore(AT_ONCE)

    async def ask(self, question: Callable[[], HttpAnswer]) -> HttpAnswer:
        if not self._free.acquire(blocking=False):
            return _text(503, f"too many questions are asked at a time: {self._kind}. Ask again later.\n")
        answer: Future[HttpAnswer] = Future()
        threading.Thread(target=self._work, args=(question, answer), name=f"metrics{self._kind}", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_S)
        except TimeoutError:
            return _text(503, f"no answer within {ANSWER_S:g} s: {self._kind}. Ask again later.\n")

    def _work(self, question: Callable[[], HttpAnswer], answer: Future[HttpAnswer]) -> None:
        try:
            found = question()
        except BaseException as error:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
        else:
            if answer.set_running_or_notify_cancel():
                answer.set_result(found)
        finally:
            self._free.release()


class _Site:
    """Finds the answer to a request."""

    def __init__(
        self,
        node: str,
        facts: Facts,
        silence_s: Callable[[], float | None],
        hung: Callable[[], str | None],
        registry: CollectorRegistry,
    ) -> None:
        self._node = node
        self._facts = facts
        self._silence_s = silence_s
        self._hung = hung
        self._registry = registry
        self._desks = {path: _Desk(path) for path in ("/metrics", "/ready")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            code, kind, body = await self._answer(request)
        except UnbrokenError as error:
            code, kind, body = _text(503, f"{error}\n")
        except Exception as error:
            log.exception("a question about metrics failed")
            code, kind, body = _text(500, f"{type(error).__name__}: {error}\n")
        # One answer for each connection: probes and scrapers do not wait for one another.
        headers = {"Content-Type": kind, "Cache-Control": "no-store", "Connection": "close"}
        await Response(b"" if request.method == "HEAD" else body, code, headers)(scope, receive, send)

    async def _answer(self, request: Request) -> HttpAnswer:
        method, path, query = request.method, request.url.path, request.url.query
        if method not in ("GET", "HEAD"):
            return _text(405, f"{method} is not possible here; use GET\n")
        match path:
            case "/ready":
                return await self._desks[path].ask(partial(self._ready, query))
            case "/live":
                return self._live()
            case "/":
                return _text(200, _INDEX)
            case "/metrics" if method == "HEAD":
                return _text(405, "use GET\n")
            case "/metrics":
                return await self._desks[path].ask(partial(self._metrics, request.headers.get("accept", ""), query))
        return _text(404, f"there is no {path}\n{_INDEX}")

    def _metrics(self, accept: str, query: str) -> HttpAnswer:
        encode, kind = choose_encoder(accept)
        names = parse_qs(query).get("name[]")
        registry = self._registry if names is None else self._registry.restricted_registry(names)
        return 200, kind, encode(registry)

    def _ready(self, query: str) -> HttpAnswer:
        try:
            max_lag_ms = max_lag_of(query)
        except ValueError as error:
            return _json(400, {"error": str(error)})
        try:
            found = readiness(self._facts.read(), max_lag_ms)
        except UnbrokenError as error:
            found = Readiness(self._node, max_lag_ms, (Lack(self._node, str(error)),))
        return _json(200 if found.ready else 503, found.to_json())

    def _live(self) -> HttpAnswer:
        silence_s = self._silence_s()
        why = self._hung()
        if silence_s is not None and silence_s >= STUCK_S:
            why = f"its loop has not turned for {silence_s:.0f} s"
        if why is None:
            return _json(200, {"node": self._node, "live": True})
        return _json(503, {"node": self._node, "live": False, "why": why})


def _text(code: int, text: str) -> HttpAnswer:
    return code, "text/plain; charset=utf-8", text.encode()


def _json(code: int, value: Mapping[str, Any]) -> HttpAnswer:
    return code, "application/json", json.dumps(value).encode() + b"\n"

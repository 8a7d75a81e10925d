"""The HTTP front of pushed sources.

``POST /push/{source}`` answers 200 only after the rows are in the log of every in-sync ingress node. Whatever else
happens, the producer sends the same request again, here or to another ingress node: the sequence number tells.

With the header ``X-Sign: alive`` the same request, without rows, is a sign of life, and with ``X-Sign: leaving`` the
last one of a producer. The answer's ``heartbeat_ms`` says how long a producer of the source may be silent.

A producer presents the flow's token (``Authorization: Bearer``), or a session that it got at ``POST /session`` without
sending the token (`unbroken.security.challenge`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from unbroken.connectors.push.source import Push, PushBatch, PushFormat, Sign
from unbroken.data.rows.budget import first_line
from unbroken.security.challenge import Doorkeeper, Malformed, NotProven, texts
from unbroken.security.keys import check_token
from unbroken.transport.http.deadlines import HttpLimits, admit
from unbroken.transport.http.server import AppServer

ARROW_TYPE = "application/vnd.apache.arrow.stream"
SUBMIT_TIMEOUT_S = 10.0
BODY_GRACE_S = 10.0
BODY_FLOOR_BYTES_S = 64 * 1024
"""A body has to arrive at this rate at least, after the grace: a producer that stops, or sends a byte now and then,
must not hold its place, and one on a slow line may send a large batch."""

IN_FLIGHT_BYTES = 128 * 1024 * 1024
"""Bodies that are held at a time, from the first byte until the answer; beyond it producers are asked to wait."""

KEEP_ALIVE_S = 75  # Producers that push once a minute keep their connection.
DRAIN_BYTES = 64_000_000
SESSION_BYTES = 4_096
SESSION_TIMEOUT_S = 1.0
"""For the body of a request for a session, which fits into a packet and proves nothing before its end."""

MAX_PRODUCER_CHARS = 200
MAX_SEQUENCE = 2**63 - 1
RETRY_AFTER_S = 1
PAUSED_RETRY_AFTER_S = 10
"""When to try again: what keeps a batch from being logged is over in a moment, but a pause lasts."""

_SIGNS: dict[str, Sign] = {"": "", "alive": "alive", "leaving": "leaving"}

PushStatus = Literal["logged", "duplicate", "not-leader", "timeout", "refused", "paused"]
_CODES: dict[PushStatus, int] = {
    "logged": 200,
    "duplicate": 200,
    "not-leader": 503,
    "timeout": 504,
    "refused": 503,
    "paused": 503,
}


@dataclass(frozen=True)
class PushOutcome:
    """What became of a batch; ``leader`` is the push address (host:port) of the ingress leader, if known."""

    status: PushStatus
    leader: str | None = None
    detail: str = ""


Submit = Callable[[PushBatch, float], PushOutcome]
"""Logs a batch, or finds that it is logged; blocks for at most the given seconds."""


class PushServer(AppServer):
    """Serves pushed sources over HTTP from a thread of its own.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one, see ``port`` after `start`.
    token
        What producers must present.
    submit
        Called in a thread for each batch.
    sources
        The pushed sources by name.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        submit: Submit,
        *,
        sources: Mapping[str, Push],
        limits: HttpLimits = HttpLimits(),  # noqa: B008
        bodies: BodyLimits | None = None,
    ) -> None:
        limits = replace(limits, proves=True)
        front = _Front(check_token(token), submit, dict(sources), Doorkeeper(token), host, bodies or BodyLimits())
        super().__init__(front.app(), host, port, "pushed rows", keep_alive_s=KEEP_ALIVE_S, limits=limits)


@dataclass
class BodyLimits:
    """How long bodies may take, and how much of them is held; used by the server's thread only."""

    grace_s: float = BODY_GRACE_S
    floor_bytes_s: float = BODY_FLOOR_BYTES_S
    in_flight: int = IN_FLIGHT_BYTES
    held: int = 0

    def hold(self, size: int) -> None:
        if self.held + size > self.in_flight:
            raise _Crowded
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


class _Crowded(Exception):
    """More bodies are under way than may be held."""


@dataclass(frozen=True)
class _Front:
    """Checks a request, hands its batch over and puts the outcome into HTTP."""

    token: str
    submit: Submit
    sources: dict[str, Push]
    doorkeeper: Doorkeeper
    host: str
    limits: BodyLimits

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self.health, methods=["GET"]),
                Route("/session", self.session, methods=["POST"]),
                Route("/push/{source}", self.push, methods=["POST"]),
            ]
        )

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def session(self, request: Request) -> Response:
        """Prove that this is a node of the flow, and open a session for a producer that proves to belong to it."""
        body = _Body(self.limits, SESSION_BYTES)
        try:
            await asyncio.wait_for(body.read(request), SESSION_TIMEOUT_S)
            message = json.loads(body.data)
            _, address, _, _ = texts(message)
        except (ValueError, RecursionError, TimeoutError, ClientDisconnect, Malformed):
            return _answer(400, "bad-request", "send JSON with nonce and address")
        except _Crowded:
            return _answer(503, "refused", "more is pushed than this node can hold; send it again in a while")
        finally:
            body.release()
        if not self._is_mine(address, request):
            return _answer(421, "misdirected", f"this node is not {address}; use its own address")
        try:
            answer = self.doorkeeper.answer(message)
            if "session" in answer:
                admit(request)
            return JSONResponse(answer)
        except NotProven as error:
            return _answer(401, "unauthorized", str(error))

    def _is_mine(self, address: str, request: Request) -> bool:
        """Whether a producer that means ``address`` means this server: by where its connection has arrived."""
        host, _, port = address.rpartition(":")
        arrived, at = request.scope["server"]
        names = {self.host, arrived, socket.gethostname()}
        if arrived in ("127.0.0.1", "::1"):
            names.add("localhost")
        return port == str(at) and host.strip("[]").lower() in {name.lower() for name in names}

    def _is_admitted(self, authorization: str) -> bool:
        kind, _, value = authorization.partition(" ")
        if kind == "Session":
            return self.doorkeeper.admits(value)
        return kind == "Bearer" and hmac.compare_digest(value.encode("latin-1"), self.token.encode())

    async def push(self, request: Request) -> Response:
        if not self._is_admitted(request.headers.get("authorization", "")):
            return _answer(401, "unauthorized", "send the header 'Authorization: Bearer <token>'")
        admit(request)
        name = request.path_params["source"]
        source = self.sources.get(name)
        if source is None:
            known = ", ".join(sorted(self.sources)) or "none"
            return _answer(404, "unknown-source", f"there is no pushed source {name!r}; there are: {known}")
        body = _Body(self.limits, source.max_body_bytes)
        try:
            producer, sequence = _identity(request)
            await body.read(request)
            return await self._answer_to(request, name, source, producer, sequence, body)
        except ValueError as error:
            return _answer(400, "bad-request", str(error))
        except TimeoutError:
            rate = f"{self.limits.floor_bytes_s / 1024:g} KB per second"
            return _answer(408, "timeout", f"the body arrives too slowly; send at least {rate}")
        except _Crowded:
            return _answer(503, "refused", "more is pushed than this node can hold; send it again in a while")
        except ClientDisconnect:
            return _answer(400, "disconnected", "the connection ended within the body")
        finally:
            body.release()

    async def _answer_to(
        self, request: Request, name: str, source: Push, producer: str, sequence: int, body: _Body
    ) -> Response:
        if body.too_large:
            limit = f"the body is larger than {source.max_body_bytes} bytes; send smaller batches"
            return _answer(413, "too-large", limit)
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        form: PushFormat = "arrow" if content_type == ARROW_TYPE else "json"
        sign = _SIGNS.get(request.headers.get("x-sign", ""))
        if sign is None or (sign and body.data):
            return _answer(400, "bad-request", "the header X-Sign must be alive or leaving, without rows")
        batch = PushBatch(name, producer, 0 if sign else sequence, bytes(body.data), "json" if sign else form, sign)
        return await run_in_threadpool(self._log, source, batch)

    def _log(self, source: Push, batch: PushBatch) -> Response:
        try:
            refusal = source.refusal(batch)
        except Exception as error:
            return _answer(500, "failed", f"the batch was not looked at: {type(error).__name__}: {first_line(error)}")
        if refusal is not None:
            return _answer(413 if refusal.status == "too-large" else 400, refusal.status, refusal.reason)
        try:
            outcome = self.submit(batch, SUBMIT_TIMEOUT_S)
        except Exception as error:
            # Whatever went wrong, the producer must hear that it is not known to be logged.
            return _answer(500, "failed", f"{type(error).__name__}: {first_line(error)}")
        return _answer(_CODES[outcome.status], outcome.status, outcome.detail, outcome.leader, source.heartbeat_ms)


def _identity(request: Request) -> tuple[str, int]:
    producer = request.headers.get("x-producer-id", "")
    sequence = request.headers.get("x-sequence", "")
    if not producer or len(producer) > MAX_PRODUCER_CHARS or not producer.isprintable():
        raise ValueError(f"the header X-Producer-Id must have 1 to {MAX_PRODUCER_CHARS} printable characters")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and int(sequence) <= MAX_SEQUENCE):
        raise ValueError("the header X-Sequence must be a whole number that grows with every batch")
    return producer, int(sequence)


class _Body:
    """The body of a request: no more than its limit is ever held, and what is held counts for the server's limit."""

    def __init__(self, limits: BodyLimits, limit: int) -> None:
        self._limits = limits
        self._limit = limit
        self.data = bytearray()
        self.too_large = False

    async def read(self, request: Request) -> None:
        """Read all of it; TimeoutError if it arrives too slowly.

        What is too large is read on for a while and thrown away: most producers read no answer before they have
        sent everything.
        """
        size, began = 0, time.monotonic()
        chunks = aiter(request.stream())
        while True:
            left_s = began + self._limits.grace_s + size / self._limits.floor_bytes_s - time.monotonic()
            try:
                chunk = await asyncio.wait_for(anext(chunks), max(0.0, left_s))
            except StopAsyncIteration:
                return
            size += len(chunk)
            if size > self._limit + DRAIN_BYTES:
                return
            if size > self._limit:
                self.too_large = True
                self.release()
            else:
                self._limits.hold(len(chunk))
                self.data += chunk

    def release(self) -> None:
        self._limits.release(len(self.data))
        self.data.clear()


def _answer(
    code: int, status: str, detail: str = "", leader: str | None = None, heartbeat_ms: float | None = None
) -> Response:
    content = {"status": status, "detail": detail, "leader": leader, "heartbeat_ms": heartbeat_ms}
    after_s = PAUSED_RETRY_AFTER_S if status == "paused" else RETRY_AFTER_S
    headers = {"Retry-After": str(after_s)} if code == 503 else {}
    return JSONResponse({key: value for key, value in content.items() if value}, code, headers)

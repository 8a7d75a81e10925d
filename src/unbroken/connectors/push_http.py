"""The HTTP front of pushed sources.

``POST /push/{source}`` answers 200 only after the rows are in the log of every in-sync ingress node. Whatever else
happens, the producer sends the same request again, here or to another ingress node: the sequence number tells.

With the header ``X-Sign: alive`` the same request, without rows, is a sign of life, and with ``X-Sign: leaving`` the
last one of a producer. The answer's ``heartbeat_ms`` says how long a producer of the source may be silent.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from unbroken.connectors.push import Push, PushBatch, RowFormat, Sign
from unbroken.serving import AppServer

ARROW_TYPE = "application/vnd.apache.arrow.stream"
SUBMIT_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 30.0  # A producer that stops in the middle of a request must not hold its place forever.
KEEP_ALIVE_S = 75  # Producers that push once a minute keep their connection.
DRAIN_BYTES = 64_000_000
MAX_PRODUCER_CHARS = 200
MAX_SEQUENCE = 2**63 - 1
RETRY_AFTER_S = 1
PAUSED_RETRY_AFTER_S = 10
"""When to try again: what keeps a batch from being logged is over in a moment, but a pause lasts."""

_SIGNS: dict[str, Sign] = {"": "", "alive": "alive", "leaving": "leaving"}

Status = Literal["logged", "duplicate", "not-leader", "timeout", "refused", "paused"]
_CODES: dict[Status, int] = {
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

    status: Status
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

    def __init__(self, host: str, port: int, token: str, submit: Submit, *, sources: Mapping[str, Push]) -> None:
        app = _Front(token, submit, dict(sources)).app()
        super().__init__(app, host, port, "pushed rows", keep_alive_s=KEEP_ALIVE_S)


@dataclass(frozen=True)
class _Front:
    """Checks a request, hands its batch over and puts the outcome into HTTP."""

    token: str
    submit: Submit
    sources: dict[str, Push]

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self.health, methods=["GET"]),
                Route("/push/{source}", self.push, methods=["POST"]),
            ]
        )

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def push(self, request: Request) -> Response:
        presented = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(presented, f"Bearer {self.token}".encode()):
            return _answer(401, "unauthorized", "send the header 'Authorization: Bearer <token>'")
        name = request.path_params["source"]
        source = self.sources.get(name)
        if source is None:
            known = ", ".join(sorted(self.sources)) or "none"
            return _answer(404, "unknown-source", f"there is no pushed source {name!r}; there are: {known}")
        try:
            producer, sequence = _identity(request)
            body = await asyncio.wait_for(_body(request, source.max_body_bytes), BODY_TIMEOUT_S)
        except ValueError as error:
            return _answer(400, "bad-request", str(error))
        except TimeoutError:
            return _answer(408, "timeout", f"the body did not arrive within {BODY_TIMEOUT_S:g} s")
        except ClientDisconnect:
            return _answer(400, "disconnected", "the connection ended within the body")
        if body is None:
            limit = f"the body is larger than {source.max_body_bytes} bytes; send smaller batches"
            return _answer(413, "too-large", limit)
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        form: RowFormat = "arrow" if content_type == ARROW_TYPE else "json"
        sign = _SIGNS.get(request.headers.get("x-sign", ""))
        if sign is None or (sign and body):
            return _answer(400, "bad-request", "the header X-Sign must be alive or leaving, without rows")
        batch = PushBatch(name, producer, 0 if sign else sequence, body, "json" if sign else form, sign)
        return await run_in_threadpool(self._log, source, batch)

    def _log(self, source: Push, batch: PushBatch) -> Response:
        refusal = source.refusal(batch)
        if refusal is not None:
            return _answer(400, "bad-request", refusal)
        try:
            outcome = self.submit(batch, SUBMIT_TIMEOUT_S)
        except Exception as error:
            # Whatever went wrong, the producer must hear that it is not known to be logged.
            return _answer(500, "failed", f"{type(error).__name__}: {error}")
        return _answer(_CODES[outcome.status], outcome.status, outcome.detail, outcome.leader, source.heartbeat_ms)


def _identity(request: Request) -> tuple[str, int]:
    producer = request.headers.get("x-producer-id", "")
    sequence = request.headers.get("x-sequence", "")
    if not producer or len(producer) > MAX_PRODUCER_CHARS or not producer.isprintable():
        raise ValueError(f"the header X-Producer-Id must have 1 to {MAX_PRODUCER_CHARS} printable characters")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and int(sequence) <= MAX_SEQUENCE):
        raise ValueError("the header X-Sequence must be a whole number that grows with every batch")
    return producer, int(sequence)


async def _body(request: Request, limit: int) -> bytes | None:
    """The whole body, or None if it is larger than ``limit``; no more than that is ever held.

    What is too large is read on for a while and thrown away: most producers read no answer before they have
    sent everything.
    """
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit + DRAIN_BYTES:
            break
        if size > limit:
            body.clear()
        else:
            body += chunk
    return bytes(body) if size <= limit else None


def _answer(
    code: int, status: str, detail: str = "", leader: str | None = None, heartbeat_ms: float | None = None
) -> Response:
    content = {"status": status, "detail": detail, "leader": leader, "heartbeat_ms": heartbeat_ms}
    after_s = PAUSED_RETRY_AFTER_S if status == "paused" else RETRY_AFTER_S
    headers = {"Retry-After": str(after_s)} if code == 503 else {}
    return JSONResponse({key: value for key, value in content.items() if value}, code, headers)

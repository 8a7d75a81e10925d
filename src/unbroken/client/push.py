"""Sends rows to a pushed source of a running dataflow, each batch exactly once.

Needs nothing but the standard library, so that producers can copy what they need of it; only ``PushClient.of_run``,
which finds a flow on this machine, needs the rest of the package.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import http.client
import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from unbroken.errors import UnbrokenError
from unbroken.security.challenge import NotProven, Producer
from unbroken.security.keys import check_token

JSON_TYPE = "application/x-ndjson"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
MAX_ANSWER_BYTES = 100_000
_FINAL = {400, 401, 404, 405, 409, 413}
"""Answers that another attempt would only get again."""

UNAUTHORIZED = 401
NOT_PROVEN = -1
"""Stands for the answer of a node that does not prove that it belongs to the flow."""

BEATS = 3
"""Signs of life in the time after which a silent producer would count as failed."""

SESSION_WAIT_S = 2.0
"""How long a node is given to open a session for signs of life; one that hangs delays none but its own."""

LEAVE_S = 2.0
"""How long a client that is closed tries to say so."""


@dataclass(frozen=True)
class _Batch:
    sequence: int
    body: bytes
    content_type: str
    sign: str = ""


@dataclass(frozen=True)
class _Answer:
    code: int
    said: str
    leader: str | None
    heartbeat_ms: float | None = None


class PushClient:
    """A producer of rows. Not for use by several threads at once; give each its own client.

    A batch is sent again, with the same sequence number and to each ingress node in turn, until one of them says
    that it is logged; the number lets them recognise what they have.

    A producer that restarts must go on where it was: keep its ``producer_id`` and give ``next_sequence``, one
    above the last number that `send` returned, sending again what was not acknowledged as the first batch. Or it
    uses a fresh id (the default) and accepts that a batch that was in doubt when it ended may come twice.

    If the source asks for heartbeats, a client whose first batch is logged gives signs of life from then on, as long as
    no batch is in doubt: whoever gives them has nothing that is late. `close` takes leave; a producer that ended
    without it counts as failed until it is back under its id, or somebody calls `leave` for it.

    Parameters
    ----------
    addresses
        Push addresses (host:port) of the ingress nodes.
    token
        The token of the dataflow. It is not sent: client and node prove to each other that they have it.
    source
        The name of the pushed source.
    producer_id
        Tells producers apart; by default a random one.
    next_sequence
        The number of the first batch.
    deadline_s
        How long `send` tries.
    attempt_s
        How long one node is given to answer.
    bearer
        Send the token itself to ``addresses``, as other HTTP clients do: for the name of a load balancer, by which no
        node knows itself. Addresses that a node names are still asked for a proof.

    Examples
    --------
    >>> with PushClient(["localhost:7070"], token, "clicks") as client:
    ...     client.send([{"user": "u1", "n": 3}])
    >>> with PushClient.of_run(".unbroken/orders", "clicks") as client:
    ...     client.send([{"user": "u1", "n": 3}])
    """

    def __init__(
        self,
        addresses: list[str],
        token: str,
        source: str,
        producer_id: str | None = None,
        *,
        next_sequence: int = 1,
        deadline_s: float = 60.0,
        attempt_s: float = 15.0,
        bearer: bool = False,
    ) -> None:
        if not addresses:
            raise UnbrokenError("A push client needs the address of at least one ingress node.")
        self.addresses = [_host_port(address) for address in addresses]
        self.producer_id = producer_id or uuid.uuid4().hex
        self.next_sequence = next_sequence
        self._token = check_token(token)
        self._trusted = frozenset(self.addresses if bearer else ())
        self._sessions: dict[str, tuple[str, float]] = {}
        self._path = f"/push/{quote(source, safe='')}"
        self._deadline_s = deadline_s
        self._attempt_s = attempt_s
        self._preferred = self.addresses[0]
        self._connection: http.client.HTTPConnection | None = None
        self._connected_to = ""
        self._doubt: _Batch | None = None
        self._beating: dict[str, threading.Thread] = {}
        self._still = threading.Event()

    @classmethod
    def of_run(
        cls, directory: str | os.PathLike[str], source: str, producer_id: str | None = None, **rest: Any
    ) -> Self:
        """A client of the flow that `unbroken run` keeps in ``directory`` (``.unbroken/FLOW``) on this machine.

        ``rest`` are the other parameters of a client, such as ``next_sequence``.
        """
        from unbroken.client.subscription import push_addresses
        from unbroken.coordination.run_info import RunInfo
        from unbroken.transport.auth import read_token

        run = RunInfo.read(Path(directory))
        addresses = push_addresses(run.zookeeper, run.flow, run.token_file)
        return cls(addresses, read_token(run.token_file), source, producer_id, **rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, rows: Iterable[Mapping[str, Any]] | bytes, *, arrow: bool = False) -> int:
        """Send a batch and wait until it is logged; its sequence number.

        ``rows`` are dicts, or bytes that are JSON lines already (with ``arrow``: an Arrow IPC stream).

        Raises
        ------
        UnbrokenError
            If the batch was refused, or could not be logged within the deadline. In the second case it is in
            doubt, and the next call must be `send` with the same rows, `resend`, or `abandon`.
        """
        body = rows if isinstance(rows, bytes) else _json_lines(rows)
        batch = _Batch(self.next_sequence, body, ARROW_TYPE if arrow else JSON_TYPE)
        if self._doubt is not None and self._doubt != batch:
            raise UnbrokenError(
                f"Batch {self._doubt.sequence} is in doubt: call resend() until it is logged, or abandon() it, "
                f"before other rows are sent."
            )
        self._doubt = batch
        return self._deliver(batch)

    def resend(self) -> int | None:
        """Try again to get the batch in doubt logged; its sequence number, None if none is in doubt."""
        return None if self._doubt is None else self._deliver(self._doubt)

    def abandon(self) -> None:
        """Give up the batch in doubt; it may or may not have been logged."""
        if self._doubt is not None:
            self.next_sequence = self._doubt.sequence + 1
            self._doubt = None

    def close(self) -> None:
        """Take leave if signs of life were given, and let go of the connection."""
        if self._beating and self._doubt is None:
            with contextlib.suppress(UnbrokenError):
                self.leave(LEAVE_S)
        self._stop_beating()
        self._disconnect()

    def leave(self, deadline_s: float | None = None) -> None:
        """Say that nothing is to be expected from this producer until it sends again; it is waited for no more.

        Raises
        ------
        UnbrokenError
            If no ingress node could be told within the deadline.
        """
        self._stop_beating()
        self._deliver(_Batch(0, b"", JSON_TYPE, "leaving"), deadline_s)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _deliver(self, batch: _Batch, deadline_s: float | None = None) -> int:
        deadline = time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)
        said: dict[str, str] = {}
        pause_s = 0.05
        while True:
            # Each round tries every node once, so that nodes that name each other as leader cannot keep us busy.
            waiting = [self._preferred, *(a for a in self.addresses if a != self._preferred)]
            tried: set[str] = set()
            codes: set[int] = set()
            while waiting:
                address = waiting.pop(0)
                tried.add(address)
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self._gave_up(batch, said)
                answer = self._attempt(address, batch, min(left_s, self._attempt_s))
                said[address] = answer.said
                codes.add(answer.code)
                if answer.code == 200 or answer.code in _FINAL:
                    return self._finish(batch, address, answer)
                if answer.leader is not None and answer.leader not in tried:
                    waiting = [answer.leader, *(a for a in waiting if a != answer.leader)]
            if deadline - time.monotonic() <= pause_s or codes == {NOT_PROVEN}:
                raise self._gave_up(batch, said)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _finish(self, batch: _Batch, address: str, answer: _Answer) -> int:
        # The number of a refused batch is not used again either: an earlier attempt may have been logged.
        if not batch.sign:
            self._doubt = None
            self.next_sequence = batch.sequence + 1
        if answer.code != 200:
            raise UnbrokenError(f"{address} refused batch {batch.sequence}: {answer.said}")
        self._preferred = address
        if answer.heartbeat_ms is not None and not batch.sign:
            self._beat(answer.heartbeat_ms / 1000 / BEATS)
        return batch.sequence

    def _beat(self, period_s: float) -> None:
        """Give signs of life to every node: any of them may be the next to ask how the producers are."""
        for address in {*self.addresses, self._preferred} - self._beating.keys():
            name = f"heartbeat-{address}"
            thread = threading.Thread(target=self._beat_at, args=(address, period_s), name=name, daemon=True)
            self._beating[address] = thread
            thread.start()

    def _beat_at(self, address: str, period_s: float) -> None:
        still = self._still
        while not still.wait(period_s):
            if self._doubt is not None:
                continue
            with contextlib.suppress(OSError, http.client.HTTPException, _NoSession):
                authorization = self._authorization(address, SESSION_WAIT_S)
                headers = self._headers(_Batch(0, b"", JSON_TYPE, "alive"), authorization)
                with contextlib.closing(_connection(address, period_s)) as connection:
                    connection.request("POST", self._path, b"", headers)
                    response = connection.getresponse()
                    response.read(MAX_ANSWER_BYTES)
                if response.status == UNAUTHORIZED:
                    self._sessions.pop(address, None)

    def _stop_beating(self) -> None:
        self._still.set()
        self._still = threading.Event()
        self._beating = {}

    def _attempt(self, address: str, batch: _Batch, timeout_s: float) -> _Answer:
        reused = self._connection is not None and self._connected_to == address
        answer = self._request(address, batch, timeout_s)
        # The server may have closed a connection that was idle, or restarted and forgotten a session.
        forgotten = answer.code == UNAUTHORIZED and self._sessions.pop(address, None) is not None
        if (answer.code == 0 and reused) or forgotten:
            return self._request(address, batch, timeout_s)
        return answer

    def _authorization(self, address: str, timeout_s: float) -> str:
        if address in self._trusted:
            return f"Bearer {self._token}"
        session, until = self._sessions.get(address, ("", 0.0))
        if until <= time.monotonic():
            with contextlib.closing(_connection(address, timeout_s)) as connection:
                session, lasts_s = _open_session(connection, Producer.of(self._token, address))
            self._sessions[address] = (session, time.monotonic() + lasts_s / 2)
        return f"Session {session}"

    def _headers(self, batch: _Batch, authorization: str) -> dict[str, str]:
        headers = {
            "Authorization": authorization,
            "Content-Type": batch.content_type,
            "X-Producer-Id": self.producer_id,
            "X-Sequence": str(batch.sequence),
        }
        return {**headers, "X-Sign": batch.sign} if batch.sign else headers

    def _request(self, address: str, batch: _Batch, timeout_s: float) -> _Answer:
        try:
            headers = self._headers(batch, self._authorization(address, timeout_s))
            connection = self._connect(address, timeout_s)
            connection.request("POST", self._path, batch.body, headers)
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self._disconnect()
            return _Answer(0, f"{type(error).__name__}: {error}", None)
        except _NoSession as error:
            self._disconnect()
            return _Answer(error.code, str(error), None)
        if response.will_close or not response.isclosed():
            self._disconnect()
        return _read_answer(response.status, content)

    def _connect(self, address: str, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is not None and self._connected_to == address:
            if self._connection.sock is not None:
                self._connection.sock.settimeout(timeout_s)
            self._connection.timeout = timeout_s
            return self._connection
        self._disconnect()
        self._connection = _connection(address, timeout_s)
        self._connected_to = address
        return self._connection

    def _gave_up(self, batch: _Batch, said: dict[str, str]) -> UnbrokenError:
        told = "; ".join(f"{address} said: {words}" for address, words in said.items()) or "none answered"
        if batch.sign:
            return UnbrokenError(f"No ingress node could be told that {self.producer_id} leaves ({told}).")
        return UnbrokenError(
            f"Batch {batch.sequence} could not be logged within {self._deadline_s:g} s ({told}). It is in doubt: "
            f"call resend(), or send() with the same rows, when the ingress nodes can be reached."
        )


def _connection(address: str, timeout_s: float) -> http.client.HTTPConnection:
    host, _, port = address.rpartition(":")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)


class _NoSession(Exception):
    """A node has not opened a session."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


def _open_session(connection: http.client.HTTPConnection, producer: Producer) -> tuple[str, float]:
    """Get a session, and how many seconds it is good for; the node proves first that it has the flow's token."""

    def ask(message: Mapping[str, str]) -> dict[str, Any]:
        connection.request("POST", "/session", json.dumps(message), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read(MAX_ANSWER_BYTES)
        if response.status != 200:
            # A refusal by a server that has proven nothing is not the word of a node: another one is tried.
            code = NOT_PROVEN if response.status < 500 else response.status
            raise _NoSession(code, _read_answer(response.status, content).said)
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise _NoSession(0, "the answer cannot be read")
        return value

    try:
        opened = ask(producer.answer(ask(producer.question())))
        return str(opened["session"]), float(opened["seconds"])
    except NotProven as error:
        raise _NoSession(NOT_PROVEN, str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise _NoSession(0, "the answer cannot be read") from error


def _read_answer(code: int, content: bytes) -> _Answer:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return _Answer(code, f"HTTP {code}", None)
    detail = value.get("detail")
    try:
        leader = _host_port(str(value["leader"])) if value.get("leader") else None
    except UnbrokenError:
        leader = None
    said = f"HTTP {code} {value.get('status', '')}".rstrip() + (f", {detail}" if detail else "")
    heartbeat_ms = value.get("heartbeat_ms")
    return _Answer(code, said, leader, heartbeat_ms if isinstance(heartbeat_ms, int | float) else None)


def _host_port(address: str) -> str:
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("", "http") or not parts.hostname or port is None:
        raise UnbrokenError(f"{address!r} is not a push address; write it as host:port.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, separators=(",", ":"), default=_plain) + "\n" for row in rows).encode()


def _plain(value: Any) -> Any:
    """Python values that JSON does not know, as pushed sources read them."""
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise UnbrokenError(f"A {type(value).__name__} cannot be sent in a row; convert it to a number or text.")

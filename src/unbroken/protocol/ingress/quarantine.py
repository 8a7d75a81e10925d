"""When work that keeps failing is set aside instead of being tried once more.

A failure is *passing* if its cause may lie outside the data: a disk, a network, memory, a system that is unavailable.
Work that fails like that is tried until it succeeds. Any other failure is a function of the data and of the code, which
are the same on every node, so every node meets it, and trying once more cannot help: after a bounded number of attempts
the work is set aside, and the flow continues without it.
"""

from __future__ import annotations

import csv
import re
import struct
import urllib.error
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from unbroken.errors import UnbrokenError, Unfit, require

LONGEST_REASON = 500
"""Characters of a reason: it is part of the history and of a dead letter, and may quote the data."""


_OF_CONTENT = (
    Unfit,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    RecursionError,
    struct.error,
    zlib.error,
    csv.Error,
)
"""What code raises about the values that it is given, also if it met them while it handled something else."""

_PASSING = (OSError, MemoryError, ImportError, UnbrokenError)
"""A disk, a network, memory, a package that a node does not have; and what Unbroken's own connectors say of a system
that is unavailable or not set up: what they say of rows is `Unfit`."""

_UNAVAILABLE = re.compile(
    "Connect|Timeout|TimedOut|TimeOut|Unavailable|Unreachable|Network|Transport|Throttl|TooManyRequests|Reconnect"
    "|OperationalError|InterfaceError|RetryError|ServerError|RpcError|IncompleteRead|BrokenExecutor|Cancelled|BusyLoading"
)
"""In the names of classes with which libraries report that a system cannot be reached: psycopg, SQLAlchemy, httpx,
redis, botocore, pymongo, grpc and others derive few of them from `OSError`."""

_NO_RESOURCES = ("can't start new thread", "cannot schedule new futures")

_KAFKA_CONTENT = frozenset(
    {
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "TOPIC_EXCEPTION",
        "_INVALID_ARG",
        "_KEY_SERIALIZATION",
        "_VALUE_SERIALIZATION",
        "_KEY_DESERIALIZATION",
        "_VALUE_DESERIALIZATION",
    }
)
"""What Kafka says of messages; all else that it says may pass."""

_HTTP_LATER = frozenset({401, 403, 407, 408, 425, 429})
"""Answers of HTTP that are about the moment or the sender's credentials, not about the rows: an expired token must not
send units to the dead letters, just as a missing permission in Kafka or PostgreSQL does not."""

_DEEPEST_CAUSE = 16


def is_passing(error: BaseException) -> bool:
    """Whether the cause of a failure may lie outside the data, so that trying once more may help.

    That is what reports a disk, a network, memory or a system that is unavailable, by its class or by that of its
    cause, and every refusal of an HTTP server. Everything else is a function of the data and the code.
    """
    return _is_passing(error, lambda status: False)


def is_passing_at_sink(error: BaseException) -> bool:
    """As `is_passing`, for a sink that was given rows: an HTTP server that answers with 4xx refuses these rows, unless
    it asks for them at another time. To the question of a source it is no answer about rows."""
    return _is_passing(error, lambda status: status < 500 and status not in _HTTP_LATER)


def _is_passing(error: BaseException, refuses: Callable[[int], bool]) -> bool:
    cause: BaseException | None = error
    for _ in range(_DEEPEST_CAUSE):
        if cause is None or (_of_content(cause) and not isinstance(cause, OSError | MemoryError)):
            return False
        status = _http_status(cause)
        if status is not None:
            return not refuses(status)
        if _reports_unavailable(cause):
            return True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


def _of_content(error: BaseException) -> bool:
    if type(error).__module__.partition(".")[0] == "pyarrow":
        return _UNAVAILABLE.search(type(error).__name__) is None
    return isinstance(error, _OF_CONTENT)


def _reports_unavailable(error: BaseException) -> bool:
    if isinstance(error, _PASSING):
        return True
    if type(error).__name__ == "KafkaException":
        return kafka_name(error) not in _KAFKA_CONTENT
    if isinstance(error, RuntimeError) and str(error).startswith(_NO_RESOURCES):
        return True
    return any(_UNAVAILABLE.search(kind.__name__) for kind in type(error).__mro__)


def _http_status(error: BaseException) -> int | None:
    """The status with which an HTTP server refused a request: of urllib, or of requests, httpx and those like them."""
    try:
        found = error.code if isinstance(error, urllib.error.HTTPError) else error.response.status_code  # type: ignore[attr-defined]
    except Exception:  # httpx has a property that raises
        return None
    return found if type(found) is int and 400 <= found <= 599 else None


def kafka_name(error: BaseException) -> str:
    """What Kafka calls a failure that its library has raised."""
    try:
        return str(error.args[0].name())
    except (IndexError, AttributeError, TypeError):
        return ""


def kind_of(error: BaseException) -> str:
    """What stays the same when a failure repeats itself: its class, and the line that raised it.

    A message does not: it may name an address, a time or a count.
    """
    kind, trace = type(error), error.__traceback__
    name = f"{kind.__module__}.{kind.__qualname__}"
    if trace is None:
        return name
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{name} at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def reason_of(error: BaseException) -> str:
    """A failure in one bounded line. Making it never fails: the message of an error may be as wild as the data."""
    try:
        text = " ".join(str(error)[: 2 * LONGEST_REASON].split())
    except BaseException:
        text = ""
    name = type(error).__name__
    if text and isinstance(error, UnbrokenError | OSError):
        return text[:LONGEST_REASON]  # these are meant to be read as they are
    return (f"{name}: {text}" if text else name)[:LONGEST_REASON]


@dataclass
class Attempts:
    """How often one piece of work has failed in the same way.

    Invariant: ``count`` attempts in a row have ended with a failure of one ``kind``, none of them ``passing``;
    ``reason`` is that of the last. A passing failure, or another kind, begins a new count: only what repeats itself is
    a function of the data.
    """

    limit: int
    reason: str = ""
    count: int = 0
    kind: str = ""
    passing: Callable[[BaseException], bool] = is_passing

    def failed(self, error: BaseException) -> bool:
        """An attempt has failed; whether the work is to be set aside."""
        if self.passing(error):
            self.reason, self.count, self.kind = "", 0, ""
            return False
        kind = kind_of(error)
        self.count = self.count + 1 if kind == self.kind else 1
        self.kind, self.reason = kind, reason_of(error)
        return self.count >= self.limit

    def check(self) -> None:
        require(self.limit >= 1, f"work is set aside after {self.limit} attempts")
        require((self.count == 0) == (self.kind == ""), "attempts are counted without a kind of failure")
        require((self.count == 0) == (self.reason == ""), "attempts are counted without a reason")

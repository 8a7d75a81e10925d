"""Which failures of sources, sinks and users' code pass by themselves, and which are a matter of the data.

A failure is *passing* if its cause may lie outside the data: a disk, a network, memory, a system that is unavailable.
Libraries of other systems are known by the names of their classes, so that none of them has to be installed.
"""

from __future__ import annotations

import csv
import re
import struct
import urllib.error
import zlib
from collections.abc import Callable

from unbroken.errors import UnbrokenError, Unfit

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

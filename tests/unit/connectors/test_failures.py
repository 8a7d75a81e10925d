"""What a disk, a network or a system that is unavailable reports is passing; what is wrong with rows is not."""

from __future__ import annotations

import decimal
import http.client
import struct
import urllib.error
from collections.abc import Callable
from concurrent.futures import BrokenExecutor

import pyarrow as pa
import pyarrow.flight
import pytest

from unbroken.connectors.failures import is_passing, is_passing_at_sink
from unbroken.errors import UnbrokenError, Unfit, Unreachable
from unbroken.protocol.ingress.quarantine import Attempts


class Wild(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class Refusal(Exception):
    """A class of a user's."""


class ServiceUnavailable(Exception):
    """A class of a library that does not derive it from OSError."""


class OperationalError(Exception):
    pass


class ConnectionLost(OperationalError):
    pass


class KafkaDetail:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return self._name  # Names of cases are made of it, and have to be the same in all processes of a test run.


class KafkaException(Exception):
    pass


def kafka(name: str) -> KafkaException:
    return KafkaException(KafkaDetail(name))


def caused(error: Exception, cause: BaseException, explicitly: bool = True) -> Exception:
    try:
        try:
            raise cause
        except BaseException as found:
            if explicitly:
                raise error from found
            raise error  # noqa: B904
    except type(error) as made:
        return made


PASSING = [
    *(OSError(5, "I/O"), TimeoutError(), ConnectionResetError(), MemoryError(), pa.ArrowMemoryError()),
    *(pa.ArrowIOError("disk"), UnbrokenError("away"), Unreachable("away"), ModuleNotFoundError("psycopg")),
    *(ServiceUnavailable(), OperationalError(), ConnectionLost(), http.client.IncompleteRead(b"")),
    *(RuntimeError("can't start new thread"), BrokenExecutor(), pa.flight.FlightUnavailableError("away")),
    *(kafka("_TRANSPORT"), kafka("_TIMED_OUT"), kafka("TOPIC_AUTHORIZATION_FAILED"), KafkaException()),
    *(caused(Refusal("no"), OSError(5, "I/O")), caused(Refusal("no"), TimeoutError(), explicitly=False)),
    caused(RuntimeError("no"), caused(Refusal("no"), ConnectionRefusedError())),
]
OF_CONTENT = [
    *(decimal.InvalidOperation(), RecursionError(), OverflowError(), UnicodeDecodeError("a", b"", 0, 0, "")),
    *(pa.ArrowInvalid("x"), pa.ArrowCapacityError("x"), struct.error(), Unfit(), EOFError()),
    *(RuntimeError("row 3"), Exception("row 3"), Refusal("row 3"), StopIteration(), Wild()),
    *(kafka("MSG_SIZE_TOO_LARGE"), kafka("INVALID_RECORD"), kafka("_INVALID_ARG")),
    caused(Refusal("no"), ValueError("x")),
    # As for a zone of time that is not there, which the standard library looks for in files.
    caused(KeyError("no zone"), FileNotFoundError()),
    caused(Unfit("no"), OSError(5, "I/O")),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_passing(error: BaseException) -> None:
    assert is_passing(error)


@pytest.mark.parametrize("error", OF_CONTENT, ids=lambda error: type(error).__name__)
def test_of_content(error: BaseException) -> None:
    assert not is_passing(error)


# --- HTTP -------------------------------------------------------------------------------------------------


class Response:
    def __init__(self, status_code: object) -> None:
        self.status_code = status_code


class RequestsError(OSError):
    """As `requests.HTTPError` is."""

    def __init__(self, status: object) -> None:
        super().__init__(f"{status} for url")
        self.response = None if status is None else Response(status)


class HTTPStatusError(Exception):
    """As that of httpx is."""

    def __init__(self, status: int) -> None:
        self.response = Response(status)


class WildResponse(OSError):
    @property
    def response(self) -> Response:
        raise RuntimeError("The request was not sent")


def urllib_error(status: int) -> Exception:
    return urllib.error.HTTPError("http://shop", status, "no", None, None)  # type: ignore[arg-type]


KINDS = (RequestsError, HTTPStatusError, urllib_error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "passing"),
    [
        *((status, False) for status in (400, 404, 409, 413, 422, 499)),
        *((status, True) for status in (401, 403, 407, 408, 425, 429, 500, 502, 503, 599)),
    ],
)
def test_an_answer_of_http_at_a_sink(kind: Callable[[int], Exception], status: int, passing: bool) -> None:
    assert is_passing_at_sink(kind(status)) == passing
    assert is_passing_at_sink(caused(Refusal("no"), kind(status))) == passing
    # What a source asked for is not in the answer: another node may be given the rows.
    assert is_passing(kind(status)) and is_passing(caused(Refusal("no"), kind(status)))
    attempts = Attempts(2, passing=is_passing_at_sink)
    assert [attempts.failed(kind(status)) for _ in range(2)] == [False, not passing]


@pytest.mark.parametrize("error", [RequestsError(None), RequestsError("400"), RequestsError(302), WildResponse("away")])
def test_an_error_without_a_status_of_http_is_judged_by_its_class(error: Exception) -> None:
    assert is_passing(error) and is_passing_at_sink(error)


@pytest.mark.parametrize("error", [*PASSING, *OF_CONTENT], ids=lambda error: type(error).__name__)
def test_all_else_is_the_same_at_a_sink(error: BaseException) -> None:
    assert is_passing_at_sink(error) == is_passing(error)


def test_a_sink_has_the_last_word() -> None:
    assert is_passing_at_sink(caused(Unreachable("away"), RequestsError(400)))
    assert not is_passing_at_sink(caused(Unfit("no"), RequestsError(503)))
    assert not is_passing_at_sink(SystemExit(503))


def test_causes_that_go_in_a_circle_come_to_an_end() -> None:
    one, other = Refusal("one"), Refusal("other")
    one.__cause__, other.__cause__ = other, one
    assert not is_passing(one)

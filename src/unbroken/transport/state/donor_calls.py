"""Calls to a donor: questions, and the stream of what it has pinned."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from unbroken.codecs.codec import Undecodable
from unbroken.errors import UnbrokenError
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client
from unbroken.transport.calls import PinQuestion, PinTicket, Question, ReleaseQuestion, call, name_of, ticket_of
from unbroken.transport.state.pins import CODE_PREFIX, MANIFEST, Manifest, PinGone

POLL_S = 0.1
"""How often a wait for the donor looks whether it should stop."""

QUEUE_LIMIT = 4
"""Batches that are read ahead while one is written."""

MESSAGE_LIMIT = 64 << 20
"""Largest message taken from a donor; chunks are far smaller, manifests of 100,000 files as well."""


class TransferError(UnbrokenError):
    """The copy failed. What has arrived is kept, and a following fetch goes on from there."""


class PinLost(TransferError):
    """The donor is there but its pin is not: ask for another pin and fetch that into the same directory."""


class TransferStopped(TransferError):
    """The copy was told to stop."""


def ask_pin(address: str, token: str, question: PinQuestion, timeout_s: float) -> Manifest:
    """Have a donor pin a state, and wait up to ``timeout_s`` for the manifest; a refusal is a ``TransferError``."""
    answer = _ask(address, token, question, timeout_s)
    try:
        return MANIFEST.decode(answer)
    except Undecodable as error:
        raise TransferError(f"the answer of {address} to a {name_of(question)} cannot be used: {error}") from error


def release_pin(address: str, token: str, pin_id: str, timeout_s: float) -> None:
    """Tell the donor that its pin is no longer needed; to be repeated at will, as a pin expires anyway."""
    _ask(address, token, ReleaseQuestion(pin_id), timeout_s)


def _ask(address: str, token: str, question: Question, timeout_s: float) -> bytes:
    client = _connect(address, token, timeout_s)
    try:
        return call(client, question, timeout_s)
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        unanswered = TransferError(f"{address} did not answer a {name_of(question)}: {said(error)}")
        raise refusal(error, address) or unanswered from error
    finally:
        client.close()


class Broken(Exception):
    """A call ended with ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class DonorStream:
    """One call for contents, read by a thread of its own: reading from a donor that hangs cannot be interrupted from
    within, and a copy must be. The thread ends with the call, whose duration is limited."""

    def __init__(self, address: str, token: str, ticket: PinTicket, timeout_s: float) -> None:
        self._address = address
        self._token = token
        self._options = flight.FlightCallOptions(timeout=timeout_s)
        self._timeout_s = timeout_s
        self._ticket = ticket_of(ticket)
        self._arrived: queue.Queue[pa.RecordBatch | Exception | None] = queue.Queue(QUEUE_LIMIT)
        self._ended = threading.Event()
        self._reader: Any = None
        self._thread = threading.Thread(target=self._run, name=f"fetch-from-{address}", daemon=True)
        self._thread.start()

    def next(self, check_stop: Callable[[], None]) -> pa.RecordBatch | None:
        """The next batch, none at the end; ``Broken`` when the call has failed, after all that came before."""
        while True:
            check_stop()
            try:
                item = self._arrived.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise Broken(item)
            return item

    def close(self) -> None:
        self._ended.set()
        reader = self._reader
        if reader is not None:
            reader.cancel()
        # Only a donor that does not even accept the call keeps the thread longer, until the call's time is up.
        self._thread.join(timeout=POLL_S)

    def _run(self) -> None:
        try:
            client = _connect(self._address, self._token, self._timeout_s)
            try:
                self._read(client)
            finally:
                self._reader = None
                client.close()
        except StopIteration:
            self._put(None)
        except Exception as error:
            self._put(error.with_traceback(None))  # which would hold on to the call
        except BaseException as error:
            self._put(RuntimeError(repr(error)))

    def _read(self, client: Any) -> None:
        reader = client.do_get(self._ticket, self._options)
        self._reader = reader
        while not self._ended.is_set():
            self._put(reader.read_chunk().data)
        reader.cancel()

    def _put(self, item: pa.RecordBatch | Exception | None) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._arrived.put(item, timeout=POLL_S)
                return


def _connect(address: str, token: str, timeout_s: float) -> Any:
    options = [
        ("grpc.min_reconnect_backoff_ms", max(1, int(timeout_s * 1000))),  # else an attempt may take 20 s
        ("grpc.use_local_subchannel_pool", 1),  # else it waits for the back-off of failed attempts before it
        ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ]
    return open_client(address, credentials(token), options)


def said(error: Exception) -> str:
    """What the other side or gRPC said, without what Arrow adds to it."""
    return str(error).partition(". Detail: ")[0].partition(". gRPC client debug context")[0]


def refusal(error: Exception, address: str) -> TransferError | None:
    """The error for an answer that will not change if the question is repeated; none for what may pass."""
    code = bytes(getattr(error, "extra_info", b"") or b"")
    if code == PinGone.code:
        return PinLost(f"{address}: {said(error)}")
    if code.startswith(CODE_PREFIX):
        return TransferError(f"{address} refused: {said(error)}")
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return TransferError(f"{address} refused the call: {said(error)}")
    if not isinstance(error, flight.FlightError | pa.ArrowException | OSError):
        return TransferError(f"the copy from {address} failed: {error!r}")
    return None

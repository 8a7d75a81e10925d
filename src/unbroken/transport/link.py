"""A node's (or client's) link to one peer: messages out, units in, kept up for as long as it is wanted."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from unbroken.data.unit_store import HEADER
from unbroken.errors import UnbrokenError
from unbroken.protocol.messages import Message
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.certificates import credentials
from unbroken.threads import LastingThread
from unbroken.transport.auth import open_client
from unbroken.transport.codec import HELLO, MESSAGE, Hello, purpose
from unbroken.transport.server import GOODBYE, MORE, UNIT_SIZE, piece_in

log = logging.getLogger(__name__)

RECONNECT_S = 0.1
"""Pause between attempts to connect: short, because a peer that starts up should be used at once."""

OUTGOING_LIMIT = 100_000
"""Messages queued for a peer; they are small. A peer that lets this many pile up is given up."""


MOST_UNIT_BYTES = 2 << 30
"""A unit that is larger is not taken."""


class UnitTaker(Protocol):
    """Takes one unit, whose pieces arrive one after the other on the thread of a link."""

    def add(self, piece: pa.Buffer) -> None: ...

    def finish(self) -> None:
        """That was the last piece. An UnbrokenError from here or from ``add`` ends the link."""

    def abandon(self) -> None:
        """The rest does not come. Also called after a failure of ``add`` or ``finish``."""


class UnitPieces:
    """Hands the pieces that arrive over a link to the takers of their units; UnbrokenError if they make no unit."""

    def __init__(self, peer: str, begin: Callable[[str, UnitHeader], UnitTaker]) -> None:
        self._peer = peer
        self._begin = begin
        self._taker: UnitTaker | None = None
        self._left = 0

    def add(self, piece: pa.Buffer, metadata: bytes) -> None:
        if metadata != MORE:
            self._require(self._taker is None, "a unit without its end")
            (self._left,) = UNIT_SIZE.unpack_from(metadata)
            self._require(self._left <= MOST_UNIT_BYTES, f"a unit that is larger than {MOST_UNIT_BYTES} bytes")
            self._taker = self._begin(self._peer, HEADER.decode(metadata[UNIT_SIZE.size :]))
        self._require(self._taker is not None and 0 < piece.size <= self._left, "a piece that belongs to no unit")
        assert self._taker is not None
        self._taker.add(piece)
        self._left -= piece.size
        if not self._left:
            self._taker.finish()
            self._taker = None

    def abandon(self) -> None:
        """Nothing comes any more."""
        if self._taker is not None:
            self._taker.abandon()

    def _require(self, holds: bool, found: str) -> None:
        if not holds:
            raise UnbrokenError(f"{self._peer} sends {found}")


class WholeUnit:
    """Takes a unit in memory and hands it on in one piece."""

    def __init__(self, peer: str, header: UnitHeader, handle: Callable[[str, UnitHeader, pa.Buffer], None]) -> None:
        self._peer = peer
        self._header = header
        self._handle = handle
        self._pieces: list[pa.Buffer] = []

    def add(self, piece: pa.Buffer) -> None:
        self._pieces.append(piece)

    def finish(self) -> None:
        one = len(self._pieces) == 1
        self._handle(self._peer, self._header, self._pieces[0] if one else pa.py_buffer(b"".join(self._pieces)))

    def abandon(self) -> None:
        self._pieces.clear()


class Latest:
    """Lets the events of one peer's latest link through: one that it has replaced may end after it has begun."""

    def __init__(self) -> None:
        self._latest: dict[str, object] = {}
        self._lock = threading.Lock()

    def replace(self, peer: str, handlers: LinkHandlers) -> LinkHandlers:
        """Handlers for a link to ``peer`` that replaces the one before; ``lost`` has been reported for that one."""
        token = object()
        with self._lock:
            if peer in self._latest:
                handlers.lost(peer)
            self._latest[peer] = token

        def only_latest(handler: Callable[[str], None]) -> Callable[[str], None]:
            def handle(peer: str) -> None:
                with self._lock:
                    if self._latest.get(peer) is token:
                        handler(peer)

            return handle

        return replace(handlers, up=only_latest(handlers.up), lost=only_latest(handlers.lost))


@dataclass(frozen=True)
class LinkHandlers:
    """What a link tells its owner; called from the link's own threads."""

    up: Callable[[str], None]
    lost: Callable[[str], None]
    unit: Callable[[str, UnitHeader], UnitTaker]
    """A unit begins to arrive."""


class Link:
    """Keeps one exchange open with ``peer`` until closed; reports when it comes up and when it is lost.

    A link is lost when the connection breaks or when nothing, not even a sign of life, is heard for
    ``timeout_s``; it is then opened again.
    """

    def __init__(
        self,
        me: str,
        peer: str,
        address: str,
        token: str,
        handlers: LinkHandlers,
        *,
        heartbeat_s: float,
        timeout_s: float,
    ) -> None:
        self.peer = peer
        self.address = address
        self.bytes_sent: Counter[str] = Counter()
        self._me = me
        self._token = token
        self._handlers = handlers
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._outgoing: queue.Queue[bytes | bytearray | None] = queue.Queue(OUTGOING_LIMIT)
        self._closed = threading.Event()
        self._reader: Any = None
        self._heard = time.monotonic()
        self._last_word = float("-inf")
        self._thread = LastingThread(self._run, f"to-{peer}")

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue a message; lost if the link is down (what matters is sent again when it comes up)."""
        try:
            data = MESSAGE.buffer(message)
            self._outgoing.put_nowait(data)
            self.bytes_sent[purpose(message)] += len(data)
        except queue.Full:
            self.drop()

    def drop(self) -> None:
        """Give the present connection up; the link is opened again."""
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def check_alive(self) -> None:
        """Called from time to time by the owner: drop the connection if the peer is silent for too long."""
        if self._reader is not None and time.monotonic() - self._heard > self._timeout_s:
            log.warning("nothing heard from %s for %.1f s", self.peer, self._timeout_s)
            self._heard = time.monotonic()
            self.drop()

    def silence_s(self) -> float:
        """How long nothing has been heard from the peer, over this connection or an earlier one."""
        return time.monotonic() - self._last_word

    def close(self) -> None:
        # The thread that reads notices, and ends the rest: ending the stream from here as well would end it twice,
        # at which gRPC aborts the process.
        self._closed.set()
        self.drop()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._connect_once()
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                log.debug("no link to %s at %s: %s", self.peer, self.address, error)
            except UnbrokenError as error:
                log.warning("the link to %s is dropped: %s", self.peer, error)
            except BaseException:
                log.exception("link to %s failed", self.peer)
            self._closed.wait(RECONNECT_S)

    def _connect_once(self) -> None:
        # gRPC gives an attempt to connect 20 s otherwise, which a frozen process uses up and close() waits for.
        options = [("grpc.min_reconnect_backoff_ms", int(self._timeout_s * 1000))]
        client = open_client(self.address, credentials(self._token), options)
        up = False
        pieces = UnitPieces(self.peer, self._handlers.unit)
        writer: Any = None
        sender: threading.Thread | None = None
        ended = threading.Event()
        outgoing: queue.Queue[bytes | bytearray | None] = queue.Queue(OUTGOING_LIMIT)
        try:
            descriptor = flight.FlightDescriptor.for_command(HELLO.encode(Hello(self._me)))
            writer, reader = client.do_exchange(descriptor)
            self._heard = time.monotonic()
            self._reader = reader
            self._outgoing = outgoing
            if self._closed.is_set():  # close() came before there was anything to drop
                reader.cancel()
            writer.write_metadata(b"alive")
            sender = threading.Thread(
                target=self._write, args=(writer, outgoing, ended), name=f"send-{self.peer}", daemon=True
            )
            sender.start()
            while True:
                chunk = reader.read_chunk()
                self._heard = self._last_word = time.monotonic()
                if chunk.app_metadata is not None and chunk.app_metadata.to_pybytes() == GOODBYE:
                    return
                if not up:
                    up = True
                    self._handlers.up(self.peer)
                if chunk.data is not None and chunk.data.num_rows:
                    pieces.add(piece_in(chunk.data), chunk.app_metadata.to_pybytes())
        except StopIteration:
            pass
        finally:
            self._reader = None
            pieces.abandon()
            ended.set()
            with contextlib.suppress(queue.Full):
                outgoing.put_nowait(None)  # so that the sender need not wait for its next heartbeat
            if up:
                self._handlers.lost(self.peer)
            if sender is not None:
                sender.join(timeout=5)
            if writer is not None:
                # Closing a broken stream reports the break once more; unclosed, it would report it on stderr.
                with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                    writer.close()
            client.close()

    def _write(self, writer: Any, outgoing: queue.Queue[bytes | bytearray | None], ended: threading.Event) -> None:
        try:
            while not ended.is_set():
                try:
                    data = outgoing.get(timeout=self._heartbeat_s)
                except queue.Empty:
                    data = b"alive"
                if data is None:
                    return
                writer.write_metadata(data)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            log.debug("cannot send to %s: %s", self.peer, error)
            self.drop()
        except BaseException:
            log.exception("sending to %s failed", self.peer)
            self.drop()

"""The Flight server of a node: links from peers and clients, questions from Spark, status."""

from __future__ import annotations

import contextlib
import logging
import queue
import struct
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.data.checksum import Damaged
from unbroken.data.unit_store import HEADER
from unbroken.errors import UnbrokenError
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.messages import Message
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.auth import server_options
from unbroken.transport.calls import (
    GATE_ANSWER,
    QUESTIONS,
    SKIP_ANSWER,
    TICKET,
    GateAnswer,
    GateQuestion,
    JournalQuestion,
    PinQuestion,
    PinTicket,
    Question,
    ReleaseQuestion,
    SkipAnswer,
    StatusQuestion,
    StopQuestion,
    UnitTicket,
)
from unbroken.transport.codec import HELLO, MESSAGE
from unbroken.transport.connections import ConnectionGuard, Strangers, address_of, cut_connections

log = logging.getLogger(__name__)

T = TypeVar("T")

UNIT_SCHEMA = pa.schema([("unit", pa.large_binary())])
GOODBYE = b"goodbye"
MORE = b"more"
"""Comes with a piece of a unit that follows others; the first one comes with the size of all and the unit's header."""

UNIT_SIZE = struct.Struct(">Q")

PIECE_BYTES = 1 << 20
"""A unit is sent in pieces, each of which is a sign of life: a large one must not look like silence on a slow line."""

GOODBYE_S = 3.0
"""How long a peer may take to close its side of a link that has ended; then the connection is cut."""

SHUTDOWN_S = 5.0
"""How long peers may take to close their side of the links that a server which closes has ended."""

OUTGOING_LIMIT = 4096
"""Units queued by name for one peer. The protocol's send window keeps it far below; a peer that reaches it
is not reading and its link is given up (it will subscribe again from where it is)."""


Outgoing = queue.Queue[tuple[ReplicaId, UnitHeader] | None]
"""What is to be sent over a link: units by the replica whose outbox holds them; None ends the link."""


def piece_batch(piece: pa.Buffer) -> pa.RecordBatch:
    """A piece of a unit as it is sent; its bytes are not copied."""
    offsets = pa.py_buffer(struct.pack("=qq", 0, piece.size))
    return pa.record_batch([pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, piece])], schema=UNIT_SCHEMA)


def piece_in(batch: pa.RecordBatch) -> pa.Buffer:
    """The piece of a unit in a batch that has arrived; its bytes are not copied."""
    if batch.schema != UNIT_SCHEMA or batch.num_rows != 1 or batch.column(0).null_count:
        raise UnbrokenError(f"a batch is no piece of a unit: {batch.num_rows} rows of {batch.schema.names}")
    column = batch.column(0)
    _, offsets, data = column.buffers()
    start, end = struct.unpack_from("=qq", offsets, 8 * column.offset)
    if data is None or not 0 <= start <= end <= data.size:
        raise UnbrokenError("a batch is no piece of a unit: its offsets lead out of it")
    return data.slice(start, end - start)


class MessageTaker(Protocol):
    """Takes the messages of one link."""

    def put(self, message: Message) -> bool:
        """Take a message, which may have to wait; False if the link has to end."""

    def close(self) -> None:
        """The link has ended; must not wait. Nothing happens if a later link of the peer has replaced it."""


class NodeService(Protocol):
    """What the server needs from the node behind it."""

    def linked(self, peer: str) -> MessageTaker:
        """Where the messages of a new link go; none of an earlier link of the same peer are taken from here on.

        UnbrokenError if the peer may not link under this name. It must not wait.
        """

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer: ...

    def pin(self, question: PinQuestion) -> bytes: ...

    def read_pin(self, ticket: PinTicket) -> Any: ...

    def release_pin(self, pin: str) -> bool: ...

    def ask_gate(self, question: GateQuestion) -> GateAnswer: ...

    def read_inbox(self, ticket: UnitTicket) -> pa.Table: ...

    def encoded_status(self) -> bytes: ...

    def request_stop(self) -> None: ...

    def journal(self) -> bytes: ...

    def wish(self, request: SkipRequest) -> str | None:
        """Hold, release or skip rows; why not, None if that is on its way."""


class NodeServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one node. Each link from a peer occupies one call, which sends units and takes messages."""

    def __init__(self, host: str, port: int, token: str, service: NodeService, heartbeat_s: float) -> None:
        super().__init__(f"grpc+tls://{host}:{port}", **server_options(token))
        self.host = host
        self.bytes_sent: Counter[str] = Counter()
        self._service = service
        self._heartbeat_s = heartbeat_s
        self._links: dict[str, _Exchange] = {}
        self._ending: threading.Thread | None = None
        self._strangers = Strangers()
        self._guard = ConnectionGuard(self.port, self._strangers)
        self._guard.start()
        self._lock = threading.RLock()
        """Held for moments only: never while a peer's message waits for room."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def send_unit(self, peer: str, replica: ReplicaId, header: UnitHeader) -> None:
        """Queue a unit for a peer; dropped if its link is gone (the peer subscribes again)."""
        with self._lock:
            exchange = self._links.get(peer)
        if exchange is None:
            return
        try:
            exchange.outgoing.put_nowait((replica, header))
        except queue.Full:
            log.warning("%s does not read; its link is dropped", peer)
            self._close(exchange)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._called(context)
        peer = _decoded(HELLO, descriptor.command).peer
        exchange = self._open(peer, context.peer())
        incoming = threading.Thread(target=self._read, args=(exchange, reader), name=f"from-{peer}", daemon=True)
        incoming.start()
        try:
            writer.begin(UNIT_SCHEMA)
            writer.write_metadata(b"alive")
            self._write(context, writer, exchange.outgoing)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            log.info("link from %s ended: %s", peer, error)
        finally:
            self._close(exchange)
            self._say_goodbye(writer)
            # What the thread reads from is freed with the end of this call, and reading from it then aborts the
            # process. The peer closes its side at the goodbye; of one that does not, the connection is cut.
            incoming.join()
            exchange.ended()

    def _open(self, peer: str, address: str) -> _Exchange:
        with self._lock:
            try:
                inbox = self._service.linked(peer)
            except UnbrokenError as error:
                raise flight.FlightUnauthorizedError(str(error)) from None
            exchange = _Exchange(peer, inbox, partial(cut_connection, address, self.port))
            replaced = self._links.get(peer)
            self._links[peer] = exchange
        if replaced is not None:
            replaced.end()
        return exchange

    def close(self) -> None:
        """End every link and stop serving; see ``stuck`` for peers that do not take notice of it."""
        with self._lock:
            links = list(self._links.values())
        for exchange in links:
            self._close(exchange)
        self._guard.close()
        self._ending = threading.Thread(target=self.shutdown, name="shutdown", daemon=True)
        self._ending.start()
        self._ending.join(timeout=SHUTDOWN_S)
        if self.stuck:
            log.warning("a peer that cannot be reached has not closed its link within %.0f s", SHUTDOWN_S)

    @property
    def stuck(self) -> bool:
        """Whether links of peers that cannot be reached keep a closed server from ending."""
        return self._ending is not None and self._ending.is_alive()

    def do_action(self, context: Any, action: Any) -> Any:
        self._called(context)
        codec = QUESTIONS.get(action.type)
        if codec is None:
            raise flight.FlightServerError(f"there is no action {action.type!r}")
        return [self._answer(_decoded(codec, action.body.to_pybytes()))]

    def _answer(self, question: Question) -> bytes:
        match question:
            case GateQuestion():
                return GATE_ANSWER.encode(self._service.ask_gate(question))
            case StatusQuestion():
                return self._service.encoded_status()
            case JournalQuestion():
                return self._service.journal()
            case StopQuestion():
                self._service.request_stop()
                return b""
            case PinQuestion():
                return self._service.pin(question)
            case ReleaseQuestion():
                self._service.release_pin(question.pin)
                return b""
            case SkipRequest():
                return SKIP_ANSWER.encode(SkipAnswer(self._service.wish(question)))

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Pinned files, for a node that builds a replica, or a unit, for executors that do not share this disk."""
        self._called(context)
        asked = _decoded(TICKET, ticket.ticket)
        if isinstance(asked, PinTicket):
            return self._service.read_pin(asked)
        return flight.RecordBatchStream(self._service.read_inbox(asked))

    def _called(self, context: Any) -> None:
        """Only who has the token can call: this connection is no stranger's."""
        self._strangers.called(address_of(context.peer()))

    @staticmethod
    def _say_goodbye(writer: Any) -> None:
        """Make the peer close its side, so that the thread that reads from it ends before this call does."""
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            writer.write_metadata(GOODBYE)

    def _write(self, context: Any, writer: Any, outgoing: Outgoing) -> None:
        while not context.is_cancelled():
            try:
                item = outgoing.get(timeout=self._heartbeat_s)
            except queue.Empty:
                writer.write_metadata(b"alive")
                continue
            if item is None:
                return
            replica, header = item
            try:
                data = self._service.read_outbox(replica, header)
            except FileNotFoundError:
                continue  # trimmed since: everybody who counts has it
            except Damaged:
                continue  # reported by the service, which sends it when there is a good copy
            metadata = UNIT_SIZE.pack(data.size) + HEADER.encode(header)
            for start in range(0, data.size, PIECE_BYTES):
                piece = data.slice(start, min(PIECE_BYTES, data.size - start))
                writer.write_with_metadata(piece_batch(piece), metadata if start == 0 else MORE)
            self.bytes_sent["data"] += len(data)

    def _read(self, exchange: _Exchange, reader: Any) -> None:
        try:
            while True:
                chunk = reader.read_chunk()
                if chunk.app_metadata is None:
                    continue
                data = chunk.app_metadata.to_pybytes()
                if data != b"alive" and not exchange.inbox.put(MESSAGE.decode(data)):
                    return
        except StopIteration:
            pass
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            log.info("link from %s closed: %s", exchange.peer, error)
        except Exception:
            log.exception("link from %s failed", exchange.peer)
        finally:
            self._close(exchange)

    def _close(self, exchange: _Exchange) -> None:
        with self._lock:
            if self._links.get(exchange.peer) is exchange:
                del self._links[exchange.peer]
        exchange.end()


class _Exchange:
    """One link from a peer: what is to be sent over it, where its messages go, and how it is ended in time."""

    def __init__(self, peer: str, inbox: MessageTaker, cut: Callable[[], None]) -> None:
        self.peer = peer
        self.inbox = inbox
        self.outgoing: Outgoing = queue.Queue(OUTGOING_LIMIT)
        self._cut = threading.Timer(GOODBYE_S, cut)
        self._cut.daemon = True
        self._lock = threading.Lock()
        self._ending = False

    def end(self) -> None:
        """Tell the writer to end; what still waits is not sent. The connection is cut if that does not help in time."""
        self.inbox.close()
        with self._lock:
            if self._ending:
                return
            self._ending = True
            self._cut.start()
        while True:
            try:
                self.outgoing.put_nowait(None)
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self.outgoing.get_nowait()

    def ended(self) -> None:
        """The call is over: there is nothing left to cut."""
        self._cut.cancel()


def _decoded(codec: Codec[T], data: bytes) -> T:
    """What a caller has sent; it is told what is wrong with it."""
    try:
        return codec.decode(data)
    except Undecodable as error:
        raise flight.FlightServerError(str(error)) from None


def cut_connection(peer: str, port: int) -> None:
    """Break the connection of a link whose peer, as gRPC writes addresses, has not ended it."""
    if cut_connections([address_of(peer)], port):
        log.warning("%s has not ended its link within %.0f s; its connection is cut", peer, GOODBYE_S)

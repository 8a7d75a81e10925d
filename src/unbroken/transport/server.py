"""The Flight server of a node: links from peers and clients, questions from Spark, status."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from unbroken.protocol.ids import ReplicaId
from unbroken.protocol.messages import Message
from unbroken.protocol.units import UnitHeader
from unbroken.transport.auth import TokenCheck
from unbroken.transport.codec import decode

log = logging.getLogger(__name__)

UNIT_SCHEMA = pa.schema([("unit", pa.large_binary())])
GOODBYE = b"goodbye"
MORE = b"more"
"""Comes with a piece of a unit that others follow; the last one comes with the unit's header."""

PIECE_BYTES = 1 << 20
"""A unit is sent in pieces, each of which is a sign of life: a large one must not look like silence on a slow line."""

SHUTDOWN_S = 5.0
"""How long peers may take to close their side of the links that a server which closes has ended."""

OUTGOING_LIMIT = 4096
"""Units queued by name for one peer. The protocol's send window keeps it far below; a peer that reaches it
is not reading and its link is given up (it will subscribe again from where it is)."""


Outgoing = queue.Queue[tuple[ReplicaId, UnitHeader] | None]
"""What is to be sent over a link: units by the replica whose outbox holds them; None ends the link."""


class NodeService(Protocol):
    """What the server needs from the node behind it."""

    def message_arrived(self, sender: str, message: Message) -> None: ...

    def subscriber_gone(self, sender: str) -> None: ...

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer: ...

    def pin(self, shard: str, newcomer: str, least: int, needs: dict[str, int]) -> dict[str, Any]: ...

    def read_pin(self, question: dict[str, Any]) -> Any: ...

    def release_pin(self, pin: str) -> bool: ...

    def ask_gate(self, replica: str, instance: str, start: dict[str, Any]) -> dict[str, Any]: ...

    def read_inbox(self, replica: str, stream: str, number: int) -> pa.Table: ...

    def status(self) -> dict[str, Any]: ...

    def request_stop(self) -> None: ...


class NodeServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one node. Each link from a peer occupies one call, which sends units and takes messages."""

    def __init__(self, host: str, port: int, token: str, service: NodeService, heartbeat_s: float) -> None:
        super().__init__(f"grpc://{host}:{port}", middleware={"token": TokenCheck(token)})
        self.host = host
        self.bytes_sent: Counter[str] = Counter()
        self._service = service
        self._heartbeat_s = heartbeat_s
        self._outgoing: dict[str, Outgoing] = {}
        self._ending: threading.Thread | None = None
        # Reentrant: what a message leads to may be sent at once, over the same server.
        self._lock = threading.RLock()
        self._actions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "gate": lambda q: service.ask_gate(q["replica"], q["instance"], q["start"]),
            "status": lambda q: service.status(),
            "pin": lambda q: service.pin(q["shard"], q["node"], int(q.get("least", 0)), q.get("needs", {})),
            "release": lambda q: service.release_pin(q["pin"]),
            "stop": lambda q: service.request_stop(),
        }

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def send_unit(self, peer: str, replica: ReplicaId, header: UnitHeader) -> None:
        """Queue a unit for a peer; dropped if its link is gone (the peer subscribes again)."""
        with self._lock:
            outgoing = self._outgoing.get(peer)
        if outgoing is None:
            return
        try:
            outgoing.put_nowait((replica, header))
        except queue.Full:
            log.warning("%s does not read; its link is given up", peer)
            self._close(peer, outgoing)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        peer = str(json.loads(descriptor.command)["peer"])
        outgoing: Outgoing = queue.Queue(OUTGOING_LIMIT)
        with self._lock:
            replaced = self._outgoing.get(peer)
            self._outgoing[peer] = outgoing
        if replaced is not None:
            self._end(replaced)
        incoming = threading.Thread(target=self._read, args=(peer, reader, outgoing), name=f"from-{peer}", daemon=True)
        incoming.start()
        try:
            writer.begin(UNIT_SCHEMA)
            writer.write_metadata(b"alive")
            self._write(context, writer, outgoing)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            log.info("link from %s ended: %s", peer, error)
        finally:
            self._close(peer, outgoing)
            self._say_goodbye(writer)
            # However long that takes: what the thread reads from is freed with the end of this call, and reading from
            # it then aborts the process. A peer that cannot be reached ends it once it can, or when TCP gives up.
            incoming.join()

    def close(self) -> None:
        """End every link and stop serving; see ``stuck`` for peers that do not take notice of it."""
        with self._lock:
            links = dict(self._outgoing)
        for peer, outgoing in links.items():
            self._close(peer, outgoing)
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
        handler = self._actions.get(action.type)
        if handler is None:
            raise flight.FlightServerError(f"there is no action {action.type!r}")
        question = json.loads(action.body.to_pybytes() or b"{}")
        return [json.dumps(handler(question)).encode()]

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Pinned files, for a node that builds a replica, or a unit, for executors that do not share this disk."""
        question = json.loads(ticket.ticket)
        if "pin" in question:
            return self._service.read_pin(question)
        table = self._service.read_inbox(question["replica"], question["stream"], int(question["number"]))
        return flight.RecordBatchStream(table)

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
            for start in range(0, max(1, data.size), PIECE_BYTES):
                piece = data.slice(start, min(PIECE_BYTES, data.size - start))
                batch = pa.record_batch([pa.array([piece.to_pybytes()], pa.large_binary())], schema=UNIT_SCHEMA)
                last = start + PIECE_BYTES >= data.size
                writer.write_with_metadata(batch, header.to_bytes() if last else MORE)
            self.bytes_sent["data"] += len(data)

    def _read(self, peer: str, reader: Any, outgoing: Outgoing) -> None:
        try:
            while True:
                chunk = reader.read_chunk()
                if chunk.app_metadata is None:
                    continue
                data = chunk.app_metadata.to_pybytes()
                if data != b"alive" and not self._deliver(peer, outgoing, decode(data)):
                    return
        except StopIteration:
            pass
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            log.info("link from %s closed: %s", peer, error)
        except Exception:
            log.exception("link from %s failed", peer)
        finally:
            self._close(peer, outgoing)

    def _deliver(self, peer: str, outgoing: Outgoing, message: Message) -> bool:
        """Hand a message on, unless a later link from the peer has replaced this one: nothing may overtake."""
        with self._lock:
            if self._outgoing.get(peer) is not outgoing:
                return False
            self._service.message_arrived(peer, message)
            return True

    def _close(self, peer: str, outgoing: Outgoing) -> None:
        with self._lock:
            if self._outgoing.get(peer) is outgoing:
                del self._outgoing[peer]
                # Within the lock: the subscriptions that come over a following link must be heard after this.
                self._service.subscriber_gone(peer)
        self._end(outgoing)

    @staticmethod
    def _end(outgoing: Outgoing) -> None:
        """Tell the writer of a link to end; what still waits in a full queue is not sent any more."""
        while True:
            try:
                outgoing.put_nowait(None)
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    outgoing.get_nowait()

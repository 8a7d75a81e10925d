"""A node's two ends of a link without the node: a service that remembers, and a link that remembers."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import pyarrow as pa

from kit.support import TOKEN, wait_until
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.messages import Message
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.transport.calls import GateAnswer, GateQuestion, PinQuestion, PinTicket, UnitTicket
from unbroken.transport.link import Link, LinkHandlers, WholeUnit
from unbroken.transport.server import NodeServer

STREAM = StreamId(ShardId("src", 0), ShardId("seg", 0))
PRODUCER = ReplicaId(STREAM.producer, 0)
HEARTBEAT_S = 0.05
TIMEOUT_S = 1.0


def header(number: int, size: int = 0) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 1_000 + number, Digest(1, number), size)


class Service:
    """What a node answers; units are made from their headers."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []
        self.gone: list[str] = []
        self.latest: dict[str, Inbox] = {}
        self.stops = 0
        self.trimmed: set[int] = set()

    def linked(self, peer: str) -> Inbox:
        inbox = self.latest[peer] = Inbox(self, peer)
        return inbox

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        if header.number in self.trimmed:
            raise FileNotFoundError(str(header.number))
        return pa.py_buffer(content(header))

    def pin(self, question: PinQuestion) -> bytes:
        raise NotImplementedError

    def read_pin(self, ticket: PinTicket) -> Any:
        raise NotImplementedError

    def release_pin(self, pin: str) -> bool:
        raise NotImplementedError

    def ask_gate(self, question: GateQuestion) -> GateAnswer:
        return GateAnswer(question.start + 1, question.cut)

    def read_inbox(self, ticket: UnitTicket) -> pa.Table:
        return pa.table({"n": [ticket.number], "replica": [str(ticket.replica)], "stream": [str(ticket.stream)]})

    def encoded_status(self) -> bytes:
        return b'{"node":"served"}'

    def wish(self, request: SkipRequest) -> str | None:
        return None

    def journal(self) -> bytes:
        return b""

    def request_stop(self) -> None:
        self.stops += 1


class Inbox:
    """Takes the messages of one link, as long as it is its peer's latest."""

    def __init__(self, service: Service, peer: str) -> None:
        self._service = service
        self._peer = peer

    def put(self, message: Message) -> bool:
        if self._service.latest.get(self._peer) is not self:
            return False
        self._service.messages.append((self._peer, message))
        return True

    def close(self) -> None:
        if self._service.latest.get(self._peer) is self:
            del self._service.latest[self._peer]
            self._service.gone.append(self._peer)


def content(header: UnitHeader) -> bytes:
    return (b"%08d" % header.number) * max(1, header.size // 8)


def serve(service: Service, port: int = 0, token: str = TOKEN) -> NodeServer:
    return NodeServer("127.0.0.1", port, token, service, HEARTBEAT_S)


class Watched:
    """A link and all it told; an owner thread asks it for signs of life as a node's loop does."""

    def __init__(self, address: str, peer: str, token: str = TOKEN, timeout_s: float = TIMEOUT_S) -> None:
        self.events: list[str] = []
        self.units: list[tuple[UnitHeader, int, bytes]] = []
        handlers = LinkHandlers(
            up=lambda _: self.events.append("up"),
            lost=lambda _: self.events.append("lost"),
            unit=lambda peer, header: WholeUnit(peer, header, self._unit),
        )
        self.link = Link("me", peer, address, token, handlers, heartbeat_s=HEARTBEAT_S, timeout_s=timeout_s)
        self._ended = threading.Event()
        self._owner = threading.Thread(target=self._own, name=f"owner-of-{peer}", daemon=True)

    def __enter__(self) -> Watched:
        self.link.start()
        self._owner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._owner.join(timeout=30)
        self.link.close()

    def _unit(self, _: str, header: UnitHeader, data: pa.Buffer) -> None:
        self.units.append((header, len(data), data[:16].to_pybytes()))

    def wait_for(self, *events: str, deadline_s: float = 30) -> None:
        wait_until(lambda: self.events[: len(events)] == list(events), deadline_s, lambda: f"{events}: {self.events}")

    def _own(self) -> None:
        while not self._ended.wait(0.05):
            self.link.check_alive()


def threads_of(peer: str) -> list[str]:
    """Threads of links to or from ``peer`` that are still alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.endswith(f"-{peer}")]

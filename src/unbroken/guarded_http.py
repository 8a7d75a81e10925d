"""HTTP connections with deadlines: a header that does not arrive, an answer that is not read, a place for everyone."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from unbroken.places import Places

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpLimits:
    """What strangers may use up of a server."""

    most: int = 256
    """Connections at a time; see `unbroken.places` for who leaves when there are more."""

    most_each: int = 128
    """Connections from one address: half of all, because producers may share the address of a proxy."""

    header_s: float = 10.0
    """From the first moment of a connection, or the first byte of a further request, to the end of the header. It is
    not put off by bytes that arrive."""

    stall_s: float = 30.0
    """How long a peer may leave an answer unread."""


class GuardedProtocol(H11Protocol):
    """One connection of a server; made for each server as a subclass with its limits and places."""

    limits: ClassVar[HttpLimits]
    places: ClassVar[Places[GuardedProtocol]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._late: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    @classmethod
    def limited(cls, limits: HttpLimits) -> type[GuardedProtocol]:
        """The class for the connections of one server."""
        return type("LimitedProtocol", (cls,), {"limits": limits, "places": Places(limits.most, limits.most_each)})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        for other in self.places.make_room(address, self.loop.time()):
            other.transport.abort()
        if not self.places.enter(self, address, self.loop.time()):
            log.debug("there is no place for a connection from %s", address)
            transport.abort()
            return
        self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        self._header_arrived()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._asking():
            self._header_arrived()
            self.places.ask(self)
        else:
            self._expect_header()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._asking():
            return  # the next request had arrived already
        self.places.wait(self, self.loop.time())
        if self.conn.their_state is not h11.IDLE:
            self._expect_header()  # the rest of a request that was answered before its end

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.limits.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _asking(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_header(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self.limits.header_s, self.transport.abort)

    def _header_arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

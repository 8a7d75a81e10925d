"""HTTP connections with deadlines: a header that does not arrive, an answer that is not read, a place for everyone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import h11
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from unbroken.transport.connection_places import Places

log = logging.getLogger(__name__)

_ADMIT = "admit"
"""Where the state of a request has the function that admits it."""


def admit(request: Request) -> None:
    """Let a request keep its place until it is answered: it has proved that it belongs to the flow."""
    admits: Callable[[], None] | None = request.scope.get("state", {}).get(_ADMIT)
    if admits is not None:  # None behind another server than ours, as in tests of the application alone
        admits()


@dataclass(frozen=True)
class HttpLimits:
    """What strangers may use up of a server."""

    most: int = 256
    """Connections at a time; see `unbroken.transport.connection_places` for who leaves when there are more."""

    most_each: int = 128
    """Connections from one address: half of all, because producers may share the address of a proxy."""

    header_s: float = 10.0
    """From the first moment of a connection, or the first byte of a further request, to the end of the header. It is
    not put off by bytes that arrive."""

    stall_s: float = 30.0
    """How long a peer may leave an answer unread."""

    proves: bool = False
    """Whether requests prove that they belong to the flow, and are strangers' until `admit` says so. Otherwise each is
    admitted by its complete header."""


class GuardedProtocol(H11Protocol):
    """One connection of a server; made for each server as a subclass with its limits and places."""

    limits: ClassVar[HttpLimits]
    places: ClassVar[Places[GuardedProtocol]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._late: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._asked: object = None
        self.app_state = {**self.app_state, _ADMIT: self._admit}

    @classmethod
    def limited(cls, limits: HttpLimits) -> type[GuardedProtocol]:
        """The class for the connections of one server."""
        return type("LimitedProtocol", (cls,), {"limits": limits, "places": Places(limits.most, limits.most_each)})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        _abort(self.places.make_room(address, self.loop.time()))
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
            self._ask()
        else:
            self._expect_header()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._asking():
            self._ask()  # the next request had arrived already
            return
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

    def _ask(self) -> None:
        """A request is under way: once for each, whatever number of pieces it arrives in."""
        if self._asked is self.cycle:
            return
        self._asked = self.cycle
        self.places.ask(self, self.loop.time())
        if not self.limits.proves:
            self._admit()

    def _admit(self) -> None:
        _abort(self.places.admit(self, self.loop.time()))

    def _expect_header(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self.limits.header_s, self.transport.abort)

    def _header_arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _abort(connections: list[GuardedProtocol]) -> None:
    for connection in connections:
        connection.transport.abort()

"""Requests to pin the state of a shard, by other nodes and by this one, and what becomes of the pins."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from unbroken.node.replicas.state_pins import Pinned
from unbroken.node.replicas.transfers import Transfers
from unbroken.protocol.values.ids import NodeId, ShardId, StreamId
from unbroken.transport.calls import PinQuestion, PinTicket
from unbroken.transport.state.pins import MANIFEST, PinError, Pins

PIN_DEADLINE_S = 60.0
"""How long a donor may take to pin its state; linking and hashing 1 GB takes a few seconds."""


class PinRequests:
    """Has the loop pin states, on the threads that ask, and gives out what is pinned."""

    def __init__(self, name: NodeId, transfers: Transfers[Pinned, Any], pins: Pins) -> None:
        self._name = name
        self._transfers = transfers
        self._pins = pins

    def asked_for(self, question: PinQuestion) -> bytes:
        """Pin the present state of a shard for a newcomer and give the manifest."""
        needs = tuple(question.needs.items())
        return MANIFEST.encode(self._pinned(question.shard, question.newcomer, question.least, needs).manifest)

    def pin_here(self, shard: ShardId) -> Pinned:
        """Pin the present state of ``shard`` for this node's own use; to be released by the caller."""
        return self._pinned(shard, self._name)

    def read(self, ticket: PinTicket) -> Any:
        """Stream files of a pin."""
        return self._pins.stream(ticket)

    def release(self, pin: str) -> bool:
        """A pin is not needed; False if there is none of that name."""
        return self._pins.release(pin)

    def _pinned(
        self, shard: ShardId, newcomer: NodeId, least: int = 0, needs: tuple[tuple[StreamId, int], ...] = ()
    ) -> Pinned:
        future: Future[Pinned | str] = Future()
        ticket = self._transfers.ask(shard, newcomer, future.set_result, least, needs)
        try:
            found = future.result(timeout=PIN_DEADLINE_S)
        except (FutureTimeoutError, TimeoutError):
            raise PinError(f"{self._name} did not pin {shard} within {PIN_DEADLINE_S:.0f} s") from None
        finally:
            self._transfers.forget(ticket)
        if isinstance(found, str):
            raise PinError(found)
        return found

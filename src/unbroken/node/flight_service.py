"""What a node answers to those who ask it over Arrow Flight: other nodes, its own queries, clients and operators.

All of it is called on threads of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.node.ingress.service import IngressService
from unbroken.node.journal import Journal
from unbroken.node.peers import LinkInbox, Peers
from unbroken.node.replicas.pin_requests import PinRequests
from unbroken.node.unit_reader import UnitReader
from unbroken.observe.status.codec import encode
from unbroken.observe.status.node import NodeStatus
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.calls import GateAnswer, GateQuestion, PinQuestion, PinTicket, UnitTicket


class OperatedNode(Protocol):
    """What operators ask a node for."""

    @property
    def name(self) -> NodeId: ...

    @property
    def flow(self) -> Dataflow: ...

    @property
    def journal(self) -> Journal | None: ...

    @property
    def ingress(self) -> IngressService | None: ...

    def status(self) -> NodeStatus: ...

    def stop(self) -> None: ...


class FlightService:
    """The service of one node behind its `NodeServer`; ``ask_gate`` answers the questions of its queries."""

    def __init__(
        self,
        node: OperatedNode,
        peers: Peers,
        units: UnitReader,
        pins: PinRequests,
        ask_gate: Callable[[GateQuestion], GateAnswer],
    ) -> None:
        self._node = node
        self._peers = peers
        self._units = units
        self._pins = pins
        self._ask_gate = ask_gate

    def linked(self, peer: str) -> LinkInbox:
        """A peer links to this node; UnbrokenError if it may not under this name."""
        return self._peers.linked(peer)

    # --- units ----------------------------------------------------------------------------------------

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        return self._units.read_outbox(replica, header)

    def read_inbox(self, ticket: UnitTicket) -> pa.Table:
        return self._units.read_inbox(ticket)

    # --- copies of state ------------------------------------------------------------------------------

    def pin(self, question: PinQuestion) -> bytes:
        return self._pins.asked_for(question)

    def read_pin(self, ticket: PinTicket) -> Any:
        return self._pins.read(ticket)

    def release_pin(self, pin: str) -> bool:
        return self._pins.release(pin)

    # --- queries and operators ------------------------------------------------------------------------

    def ask_gate(self, question: GateQuestion) -> GateAnswer:
        return self._ask_gate(question)

    def encoded_status(self) -> bytes:
        return encode(self._node.status())

    def request_stop(self) -> None:
        self._node.stop()

    def journal(self) -> bytes:
        """The journal of this node's events, for an operator who asks for it."""
        journal = self._node.journal
        if journal is None:
            raise UnbrokenError(f"{self._node.name} has no journal yet: it waits for its layout. Ask again later.")
        return journal.bytes("asked for")

    def wish(self, request: SkipRequest) -> str | None:
        """An operator wishes to hold, release or skip rows of a source; why not, None if that is on its way."""
        if request.source not in self._node.flow.sources:
            return f"there is no source {request.source!r}"
        if not (0 < request.pulse < 1 << 63 and 0 <= request.hold < 1 << 63):
            return f"there is no pulse {request.pulse} with a hold {request.hold}"
        ingress = self._node.ingress
        if ingress is None:
            return f"{self._node.name} is not part of the ingress"
        return ingress.ask(request)

"""How units of a node's replicas are read: for sinks, for other nodes, and for the queries here."""

from __future__ import annotations

import pyarrow as pa

from unbroken.data.checksum import Damaged
from unbroken.data.unit_store import UnitStore, open_unit
from unbroken.errors import UnbrokenError
from unbroken.node.interfaces import LoopAccess
from unbroken.protocol.events import OutboxDamaged, UnitDamaged
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.calls import UnitTicket


class UnitReader:
    """Reads units on any thread, and reports to the loop which of them are damaged."""

    def __init__(self, name: NodeId, store: UnitStore, loop: LoopAccess) -> None:
        self._name = name
        self._store = store
        self._loop = loop

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        try:
            return self._store.read(self._store.outbox_path(replica, header.stream, header.number))
        except Damaged as error:
            self._loop.post(OutboxDamaged(replica, header.stream, header.number, error.finding))
            raise

    def read_inbox(self, ticket: UnitTicket) -> pa.Table:
        store = self._store
        owner, source, number = ticket.replica, ticket.stream, ticket.number
        if not store.receives(owner, source):
            raise UnbrokenError(f"no replica on {self._name} reads {source}: {owner}. Ask the node that hosts it.")
        path = store.inbox_path(owner, source, number)
        try:
            return open_unit(store.read(path), path)
        except Damaged as error:
            # First, so that it is not taken from there once more.
            self._verify_outbox(source, number)
            self._loop.post(UnitDamaged(owner, source, number, str(error)))
            raise

    def _verify_outbox(self, stream: StreamId, number: int) -> None:
        """Report a unit that is damaged in an outbox here, too: it may share its bytes with one in an inbox."""
        owner = self._loop.inquire(lambda protocol: protocol.outboxes.owners.get(stream))
        if owner is None:
            return
        try:
            self._store.read(self._store.outbox_path(owner, stream, number))
        except FileNotFoundError:
            pass  # every consumer that counts has it
        except Damaged as error:
            self._loop.post(OutboxDamaged(owner, stream, number, error.finding))

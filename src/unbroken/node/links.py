"""A node's links to the other members of its flow."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.coordination.documents import Member
from unbroken.data.unit_store import checked
from unbroken.errors import UnbrokenError
from unbroken.protocol.events import LinkLost, LinkUp, UnitArrived
from unbroken.protocol.messages import Message
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.link import Latest, Link, LinkHandlers

if TYPE_CHECKING:
    from unbroken.node.node import Node

LATELY = 4
"""Heartbeats within which a node that is well is heard; a busy one may leave out two or three."""


class Links:
    """One link to every other member, at the address it has; what it is used for is the protocol's business."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._links: dict[NodeId, Link] = {}
        self._known: set[NodeId] = {node.name}
        self._connected: set[NodeId] = {node.name}
        self._latest = Latest()
        self._ended: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._handlers = LinkHandlers(up=self._up, lost=self._lost, unit=self._unit)

    @property
    def known(self) -> set[NodeId]:
        """The nodes that have been linked to at some time."""
        return set(self._known)

    @property
    def connected(self) -> set[NodeId]:
        """The nodes whose links are up at this moment."""
        return set(self._connected)

    def connect(self, members: Mapping[NodeId, Member]) -> None:
        """Link to members that came or moved. One that left ZooKeeper may still be well: its link stays."""
        with self._lock:
            for member in members.values():
                self._link_to(member)

    def send(self, to: NodeId, message: Message) -> None:
        """Queue a message; lost while there is no link (what matters is sent again when it comes up)."""
        link = self._links.get(to)
        if link is not None:
            link.send(message)

    def look(self) -> None:
        """Give up links on which nothing is heard."""
        for link in list(self._links.values()):
            link.check_alive()

    def cut_off(self, missed: Collection[NodeId]) -> bool:
        """Whether it is probably this node that is cut off, and not those whom it misses.

        Then it hears fewer than half of the others either. Killed ones do not make it think so: they were heard of a
        moment ago.
        """
        lately_s = LATELY * self._node.settings.heartbeat / 1000
        others = [link for node, link in list(self._links.items()) if node in self._node.members and node not in missed]
        return 2 * sum(link.silence_s() < lately_s for link in others) < len(others)

    def traffic(self) -> Counter[str]:
        """Bytes of messages sent, by purpose."""
        out = self._ended.copy()
        for link in list(self._links.values()):
            out.update(link.bytes_sent)
        return out

    def close(self) -> None:
        for link in list(self._links.values()):
            link.close()

    def _unit(self, peer: NodeId, header: UnitHeader, data: pa.Buffer) -> None:
        """Take a unit; one that has changed on its way ends the link, and is asked for over the next one."""
        checked(data, f"unit {header.number} of {header.stream} from {peer}")
        if not self._node.post_unit(peer, UnitArrived(header, peer, len(data)), data):
            raise UnbrokenError(f"units of {peer} arrive faster than {self._node.name} can keep them")

    def _up(self, peer: NodeId) -> None:
        self._known.add(peer)
        self._connected.add(peer)
        self._node.post_link(peer, LinkUp(peer))

    def _lost(self, peer: NodeId) -> None:
        self._connected.discard(peer)
        self._node.post_link(peer, LinkLost(peer))

    def _link_to(self, member: Member) -> None:
        link = self._links.get(member.node)
        if member.node == self._node.name or (link is not None and link.address == member.address):
            return
        if link is not None:
            link.close()
            self._ended += link.bytes_sent
        settings = self._node.settings
        self._links[member.node] = Link(
            self._node.name,
            member.node,
            member.address,
            self._node.token,
            self._latest.replace(member.node, self._handlers),
            heartbeat_s=settings.heartbeat / 1000,
            timeout_s=settings.link_timeout / 1000,
        )
        self._links[member.node].start()

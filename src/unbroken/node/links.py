"""A node's links to the other members of its flow."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Protocol

import pyarrow as pa

from unbroken.coordination.documents import Member
from unbroken.data.staging import StagedUnit, Staging
from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings
from unbroken.protocol.events import Event, LinkLost, LinkUp, UnitArrived
from unbroken.protocol.messages import Message
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.link import Latest, Link, LinkHandlers

LATELY = 4
"""Heartbeats within which a node that is well is heard; a busy one may leave out two or three."""


class LinkEvents(Protocol):
    """The way of what links bring to the loop."""

    def post_link(self, peer: NodeId, event: Event) -> None:
        """Give the loop a change of a link to a peer; never waits."""

    def post_unit(self, peer: NodeId, event: UnitArrived, staged: StagedUnit) -> bool:
        """Give the loop a unit; False if it cannot take in time what comes from this peer."""


class Links:
    """One link to every other member, at the address it has; what it is used for is the protocol's business."""

    def __init__(self, name: NodeId, settings: Settings, token: str, staging: Staging, events: LinkEvents) -> None:
        self._name = name
        self._settings = settings
        self._token = token
        self._staging = staging
        self._events = events
        self._members: frozenset[NodeId] = frozenset()
        self._links: dict[NodeId, Link] = {}
        self._known: set[NodeId] = {name}
        self._connected: set[NodeId] = {name}
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
            self._members = frozenset(members)
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
        lately_s = LATELY * self._settings.heartbeat / 1000
        others = [link for node, link in list(self._links.items()) if node in self._members and node not in missed]
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

    def _unit(self, peer: NodeId, header: UnitHeader) -> ArrivingUnit:
        return ArrivingUnit(self._name, self._staging, self._events, peer, header)

    def _up(self, peer: NodeId) -> None:
        self._known.add(peer)
        self._connected.add(peer)
        self._events.post_link(peer, LinkUp(peer))

    def _lost(self, peer: NodeId) -> None:
        self._connected.discard(peer)
        self._events.post_link(peer, LinkLost(peer))

    def _link_to(self, member: Member) -> None:
        link = self._links.get(member.node)
        if member.node == self._name or (link is not None and link.address == member.address):
            return
        if link is not None:
            link.close()
            self._ended += link.bytes_sent
        self._links[member.node] = Link(
            self._name,
            member.node,
            member.address,
            self._token,
            self._latest.replace(member.node, self._handlers),
            heartbeat_s=self._settings.heartbeat / 1000,
            timeout_s=self._settings.link_timeout / 1000,
        )
        self._links[member.node].start()


class ArrivingUnit:
    """A unit that arrives over a link: written by the link's thread, handed to the loop when it is whole.

    One that has changed on its way ends the link, and is asked for over the next one.
    """

    def __init__(self, name: NodeId, staging: Staging, events: LinkEvents, peer: NodeId, header: UnitHeader) -> None:
        self._name = name
        self._events = events
        self._peer = peer
        self._header = header
        self._incoming = staging.receive(header, peer)

    def add(self, piece: pa.Buffer) -> None:
        self._incoming.add(piece)

    def finish(self) -> None:
        staged = self._incoming.finish()
        if not self._events.post_unit(self._peer, UnitArrived(self._header, self._peer, staged.size), staged):
            raise UnbrokenError(f"units of {self._peer} arrive faster than {self._name} can keep them")

    def abandon(self) -> None:
        self._incoming.abandon()

"""The peers that link to a node: who may, under which name, and what becomes of their messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from unbroken.errors import UnbrokenError
from unbroken.node.event_queue import EventQueue, QueueInlet
from unbroken.node.fair_queue import Sender
from unbroken.node.inquiries import QueueEntry
from unbroken.observe.notices import text_of
from unbroken.protocol.events import Received, SubscriberGone
from unbroken.protocol.messages import Ack, Message, Ping, Subscribe, Unsubscribe
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.processes import PeerFlooding

log = logging.getLogger(__name__)

CLIENTS = "clients"
CLIENT_NAME = re.compile(r"client-[0-9A-Za-z._-]{1,64}")

MOST_CLIENTS = 256
"""Subscribers that may be linked at a time; each has two threads here."""

MOST_REPORTS = 100
"""Peers that are reported because they flood, each once."""


class Peers:
    """Lets peers in by name: members of the flow, and a bounded number of clients.

    Each has a quota of its own in the node's queue, and clients share one turn: a peer that floods delays itself, and
    loses its link. ``is_member`` knows the members of the flow by their names.
    """

    def __init__(
        self,
        name: NodeId,
        flow: str,
        is_member: Callable[[str], bool],
        tell: Callable[[Notice], None],
        events: EventQueue[QueueEntry],
    ) -> None:
        self._name = name
        self._flow = flow
        self._is_member = is_member
        self._tell = tell
        self._events = events
        self._reported: set[str] = set()

    def linked(self, peer: str) -> LinkInbox:
        """Where the messages of a new link go; UnbrokenError if the peer may not link under this name."""
        return LinkInbox(self, peer, self._events.open(self._sender(peer)))

    def report_flood(self, peer: str) -> None:
        notice = PeerFlooding(self._name, peer)
        if peer in self._reported or len(self._reported) >= MOST_REPORTS:
            log.info("%s", text_of(notice))
            return
        self._reported.add(peer)
        self._tell(notice)

    def _sender(self, peer: str) -> Sender:
        if peer == self._name:
            raise UnbrokenError(f"a peer has the name of this node: {peer}. Give every node a name of its own.")
        if CLIENT_NAME.fullmatch(peer) is not None:
            sender = Sender(CLIENTS, peer)
            if not self._events.has_door(sender) and self._events.opened(CLIENTS) >= MOST_CLIENTS:
                raise UnbrokenError(f"too many clients are linked to {self._name}: {MOST_CLIENTS}. Use another node.")
            return sender
        if not self._is_member(peer):
            raise UnbrokenError(f"a peer is no member of {self._flow}: {peer[:100]!r}. Let it join first.")
        return Sender(f"from {peer}", peer)


class LinkInbox:
    """Where the messages of one link from a peer go."""

    def __init__(self, peers: Peers, peer: str, door: QueueInlet[QueueEntry]) -> None:
        self._peers = peers
        self._peer = peer
        self._door = door

    def put(self, message: Message) -> bool:
        """Hand a message to the loop; False if the link has to end."""
        if self._door.sender.group == CLIENTS and not _of_client(self._peer, message):
            log.warning("%s sends a message that is not a client's: %s", self._peer, type(message).__name__)
            return False
        if self._door.put((Received(self._peer, message), None)):
            return True
        if self._door.flooded:
            self._peers.report_flood(self._peer)
        return False

    def close(self) -> None:
        self._door.close((SubscriberGone(self._peer), None))


def _of_client(peer: str, message: Message) -> bool:
    """Whether a message is one that clients send: a client reads streams, and speaks for no other reader."""
    match message:
        case Subscribe() | Ack() | Unsubscribe():
            return message.subscriber == peer
    return isinstance(message, Ping)

"""Where a node or a client reaches nodes, if not at the addresses that they announce."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from unbroken.coordination.documents import Member
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId


@dataclass(frozen=True)
class Routes:
    """Ways around NAT, through tunnels or forwarded ports, each to one node and known to one process only.

    What ZooKeeper says about a member stays as it is: others may reach the same member in another way.
    """

    to: Mapping[NodeId, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Routes:
        """Routes as they are given on the command line, each as ``NODE=HOST:PORT``.

        One text stands for all that it has with spaces between them, as in UNBROKEN_ROUTES.
        """
        to: dict[NodeId, str] = {}
        for text in texts.split() if isinstance(texts, str) else texts:
            node, equals, address = text.strip().partition("=")
            host, colon, port = address.rpartition(":")
            if not (node and equals and host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise UnbrokenError(f"{text!r} is not a route; write NODE=HOST:PORT, for example b=10.0.0.7:4711")
            if to.setdefault(node, address) != address:
                raise UnbrokenError(f"there are two routes to {node}, {to[node]} and {address}; give one")
        return cls(to)

    def applied(self, members: Mapping[NodeId, Member]) -> dict[NodeId, Member]:
        """The members at the addresses at which they are reached from here."""
        return {name: replace(member, address=self.to.get(name, member.address)) for name, member in members.items()}

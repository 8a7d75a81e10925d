"""The office of the controller: candidates stand in line in ZooKeeper, and the first one holds it.

The line is that of kazoo's election: one ephemeral, numbered node for each candidate. What a dead controller has left
there vanishes with its session, which takes seconds. The others often know long before, because their connections to it
broke; then the next in line removes it. That is safe even if they are mistaken: a layout is changed by compare-and-set,
so of two that believe to hold the office one finds its changes refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from unbroken.coordination.documents import read_suspicions, root_of
from unbroken.coordination.history import History
from unbroken.protocol.placement.absence import out_of_office
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import ControllerReplaced
from unbroken.security.sealing import ForgedDocument

SEQUENCE_DIGITS = 10
"""ZooKeeper numbers the nodes of a line with so many digits at the end of their names."""


@dataclass(frozen=True)
class Candidate:
    path: str
    node: NodeId
    session: int


@dataclass(frozen=True)
class Office:
    client: KazooClient
    flow: str
    me: NodeId
    connected: Callable[[], Collection[NodeId]]
    history: History
    noted: Callable[[Reported], None]
    """Called with each entry of the history that was written together with a change of the line."""

    @property
    def path(self) -> str:
        return f"{root_of(self.flow)}/controller"

    def held(self) -> bool:
        """Whether this node, in the session it has, stands first."""
        line = self._line()
        return bool(line) and (line[0].node, line[0].session) == (self.me, self.client.client_id[0])

    def depose(self) -> None:
        """Remove those who stand before this node and whom others suspect, if this node cannot reach them either."""
        suspected = {found.suspect for found in read_suspicions(self.client, self.flow)}
        line = self._line()
        removed = out_of_office([candidate.node for candidate in line], self.me, suspected, self.connected())
        for candidate in line[: len(removed)]:
            entry = self.history.entry(ControllerReplaced(candidate.node))
            together = self.client.transaction()
            together.delete(candidate.path)
            self.history.add(together, [entry])
            if not any(isinstance(answer, Exception) for answer in together.commit()):
                self.noted(entry)
                self.history.trim()

    def _line(self) -> list[Candidate]:
        out: list[Candidate] = []
        for name in sorted(self.client.get_children(self.path), key=lambda name: name[-SEQUENCE_DIGITS:]):
            try:
                data, stat = self.client.get(f"{self.path}/{name}")
            except (NoNodeError, ForgedDocument):
                continue
            out.append(Candidate(f"{self.path}/{name}", data.decode(), stat.ephemeralOwner))
        return out

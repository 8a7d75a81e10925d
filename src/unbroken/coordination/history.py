"""The history of a flow: the notices of all nodes, in the order in which ZooKeeper has got them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NoNodeError

from unbroken.coordination.documents import REPORTED, root_of
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.security.secret import masked

HISTORY_LIMIT = 1_000
"""Notices kept in the history; the oldest are dropped."""


@dataclass(frozen=True)
class History:
    """Writes what one node reports.

    A notice of a change in ZooKeeper is part of that change (`add`): a reader who sees the change sees the notice, and
    whatever happens to the node afterwards, it is not lost.
    """

    client: KazooClient
    flow: str
    me: NodeId

    @property
    def path(self) -> str:
        return f"{root_of(self.flow)}/history"

    def entry(self, notice: Notice) -> Reported:
        """A notice as this node reports it now; secrets in it are masked."""
        return Reported(int(time.time() * 1000), self.me, notice.with_texts(masked))

    def add(self, together: TransactionRequest, entries: Iterable[Reported]) -> None:
        """Make entries part of a transaction; `trim` has to be called at some time after it."""
        # An operator may have deleted the history, and without it the transaction would fail for ever.
        self.client.ensure_path(self.path)
        for entry in entries:
            together.create(f"{self.path}/e", REPORTED.encode(entry), sequence=True)

    def write(self, entry: Reported) -> None:
        """Write a notice that belongs to no change in ZooKeeper."""
        self.client.create(f"{self.path}/e", REPORTED.encode(entry), sequence=True, makepath=True)
        self.trim()

    def trim(self) -> None:
        """Drop the oldest entries beyond the limit."""
        for name in sorted(self.client.get_children(self.path))[:-HISTORY_LIMIT]:
            try:
                self.client.delete(f"{self.path}/{name}")
            except NoNodeError:
                continue  # another node was faster

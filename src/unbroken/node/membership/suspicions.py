"""The documents in which a node names those that do not answer it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from unbroken.coordination.documents import Suspicion, read_suspicions, root_of
from unbroken.protocol.values.ids import NodeId


class SuspicionDocuments:
    """Makes the documents of one node follow what it suspects; ``put`` hands over a job that waits for ZooKeeper.

    Any thread may change what is suspected; the job writes what is suspected when it runs.
    """

    def __init__(self, client: KazooClient, flow: str, me: NodeId, put: Callable[[Callable[[], None]], None]) -> None:
        self._client = client
        self._flow = flow
        self._root = f"{root_of(flow)}/suspected"
        self._me = me
        self._put = put
        self._suspected: dict[NodeId, Suspicion] = {}
        self._to_be_written = threading.Event()

    def add(self, node: NodeId, reason: str) -> None:
        self._suspected = {**self._suspected, node: Suspicion(node, self._me, reason)}
        self.refresh()

    def remove(self, node: NodeId) -> None:
        self._suspected = {suspect: found for suspect, found in self._suspected.items() if suspect != node}
        self.refresh()

    def refresh(self) -> None:
        """Have the documents written; also for a new session, as those of an earlier one vanish with it."""
        # One job that waits is enough for all changes: links that come and go must not fill the queue.
        if not self._to_be_written.is_set():
            self._to_be_written.set()
            self._put(self._write)

    def _write(self) -> None:
        """Make this node's documents say what it suspects at this moment, whatever they said before."""
        self._to_be_written.clear()
        wanted = {found.name: found for found in self._suspected.values()}
        for found in read_suspicions(self._client, self._flow):
            if found.by == self._me and not (wanted.get(found.name) == found and self._is_mine(found)):
                self._delete(found)
        for name, found in wanted.items():
            try:
                self._client.create(f"{self._root}/{name}", found.to_bytes(), ephemeral=True, makepath=True)
            except NodeExistsError:
                continue

    def _is_mine(self, found: Suspicion) -> bool:
        """Whether a document will stay as long as this session: one that an earlier one has left would vanish."""
        stat = self._client.exists(f"{self._root}/{found.name}")
        session = self._client.client_id
        return stat is not None and session is not None and stat.ephemeralOwner == session[0]

    def _delete(self, found: Suspicion) -> None:
        try:
            self._client.delete(f"{self._root}/{found.name}")
        except NoNodeError:
            return

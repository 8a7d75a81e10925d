"""The forks of a node's replicas as they really are: copies of checkpoints, links to units, queries that rest."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from unbroken.protocol.events import QueryFailed
from unbroken.protocol.instructions import FeedFork, ForkReplica, PauseReplica, UndoReplica
from unbroken.spark import checkpoints

if TYPE_CHECKING:
    from unbroken.node.node import Node

log = logging.getLogger(__name__)


class Forks:
    """Carries out what the protocol says about forks.

    What touches a checkpoint is left to the thread that starts queries: it waits there until no query uses it.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def fork(self, step: ForkReplica) -> None:
        """Start a query on a copy of a replica's state. The copy is hard links, so its size does not matter."""
        queries = self._node.queries
        if queries is not None:
            queries.start(step.fork, lambda: self._copy(step))

    def feed(self, step: FeedFork) -> None:
        store = self._node.store
        source = store.inbox_path(step.replica, step.stream, step.number)
        try:
            store.link(source, store.inbox_path(step.fork, step.stream.home, step.as_number))
        except OSError as error:
            reason = f"unit {step.number} of {step.stream} cannot be taken over: {error}"
            self._node.post(QueryFailed(step.fork, reason))

    def pause(self, step: PauseReplica) -> None:
        queries = self._node.queries
        if queries is not None:
            queries.stop_one(step.replica)

    def undo(self, step: UndoReplica) -> None:
        queries = self._node.queries
        if queries is not None:
            queries.prepare(step.replica, lambda: self._node.dirs.undo(step.replica, step.base, step.valid))

    def _copy(self, step: ForkReplica) -> None:
        dirs = self._node.dirs
        source = dirs.checkpoint(step.replica)
        dirs.begin_like(step.fork, step.replica)
        batches = checkpoints.batches_through(source, step.version)
        if batches:
            checkpoints.pin(source, dirs.checkpoint(step.fork), batches)

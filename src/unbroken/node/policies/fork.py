"""The forks of a node's replicas: when their state is copied, and which queries rest meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from unbroken.node.policies import NodePolicy, PolicyHost
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.queries import Queries
from unbroken.protocol.events import Event, QueryFailed
from unbroken.protocol.policies.fork.instructions import FeedFork, ForkEffects, ForkReplica, PauseReplica
from unbroken.spark import checkpoints


class ForkFiles(Protocol):
    """What forks need of the disk."""

    def copy(self, step: ForkReplica) -> None:
        """Give a fork the state of its replica at a version."""

    def feed(self, step: FeedFork) -> None:
        """Give a fork a unit that its replica has; it may have no directory yet."""


class ForkQueries(ForkEffects):
    """Carries out what the protocol says about forks; the same code runs in a node and in the simulator.

    What touches a checkpoint is left to the start of a query: it waits there until no query uses it.
    """

    def __init__(self, files: ForkFiles, queries: Callable[[], Queries | None], post: Callable[[Event], None]) -> None:
        self._files = files
        self._queries = queries
        self._post = post

    def fork_replica(self, step: ForkReplica) -> None:
        """Start a query on a copy of a replica's state."""
        queries = self._queries()
        if queries is not None:
            queries.start(step.fork, lambda: self._files.copy(step))

    def feed_fork(self, step: FeedFork) -> None:
        try:
            self._files.feed(step)
        except OSError as error:
            reason = f"unit {step.number} of {step.stream} cannot be taken over: {error}"
            self._post(QueryFailed(step.fork, reason))

    def pause_replica(self, step: PauseReplica) -> None:
        queries = self._queries()
        if queries is not None:
            queries.pause(step.replica)


class ForkLinks(ForkFiles):
    """Makes the directories of forks: links to checkpoints and to units, so that their size does not matter."""

    def __init__(self, dirs: ReplicaDirs) -> None:
        self._dirs = dirs

    def copy(self, step: ForkReplica) -> None:
        source = self._dirs.checkpoint(step.replica)
        self._dirs.begin_like(step.fork, step.replica)
        batches = checkpoints.batches_through(source, step.version)
        if batches:
            checkpoints.pin(source, self._dirs.checkpoint(step.fork), batches)

    def feed(self, step: FeedFork) -> None:
        store = self._dirs.store
        source = store.inbox_path(step.replica, step.stream, step.number)
        store.link(source, store.inbox_path(step.fork, step.stream.home, step.as_number))


class NodeForks(ForkQueries, NodePolicy):
    """The forks of a node."""


def build(host: PolicyHost) -> NodeForks:
    return NodeForks(ForkLinks(host.dirs), lambda: host.queries, host.post)

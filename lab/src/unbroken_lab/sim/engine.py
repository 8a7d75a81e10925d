"""Simulated Spark: queries are started and ended in virtual time, and may fail to do either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from unbroken.errors import broken
from unbroken.node.replicas.queries import LOOK_S, Engine, QueryStep
from unbroken.protocol.values.ids import ReplicaId
from unbroken_lab.sim.content import is_fork
from unbroken_lab.sim.queries import Query

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class _Start(NamedTuple):
    replica: ReplicaId
    preparation: QueryStep | None
    done: Callable[[str | None], None]


class _Stop(NamedTuple):
    replica: ReplicaId
    done: QueryStep


class SimulatedEngine(Engine):
    """Runs the queries of one process.

    A query works until its stop has taken effect. ``refusals`` are how often a query cannot be started; while they are
    ``stuck``, queries that are to end do not.
    """

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._costs = process.world.costs
        self.queries: dict[ReplicaId, Query] = {}
        self.refusals: dict[ReplicaId, int] = {}
        self.stuck = False
        self._failures: dict[ReplicaId, str] = {}
        self._stopping: list[_Stop] = []

    def start(self, replica: ReplicaId, preparation: QueryStep | None, done: Callable[[str | None], None]) -> None:
        costs = self._costs.of(replica.shard.part, self._process.cold)
        takes_ms = self._costs.fork_ms if is_fork(replica) else costs.query_ms
        self._process.later(
            takes_ms * self._process.machine.slowness, self._started, _Start(replica, preparation, done)
        )

    def stop(self, replica: ReplicaId, done: QueryStep) -> None:
        takes_ms = self._costs.stop_ms * self._process.machine.slowness
        self._process.later(takes_ms, self._stopped, _Stop(replica, done))

    def failure(self, replica: ReplicaId) -> str | None:
        return self._failures.get(replica)

    def forget(self, replica: ReplicaId) -> None:
        self._failures.pop(replica, None)

    def close(self) -> None:
        """The process ends, and every query with it."""
        for query in self.queries.values():
            query.stop()

    # --- faults -----------------------------------------------------------------------------------------

    def fail(self, replica: ReplicaId, reason: str) -> None:
        """A query ends by itself."""
        query = self.queries.get(replica)
        if query is not None and not query.stopped:
            query.stop()
            self._failures[replica] = reason
            self._process.later(self._costs.look_ms, self._look)

    def heal(self) -> None:
        """Queries come to their end, also those that did not."""
        self.stuck = False
        waiting, self._stopping = self._stopping, []
        for stop in waiting:
            self._process.later(0.0, self._stopped, stop)

    # --- virtual time -----------------------------------------------------------------------------------

    def _started(self, start: _Start) -> None:
        replica = start.replica
        if replica in self.queries and not self.queries[replica].stopped:
            broken(f"{replica} has two queries on one checkpoint", replica)
        if self.refusals.get(replica, 0) > 0:
            self.refusals[replica] -= 1
            self._process.world.counts["refused queries"] += 1
            start.done("no process can be started")
            return
        try:
            if start.preparation is not None:
                start.preparation()
        except OSError as error:
            start.done(str(error))
            return
        held = self._process.disk.replicas.get(replica)
        if held is None:
            broken(f"{replica} is started without its directory", replica)
        self._failures.pop(replica, None)
        query = self.queries[replica] = Query(self._process, replica, held)
        start.done(None)
        query.begin()

    def _stopped(self, stop: _Stop) -> None:
        if self.stuck:
            self._process.world.counts["stuck queries"] += 1
            self._stopping.append(stop)
            self._process.later(LOOK_S * 1000, self._look)
            return
        query = self.queries.pop(stop.replica, None)
        if query is not None:
            query.stop()
        stop.done()

    def _look(self, _: object) -> None:
        queries = self._process.hosting.queries
        assert queries is not None
        queries.look()
        if self._stopping:
            self._process.later(LOOK_S * 1000, self._look)

"""The replicas of a simulated node: what it has of them on its disk, their queries, the ingress and the forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbroken.errors import broken, require
from unbroken.protocol.events import QueryFailed
from unbroken.protocol.instructions import (
    BeginReplica,
    FeedFork,
    ForkReplica,
    NoteOwed,
    ReportCaughtUp,
    StopReplica,
    UndoReplica,
)
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken_lab.sim.buckets import BucketIngress
from unbroken_lab.sim.content import Folded, is_fork
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.queries import Query
from unbroken_lab.sim.sources import Ingress

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class Hosting:
    """Begins, starts, stops and removes the replicas of one process."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._world = process.world
        self._disk = process.disk
        self.queries: dict[ReplicaId, Query] = {}
        self.ingress: Ingress | None = None

    def end(self) -> None:
        """The process ends, and every query with it."""
        for query in self.queries.values():
            query.stop()
        if self.ingress is not None:
            self.ingress.end()

    def reader(self) -> Ingress:
        if self.ingress is None:
            broken(f"{self._process.name} is no ingress and is told to act as one")
        return self.ingress

    def put(self, replica: ReplicaId, held: ReplicaDisk) -> None:
        self._disk.replicas[replica] = held
        self._world.where[replica] = held

    def remove(self, replica: ReplicaId) -> None:
        held = self._disk.replicas.pop(replica, None)
        if held is not None and self._world.where.get(replica) is held:
            del self._world.where[replica]

    def begin_anew(self, step: BeginReplica) -> None:
        held = ReplicaDisk(committed=step.base, states={step.base: Folded()}, valid=step.valid)
        held.owed = {note.stream: (note.owed, note.rebuilt) for note in step.owed}
        self.put(step.replica, held)

    def note_owed(self, step: NoteOwed) -> None:
        self._disk.replicas[step.replica].owed[step.stream] = (step.owed, step.rebuilt)

    def start(self, replica: ReplicaId) -> None:
        held = self._disk.replicas[replica]
        if replica.shard == INGRESS:
            if self.ingress is not None:
                self.ingress.close()
            kind = BucketIngress if self._world.topology.bucketed else Ingress
            self.ingress = kind(self._process, replica, held)
            return
        self.end_query(replica)
        start_ms = (
            self._world.costs.of(replica.shard.part, self._process.cold).query_ms * self._process.machine.slowness
        )
        self.queries[replica] = Query(self._process, replica, held, start_ms)

    def end_query(self, replica: ReplicaId) -> None:
        query = self.queries.pop(replica, None)
        if query is not None:
            query.stop()

    def stop(self, step: StopReplica) -> None:
        self._world.tell(self._process.name, f"{step.replica} stops: {step.reason}")
        query = self.queries.get(step.replica)
        if query is not None:
            query.stop()
        self._process.client.replica_stopped(step.replica, step.reason)

    def drop(self, replica: ReplicaId) -> None:
        self.end_query(replica)
        self.remove(replica)
        if is_fork(replica):
            return
        self._process.orders.forget(replica.shard)
        self._process.carrying.forget_deliveries(replica)
        if replica.shard == INGRESS and self.ingress is not None:
            self.ingress.close()
            self.ingress = None

    def caught_up(self, step: ReportCaughtUp) -> None:
        self._world.tell(self._process.name, step.sentence)
        self._process.client.caught_up(step.replica)

    def fail_query(self, replica: ReplicaId, reason: str) -> None:
        """A query ends by itself."""
        query = self.queries.get(replica)
        if query is not None and not query.stopped:
            query.stop()
            self._process.post(QueryFailed(replica, reason))

    # --- forks ----------------------------------------------------------------------------------------

    def fork(self, step: ForkReplica) -> None:
        held = self._disk.replicas[step.replica]
        require(step.fork not in self._disk.replicas, f"{step.fork} is there already")
        copy = ReplicaDisk(committed=step.version, states={step.version: held.states[step.version]})
        if step.version in held.cuts:
            copy.cuts[step.version] = held.cuts[step.version]
        self._disk.replicas[step.fork] = copy
        self._world.counts["forks"] += 1
        self.queries[step.fork] = Query(
            self._process, step.fork, copy, self._world.costs.fork_ms * self._process.machine.slowness
        )

    def feed(self, step: FeedFork) -> None:
        unit = self._disk.replicas[step.replica].inbox[step.stream, step.number]
        self._disk.replicas[step.fork].inbox[step.stream.home, step.as_number] = unit

    def undo(self, step: UndoReplica) -> None:
        held = self._disk.replicas[step.replica]
        require(step.replica not in self.queries, f"{step.replica} is set back while its query runs")
        require(held.committed == step.valid, f"{step.replica} is at {held.committed}, not {step.valid}")
        for stream in self._world.topology.inputs(step.replica.shard):
            missing = [n for n in range(step.base + 1, step.valid + 1) if (stream, n) not in held.inbox]
            require(not missing, f"unit {missing[:1]} of {stream} is missing where {step.replica} is set back")
        self._world.counts["undone"] += 1
        held.committed, held.states, held.cuts = step.base, {step.base: Folded()}, {}
        held.valid = max(step.valid, held.valid)

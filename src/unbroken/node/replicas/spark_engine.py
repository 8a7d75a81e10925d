"""The queries of a node on its Spark session: started on one thread, ended on threads of their own, watched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from unbroken.node.interfaces import NodeLife
from unbroken.node.replicas.programs import Programs
from unbroken.node.replicas.queries import LOOK_S, Engine, QueryStep
from unbroken.node.workers import ThreadWorker
from unbroken.protocol.events import Event, QueryFailed
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices.processes import ExecutorsAdded, ExecutorsLost, SparkEnded
from unbroken.spark.life import SparkLife
from unbroken.spark.runner import BatchProgress, QueryRunner, QuerySurroundings, root_cause
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

CLOSE_S = 0.0
"""How long a query that is being started when the node ends is waited for: it ends with the session."""


class SparkEngine(Engine):
    """Runs queries on a Spark session. A JVM that hangs hangs these threads, and not the node's loop."""

    def __init__(
        self, life: NodeLife, post: Callable[[Event], None], programs: Programs, around: QuerySurroundings
    ) -> None:
        self._life = life
        self._post = post
        self._programs = programs
        self._spark = SparkLife(around.session)
        self.around = around
        self.runners: dict[ReplicaId, QueryRunner] = {}
        self._starts = ThreadWorker("start-queries")

    def open(self, look: QueryStep) -> None:
        """Begin with what waits to be started; ``look`` is called from time to time, and may wait for Spark."""
        self._starts.start()
        LastingThread(self._watch, "watch-queries", (look,)).start()

    def start(self, replica: ReplicaId, preparation: QueryStep | None, done: Callable[[str | None], None]) -> None:
        self._starts.submit(partial(self._start, replica, preparation, done))

    def stop(self, replica: ReplicaId, done: QueryStep) -> None:
        threading.Thread(target=self._stop, args=(replica, done), name=f"stop-{replica}", daemon=True).start()

    def failure(self, replica: ReplicaId) -> str | None:
        runner = self.runners.get(replica)
        return None if runner is None else runner.failure()

    def forget(self, replica: ReplicaId) -> None:
        self.runners.pop(replica, None)

    def report(self, event: Event) -> None:
        """Give the loop what the queries lead to."""
        if isinstance(event, QueryFailed):
            log.warning("the query of %s ended: %s", event.replica, event.reason)
        self._post(event)

    def progress(self) -> dict[ReplicaId, BatchProgress]:
        """The last micro-batch of each query that has had one."""
        found = {replica: runner.progress() for replica, runner in list(self.runners.items())}
        return {replica: last for replica, last in found.items() if last is not None}

    def close(self) -> None:
        self._starts.close(CLOSE_S)
        for replica in list(self.runners):
            self._end(replica)

    def _start(self, replica: ReplicaId, preparation: QueryStep | None, done: Callable[[str | None], None]) -> None:
        if self._life.stopping:
            return
        try:
            if preparation is not None:
                preparation()
            runner = self.runners.get(replica)
            if runner is None:
                runner = QueryRunner(replica, self._programs.code(replica.shard), self.around)
            runner.start()
        except BaseException as error:  # it may be a user's code
            log.exception("the query of %s cannot be started", replica)
            done(root_cause(str(error) or type(error).__name__))
            return
        self.runners[replica] = runner
        done(None)

    def _stop(self, replica: ReplicaId, done: QueryStep) -> None:
        self._end(replica)
        done()

    def _end(self, replica: ReplicaId) -> None:
        runner = self.runners.get(replica)
        try:
            if runner is not None:
                runner.stop()
        except BaseException as error:
            log.info("the query of %s did not stop cleanly: %s", replica, error)

    def _watch(self, look: QueryStep) -> None:
        while not self._life.wait_for_stop(LOOK_S):
            try:
                end = self._spark.end()
                if end is not None:
                    self._life.fail(SparkEnded(self._life.name, end.how, end.code, end.detail))
                    return
                lost, added, left = self._spark.changes()
                if lost:
                    self._life.tell(ExecutorsLost(self._life.name, lost, left))
                if added:
                    self._life.tell(ExecutorsAdded(self._life.name, added))
                look()
            except BaseException:
                log.exception("the queries cannot be looked at")

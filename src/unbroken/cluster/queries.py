"""The queries of a node: started one after the other, watched, restarted when they fail for a passing reason."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unbroken.protocol.ids import ReplicaId
from unbroken.protocol.messages import ReplicaStopped
from unbroken.spark.runner import QueryRunner, Surroundings, root_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from unbroken.cluster.node import Node

log = logging.getLogger(__name__)

FIRST_QUESTION_S = 30.0
"""How long to wait for a query's first question to the gate before the next query is started. Spark gives a new
Python process ten seconds to call back; several at once on a busy machine do not make it."""

LOOK_S = 0.3
"""How often the queries are looked at, on a thread of its own: a JVM that hangs must not hang the node's loop."""

RESTARTS = 3
"""Times a replica's query is started again from its checkpoint before the replica counts as stopped. A micro-batch
that runs again finds its units written, so a restart is as safe as a pause."""


class Queries:
    """Runs the queries of the replicas that a node hosts."""

    def __init__(self, node: Node, session: SparkSession, schemas: Mapping[str, StructType]) -> None:
        self._node = node
        self._around = Surroundings(
            session=session,
            store=node.store,
            gate=node.server.address,
            token=node.token,
            checkpoints=node.dirs.checkpoints,
            cut_info=node.cut_info,
            produced=node.produced,
        )
        self._schemas = schemas
        self._asked: dict[ReplicaId, threading.Event] = {}
        self._failures: Counter[ReplicaId] = Counter()
        self._restarting: set[ReplicaId] = set()
        self.runners: dict[ReplicaId, QueryRunner] = {}

    def start(self) -> None:
        """Start every query, each when the one before it has asked for its first micro-batch."""
        assert self._node.protocol is not None
        threading.Thread(target=self._watch, name="watch-queries", daemon=True).start()
        for replica in self._node.protocol.replicas:
            if self._node.stopping:
                return
            self._asked[replica] = threading.Event()
            runner = QueryRunner(replica, self._node.flow, self._node.topology, self._schemas, self._around)
            try:
                runner.start()
            except Exception as error:
                log.exception("the query of %s cannot be started", replica)
                self._node.replica_stopped(ReplicaStopped(replica, root_cause(str(error))))
                continue
            self.runners[replica] = runner
            self._await_question(replica, runner)
        log.info("%s runs %s", self._node.name, ", ".join(str(replica) for replica in self.runners) or "no query")

    def asked(self, replica: ReplicaId) -> None:
        """A query has asked the gate."""
        event = self._asked.get(replica)
        if event is not None:
            event.set()

    def _watch(self) -> None:
        while not self._node.wait_for_stop(LOOK_S):
            try:
                self._look()
            except Exception:
                log.exception("the queries cannot be looked at")

    def _look(self) -> None:
        """Restart a query that has ended, or report its replica as stopped."""
        assert self._node.protocol is not None
        for replica, runner in list(self.runners.items()):
            failure = runner.failure()
            gone = self._node.protocol.replicas[replica].stopped is not None or replica in self._restarting
            if failure is None or gone or self._node.stopping:
                continue
            self._failures[replica] += 1
            if self._failures[replica] > RESTARTS:
                self._node.replica_stopped(ReplicaStopped(replica, failure))
                continue
            log.warning("the query of %s failed and is started again: %s", replica, failure)
            self._restarting.add(replica)
            threading.Thread(target=self._restart, args=(replica,), name=f"restart-{replica}", daemon=True).start()

    def stop_one(self, replica: ReplicaId) -> None:
        """End one query without waiting for it."""
        runner = self.runners.get(replica)
        if runner is not None:
            threading.Thread(target=runner.stop, name=f"stop-{replica}", daemon=True).start()

    def progress(self) -> dict[ReplicaId, dict[str, Any]]:
        return {replica: runner.progress() for replica, runner in list(self.runners.items())}

    def close(self) -> None:
        for runner in self.runners.values():
            try:
                runner.stop()
            except Exception as error:
                log.info("the query of %s did not stop cleanly: %s", runner.replica, error)

    def _await_question(self, replica: ReplicaId, runner: QueryRunner) -> None:
        deadline = time.monotonic() + FIRST_QUESTION_S
        while time.monotonic() < deadline and not self._node.stopping and runner.failure() is None:
            if self._asked[replica].wait(0.1):
                return

    def _restart(self, replica: ReplicaId) -> None:
        try:
            self.runners[replica].start()
        except Exception as error:
            log.exception("the query of %s cannot be started again", replica)
            self._node.replica_stopped(ReplicaStopped(replica, str(error)))
        finally:
            self._restarting.discard(replica)

"""The queries of a node: started one after the other, watched, ended."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unbroken.protocol.events import QueryFailed
from unbroken.protocol.values.ids import ReplicaId
from unbroken.spark.life import SparkLife
from unbroken.spark.runner import QueryRunner, Surroundings, root_cause
from unbroken.threads import LastingThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unbroken.node.node import Node

log = logging.getLogger(__name__)

FIRST_QUESTION_S = 30.0
"""How long to wait for a query's first question to the gate before the next query is started. Spark gives a new
Python process ten seconds to call back; several at once on a busy machine do not make it."""

END_S = 30.0
"""How long the end of a query is waited for that is to be started again; it takes a second."""

START_LIMIT = 10_000
"""Queries waiting to be started; a replica is in there once, or once more for each restart."""

LOOK_S = 0.3
"""How often the queries are looked at, on a thread of its own: a JVM that hangs must not hang the node's loop."""


class Queries:
    """Runs the queries of the replicas that a node hosts.

    Starting is left to one thread and watching to another; what a failure means is the protocol's to decide.
    """

    def __init__(self, node: Node, session: SparkSession) -> None:
        self._node = node
        self._life = SparkLife(session)
        self.around = Surroundings(
            session=session,
            store=node.store,
            gate=node.server.address,
            token=node.token,
            checkpoint=node.dirs.checkpoint,
            base=node.dirs.base,
            cut_info=node.cut_info,
            produced=node.produced,
            consumers=node.programs.consumers,
        )
        self._asked: dict[ReplicaId, threading.Event] = {}
        self._wanted: queue.Queue[ReplicaId | None] = queue.Queue(START_LIMIT)
        self._preparations: dict[ReplicaId, Callable[[], None]] = {}
        self._ending: dict[ReplicaId, threading.Thread] = {}
        self._lock = threading.Lock()
        self._watched: set[ReplicaId] = set()
        self.runners: dict[ReplicaId, QueryRunner] = {}
        self._threads = [
            LastingThread(self._start_wanted, "start-queries"),
            LastingThread(self._watch, "watch-queries"),
        ]

    def open(self) -> None:
        for thread in self._threads:
            thread.start()

    def start(self, replica: ReplicaId, preparation: Callable[[], None] | None = None) -> None:
        """Start a replica's query on its checkpoint when its turn comes, or start it again."""
        if preparation is not None:
            self.prepare(replica, preparation)
        self._wanted.put(replica)

    def prepare(self, replica: ReplicaId, preparation: Callable[[], None]) -> None:
        """What is to be done before a query is started the next time, when no other uses its checkpoint."""
        self._preparations[replica] = preparation

    def asked(self, replica: ReplicaId) -> None:
        """A query has asked the gate."""
        event = self._asked.get(replica)
        if event is not None:
            event.set()

    def stop_one(self, replica: ReplicaId, then: Callable[[], None] | None = None) -> None:
        """End one query without waiting for it, and do something when it has ended."""
        with self._lock:
            self._watched.discard(replica)
        thread = threading.Thread(target=self._stop, args=(replica, then), name=f"stop-{replica}", daemon=True)
        self._ending[replica] = thread
        thread.start()

    def progress(self) -> dict[ReplicaId, dict[str, Any]]:
        return {replica: runner.progress() for replica, runner in list(self.runners.items())}

    def close(self) -> None:
        self._wanted.put(None)
        with self._lock:
            self._watched.clear()
        for replica in list(self.runners):
            self._stop(replica, None)

    def _start_wanted(self) -> None:
        """Start queries, each when the one before it has asked for its first micro-batch."""
        while (replica := self._wanted.get()) is not None and not self._node.stopping:
            if not self._node.hosts(replica):
                continue
            self._asked[replica] = threading.Event()
            try:
                self._make_ready(replica)
                runner = self.runners.get(replica) or QueryRunner(
                    replica, self._node.programs.code(replica.shard), self.around
                )
                runner.start()
            except BaseException as error:  # it may be a user's code
                log.exception("the query of %s cannot be started", replica)
                self._node.post(QueryFailed(replica, root_cause(str(error) or type(error).__name__)))
                continue
            self.runners[replica] = runner
            if not self._node.hosts(replica):
                self._stop(replica, None)  # dropped while it was being started
                continue
            with self._lock:
                self._watched.add(replica)
            self._await_question(replica, runner)

    def _make_ready(self, replica: ReplicaId) -> None:
        """Wait for the end of the replica's query before, and do what was asked for."""
        ending = self._ending.pop(replica, None)
        if ending is not None:
            ending.join(timeout=END_S)
        preparation = self._preparations.pop(replica, None)
        if preparation is not None:
            preparation()

    def _watch(self) -> None:
        while not self._node.wait_for_stop(LOOK_S):
            try:
                end = self._life.end()
                if end is not None:
                    self._node.fail(f"{end} on {self._node.name}, and with it the node")
                    return
                for change in self._life.changes():
                    self._node.tell(f"{self._node.name} {change}")
                self._look()
            except BaseException:
                log.exception("the queries cannot be looked at")

    def _look(self) -> None:
        """Report queries that have ended by themselves."""
        for replica in sorted(self._watched):
            runner = self.runners.get(replica)
            failure = None if runner is None else runner.failure()
            with self._lock:
                if failure is None or replica not in self._watched:
                    continue
                self._watched.discard(replica)
            log.warning("the query of %s ended: %s", replica, failure)
            self._node.post(QueryFailed(replica, failure))

    def _stop(self, replica: ReplicaId, then: Callable[[], None] | None) -> None:
        runner = self.runners.get(replica)
        try:
            if runner is not None:
                runner.stop()
        except BaseException as error:
            log.info("the query of %s did not stop cleanly: %s", replica, error)
        if then is not None:
            self.runners.pop(replica, None)
            self._asked.pop(replica, None)
            self._ending.pop(replica, None)
            self._preparations.pop(replica, None)
            then()

    def _await_question(self, replica: ReplicaId, runner: QueryRunner) -> None:
        deadline = time.monotonic() + FIRST_QUESTION_S
        while time.monotonic() < deadline and not self._node.stopping and runner.failure() is None:
            if self._asked[replica].wait(0.1):
                return

"""Which query is started next, which one is ended, and what a query that ended by itself leads to.

The same decisions are made in a node, where Spark runs the queries, and in the simulator, where virtual time passes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol

from unbroken.protocol.events import Event, QueryFailed
from unbroken.protocol.values.ids import ReplicaId

log = logging.getLogger(__name__)

FIRST_QUESTION_S = 30.0
"""How long to wait for a query's first question to the gate before the next query is started. Spark gives a new
Python process ten seconds to call back; several at once on a busy machine do not make it."""

END_S = 30.0
"""How long the end of a query is waited for that is to be started again; it takes a second."""

LOOK_S = 0.3
"""How often the queries are looked at."""

QueryStep = Callable[[], None]


class Engine(Protocol):
    """Where queries run. No method waits: the end of what takes time is reported, from any thread, or at once."""

    def start(self, replica: ReplicaId, preparation: QueryStep | None, done: Callable[[str | None], None]) -> None:
        """Do the preparation, and start the query of a replica on its checkpoint; ``done`` is given the reason if
        either fails."""

    def stop(self, replica: ReplicaId, done: QueryStep) -> None:
        """End the query of a replica, if there is one; ``done`` is called when nothing of it runs."""

    def failure(self, replica: ReplicaId) -> str | None:
        """Why a query that was started has ended by itself; None while it runs. May wait for Spark."""

    def forget(self, replica: ReplicaId) -> None:
        """The query of a replica has ended and will not be started again."""

    def close(self) -> None:
        """End all queries, and wait for that."""


class _Stage(Enum):
    RESTING = "resting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass
class _Query:
    """What is known of one replica's query; ``life`` counts its starts."""

    stage: _Stage = _Stage.RESTING
    life: int = 0
    wanted_s: float | None = None
    preparation: QueryStep | None = None
    unwanted: bool = False
    dropped: bool = False
    asked: bool = False
    after: list[QueryStep] = field(default_factory=list)

    @property
    def ending(self) -> bool:
        return self.stage is _Stage.STOPPING or (self.stage is _Stage.STARTING and self.unwanted)


class Queries:
    """Decides about the queries of the replicas that a node hosts; what a failure means is the protocol's to decide.

    Invariants: one query is being started at a time, and the next when it has asked the gate, failed, or taken too
    long. A query is started when the one before it on the same checkpoint has ended, and what is to be done after its
    end is done when nothing of it runs, also if it was being started when it was stopped.

    Methods may be called from any thread and never wait for a query; ``look`` may wait for Spark.
    """

    def __init__(self, engine: Engine, post: Callable[[Event], None], clock_s: Callable[[], float]) -> None:
        self._engine = engine
        self._post = post
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._queries: dict[ReplicaId, _Query] = {}
        self._wanted: deque[ReplicaId] = deque()
        self._turn: ReplicaId | None = None
        self._turn_ends_s = 0.0
        self._closed = False

    # --- what the node wants --------------------------------------------------------------------------

    def start(self, replica: ReplicaId, preparation: QueryStep | None = None) -> None:
        """Start a replica's query on its checkpoint when its turn comes, or start it again."""
        with self._lock:
            query = self._queries.setdefault(replica, _Query())
            query.preparation = preparation or query.preparation
            query.wanted_s, query.dropped = self._clock_s(), False
            if replica not in self._wanted:
                self._wanted.append(replica)
            steps = self._next()
        _do(steps)

    def prepare(self, replica: ReplicaId, preparation: QueryStep) -> None:
        """What is to be done before a query is started the next time, when no other uses its checkpoint."""
        with self._lock:
            self._queries.setdefault(replica, _Query()).preparation = preparation

    def pause(self, replica: ReplicaId) -> None:
        """End a query that may be started again."""
        with self._lock:
            steps = self._stop(replica)
        _do(steps)

    def drop(self, replica: ReplicaId, then: QueryStep) -> None:
        """End the query of a replica that is not at work here any more, and do something when nothing of it runs."""
        with self._lock:
            query = self._queries.setdefault(replica, _Query())
            query.after.append(then)
            query.preparation, query.dropped = None, True
            steps = self._stop(replica)
        _do(steps)

    def leaving(self, replica: ReplicaId) -> bool:
        """Whether something is still to be done after the end of a replica's query."""
        query = self._queries.get(replica)
        return query is not None and bool(query.after)

    def asked(self, replica: ReplicaId) -> bool:
        """A query has asked the gate; False if it has been told to end, and the gate must not hear of it.

        What it asks would be taken for a question of the query that follows it, and split the rounds of either.
        """
        query = self._queries.get(replica)
        if query is not None and query.ending:
            return False
        if replica != self._turn:
            return True
        with self._lock:
            query = self._queries.get(replica)
            if query is None or replica != self._turn:
                return True
            query.asked = True
            steps = self._end_turn(replica) if query.stage is _Stage.RUNNING else []
        _do(steps)
        return True

    def close(self) -> None:
        """Start no query more, and end those that run."""
        with self._lock:
            self._closed = True
            self._wanted.clear()
        self._engine.close()

    # --- what becomes of them -------------------------------------------------------------------------

    def look(self) -> None:
        """Report queries that have ended by themselves, and wait no longer for those that take too long."""
        with self._lock:
            running = [(replica, q.life) for replica, q in self._queries.items() if q.stage is _Stage.RUNNING]
        found = [(replica, life, self._engine.failure(replica)) for replica, life in running]
        with self._lock:
            steps: list[QueryStep] = []
            for replica, life, failure in found:
                query = self._queries.get(replica)
                if failure is None or query is None or query.life != life or query.stage is not _Stage.RUNNING:
                    continue
                query.stage = _Stage.RESTING
                steps += [self._failed(replica, failure), *self._end_turn(replica)]
            steps += self._overdue(self._clock_s())
        _do(steps)

    def _overdue(self, now_s: float) -> list[QueryStep]:
        steps: list[QueryStep] = []
        for replica in [replica for replica in self._wanted if self._queries[replica].stage is _Stage.STOPPING]:
            since_s = self._queries[replica].wanted_s
            if since_s is not None and now_s - since_s > END_S:
                self._wanted.remove(replica)
                steps.append(self._failed(replica, f"its query did not end within {END_S:.0f} s"))
        turn = self._turn
        if turn is not None and now_s > self._turn_ends_s and self._queries[turn].stage is _Stage.RUNNING:
            steps += self._end_turn(turn)
        return steps

    def _started(self, replica: ReplicaId, failure: str | None) -> None:
        with self._lock:
            query = self._queries[replica]
            query.stage = _Stage.RESTING if failure is not None else _Stage.RUNNING
            if query.unwanted:
                steps = [*self._end(replica, query), *self._end_turn(replica)]
            elif failure is not None:
                steps = [self._failed(replica, failure), *self._end_turn(replica)]
            else:
                self._turn_ends_s = self._clock_s() + FIRST_QUESTION_S
                steps = self._end_turn(replica) if query.asked else []
        _do(steps)

    def _stopped(self, replica: ReplicaId) -> None:
        with self._lock:
            query = self._queries[replica]
            after, query.after = query.after, []
        try:
            _do(after)  # before the query may be started again, and not under the lock: it may take its time
        except OSError:
            log.exception("what follows the end of the query of %s failed", replica)
        with self._lock:
            query.stage = _Stage.RESTING
            if query.after:
                steps = self._end(replica, query)
            elif query.dropped:
                del self._queries[replica]
                steps = [partial(self._engine.forget, replica), *self._next()]
            else:
                steps = self._next()
        _do(steps)

    # --- decisions; what they lead to is done after the lock is released --------------------------------

    def _next(self) -> list[QueryStep]:
        """Start the first query that can be started; one that still runs is ended first."""
        if self._turn is not None or self._closed:
            return []
        steps: list[QueryStep] = []
        for replica in self._wanted:
            query = self._queries[replica]
            if query.stage is _Stage.RUNNING:
                steps += self._end(replica, query)
            elif query.stage is _Stage.RESTING:
                self._wanted.remove(replica)
                return [*steps, self._begin(replica, query)]
        return steps

    def _begin(self, replica: ReplicaId, query: _Query) -> QueryStep:
        self._turn = replica
        preparation, query.preparation = query.preparation, None
        query.stage, query.life, query.unwanted, query.asked = _Stage.STARTING, query.life + 1, False, False
        return partial(self._engine.start, replica, preparation, partial(self._started, replica))

    def _end_turn(self, replica: ReplicaId) -> list[QueryStep]:
        if self._turn != replica:
            return []
        self._turn = None
        return self._next()

    def _stop(self, replica: ReplicaId) -> list[QueryStep]:
        """A query is not wanted; one that is being started is ended when that is done."""
        query = self._queries.setdefault(replica, _Query())
        if replica in self._wanted:
            self._wanted.remove(replica)
        if query.stage is _Stage.STARTING:
            query.unwanted = True
            return []
        if query.stage is _Stage.STOPPING:
            return []
        return [*self._end(replica, query), *self._end_turn(replica)]

    def _end(self, replica: ReplicaId, query: _Query) -> list[QueryStep]:
        query.stage = _Stage.STOPPING
        return [partial(self._engine.stop, replica, partial(self._stopped, replica))]

    def _failed(self, replica: ReplicaId, reason: str) -> QueryStep:
        return partial(self._post, QueryFailed(replica, reason))


def _do(steps: list[QueryStep]) -> None:
    for step in steps:
        step()

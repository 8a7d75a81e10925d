"""Questions of queries to the gate of their replica, which wait for the loop's answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from unbroken.errors import UnbrokenError
from unbroken.node.replicas.queries import Queries
from unbroken.protocol.events import GateAsked
from unbroken.protocol.instructions import AnswerGate, RefuseGate
from unbroken.protocol.values.ids import ReplicaId
from unbroken.transport.calls import GateAnswer, GateQuestion

GRACE_S = 10.0
"""How long beyond the gate's own wait a question may take before its query fails."""


class GateClient:
    """Gives the loop a question of Spark's and waits for the answer, on the thread that asks."""

    def __init__(self, ask: Callable[[GateAsked], None], wait_ms: float, clock_ms: Callable[[], float]) -> None:
        self._ask = ask
        self._wait_ms = wait_ms
        self._clock_ms = clock_ms
        self._waiting: dict[int, Future[GateAnswer]] = {}
        self._tickets = itertools.count(1)

    def ask(self, question: GateQuestion) -> GateAnswer:
        """The offset up to which the next micro-batch goes.

        Raises
        ------
        UnbrokenError
            If the gate refuses the question, or does not answer in time.
        """
        ticket = next(self._tickets)
        future: Future[GateAnswer] = Future()
        self._waiting[ticket] = future
        deadline_ms = self._clock_ms() + self._wait_ms
        try:
            asked = GateAsked(question.replica, question.instance, question.start, ticket, deadline_ms, question.cut)
            self._ask(asked)
            return future.result(timeout=self._wait_ms / 1000 + GRACE_S)
        except (FutureTimeoutError, TimeoutError):
            # Answering "no data" on our own could split a round between two instances: fail the query instead.
            raise UnbrokenError(f"the gate of {question.replica} did not answer in time") from None
        finally:
            self._waiting.pop(ticket, None)

    def answer(self, step: AnswerGate) -> None:
        future = self._waiting.get(step.ticket)
        if future is not None and not future.done():
            future.set_result(GateAnswer(step.offset, step.cut))

    def refuse(self, step: RefuseGate) -> None:
        future = self._waiting.get(step.ticket)
        if future is not None and not future.done():
            future.set_exception(UnbrokenError(f"the gate refuses the question: {step.reason}"))

    def close(self) -> None:
        for future in list(self._waiting.values()):
            future.cancel()


class QueryGate:
    """Answers the questions of queries: those of made-up replicas at once, those of real ones by way of the loop.

    ``made_up`` answers for the made-up ones, and None for all others.
    """

    def __init__(
        self,
        gate: GateClient,
        queries: Callable[[], Queries | None],
        made_up: Callable[[ReplicaId, int], int | None],
    ) -> None:
        self._gate = gate
        self._queries = queries
        self._made_up = made_up

    def ask(self, question: GateQuestion) -> GateAnswer:
        """UnbrokenError if there is no answer: the query that asks fails, or is being ended."""
        if (made_up := self._made_up(question.replica, question.start)) is not None:
            return GateAnswer(made_up)
        queries = self._queries()
        if queries is not None and not queries.asked(question.replica):
            # Answering "no data" could split a round between two instances: the query is ending in any case.
            raise UnbrokenError(f"the query of {question.replica} is being ended")
        return self._gate.ask(question)

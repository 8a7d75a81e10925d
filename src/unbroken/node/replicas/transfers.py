"""Replicas' state on its way: who has asked for a pin, which copies are wanted, and when a copy counts.

The same decisions are made in a node, where files are linked and sent, and in the simulator.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from unbroken.errors import UnbrokenError
from unbroken.node.workers import Worker
from unbroken.protocol.events import Event, FetchFailed, PinAsked, StateArrived
from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.instructions import FetchState, PinState, RefusePin
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.recovery import StoredReplica

log = logging.getLogger(__name__)

Pin = TypeVar("Pin")
PinMade = TypeVar("PinMade", covariant=True)
Place = TypeVar("Place")

PinAnswer = Callable[[Pin | str], None]
"""Is given what was pinned, or why nothing was; from any thread."""


@dataclass(frozen=True)
class Copied(Generic[Place]):
    """A state that has come: where it is, and the bytes that came over the wire. ``place`` is None for the copy that
    this node holds already."""

    size: int
    place: Place | None = None
    admission: Admission | None = None


class Pinner(Protocol[PinMade]):
    """Takes hold of states for others."""

    def pin(self, step: PinState, answer: PinAnswer[PinMade]) -> None:
        """Take hold at once of what the loop may drop with its next event. Never waits; the rest is done apart."""


class Copier(Protocol[Place]):
    """Brings states here. All but ``copy`` is called where its result is reported, and may wait for the disk."""

    def copy(
        self, step: FetchState, abandoned: threading.Event, done: Callable[[Copied[Place] | BaseException], None]
    ) -> None:
        """Bring a state near, unless it is abandoned meanwhile. Never waits; ``done`` is given what has come of it."""

    def complete(self, step: FetchState, place: Place) -> Place:
        """Have all of a copy on disk as far as that is asked for; where it is to be adopted from."""

    def adopt(self, step: FetchState, place: Place) -> None:
        """Make it the directory of the replica. The loop may wait for this: nothing is forced."""

    def discard(self, step: FetchState, place: Place) -> None:
        """It is not wanted any more."""

    def settle(self, step: FetchState) -> None:
        """Have the adoption on disk as far as that is asked for."""

    def state(self, step: FetchState, admission: Admission | None) -> StoredReplica:
        """What the replica can continue from."""


class Transfers(Generic[Pin, Place]):
    """Carries out what the protocol says about state that moves between nodes.

    Invariants: each question for a pin is answered at most once. A copy that was abandoned is never adopted after
    that, and one that is adopted is on disk before it is there, and there before it counts.
    """

    def __init__(
        self,
        pinner: Pinner[Pin],
        copier: Copier[Place],
        worker: Worker,
        ask: Callable[[Event], None],
        post: Callable[[Event], None],
    ) -> None:
        self._pinner = pinner
        self._copier = copier
        self._worker = worker
        self._ask = ask
        self._post = post
        self._asked: dict[int, PinAnswer[Pin]] = {}
        self._tickets = itertools.count(1)
        self._fetches: dict[ReplicaId, threading.Event] = {}
        self._adopting = threading.Lock()

    # --- donor ----------------------------------------------------------------------------------------

    def ask(
        self,
        shard: ShardId,
        newcomer: NodeId,
        answer: PinAnswer[Pin],
        least: int = 0,
        needs: tuple[tuple[StreamId, int], ...] = (),
    ) -> int:
        """Have the present state of ``shard`` pinned for ``newcomer``; a ticket, to be forgotten in the end."""
        ticket = next(self._tickets)
        self._asked[ticket] = answer
        try:
            self._ask(PinAsked(shard, newcomer, ticket, least, needs))
        except BaseException:
            self.forget(ticket)
            raise
        return ticket

    def forget(self, ticket: int) -> None:
        """The answer is of no use any longer; what is pinned for it expires."""
        self._asked.pop(ticket, None)

    def pin(self, step: PinState) -> None:
        answer = self._asked.pop(step.ticket, None)
        if answer is not None:
            self._pinner.pin(step, answer)

    def refuse(self, step: RefusePin) -> None:
        answer = self._asked.pop(step.ticket, None)
        if answer is not None:
            answer(step.reason)

    # --- newcomer -------------------------------------------------------------------------------------

    def fetch(self, step: FetchState) -> None:
        abandoned = threading.Event()
        self._fetches[step.replica] = abandoned
        self._copier.copy(step, abandoned, partial(self._copied, step, abandoned))

    def begin(self, replica: ReplicaId, make: Callable[[], Place]) -> None:
        """Have a replica begin with nothing but what ``make`` gives it, on the worker; reported like a copy."""
        step, abandoned = FetchState(replica, None, replica.shard), threading.Event()
        self._fetches[replica] = abandoned
        self._worker.submit(partial(self._made, step, abandoned, make))

    def _made(self, step: FetchState, abandoned: threading.Event, make: Callable[[], Place]) -> None:
        found: Copied[Place] | BaseException
        try:
            found = Copied(0, make())
        except BaseException as error:
            found = error
        self._copied(step, abandoned, found)

    def abandon(self, replica: ReplicaId) -> None:
        abandoned = self._fetches.pop(replica, None)
        if abandoned is not None:
            with self._adopting:  # whoever continues with what is there must not find it replaced
                abandoned.set()

    def close(self) -> None:
        for abandoned in self._fetches.values():
            abandoned.set()

    def _copied(self, step: FetchState, abandoned: threading.Event, found: Copied[Place] | BaseException) -> None:
        try:
            if isinstance(found, BaseException):
                raise found
            if not self._adopted(step, abandoned, found):
                return
            state = self._copier.state(step, found.admission)
            self._post(StateArrived(step.replica, state, step.donor, found.size))
        except (UnbrokenError, OSError) as error:
            if not abandoned.is_set():
                log.info("the state of %s did not come from %s: %s", step.replica, step.donor, error)
                self._post(FetchFailed(step.replica, step.donor, str(error)))
        except BaseException as error:
            log.exception("the state of %s cannot be fetched", step.replica)
            self._post(FetchFailed(step.replica, step.donor, f"{type(error).__name__}: {error}"))

    def _adopted(self, step: FetchState, abandoned: threading.Event, found: Copied[Place]) -> bool:
        """Put a copy in its place; False if it is not wanted any more."""
        if found.place is None:
            return not abandoned.is_set()
        place = self._copier.complete(step, found.place)
        with self._adopting:
            wanted = not abandoned.is_set()
            if wanted:
                self._copier.adopt(step, place)
        if wanted:
            self._copier.settle(step)
        else:
            self._copier.discard(step, place)
        return wanted

"""Where producers hand in rows: which of them are to be logged, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from unbroken.connectors.push.http import PushOutcome
from unbroken.connectors.push.ledger import PushLedger
from unbroken.connectors.push.source import PushBatch, PushReader
from unbroken.node.ingress.surroundings import IngressNode
from unbroken.protocol.events import PushArrived
from unbroken.protocol.values.pause import Pause

PUSH_BUFFER_BYTES = 128 * 1024 * 1024
"""Pushed rows that are logged but not yet cut by a pulse; beyond it producers are asked to wait."""


def _paused(pause: Pause) -> str:
    why = f" ({pause.reason})" if pause.reason else ""
    return f"the flow is paused{why} and takes no rows until somebody says `unbroken resume`; send them again then"


class PushDesk:
    """Takes the rows of producers, from any thread, and hears from the log which of them are committed.

    Invariant: a producer whose batch is answered with "logged" has it in the log of every in-sync node.
    """

    def __init__(
        self,
        node: IngressNode,
        readers: Mapping[str, PushReader],
        ledgers: Mapping[str, PushLedger],
        now_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._readers = readers
        self._ledgers = ledgers
        self._now_ms = now_ms
        self._pending: dict[tuple[str, str, int], Future[None]] = {}
        self._lock = threading.Lock()

    def submit(self, batch: PushBatch, timeout_s: float) -> PushOutcome:
        """Log pushed rows on every in-sync ingress node; waits for it."""
        found = self.offer(batch)
        if isinstance(found, PushOutcome):
            return found
        try:
            found.result(timeout=timeout_s)
            return PushOutcome("logged", None, "logged on every in-sync ingress node")
        except (FutureTimeoutError, TimeoutError):
            self._give_up(batch)
            return PushOutcome("timeout", self._leader_address(), f"not logged within {timeout_s:g} s; send it again")

    def offer(self, batch: PushBatch) -> PushOutcome | Future[None]:
        """Have pushed rows logged, unless that is out of the question; the future is done when they are."""
        reader = self._readers.get(batch.source)
        if reader is not None and batch.sign == "alive":
            # Also where the ingress is not led: it may be in the next moment.
            reader.hear(batch, self._now_ms())
            return PushOutcome("logged", None, "heard")
        view = self._node.view
        if view is None or not view.leading:
            return PushOutcome("not-leader", self._leader_address(), "another node leads the ingress")
        if view.layout.pause is not None and not batch.sign:
            return PushOutcome("paused", None, _paused(view.layout.pause))
        if reader is None:
            return PushOutcome("refused", None, f"there is no push source {batch.source!r}")
        if reader.buffered_bytes > PUSH_BUFFER_BYTES:
            return PushOutcome("refused", None, "more is pushed than the flow can take; send it again in a while")
        ledger = self._ledgers[batch.source]
        with self._lock:
            offer = "new" if batch.sign else ledger.offer(batch.producer, batch.sequence)
            if offer == "duplicate":
                return PushOutcome("duplicate", None, "logged before")
            if offer == "out-of-order":
                return PushOutcome("refused", None, "a later batch of this producer is on its way already")
            future = self._pending.setdefault(_key(batch), Future())
            if offer != "pending":
                if not batch.sign:
                    ledger.begin(batch.producer, batch.sequence)
                self._node.post(PushArrived(batch.to_bytes()))
            return future

    def accept(self, batch: PushBatch) -> bool:
        """A batch is committed; False if its rows are in the log twice.

        Raises
        ------
        KeyError
            If there is no such source.
        """
        ledger = self._ledgers[batch.source]
        with self._lock:
            return bool(batch.sign) or ledger.accept(batch.producer, batch.sequence) != "duplicate"

    def answer(self, batch: PushBatch) -> None:
        """Let the producer of a committed batch know, if it waits here."""
        with self._lock:
            future = self._pending.pop(_key(batch), None)
        if future is not None and not future.done():
            future.set_result(None)

    def _give_up(self, batch: PushBatch) -> None:
        """Forget a push that was not committed in time; if it is after all, its resend is a duplicate in the log."""
        with self._lock:
            self._pending.pop(_key(batch), None)
            ledger, source = self._ledgers[batch.source], batch.source
            ledger.reset_pending([(other[1], other[2]) for other in self._pending if other[0] == source])

    def _leader_address(self) -> str | None:
        view = self._node.view
        member = None if view is None else self._node.members.get(view.sync.leader)
        return None if member is None else member.push


def _key(batch: PushBatch) -> tuple[str, str, int]:
    return batch.source, batch.producer, batch.sequence

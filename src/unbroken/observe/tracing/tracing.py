"""The thread that makes spans and hands them on, and the queue before it.

The node's loop only puts what it has seen into the queue, and never waits: what does not fit is dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from unbroken.observe.status.node import TraceCounts
from unbroken.observe.tracing.ids import Sampling
from unbroken.observe.tracing.incidents import IncidentSpans
from unbroken.observe.tracing.pulses import PulseSpans
from unbroken.observe.tracing.selection import notable
from unbroken.observe.tracing.spans import Seen, Span
from unbroken.protocol.events import Event, LinkLost, LinkUp
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.values.ids import NodeId

log = logging.getLogger(__name__)

Given = TypeVar("Given")

CLOSE_S = 2.0
"""How long the last spans may take to be handed on when a node ends; those that wait for longer are lost."""


@dataclass(frozen=True)
class Limits:
    """How much waits, and for how long, before it is handed on; the defaults are OpenTelemetry's."""

    queue: int = 2_048
    batch: int = 512
    delay_s: float = 5.0


class Exporter(Protocol):
    """Takes spans to where they are kept. It may take its time, and is called by one thread."""

    def export(self, spans: Sequence[Span]) -> bool:
        """Whether they were taken."""

    def close(self) -> None:
        """Give up what is under way; called by another thread."""


class Tracing:
    """The traces of one node.

    ``leading`` and ``incarnation`` are asked on the node's loop: whether the node leads the ingress, and which process
    another node is.
    """

    def __init__(
        self,
        sampling: Sampling,
        pulses: PulseSpans,
        incidents: IncidentSpans,
        exporter: Exporter,
        leading: Callable[[], bool],
        incarnation: Callable[[NodeId], str],
        limits: Limits | None = None,
    ) -> None:
        self._sampling = sampling
        self._pulses = pulses
        self._incidents = incidents
        self._exporter = exporter
        self._leading = leading
        self._incarnation = incarnation
        self._limits = limits or Limits()
        self._queue: queue.Queue[Seen | None] = queue.Queue(self._limits.queue)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._spans: list[Span] = []
        self._trouble = ""
        self.exported = 0
        self.dropped = 0
        self.failed = 0

    def start(self) -> None:
        self._thread.start()

    def seen(self, began_ns: int, event: Event, steps: Iterable[Instruction]) -> None:
        """The loop has handled an event and carried out what followed; returns at once."""
        matter = notable(event, steps, self._sampling)
        if matter is None:
            return
        other = self._incarnation(event.node) if isinstance(event, LinkUp | LinkLost) else ""
        try:
            self._queue.put_nowait(Seen(began_ns, time.time_ns(), event, matter, self._leading(), other))
        except queue.Full:
            self.dropped += 1

    def counts(self) -> TraceCounts:
        """Spans that were handed on, that did not fit into the queue, and that the receiver did not take."""
        return TraceCounts(exported=self.exported, dropped=self.dropped, failed=self.failed)

    def close(self, deadline_s: float = CLOSE_S) -> None:
        """Hand on what is there, as far as that is possible in time."""
        self._ending.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            log.debug("the queue of traces is full; what is in it is handed on first")
        if self._thread.ident is not None:
            self._thread.join(deadline_s)
        self._exporter.close()

    def _work(self) -> None:
        due = time.monotonic() + self._limits.delay_s
        while (seen := self._next(due)) is not None or not self._ending.is_set():
            if seen is not None:
                self._make(self._see, seen)
            if len(self._spans) >= self._limits.batch or time.monotonic() >= due:
                self._hand_on()
                due = time.monotonic() + self._limits.delay_s
        self._make(self._incidents.close, time.time_ns())
        self._hand_on()

    def _next(self, due: float) -> Seen | None:
        """What was seen next; None if there is nothing until it is time to hand on, or the node ends."""
        wait_s = 0.0 if self._ending.is_set() else due - time.monotonic()
        try:
            return self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None

    def _see(self, seen: Seen) -> list[Span]:
        found = self._incidents.see(seen)
        return [*found, *self._pulses.see(seen, self._incidents.under_way())]

    def _make(self, maker: Callable[[Given], list[Span]], given: Given) -> None:
        try:
            self._spans += maker(given)
        except Exception:
            # A trace that lacks something is no reason to end all of them.
            self.failed += 1
            log.exception("a span could not be made")

    def _hand_on(self) -> None:
        while self._spans:
            batch, self._spans = self._spans[: self._limits.batch], self._spans[self._limits.batch :]
            try:
                taken, trouble = self._exporter.export(batch), "they were not taken"
            except BaseException as error:
                taken, trouble = False, f"{type(error).__name__}: {error}"
            if taken:
                self.exported += len(batch)
                self._trouble = ""
                continue
            self.failed += len(batch)
            if self._trouble != trouble:
                self._trouble = trouble
                log.warning("traces cannot be handed on (%s); the flow goes on without them", trouble)

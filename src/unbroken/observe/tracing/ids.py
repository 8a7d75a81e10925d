"""The names of traces and spans, which every node works out for itself.

A trace is named by the run and the pulse (or the incident) that it follows, a span by what it is about: so a node that
takes a unit knows the span in which another node has offered it, and nothing has to travel along with the unit. The run
is part of it, because pulses count from 1 in each run.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId

TRACE_BYTES = 16
SPAN_BYTES = 8
"""The sizes that OpenTelemetry prescribes."""


@dataclass(frozen=True)
class SpanPlace:
    """A span as others can refer to it."""

    trace: int
    span: int


@dataclass(frozen=True)
class Sampling:
    """Which pulses are traced: every so many, the same ones on all nodes."""

    every: int

    def takes(self, pulse: int) -> bool:
        return pulse % self.every == 0


class Ids:
    """The names in one run of a flow."""

    def __init__(self, run: str) -> None:
        self._run = run

    # --- a pulse ---------------------------------------------------------------------------------------

    def cut(self, pulse: int) -> SpanPlace:
        """The sources were cut: the root of a pulse's trace."""
        return self._place(self._trace("pulse", pulse), "cut")

    def offer(self, pulse: int, producer: ShardId, number: int, node: NodeId) -> SpanPlace:
        """``node`` has unit ``number`` of a source or of a segment's shard, for whoever reads it."""
        return self._place(self._trace("pulse", pulse), "offer", producer, number, node)

    def receive(self, pulse: int, stream: StreamId, number: int, node: NodeId) -> SpanPlace:
        """The first copy of a unit came to ``node``."""
        return self._place(self._trace("pulse", pulse), "receive", stream, number, node)

    def micro_batch(self, pulse: int, shard: ShardId, number: int, node: NodeId) -> SpanPlace:
        return self._place(self._trace("pulse", pulse), "micro-batch", shard, number, node)

    def delivery(self, pulse: int, stream: StreamId, number: int, node: NodeId) -> SpanPlace:
        """``node`` handed a unit to its sink."""
        return self._place(self._trace("pulse", pulse), "deliver", stream, number, node)

    # --- incidents -------------------------------------------------------------------------------------

    def loss(self, node: NodeId, incarnation: str, by: NodeId) -> SpanPlace:
        """``by`` misses ``node``; those who miss the same process of it are in one trace."""
        return self._place(self._trace("loss", node, incarnation), "missed", by)

    def lead(self, term: int) -> SpanPlace:
        """The ingress got another leader although nobody is missed."""
        return self._place(self._trace("lead", term), "lead")

    def join(self, replica: ReplicaId) -> SpanPlace:
        """A replica is built and catches up; its name is used once in a run."""
        return self._place(self._trace("join", replica), "join")

    def end(self, replica: ReplicaId) -> SpanPlace:
        """A replica is not wanted any more where it is."""
        return self._place(self._trace("replica", replica), "drop")

    def within(self, whole: SpanPlace, *what: object) -> SpanPlace:
        """A part of ``whole``."""
        return self._place(whole.trace, whole.span, *what)

    def _trace(self, *what: object) -> int:
        return _hashed(TRACE_BYTES, self._run, *what)

    def _place(self, trace: int, *what: object) -> SpanPlace:
        return SpanPlace(trace, _hashed(SPAN_BYTES, self._run, trace, *what))


def _hashed(size: int, *what: object) -> int:
    text = "\0".join(str(part) for part in what)
    found = int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "big")
    return found or 1  # Zero stands for no name at all.

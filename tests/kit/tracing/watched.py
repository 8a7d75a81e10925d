"""A simulated flow whose nodes are traced: the real protocol makes the events, and virtual time their times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from unbroken.observe.tracing.ids import Ids, Sampling, SpanPlace
from unbroken.observe.tracing.incidents import IncidentSpans
from unbroken.observe.tracing.pulses import PulseSpans
from unbroken.observe.tracing.selection import notable
from unbroken.observe.tracing.spans import Seen, Span
from unbroken.protocol.combinations import separate_sources
from unbroken.protocol.events import Event, LinkLost, LinkUp
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken_lab.sim.world import Setup, World

RUN = "run-1"
SPENT = {"triggerExecution": 180.0, "addBatch": 120.0}


@dataclass
class Watched:
    """The spans that all nodes of a simulated run have made, by node."""

    every: int = 1
    world: World | None = None
    spans: list[tuple[NodeId, Span]] = field(default_factory=list)
    _makers: dict[int, tuple[PulseSpans, IncidentSpans]] = field(default_factory=dict)
    _kept: list[NodeProtocol] = field(default_factory=list)

    def of(self, name: str) -> list[Span]:
        """Spans whose names begin like that."""
        return [span for _, span in self.spans if span.name.split()[0] == name]

    def by_place(self) -> Mapping[SpanPlace, Span]:
        return {span.place: span for _, span in self.spans}

    def traces(self) -> dict[int, list[tuple[NodeId, Span]]]:
        out: dict[int, list[tuple[NodeId, Span]]] = {}
        for node, span in self.spans:
            out.setdefault(span.place.trace, []).append((node, span))
        return out

    def see(self, protocol: NodeProtocol, event: Event, steps: list[Instruction]) -> None:
        assert self.world is not None
        now_ns = int(self.world.kernel.now_ms * 1_000_000)
        sampling = Sampling(self.every)
        matter = notable(event, steps, sampling)
        pulses, incidents = self._maker(protocol, sampling, now_ns)
        if matter is None:
            return
        leading = protocol.sources is not None and protocol.sources.log.leading
        process = self.world.machines[event.node].process if isinstance(event, LinkUp | LinkLost) else None
        seen = Seen(now_ns, now_ns, event, matter, leading, "" if process is None else str(id(process)))
        found = [*incidents.see(seen), *pulses.see(seen, incidents.under_way())]
        self.spans += [(protocol.me, span) for span in found]

    def _maker(self, protocol: NodeProtocol, sampling: Sampling, now_ns: int) -> tuple[PulseSpans, IncidentSpans]:
        if id(protocol) not in self._makers:
            assert self.world is not None
            ids = Ids(RUN)
            self._kept.append(protocol)  # A name that is used again would be another node's.
            self._makers[id(protocol)] = (
                PulseSpans(protocol.me, ids, sampling, _spent, separate_sources(protocol.topology)),
                IncidentSpans(protocol.me, ids, protocol.layout, protocol.sync, now_ns),
            )
        return self._makers[id(protocol)]


def _spent(replica: ReplicaId, number: int) -> Mapping[str, float]:
    return SPENT


@contextmanager
def watched(setup: Setup, seed: int = 1, every: int = 1) -> Iterator[tuple[World, Watched]]:
    """A run of ``setup``, and the spans of all its nodes."""
    out = Watched(every)
    handle = NodeProtocol.handle

    def observed(self: NodeProtocol, event: Event, now_ms: float) -> list[Instruction]:
        steps = handle(self, event, now_ms)
        if out.world is not None:  # Nothing of a pulse happens while the world is being made.
            out.see(self, event, steps)
        return steps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeProtocol, "handle", observed)
        out.world = World(setup, seed)
        yield out.world, out

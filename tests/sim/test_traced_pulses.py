"""The spans of pulses in simulated flows: complete, connected, and the same trace on all nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kit.tracing.watched import SPENT, Watched, watched
from unbroken.observe.tracing.spans import Span
from unbroken.protocol.values.layout import Topology
from unbroken_lab.sim.flows import chain, diamond, join
from unbroken_lab.sim.world import SETTINGS, Setup, World

CLOCKED = {"skewed": False, "check_every": 0}
"""Clocks that agree, so that times can be compared."""


def run(world: World, end_ms: float = 4_000.0) -> None:
    world.sources.end_ms = end_ms
    while (reason := world.at_rest()) is not None:
        assert world.kernel.now_ms < end_ms + 20_000.0, reason
        world.kernel.run(world.kernel.now_ms + 250.0, 1_000_000)


def way_up(span: Span, seen: Watched) -> list[str]:
    """The kinds of spans from one up to the root of its trace."""
    spans, out = seen.by_place(), [span.name.split()[0]]
    while span.parent is not None:
        span = spans[span.parent]
        out.append(span.name.split()[0])
    return out


def check_connected(seen: Watched) -> None:
    spans = seen.by_place()
    for _, span in seen.spans:
        assert span.parent is None or span.parent in spans, f"the parent of {span} is nowhere"
        assert all(place in spans for place in span.links), f"{span} is linked to nothing"


@pytest.mark.parametrize("topology", [chain((1,)), chain((2, 1, 2)), join(2), diamond(2)], ids=["1", "3", "join", "d"])
def test_a_trace_goes_from_the_cut_to_the_sinks(topology: Topology) -> None:
    with watched(Setup(topology, 3, **CLOCKED)) as (world, seen):  # type: ignore[arg-type]
        run(world)
    check_connected(seen)
    roots = seen.of("cut")
    assert len(roots) > 10 and [span.attributes["unbroken.pulse"] for span in roots] == list(range(1, len(roots) + 1))
    assert len({span.place for _, span in seen.spans}) == len(seen.spans), "a name is used twice"
    segments = len(topology.segments)
    for span in seen.of("deliver"):
        path = way_up(span, seen)
        assert path[-2:] == ["read", "cut"]
        hops = (len(path) - 3) // 3
        assert 1 <= hops <= segments and path[:-2] == ["deliver", *["offer", "micro-batch", "receive"] * hops]
    delivered = {span.attributes["unbroken.pulse"] for span in seen.of("deliver")}
    assert delivered == set(range(1, len(roots) + 1))


def test_all_nodes_contribute_to_one_trace() -> None:
    with watched(Setup(chain((1, 1)), 3, **CLOCKED)) as (world, seen):  # type: ignore[arg-type]
        run(world)
    for spans in seen.traces().values():
        assert {node for node, _ in spans} == {"node-1", "node-2", "node-3"}
        names = Counter(span.name for _, span in spans)
        assert names["cut"] == 1
        assert names["micro-batch s0"] == names["offer s0"] == 2, "both replicas"
        assert names["receive s1"] == 2, "only the first copy, by each replica"
        assert sum(names[f"read {source}"] for source in chain((1, 1)).sources) == 2


def test_times_and_facts_are_those_of_the_flow() -> None:
    with watched(Setup(chain((1, 1)), 3, **CLOCKED)) as (world, seen):  # type: ignore[arg-type]
        run(world)
    spans = seen.by_place()
    for batch in seen.of("micro-batch"):
        assert batch.attributes["unbroken.spark.addBatch_ms"] == SPENT["addBatch"]
        assert [moment.name for moment in batch.moments][-1:] == ["the result is written"]
        assert batch.parent is not None and spans[batch.parent].end_ns <= batch.start_ns < batch.end_ns
        assert all(moment.time_ns <= batch.end_ns for moment in batch.moments)
    for root in seen.of("cut"):
        assert [moment.name for moment in root.moments][:1] == ["sources have answered"]
        reads = [span for span in seen.of("read") if span.parent == root.place]
        assert root.attributes["unbroken.rows"] == max(int(str(span.attributes["unbroken.rows"])) for span in reads)
    copies = [moment for span in seen.of("micro-batch") for moment in span.moments if "another copy" in moment.name]
    assert copies, "later copies are told of where they came in time"


def test_one_pulse_of_so_many_is_traced_and_the_same_by_all() -> None:
    with watched(Setup(chain((1, 1)), 3, **CLOCKED), every=5) as (world, seen):  # type: ignore[arg-type]
        run(world)
    check_connected(seen)
    assert {span.attributes["unbroken.pulse"] for _, span in seen.spans} == {
        pulse for pulse in range(1, len(seen.of("cut")) * 5 + 1) if pulse % 5 == 0
    }
    assert len(seen.of("cut")) > 2 and len(seen.of("deliver")) >= len(seen.of("cut"))


@pytest.mark.parametrize("changes", [{"led": frozenset({"s0", "s1"})}, {"bucketed": True}], ids=["leader", "bucket"])
def test_other_orders_are_traced_too(changes: dict[str, object]) -> None:
    """Units do not have the numbers of pulses there, or pulses do not have those of the log."""
    topology = replace(chain((1, 1)), **changes)  # type: ignore[arg-type]
    with watched(Setup(topology, 3, **CLOCKED)) as (world, seen):  # type: ignore[arg-type]
        run(world)
    spans = seen.by_place()
    lost = [span for _, span in seen.spans if span.parent is not None and span.parent not in spans]
    assert not lost, lost[:3]
    assert len(seen.of("deliver")) > 5
    assert all(way_up(span, seen)[-1] == "cut" for span in seen.of("deliver"))


def test_single_delivery_is_received_once() -> None:
    settings = replace(SETTINGS, single_delivery=True)
    with watched(Setup(chain((1, 1)), 3, settings=settings, **CLOCKED)) as (world, seen):  # type: ignore[arg-type]
        run(world)
    check_connected(seen)
    assert not [moment for span in seen.of("micro-batch") for moment in span.moments if "another" in moment.name]

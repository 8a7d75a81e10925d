"""Redundancy, lag, gap and latency as the protocol object of a node shows them."""

from __future__ import annotations

from dataclasses import replace

from kit.protocol_node import INPUT, MINE, OUTPUT, SHARD, SIBLING, ask, node
from kit.topologies import chain
from unbroken.node.reports.health import Lateness, redundancy, timing
from unbroken.protocol.events import LinkLost, LinkUp, Produced, ReplicaStopped, UnitArrived
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.units import Digest, UnitHeader

CLOCK_MS = 1_000_000.0
"""The time of day when the protocol's own time is 0."""


def linked() -> NodeProtocol:
    b = node("b")
    for name in ("a", "b"):
        b.handle(LinkUp(name), 0)
    return b


def cut(number: int, at_ms: float, stream: object = INPUT) -> UnitHeader:
    return UnitHeader(stream, number, number, int(CLOCK_MS + at_ms), Digest(1, 1))  # type: ignore[arg-type]


def times(b: NodeProtocol, now_ms: float) -> Lateness:
    return timing(b, b.replicas[MINE], now_ms, CLOCK_MS + now_ms)


def test_with_every_link_up_every_shard_is_redundant() -> None:
    found = redundancy(linked())
    assert set(found) == {"ingress.0", "s0.0"}
    for facts in found.values():
        assert (facts.wanted, facts.full, facts.reachable, facts.joining) == (2, 2, 2, 0)
        assert not facts.degraded and facts.short_since_ms is None


def test_a_broken_link_is_known_before_the_controller_says_so() -> None:
    b = linked()
    b.handle(LinkLost("a"), 10)
    facts = redundancy(b)["s0.0"]
    assert facts.full == 2 and facts.reachable == 1 and facts.degraded


def test_the_controllers_word_counts_as_long_as_it_stands() -> None:
    b = linked()
    b.around.layout = replace(b.layout, short_since={SHARD: 123})
    facts = redundancy(b)["s0.0"]
    assert facts.degraded and facts.short_since_ms == 123 and facts.reachable == 2
    b.around.layout = replace(b.layout.without([SIBLING]), short_since={SHARD: 123})
    b.around.layout, _ = b.layout.with_joining(SHARD, "a")
    facts = redundancy(b)["s0.0"]
    assert (facts.full, facts.reachable, facts.joining) == (1, 1, 1)


def test_a_replica_that_has_stopped_here_does_not_count() -> None:
    b = linked()
    b.handle(ReplicaStopped(MINE, "broken"), 5)
    assert redundancy(b)["s0.0"].reachable == 1


def test_a_node_outside_of_the_in_sync_set_is_no_redundancy_of_the_ingress() -> None:
    b = linked()
    b.around.sync = replace(b.sync, members=frozenset({"a"}))
    assert redundancy(b)["ingress.0"].reachable == 1
    assert redundancy(b)["s0.0"].reachable == 2


def test_lag_is_the_age_of_the_oldest_input_that_is_not_processed() -> None:
    b = linked()
    assert times(b, 100) == Lateness(0.0), "nothing has come, and nothing was produced yet"
    b.handle(UnitArrived(cut(1, 50), "a"), 100)
    b.handle(UnitArrived(cut(2, 150), "a"), 200)
    assert times(b, 300).lag_ms == 250
    b.handle(ask(0), 300)
    b.handle(Produced(MINE, 1, (cut(1, 50, OUTPUT),)), 400)
    assert times(b, 500).lag_ms == 350, "the second one is the oldest"


def test_gap_and_latency_are_counted_from_the_newest_result() -> None:
    b = linked()
    b.handle(UnitArrived(cut(1, 50), "a"), 100)
    b.handle(ask(0), 100)
    b.handle(Produced(MINE, 1, (cut(1, 50, OUTPUT),)), 400)
    assert times(b, 450) == Lateness(0.0, 50.0, 350.0)
    b.handle(ask(1), 500)
    assert times(b, 900) == Lateness(0.0, 500.0, 350.0), "also when it is committed"


def test_a_flow_that_has_ended_has_no_gap() -> None:
    b = linked()
    b.handle(UnitArrived(replace(cut(1, 50), final=True), "a"), 100)
    b.handle(ask(0), 100)
    b.handle(Produced(MINE, 1, (replace(cut(1, 50, OUTPUT), final=True),)), 400)
    assert times(b, 450).gap_ms is None


def test_only_what_feeds_a_sink_has_an_output_gap() -> None:
    b = node("b", chain((1, 1)), ("a", "b", "c"))
    between = next(iter(b.outboxes.boxes))
    b.handle(UnitArrived(cut(1, 50), "a"), 100)
    b.handle(ask(0), 100)
    b.handle(Produced(MINE, 1, (cut(1, 50, between),)), 400)
    found = times(b, 450)
    assert found.gap_ms is None and found.latency_ms == 350

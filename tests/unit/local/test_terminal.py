"""When a bounded flow counts as ended, and what is shown of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from kit.statuses import status
from kit.topologies import chain
from unbroken.local.terminal import has_ended, readers_behind, status_view
from unbroken.observe.status.node import NodeStatus
from unbroken.observe.status.notices import status_of
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.ingress import IngressLed

TOPOLOGY = chain((1, 2))
CLIENT = replace(TOPOLOGY, client_sinks=frozenset({"sink"}))


def node(
    name: str, produced: dict[str, int], *, ended: bool = True, delivered: dict[str, int] | None = None, **more: Any
) -> NodeStatus:
    return status(
        name,
        ingress={"pulse": 9, "ended": ended, "leading": True, "period_ms": 250.0},
        replicas=[{"replica": replica, "produced": count} for replica, count in produced.items()],
        sinks={stream: {"delivered": count} for stream, count in (delivered or {}).items()},
        **more,
    )


ALL = {"s0.0#0": 9, "s1.0#0": 9, "s1.1#0": 9}


def test_a_flow_without_an_end_goes_on() -> None:
    assert not has_ended(CLIENT, [node("a", ALL, ended=False)])
    assert not has_ended(CLIENT, [])


def test_every_shard_must_have_produced_the_final_pulse_by_some_replica() -> None:
    assert has_ended(CLIENT, [node("a", ALL)])
    slow = {"s0.0#0": 9, "s1.0#0": 9, "s1.1#0": 8}
    assert not has_ended(CLIENT, [node("a", slow)])
    assert has_ended(CLIENT, [node("a", slow), node("b", {"s1.1#1": 9})])
    unheard = {"s0.0#0": 9, "s1.0#0": 9}
    assert not has_ended(CLIENT, [node("a", unheard), status("b", "silent")])


def test_sinks_that_nodes_write_to_must_have_everything() -> None:
    assert not has_ended(TOPOLOGY, [node("a", ALL)])
    half = {"s1.0>sink.0": 9, "s1.1>sink.0": 8}
    assert not has_ended(TOPOLOGY, [node("a", ALL, delivered=half)])
    assert has_ended(TOPOLOGY, [node("a", ALL, delivered=half), node("b", {}, delivered={"s1.1>sink.0": 9})])


def test_readers_are_behind_until_they_have_taken_what_is_there() -> None:
    def box(last: int, **readers: int) -> NodeStatus:
        return status(outboxes={"s1.0>sink.0": {"last": last, "readers": readers}})

    assert not readers_behind([status(outboxes={"s0.0>s1.0": {"last": 9}})])
    assert readers_behind([box(9, client=8), box(7, client=8)])
    assert not readers_behind([box(9, client=9), box(7, client=7)])


def test_the_view_shows_push_addresses_reports_and_who_is_dead() -> None:
    running = node("a", ALL, push="10.0.0.7:80", notices=[status_of(Reported(0, "a", IngressLed("a", 2)))])
    dead = status("b", "dead", reason="killed by signal 9")
    console = Console(width=200, record=True)
    with console.capture() as captured:
        console.print(status_view("orders", [running, dead], zookeeper_away=True))
    text = captured.get()
    for part in ("http://10.0.0.7:80", "a: a leads the ingress", "dead", "killed by signal 9", "ZooKeeper is away"):
        assert part in text

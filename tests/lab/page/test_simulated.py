"""A simulated flow on a page: it looks like a real one, and what is done to it shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from unbroken.errors import InvariantViolation, Refused
from unbroken.page.actions import ActionRequest
from unbroken.page.feed import Known, PageFeed
from unbroken_lab.page.simulated import SimulatedFlow
from unbroken_lab.page.stages import SPARK, flow_of, many, shop, some_faults
from unbroken_lab.sim.flows import chain


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Shown:
    """A page of a simulated flow, looked at whenever a second has passed."""

    def __init__(self, flow: SimulatedFlow) -> None:
        self.clock = Clock()
        self.flow = flow
        flow.warm_up(6_000)
        flow._clock, flow._seen_s = self.clock, 0.0
        self.feed = PageFeed(flow.look)

    def after(self, seconds: int) -> dict[str, Any]:
        for _ in range(seconds):
            self.clock.now_s += 1.0
            update = self.feed.turn()
        told: dict[str, Any] = json.loads(update.since(Known())[0])
        return told

    def until(self, true: Callable[[dict[str, Any]], object], most_s: int = 40) -> dict[str, Any]:
        """The first update of which something is true."""
        for _ in range(most_s):
            update = self.after(1)
            if true(update["view"]):
                return update
        raise AssertionError(f"it was not so within {most_s} s: {update['view']['counts']}")


def is_whole(view: dict[str, Any]) -> bool:
    return bool(view["redundancy"]["whole"])


@pytest.fixture
def shown() -> Shown:
    """Three nodes with a chain of two segments, the first in two shards."""
    return Shown(flow_of(chain((2, 1)), 3, "small", 2_000.0, SPARK))


def test_a_flow_that_is_well(shown: Shown) -> None:
    view = shown.after(8)["view"]
    assert is_whole(view)
    assert {look: count for look, count in view["counts"].items() if count} == {"active": 8}
    assert [part["name"] for part in view["parts"]] == ["ingress", "s0", "s1", "sink"]
    works = [replica for replica in view["replicas"] if replica["shard"] != "ingress.0"]
    assert all(replica["split"]["query"] > 50 and replica["state_bytes"] for replica in works)
    samples = shown.after(1)["samples"]
    assert samples["rows_per_s"][-1] == pytest.approx(2_000, rel=0.3)
    assert samples["units_per_s"][-1] == pytest.approx(1, rel=0.3)
    assert 50 < samples["latency_p50_ms"][-1] < 1_500
    assert samples["gap_ms"][-1] < 3_000


def test_a_killed_node_is_dead_then_replaced_then_back(shown: Shown) -> None:
    shown.after(2)
    assert shown.flow.do(ActionRequest("kill", "node-2")) == "node-2 was killed; it is started again in 6 s"
    update = shown.after(1)
    assert update["view"]["counts"]["dead"] >= 2
    assert not is_whole(update["view"])
    assert "loss" in [mark["effect"] for mark in update["marks"]]
    shown.until(lambda view: view["counts"]["joining"])
    shown.until(is_whole)
    update = shown.after(10)
    found = [(one["kind"], one["fields"]) for one in update["history"]]
    assert ("node_dead", {"node": "node-2", "detail": "killed by signal 9"}) in found
    assert ("node_back", {"node": "node-2", "silent": False}) in found
    assert any(kind == "shard_redundant" and fields["again"] for kind, fields in found)
    assert "repair" in [mark["effect"] for mark in update["marks"]]
    assert max(gap for gap in update["samples"]["gap_ms"] if gap is not None) < 5_000, "results went on"


def test_a_frozen_node_is_suspected_and_goes_on(shown: Shown) -> None:
    shown.after(1)
    shown.flow.do(ActionRequest("freeze", "node-3"))
    view = shown.after(1)["view"]
    assert view["counts"]["suspected"] >= 2
    assert next(node for node in view["nodes"] if node["node"] == "node-3")["frozen"] is True
    with pytest.raises(Refused, match="frozen already"):
        shown.flow.do(ActionRequest("freeze", "node-3"))
    shown.after(6)
    shown.flow.do(ActionRequest("thaw", "node-3"))
    shown.until(is_whole)


def test_a_node_is_drained(shown: Shown) -> None:
    def node(view: dict[str, Any]) -> dict[str, Any]:
        return next(one for one in view["nodes"] if one["node"] == "node-3")

    shown.after(1)
    shown.flow.do(ActionRequest("drain", "node-3"))
    view = shown.until(lambda view: node(view)["draining"] and not node(view)["replicas"])["view"]
    assert is_whole(view)
    with pytest.raises(Refused, match="cannot be drained"):
        shown.flow.do(ActionRequest("drain", "node-2"))
    shown.flow.do(ActionRequest("undrain", "node-3"))
    with pytest.raises(Refused, match="not being drained"):
        shown.flow.do(ActionRequest("undrain", "node-3"))


def test_a_replica_is_built_again(shown: Shown) -> None:
    view = shown.after(1)["view"]
    before = [replica for replica in view["replicas"] if replica["shard"] == "s0.0"]
    shown.flow.do(ActionRequest("reinit", before[1]["node"], "s0.0"))
    gone = before[1]["replica"]
    shown.until(lambda view: gone not in [replica["replica"] for replica in view["replicas"]] and is_whole(view))


def test_what_cannot_be_done(shown: Shown) -> None:
    for wish in (
        ActionRequest("drain", "node-99"),
        ActionRequest("nonsense", "node-1"),
        ActionRequest("thaw", "node-1"),
        ActionRequest("undrain", "node-1"),
        ActionRequest("reinit", "node-1", "nonsense"),
        ActionRequest("reinit", "node-1", "s0.99"),
    ):
        with pytest.raises(Refused):
            shown.flow.do(wish)


def test_the_past_is_made_before_it_is_seen(shown: Shown) -> None:
    first = shown.after(1)["view"]["time_ms"]
    with pytest.raises(InvariantViolation):
        shown.flow.warm_up(1_000)
    shown.clock.now_s += 3_600
    assert shown.flow.look().time_ms - first < 5_000, "time stands still while nobody looks"


def test_a_flow_of_the_size_that_is_asked_for() -> None:
    for wanted in (40, 200):
        flow: SimulatedFlow = many(wanted)
        placed = len(flow.world.zookeeper.layout.placement)
        assert abs(placed - wanted) <= 0.15 * wanted
    some_faults(flow, seed=1)
    assert flow.look().layout is not None


def test_tentative_results_are_shown() -> None:
    """Both replicas of a producer are frozen: what takes its rows goes on without them, tentatively."""
    shown = Shown(shop())
    view = shown.after(1)["view"]
    for host in [replica["node"] for replica in view["replicas"] if replica["shard"] == "baskets.0"]:
        shown.flow.do(ActionRequest("freeze", host))
    view = shown.until(lambda view: view["counts"]["tentative"])["view"]
    assert any("goes on without it" in replica.get("why", "") for replica in view["replicas"])
    assert view["counts"]["suspected"]

"""How redundant a flow is, and since when."""

from __future__ import annotations

import dataclasses
from typing import Any

from kit.page.flows import NOW_MS, PLACES, dead, layout, redundancy, silent, snapshot, states, told
from unbroken.page.redundancy import FlowRedundancy, RedundancyWatch
from unbroken.page.replicas import replica_views
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import FirstLayout

BEGAN = told(FirstLayout(("a", "b", "c")), -60_000)


def look(watch: RedundancyWatch, seen: FlowSnapshot, *history: Reported) -> FlowRedundancy:
    return watch.look(seen, replica_views(seen), history or (BEGAN,))


def at(moment: int, found: dict[str, dict[str, Any]] | None = None, **changes: Any) -> FlowSnapshot:
    return dataclasses.replace(snapshot(found, **changes), time_ms=NOW_MS + moment)


def test_a_flow_that_is_whole_since_it_began() -> None:
    found = look(RedundancyWatch(), at(0))
    assert (found.whole, found.since_ms) == (True, BEGAN.time_ms)
    assert found.sentence == "Every shard has all its replicas. Any node may be lost."


def test_nobody_has_said_anything() -> None:
    found = look(RedundancyWatch(), at(0, {"a": {"node": "a", "state": "starting"}}, layout=None))
    assert (found.whole, found.since_ms) == (None, None)
    assert found.sentence == "No node has said yet how the flow is."


def test_a_dead_node_makes_shards_short_at_once() -> None:
    watch = RedundancyWatch()
    look(watch, at(0))
    found = look(watch, at(1_000, states() | {"c": dead("c")}))
    assert (found.whole, found.since_ms) == (False, NOW_MS + 1_000)
    assert [(short.shard, short.there, short.missing) for short in found.shards] == [("sums.1", 1, 0)]
    assert found.needed == ("b",)
    assert found.sentence == (
        "sums.1 has fewer replicas than wanted. b has the last replica of a shard: do not stop it."
    )


def test_a_silent_node_counts_as_little() -> None:
    found = look(RedundancyWatch(), at(0, states() | {"b": silent("b")}))
    assert [short.shard for short in found.shards] == ["ingress.0", "sums.0", "sums.1"]
    assert found.needed == ("a", "c")


def test_a_place_that_nobody_has_is_missing() -> None:
    places = {name: where for name, where in PLACES.items() if where != "c"}
    since = {ShardId("sums", 1): NOW_MS - 9_000}
    found = look(RedundancyWatch(), at(0, states() | {"c": dead("c")}, layout=layout(places, short_since=since)))
    short = found.of("sums.1")
    assert short is not None
    assert (short.missing, short.since_ms, found.since_ms) == (1, NOW_MS - 9_000, NOW_MS - 9_000)
    assert found.of("sums.0") is None


def test_one_that_joins_does_not_count_yet() -> None:
    joining = frozenset({ReplicaId.parse("sums.1#1")})
    found = look(RedundancyWatch(), at(0, layout=layout(joining=joining)))
    assert [(short.there, short.joining, short.missing) for short in found.shards] == [(1, 1, 0)]


def test_redundancy_that_is_back_is_back_since_then() -> None:
    watch = RedundancyWatch()
    look(watch, at(0))
    look(watch, at(1_000, states() | {"c": dead("c")}))
    found = look(watch, at(9_000))
    assert (found.whole, found.since_ms) == (True, NOW_MS + 9_000)
    assert look(watch, at(20_000)).since_ms == NOW_MS + 9_000


def test_a_shard_that_nobody_works_on() -> None:
    found = look(RedundancyWatch(), at(0, states() | {"b": dead("b"), "c": dead("c")}))
    assert found.sentence == "Nobody works on sums.1; results wait until a replica is back."


def test_a_flow_without_replicas_may_not_lose_a_node() -> None:
    found = states()
    for state in found.values():
        state["redundancy"] = redundancy(1) | {"ingress.0": {"wanted": 2}}
    told_of = look(RedundancyWatch(), at(0, found))
    assert told_of.whole is True
    assert told_of.sentence == "Every shard has all its replicas. sums.0 and sums.1 are to have no second one."


def test_many_shards_are_not_all_named() -> None:
    found = states()
    for state in found.values():
        state["redundancy"] = {f"sums.{i}": {"wanted": 2} for i in range(9)}
    places = {f"sums.{i}#0": "a" for i in range(9)}
    text = look(RedundancyWatch(), at(0, found, layout=layout(places))).sentence
    assert text.startswith("Nobody works on sums.1, sums.2, sums.3, sums.4 and 4 more;")

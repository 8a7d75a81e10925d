"""When the directory of a replica that has no place here may be removed."""

from __future__ import annotations

from protocol.model_parts import chain
from unbroken.protocol.ids import ReplicaId, ShardId
from unbroken.protocol.layout import chained_placement
from unbroken.protocol.retirement import SAFE_S, Retirement, superseded

TOPOLOGY = chain((1,))
S0 = ShardId("s0", 0)
LAYOUT = chained_placement(TOPOLOGY, {"a": "1", "b": "2"}, "run")
MINE = LAYOUT.nodes_of(S0)["a"]


def test_it_stays_until_its_shard_is_redundant_elsewhere_for_a_while() -> None:
    retirement = Retirement("a")
    lonely, newcomer = LAYOUT.without([MINE]).with_joining(S0, "c")
    whole = lonely.with_full([newcomer])
    assert retirement.removable([MINE], lonely, TOPOLOGY, 0) == []
    assert retirement.removable([MINE], lonely, TOPOLOGY, 10 * SAFE_S) == [], "one replica is no redundancy"
    assert retirement.removable([MINE], whole, TOPOLOGY, 10 * SAFE_S) == []
    assert retirement.removable([MINE], lonely, TOPOLOGY, 10 * SAFE_S + 1) == [], "lost again: it begins anew"
    assert retirement.removable([MINE], whole, TOPOLOGY, 11 * SAFE_S) == []
    assert retirement.removable([MINE], whole, TOPOLOGY, 12 * SAFE_S - 1) == []
    assert retirement.removable([MINE], whole, TOPOLOGY, 12 * SAFE_S) == [MINE]


def test_one_that_was_rebuilt_here_counts_once_it_is_full() -> None:
    retirement = Retirement("a")
    layout, again = LAYOUT.without([MINE]).with_joining(S0, "a")
    assert retirement.removable([MINE], layout, TOPOLOGY, 0) == []
    assert retirement.removable([MINE], layout.with_full([again]), TOPOLOGY, 1) == []
    assert retirement.removable([MINE], layout.with_full([again]), TOPOLOGY, 1 + SAFE_S) == [MINE]


def test_code_that_has_ended_needs_nothing() -> None:
    old = ReplicaId(ShardId("s0@7", 0), 0)
    retirement = Retirement("a")
    assert retirement.removable([old], LAYOUT, TOPOLOGY, 0) == []
    assert retirement.removable([old], LAYOUT, TOPOLOGY, SAFE_S) == [old]


def test_at_most_one_of_a_shard_is_kept() -> None:
    retired = [ReplicaId(S0, index) for index in (1, 12, 3)] + [ReplicaId(ShardId("s0", 1), 2)]
    assert superseded(retired) == [ReplicaId(S0, 1), ReplicaId(S0, 3)]

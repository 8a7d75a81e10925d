"""When the directory of a replica that has no place here may be removed."""

from __future__ import annotations

from kit.topologies import chain
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.placement.retirement import SAFE_S, Retirement, SetAside, contained
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS

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


def aside(index: int, reach: int | None, unbroken: bool = True, shard: ShardId = S0, name: str = "") -> SetAside:
    replica = ReplicaId(shard, index)
    return SetAside(name or str(replica), replica, reach, unbroken)


def test_an_earlier_one_goes_if_a_later_one_contains_its_state() -> None:
    other = aside(2, 5, shard=ShardId("s0", 1))
    assert contained([aside(1, 10), aside(12, 90), aside(3, 40), other]) == [aside(1, 10), aside(3, 40)]
    twice = [aside(1, 10), aside(1, 10, name=f"{ReplicaId(S0, 1)}~2")]
    assert contained(twice) == twice[:1], "of two that are the same one stays"


def test_nothing_goes_that_is_not_proven_to_be_in_another_one() -> None:
    kept = aside(1, 10)
    assert contained([kept, aside(4, 9)]) == [aside(4, 9)], "a later one from an older snapshot goes itself"
    for later in (
        aside(4, 0),
        aside(4, 99, unbroken=False),
        aside(4, None),
        aside(4, 99, shard=ShardId("s0", 1)),
    ):
        assert kept not in contained([kept, later])
    unknown = aside(1, None)
    assert contained([unknown, aside(4, 99)]) == []
    assert contained([aside(1, 0), aside(4, 0)]) == []
    assert contained([aside(1, 5, shard=INGRESS), aside(2, 9, shard=INGRESS)]) == [], "it may end in other entries"

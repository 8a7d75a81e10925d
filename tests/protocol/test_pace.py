"""How far the slowest shard is that sources have to wait for."""

from __future__ import annotations

from protocol.consistency_schedules import join_of_two
from protocol.model_parts import diamond
from unbroken.protocol.ids import ReplicaId, ShardId
from unbroken.protocol.layout import Topology, chained_placement
from unbroken.protocol.pace import BEHIND, slowest

JOIN, DIAMOND = join_of_two(), diamond()
"""left > a, right > b, (a, b) > join > last, and source > a > (b, c) > d; two replicas of each."""


def pulses(**parts: int | tuple[int, int]) -> dict[ReplicaId, int]:
    out: dict[ReplicaId, int] = {}
    for part, number in parts.items():
        both = (number, number) if isinstance(number, int) else number
        out |= {ReplicaId(ShardId(part, 0), index): pulse for index, pulse in enumerate(both)}
    return out


def reached(
    topology: Topology, progress: dict[ReplicaId, int], ahead: dict[ReplicaId, int] | None = None, newest: int = 10
) -> int:
    layout = chained_placement(topology, {f"n{i}": f"disk{i}" for i in range(4)})
    return slowest(topology, layout, progress, ahead or {}, newest)


def test_the_fastest_replica_of_the_slowest_shard() -> None:
    assert reached(JOIN, pulses(a=(9, 3), b=(8, 2), join=(7, 8), last=(1, 6))) == 6


def test_nobody_waits_for_one_that_lacks_input() -> None:
    progress = pulses(a=10, b=10, join=4, last=4)
    assert reached(JOIN, progress) == 4
    assert reached(JOIN, progress, pulses(join=9, last=9)) == 9
    assert reached(JOIN, progress, pulses(join=(0, 9), last=9)) == 9, "the other one will get it from the first"


def test_nor_for_one_that_all_go_on_without() -> None:
    """Shard b of the diamond is out of reach."""
    progress = pulses(a=10, b=3, c=10, d=3)
    assert reached(DIAMOND, progress) == 3
    assert reached(DIAMOND, progress, pulses(d=10)) == 10
    assert reached(DIAMOND, progress, pulses(d=10 + BEHIND), newest=10 + BEHIND) == 3, "what it lacks has to be kept"


def test_nor_for_one_that_is_given_nothing() -> None:
    progress = pulses(a=10, b=10, join=3, last=3)
    assert reached(JOIN, progress, pulses(join=10)) == 10
    assert reached(JOIN, pulses(a=10, b=10, join=5, last=3), pulses(join=10)) == 3, "it has something to do"

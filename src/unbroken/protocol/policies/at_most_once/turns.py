"""At most once: whose turn it is to hand a unit to a sink, and which units nobody may hand to it any more.

A sink that has no ledger cannot tell a unit that it was given before. So the right to deliver a unit is given to one
replica of a shard, once: the sources agree with the cut of each pulse on a version of the layout, and the layout of
that version names the replica. A replica that takes another's place has the turn from a later version on. It never
delivers what was cut before, even if that was not delivered: the lost one may have delivered it, or may yet.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from unbroken.protocol.placement.decision import Deciding
from unbroken.protocol.placement.policy import PlacementPolicy
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices.placement import TurnPassed
from unbroken.protocol.values.turns import Turn


def next_turn(
    held: Turn | None,
    working: Collection[ReplicaId],
    full: Collection[ReplicaId],
    doubtful: Collection[ReplicaId],
    version: int,
) -> Turn | None:
    """Whose turn it is in the layout of ``version``: the same replica's, as long as there is no doubt about it.

    Taking the turn from one that lives costs what it has under way, and nothing else.
    """
    well = set(working) - set(doubtful)
    if held is not None and (held.replica in well or not well):
        return held
    found = min(well & set(full), default=None) or min(well, default=None)
    return held if found is None else Turn(found, version)


def taking_turns(topology: Topology) -> list[ShardId]:
    """The shards whose replicas take turns."""
    if not topology.at_most_once:
        return []
    sinks = set(topology.sinks) - topology.client_sinks
    last = {producer for producer, sink in topology.edges if sink in sinks}
    return [shard for part in topology.segments if part in last for shard in topology.shards(part)]


class Turns(PlacementPolicy):
    """The first replica has the turn, and another one when there is doubt about the one who has."""

    def begin(self, topology: Topology, layout: Layout) -> Layout:
        turns = {shard: Turn(ReplicaId(shard, 0), layout.version) for shard in taking_turns(topology)}
        return replace(layout, turns=turns) if turns else layout

    def settle(self, work: Deciding, version: int) -> None:
        doubtful, layout = work.unwell() | work.suspected(), work.layout
        turns: dict[ShardId, Turn] = {}
        for shard in taking_turns(work.topology):
            held = layout.turns.get(shard)
            turn = next_turn(held, layout.working(shard), layout.full(shard), doubtful, version)
            if turn is not None:
                turns[shard] = turn
            if held is not None and turn != held and turn is not None:
                work.notices.append(TurnPassed(turn.replica, layout.placement[turn.replica]))
        if turns != layout.turns:
            work.layout = replace(layout, turns=turns)

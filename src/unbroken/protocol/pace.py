"""How many pulses are on their way through the flow: what sources cut by."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from unbroken.protocol.ids import ReplicaId
from unbroken.protocol.layout import Layout, Topology

BEHIND = 2_000
"""Pulses by which a shard may be behind whose consumers go on without it; what it has yet to take is kept all the time.
"""


def slowest(
    topology: Topology, layout: Layout, progress: Mapping[ReplicaId, int], ahead: Mapping[ReplicaId, int], newest: int
) -> int:
    """The pulse that the fastest counted replica of every shard has processed.

    A shard that has yet to take over its predecessor's state holds nobody up. Neither does one that lacks input and has
    what it can have of it up to some pulse (``ahead``), nor one whose consumers all go on without it like that.
    """
    reached: dict[str, int] = {}
    without: set[str] = set()
    for part in reversed(list(topology.segments)):
        own = newest
        for shard in topology.shards(part):
            if part in topology.replaces and not layout.full(shard):
                continue
            counted = layout.counted(shard)
            own = min(own, max((max(progress.get(r, 0), ahead.get(r, 0)) for r in counted), default=0))
            if any(ahead.get(replica) for replica in counted):
                without.add(part)
        readers = [consumer for producer, consumer in topology.edges if producer == part and consumer in reached]
        lifted = min(reached[reader] for reader in readers) if readers and set(readers) <= without else 0
        if lifted > own and newest - own < BEHIND:
            without.add(part)
            own = lifted
        reached[part] = own
    return min(reached.values(), default=newest)


def catches_up(
    topology: Topology, layout: Layout, progress: Mapping[ReplicaId, int], moving: Collection[ReplicaId], newest: int
) -> bool:
    """Whether a shard that was gone on without is on its way back: it makes progress, and has some way to go."""
    for part in topology.segments:
        for shard in topology.shards(part):
            done = max((progress.get(replica, 0) for replica in layout.counted(shard) if replica in moving), default=0)
            if done and newest - done > len(topology.segments) + 1:
                return True
    return False

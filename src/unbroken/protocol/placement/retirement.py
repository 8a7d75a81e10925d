"""When the directory of a replica that a node no longer hosts may be removed.

A layout that does not place a replica here is no proof that its state exists elsewhere. The directory is kept aside
until the shard has had as many full replicas on other nodes as it should have, without a break, for `SAFE_S`. A later
replica of the shard that is kept aside proves nothing either, unless its state contains that of the earlier one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from unbroken.protocol.values.ids import NodeId, ReplicaId, generation_of
from unbroken.protocol.values.layout import INGRESS, Layout, Topology

SAFE_S = 60.0
"""For how long a shard has to be redundant elsewhere. A replica that has just joined may be lost with the peer it was
copied from; a minute is more than the time that the loss of a node takes to show in the layout."""


@dataclass
class Retirement:
    """The replicas that are kept aside on one node, and since when each of them is redundant elsewhere."""

    me: NodeId
    safe_since: dict[ReplicaId, float] = field(default_factory=dict)

    def removable(
        self, retired: Collection[ReplicaId], layout: Layout, topology: Topology, now_s: float
    ) -> list[ReplicaId]:
        """The retired replicas that may be removed now; to be asked from time to time."""
        safe = {replica for replica in retired if self._redundant(replica, layout, topology)}
        self.safe_since = {replica: self.safe_since.get(replica, now_s) for replica in safe}
        return sorted(replica for replica, since in self.safe_since.items() if now_s - since >= SAFE_S)

    def _redundant(self, replica: ReplicaId, layout: Layout, topology: Topology) -> bool:
        part = replica.shard.part
        if part not in topology.replicas:
            # Of code that has ended, or was withdrawn: its successor has the state.
            return generation_of(part) not in layout.generations
        elsewhere = [node for node in layout.full_nodes_of(replica.shard) if node != self.me]
        here = any(other != replica for other in layout.full(replica.shard) if layout.placement[other] == self.me)
        return len(elsewhere) + here >= topology.replicas[part]


@dataclass(frozen=True)
class SetAside:
    """What a node knows of a replica that it has kept aside, under a ``name`` of its own.

    ``reach`` is the last unit of its input that is part of its state, None if that cannot be told. It is ``unbroken``
    if its state is made of all units up to there: it did not begin in the middle, and was not stopped for a reason that
    may lie in its state.
    """

    name: str
    replica: ReplicaId
    reach: int | None
    unbroken: bool

    def contains(self, other: SetAside) -> bool:
        """Whether the state of another one can be had from this one: a state is a function of the units in it."""
        same = self.replica.shard == other.replica.shard and self.replica.shard != INGRESS
        known = self.reach is not None and other.reach is not None and self.reach > 0
        return same and known and self.unbroken and (self.reach, self.name) > (other.reach, other.name)


def contained(states: Collection[SetAside]) -> list[SetAside]:
    """Those of which another one contains all. The space that is kept is bounded by that, and by redundancy elsewhere.

    A log of the ingress may end in entries that no later one has, and stays until the ingress is redundant.
    """
    return [state for state in states if any(other.contains(state) for other in states)]

"""Clusters whose code is replaced: what a user can ask for at this moment, and how a flow comes to rest after that."""

from __future__ import annotations

from unbroken.protocol.values.ids import ReplicaId, generation_of, segment_of
from unbroken_lab.sim.steps.cluster import Cluster

Wish = tuple[object, ...]
"""The name of a method of `UpgradingCluster` and what it is given."""


class UpgradingCluster(Cluster):
    """A cluster that goes over to other code. ``upgrades`` may still be asked for.

    Sources do not end while code is on its way that can get there, unless they are ``hasty``.
    """

    upgrades = 0
    hasty = False

    def start(self) -> None:
        self.world.sources.may_end = self._may_end

    def _may_end(self) -> bool:
        world = self.world
        members = [name for name in world.zookeeper.members if name not in world.zookeeper.draining]
        fit = [name for name in members if world.process(name) is not None]
        return self.hasty or not world.upgrades.under_way() or len(fit) < max(world.topology.replicas.values())

    def wishes(self) -> list[Wish]:
        """What a user can ask for: other code for some segment, or not after all. The code of a flow whose sources are
        not cut together cannot be replaced."""
        layout, wished = self.layout, self.world.zookeeper.wished
        if self.topology.bucketed:
            return []
        if len(layout.generations) > 1:
            return [("withdraw",)] if layout.generation < layout.generations[-1] and wished else []
        if wished not in (None, layout.generation) or self.upgrades < 1 or self.world.ended() is not None:
            return []
        return [("upgrade", segment) for segment in dict.fromkeys(segment_of(part) for part in self.topology.segments)]

    def upgrade(self, *segments: str) -> int:
        """Other code is wished for; its generation."""
        self.upgrades -= 1
        generation = self.world.upgrades.declare(segments)
        self.world.upgrades.wish(generation)
        return generation

    def withdraw(self) -> None:
        if self.layout.generation < self.layout.generations[-1]:
            self.world.upgrades.wish(None)

    def precious(self, replicas: list[ReplicaId]) -> list[ReplicaId]:
        """Those that are not just being prepared: these can begin anew."""
        return [replica for replica in replicas if generation_of(replica.shard.part) <= self.layout.generation]

    def come_to_rest(self) -> None:
        super().come_to_rest()
        if self.world.upgrades.under_way() and self.wishes():
            # The sources have ended: the code that was to come is let go.
            self.withdraw()
            super().come_to_rest()

"""A simulated flow goes over to other code: what users ask for, and what has to hold when it is done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.protocol.placement.upgrade import coming_shards
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.values.layout import Layout
from unbroken_lab.sim.programs import Origin
from unbroken_lab.sim.sources import Pulse

if TYPE_CHECKING:
    from unbroken_lab.sim.world import World


@dataclass
class Upgrades:
    """The generations of a simulated flow.

    Invariants: when results begin to count, all replicas of a shard have begun alike; when code is let go, the sinks
    have all that it owes them.
    """

    world: World

    def declare(self, segments: Collection[str]) -> int:
        """Segments get other code: a further generation, which no node runs before it is wished for."""
        world = self.world
        generation = world.programs.declare(world.zookeeper.layout.generation, segments)
        world.note_parts(world.programs.known[generation].topology)
        return generation

    def wish(self, generation: int | None) -> None:
        """The flow is to go over to a generation, or to stay as it is."""
        self.world.zookeeper.wished = generation
        self.world.zookeeper.notify("wishes")

    def under_way(self) -> bool:
        layout = self.world.zookeeper.layout
        return len(layout.generations) > 1 or self.world.zookeeper.wished not in (None, layout.generation)

    def overtaken(self) -> bool:
        """Whether the sources ended before the results of the code that comes were asked for: it waits for ever."""
        last = next((entry for entry in self.world.entries.values() if entry.final), None)
        wished = self.world.zookeeper.wished
        coming = self.world.zookeeper.layout.generations[-1] if wished is None else wished
        return last is not None and Pulse.of(last).generation < coming

    def published(self, before: Layout, after: Layout) -> None:
        """A layout has replaced another one."""
        if after.generation > before.generation:
            self._began(before, after.generation)
        elif after.generations == (before.generation,) == before.generations[1:]:
            self._ended(after.generation)

    def _began(self, before: Layout, generation: int) -> None:
        programs, where = self.world.programs, self.world.where
        begun: dict[ShardId, Origin] = {}
        for shard in coming_shards(programs.topology(before.generations)):
            origins = {where[replica].origin for replica in before.full(shard) if replica in where}
            require(len(origins) == 1, f"{shard} has begun as {origins}")
            begun[shard] = origins.pop()
        programs.counted[generation] = begun

    def _ended(self, generation: int) -> None:
        pulses = [entry for entry in self.world.entries.values() if entry.pulse]
        last = max((entry.pulse for entry in pulses if Pulse.of(entry).generation < generation), default=0)
        for lane in self.world.programs.lanes():
            through = self.world.sink.through(lane)
            require(through >= last, f"the code that goes still owes {lane} units up to {last}, not {through}")

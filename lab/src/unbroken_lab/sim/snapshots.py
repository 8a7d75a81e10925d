"""Simulated snapshots: the state of every shard, from time to time, where it survives the loss of all its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from unbroken.errors import UnbrokenError
from unbroken.node.replicas.transfers import Copied
from unbroken.protocol.events import SnapshotTaken
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.transfers import Done

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess
    from unbroken_lab.sim.world import World

EVERY_MS = 800.0
"""How often the nodes save the shards that they look after."""


@dataclass
class Snapshots:
    """The store of a flow, and what its nodes do with it, like ``node/replicas/snapshots.py``.

    A snapshot is what a newcomer would be given. Saving and restoring one take as long as a copy of its size.
    """

    world: World
    saved: dict[ShardId, ReplicaDisk] = field(default_factory=dict)

    def begin(self, process: NodeProcess) -> None:
        """A node has begun: it tells what was saved before, and saves from time to time."""
        for shard in self._shards(process):
            if shard in self.saved:
                process.post(SnapshotTaken(shard, self.saved[shard].committed))
        process.later(EVERY_MS, self._turn, process)

    def restore(self, asker: NodeProcess, replica: ReplicaId, done: Done) -> None:
        """Bring a snapshot to a node, if there is one."""
        found = self.saved.get(replica.shard)
        wait = 100.0 if found is None else self._takes_ms(found)
        asker.later(wait, lambda _: self._arrive(found, done))

    def _shards(self, process: NodeProcess) -> list[ShardId]:
        layout = None if process.protocol is None else process.protocol.layout
        return [] if layout is None else [s for s in layout.eldest_on(process.name) if s != INGRESS]

    def _turn(self, process: NodeProcess) -> None:
        for shard in self._shards(process):
            process.transfers.ask(shard, process.name, partial(self._pinned, process, shard))
        process.later(EVERY_MS, self._turn, process)

    def _pinned(self, process: NodeProcess, shard: ShardId, found: ReplicaDisk | str) -> None:
        """The state of a shard is pinned for its snapshot, or cannot be."""
        if isinstance(found, ReplicaDisk):
            process.later(self._takes_ms(found), lambda _: self._save(process, shard, found))

    def _save(self, process: NodeProcess, shard: ShardId, pinned: ReplicaDisk) -> None:
        if shard not in self.saved or self.saved[shard].committed < pinned.committed:
            self.saved[shard] = pinned
            self.world.counts["snapshots"] += 1
        process.post(SnapshotTaken(shard, pinned.committed))

    def _arrive(self, found: ReplicaDisk | None, done: Done) -> None:
        if found is None:
            done(UnbrokenError("there is no snapshot"))
            return
        copy = replace(
            found, states=dict(found.states), outbox=dict(found.outbox), owed=dict(found.owed), cuts=dict(found.cuts)
        )
        self.world.counts["restored"] += 1
        done(Copied(copy.size, copy))

    def _takes_ms(self, disk: ReplicaDisk) -> float:
        return 50.0 + disk.size / self.world.costs.copy_bytes_per_ms

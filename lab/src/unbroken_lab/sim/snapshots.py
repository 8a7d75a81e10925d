"""Simulated snapshots: the state of every shard, from time to time, where it survives the loss of all its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unbroken.protocol.events import FetchFailed, PinAsked, SnapshotTaken, StateArrived
from unbroken.protocol.instructions import PinState
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken_lab.sim.disk import ReplicaDisk

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
    _asked: dict[int, NodeProcess] = field(default_factory=dict)

    def begin(self, process: NodeProcess) -> None:
        """A node has begun: it tells what was saved before, and saves from time to time."""
        for shard in self._shards(process):
            if shard in self.saved:
                process.post(SnapshotTaken(shard, self.saved[shard].committed))
        process.later(EVERY_MS, self._turn, process)

    def owns(self, ticket: int) -> bool:
        return ticket in self._asked

    def pin(self, step: PinState) -> None:
        """The state of a shard is pinned for its snapshot."""
        process = self._asked.pop(step.ticket)
        pinned = process.disk.replicas[step.replica].pin(step)
        process.later(self._takes_ms(pinned), lambda _: self._save(process, step.replica.shard, pinned))

    def refuse(self, ticket: int) -> None:
        self._asked.pop(ticket, None)

    def restore(self, asker: NodeProcess, replica: ReplicaId) -> None:
        """Bring a snapshot to a node, if there is one."""
        found = self.saved.get(replica.shard)
        wait = 100.0 if found is None else self._takes_ms(found)
        asker.later(wait, lambda _: self._arrive(asker, replica, found))

    def _shards(self, process: NodeProcess) -> list[ShardId]:
        layout = None if process.protocol is None else process.protocol.layout
        return [] if layout is None else [s for s in layout.eldest_on(process.name) if s != INGRESS]

    def _turn(self, process: NodeProcess) -> None:
        for shard in self._shards(process):
            ticket = self.world.next_serial()
            self._asked[ticket] = process
            process.post(PinAsked(shard, process.name, ticket))
        process.later(EVERY_MS, self._turn, process)

    def _save(self, process: NodeProcess, shard: ShardId, pinned: ReplicaDisk) -> None:
        if shard not in self.saved or self.saved[shard].committed < pinned.committed:
            self.saved[shard] = pinned
            self.world.counts["snapshots"] += 1
        process.post(SnapshotTaken(shard, pinned.committed))

    def _arrive(self, asker: NodeProcess, replica: ReplicaId, found: ReplicaDisk | None) -> None:
        if found is None:
            asker.post(FetchFailed(replica, None, "there is no snapshot"))
            return
        copy = replace(
            found, states=dict(found.states), outbox=dict(found.outbox), owed=dict(found.owed), cuts=dict(found.cuts)
        )
        asker.hosting.put(replica, copy)
        self.world.counts["restored"] += 1
        asker.post(StateArrived(replica, copy.recover(replica), None, copy.size))

    def _takes_ms(self, disk: ReplicaDisk) -> float:
        return 50.0 + disk.size / self.world.costs.copy_bytes_per_ms

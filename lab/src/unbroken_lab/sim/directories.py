"""What the disk of a simulated node has of its replicas, as hosting uses it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from unbroken.data.checksum import Damaged
from unbroken.errors import broken, require
from unbroken.node.replicas.hosting import Directories
from unbroken.protocol.instructions import NoteOwed, PinState
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.recovery import StoredReplica
from unbroken_lab.sim.content import Folded
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.ingress_log import LogPlace, pinned

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedDirectories(Directories):
    """The replicas on the disk of one machine, for the process that runs on it."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._world = process.world
        self._disk = process.disk

    def present(self) -> list[ReplicaId]:
        return sorted(self._disk.replicas)

    def clean(self, wanted: Iterable[ReplicaId]) -> None:
        for replica in sorted(set(self._disk.replicas) - set(wanted)):
            self.retire(replica)

    def begun(self, replica: ReplicaId) -> bool:
        return replica in self._disk.begun

    def begin(self, replicas: Iterable[ReplicaId]) -> None:
        for replica in replicas:
            self.put(replica, ReplicaDisk())

    def begin_anew(self, base: int, valid: int, owed: Iterable[NoteOwed]) -> ReplicaDisk:
        held = ReplicaDisk(committed=base, states={base: Folded()}, valid=valid)
        held.owed = {note.stream: (note.owed, note.rebuilt) for note in owed}
        return held

    def state(self, replica: ReplicaId) -> StoredReplica:
        held = self._disk.replicas[replica]
        if held.spoiled(replica):
            self._delist(replica, held)
            raise Damaged(Path(str(replica)), "a unit is damaged", "It is copied from another node.")
        return held.recover(replica)

    def doubt(self, replica: ReplicaId) -> None:
        """Nothing is put aside here that could be doubted."""

    def retire(self, replica: ReplicaId) -> None:
        held = self._disk.replicas.pop(replica, None)
        if held is None:
            return
        self._delist(replica, held)
        if held.log is not None:
            held.log.files.clear(held.log.directory)

    def put(self, replica: ReplicaId, held: ReplicaDisk) -> None:
        """Make a complete directory that of a replica."""
        queries = self._process.hosting.queries
        if queries is not None and queries.leaving(replica):
            broken(f"{replica} gets a directory that is put aside when its old query has ended", replica)
        if replica.shard == INGRESS:
            held.log = LogPlace.of(self._disk.files, replica)
            held.log.files.put(held.log.directory, held.log_copy)
            held.log_copy = {}
        self._disk.begun.add(replica)
        self._disk.replicas[replica] = held
        self._world.where[replica] = held

    def pin(self, step: PinState) -> ReplicaDisk:
        """What a newcomer is given of a replica here."""
        ingress = self._process.hosting.ingress
        log = None
        if step.replica.shard == INGRESS:
            require(ingress is not None, f"{self._process.name} gives a log that it does not keep")
            assert ingress is not None
            log = pinned(ingress.log, self._disk.files)
        return self._disk.replicas[step.replica].pin(step, log)

    def note_owed(self, step: NoteOwed) -> bool:
        """Whether the replica has a directory for the note."""
        held = self._disk.replicas.get(step.replica)
        if held is None:
            return False
        self._disk.check_room()
        held.owed[step.stream] = (step.owed, step.rebuilt)
        return True

    def _delist(self, replica: ReplicaId, held: ReplicaDisk) -> None:
        if self._world.where.get(replica) is held:
            del self._world.where[replica]

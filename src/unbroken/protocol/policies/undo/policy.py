"""Undo: no state is kept; the oldest input that still matters is processed once more."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.events import GateAsked, Produced
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.policies.undo.undo_log import UndoLog
from unbroken.protocol.policy import Policy
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.surroundings import DeclaredFlow
from unbroken.protocol.values.consistency import DelayBound, Reconcile
from unbroken.protocol.values.ids import ReplicaId


@dataclass
class UndoLogs(Policy):
    """The undo logs of a node's replicas.

    Invariant: a replica has a log exactly while it works here and is to be set back by undoing.
    """

    around: DeclaredFlow
    logs: dict[ReplicaId, UndoLog] = field(default_factory=dict)

    def check(self) -> None:
        for log in self.logs.values():
            log.check()

    def rests(self, part: str) -> bool:
        return self._how(part) is not None

    def hosted(self, replica: ReplicaId) -> list[Instruction]:
        how = self._how(replica.shard.part)
        if how is not None:
            self.logs[replica] = UndoLog.of(how)
        return []

    def unhosted(self, replica: ReplicaId) -> None:
        self.logs.pop(replica, None)

    def processed(self, replica: SegmentReplica, event: Produced) -> None:
        """A replica has processed a unit: the time that was in force decides how long its input matters."""
        log = self.logs.get(event.replica)
        how = None if log is None else self._how(event.replica.shard.part)
        if log is None or how is None:
            return
        cut_ms = max((header.cut_ms for header in event.headers), default=0)
        time_ms = event.watermark_ms if how.timed else cut_ms
        together = event.folded
        known = together or replica.alone(event.number)
        log.processed(event.number, time_ms if known else None, min(together, default=event.number))

    def committing(self, replica: SegmentReplica, event: GateAsked) -> list[Instruction] | None:
        log = self.logs.get(replica.replica)
        if log is None:
            return None
        log.committing(replica, event.start)
        return log.committed(replica, replica.commit(event.start, event.cut))

    def set_back(self, replica: SegmentReplica) -> list[Instruction]:
        log = self.logs.get(replica.replica)
        return [] if log is None else log.undo(replica)

    def _how(self, part: str) -> DelayBound | None:
        how = self.around.topology.availability.get(part)
        return how if how is not None and how.reconcile is Reconcile.UNDO else None

"""Notices about replicas: their state, their units, and the leaders of their input."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices.base import Effect, Notice, Severity


@dataclass(frozen=True)
class ReplicaHalted(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A replica does not continue on a node that is well."""

    replica: ReplicaId
    node: NodeId
    detail: str


@dataclass(frozen=True)
class ReplicaDiverged(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """``replica`` and ``kept`` have produced different units; the first one stops."""

    replica: ReplicaId
    kept: ReplicaId
    stream: StreamId
    unit: int
    rows: int
    digest: str
    kept_rows: int
    kept_digest: str


@dataclass(frozen=True)
class CopyDiffers(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A unit arrives that differs from the copy that is here."""

    stream: StreamId
    unit: int
    sender: NodeId


@dataclass(frozen=True)
class ReplicaBehind(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A replica is so far behind that no more units are kept for it; it is to be rebuilt."""

    replica: ReplicaId
    stream: StreamId
    units: int


@dataclass(frozen=True)
class ReplicaReplaced(Notice, severity=Severity.INFO, effect=Effect.NOTE):
    """A node finds a replica of its own replaced elsewhere."""

    replica: ReplicaId
    node: NodeId


@dataclass(frozen=True)
class ReplicaUnreadable(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    """The directory of a replica is damaged; it is copied from another one."""

    replica: ReplicaId
    node: NodeId
    detail: str


@dataclass(frozen=True)
class ReplicasKeptAside(Notice, severity=Severity.INFO, effect=Effect.NOTE):
    node: NodeId
    directories: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True)
class UnitRefetched(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A unit in an inbox is damaged."""

    replica: ReplicaId
    stream: StreamId
    unit: int
    detail: str


@dataclass(frozen=True)
class UnitWithheld(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A unit in an outbox is damaged, and is not offered until a sibling has sent its copy."""

    replica: ReplicaId
    stream: StreamId
    unit: int
    detail: str


@dataclass(frozen=True)
class UnitRepaired(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    replica: ReplicaId
    stream: StreamId
    unit: int
    sender: NodeId


@dataclass(frozen=True)
class IngressUnitLost(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A unit of the ingress is damaged and no other member has it: the node ends, to recompute it from the log."""

    stream: StreamId
    unit: int
    detail: str


@dataclass(frozen=True)
class StateTaken(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """A replica has copied its state, from its snapshot if there is no ``donor``, and has caught up."""

    replica: ReplicaId
    donor: NodeId | None
    size_bytes: int
    version: int
    fetch_s: float
    catch_up_s: float


@dataclass(frozen=True)
class ReplicaResumed(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """A replica has continued from its disk and has caught up."""

    replica: ReplicaId
    version: int
    catch_up_s: float


@dataclass(frozen=True)
class StateRebuilt(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """A replica has rebuilt its state from the input that its producers kept, from ``unit`` on."""

    replica: ReplicaId
    unit: int
    took_s: float


@dataclass(frozen=True)
class CopyHeld(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """The first copy of a standby is whole."""

    replica: ReplicaId
    donor: NodeId | None
    size_bytes: int
    version: int
    took_s: float


@dataclass(frozen=True)
class StateNotFetched(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    replica: ReplicaId
    donor: NodeId | None
    detail: str


@dataclass(frozen=True)
class ReplicaNotBegun(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A replica that is to be rebuilt from kept input has no directory yet."""

    replica: ReplicaId
    detail: str


@dataclass(frozen=True)
class CopyOutdated(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    replica: ReplicaId
    donor: NodeId | None
    detail: str


@dataclass(frozen=True)
class RebuildImpossible(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The producers that are left no longer have all input of a state."""

    replica: ReplicaId
    streams: tuple[StreamId, ...]


@dataclass(frozen=True)
class SnapshotOutdated(Notice, severity=Severity.ERROR, effect=Effect.DOUBT):
    """The units that follow the last snapshot are no longer all kept."""

    shard: ShardId


@dataclass(frozen=True)
class SnapshotFailed(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    shard: ShardId
    detail: str


@dataclass(frozen=True)
class StandbyPromoted(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    """An active standby sends its results, from ``unit`` on: the replica that sent them is gone."""

    replica: ReplicaId
    node: NodeId
    stream: StreamId
    unit: int


@dataclass(frozen=True)
class LeaderElected(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    """The replica of a shard on ``node`` orders its input."""

    node: NodeId
    shard: ShardId
    term: int


@dataclass(frozen=True)
class InputMissing(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A replica ``waits`` for input of these ``parts``, or continues tentatively."""

    replica: ReplicaId
    parts: tuple[str, ...]
    waits: bool


@dataclass(frozen=True)
class InputReturned(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """The missing input has arrived; results after ``unit`` are being corrected."""

    replica: ReplicaId
    unit: int


@dataclass(frozen=True)
class InputComplete(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """Nothing is missing; ``corrected``: tentative results were shown, and all of them are replaced."""

    replica: ReplicaId
    corrected: bool


@dataclass(frozen=True)
class ForkFailed(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A replica cannot continue without its missing input."""

    replica: ReplicaId
    detail: str


@dataclass(frozen=True)
class UndoRefused(Notice, severity=Severity.INFO, effect=Effect.NOTE):
    """A replica goes back to its checkpoint, as not all input before it is kept."""

    replica: ReplicaId

"""Notices about nodes, and about the decisions of the controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.notices.base import Effect, Notice, Severity


class Purpose(StrEnum):
    """Why a replica is placed on a node."""

    REDUNDANCY = "redundancy"
    UPGRADE = "upgrade"
    COPY = "copy"
    RETURN = "return"
    """The node has returned, and another one has taken its place for so long."""


@dataclass(frozen=True)
class FirstLayout(Notice, severity=Severity.INFO, effect=Effect.NOTE):
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True)
class NodeReady(Notice, severity=Severity.INFO, effect=Effect.NOTE):
    node: NodeId


@dataclass(frozen=True)
class ReplicaPlaced(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    replica: ReplicaId
    node: NodeId
    purpose: Purpose


@dataclass(frozen=True)
class ReplicaJoined(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """It counts as redundancy from here on; one that is ``held`` is a copy of the state."""

    replica: ReplicaId
    node: NodeId
    held: bool = False


@dataclass(frozen=True)
class ShardRedundant(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """A shard has all its replicas; ``again``: it had them before."""

    shard: ShardId
    took_s: float
    again: bool = True


@dataclass(frozen=True)
class ReplicasDropped(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    """Nothing is kept any longer for ``replicas``: of ``lost`` nodes, of nodes ``without_disk``, ``stopped`` ones."""

    replicas: tuple[ReplicaId, ...]
    lost: tuple[NodeId, ...] = ()
    without_disk: tuple[NodeId, ...] = ()
    stopped: tuple[ReplicaId, ...] = ()


@dataclass(frozen=True)
class LastReplicasAwaited(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """These replicas seem to be gone, and still count because nothing else is left of their shards."""

    replicas: tuple[ReplicaId, ...]


@dataclass(frozen=True)
class NodeDraining(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    node: NodeId
    replicas: int


@dataclass(frozen=True)
class NodeDrained(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    node: NodeId


@dataclass(frozen=True)
class ReplicaRenewed(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    """An operator wanted a replica to be rebuilt; with whole copies, ``newcomers`` are all of the copy."""

    replica: ReplicaId
    node: NodeId
    newcomers: tuple[ReplicaId, ...]
    whole_copy: bool = False


@dataclass(frozen=True)
class TurnPassed(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    """Another replica delivers the results of its shard, at most once."""

    replica: ReplicaId
    node: NodeId


@dataclass(frozen=True)
class FlowPaused(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    reason: str = ""


@dataclass(frozen=True)
class FlowResumed(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    paused_s: float


@dataclass(frozen=True)
class TakenOver(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    """The only working replica of a shard is ``lost`` with its node, and another takes its place.

    Without a ``replica`` it is one that was to get its state from the lost one.
    """

    lost: tuple[ReplicaId, ...]
    nodes: tuple[NodeId, ...]
    replica: ReplicaId | None = None
    node: NodeId | None = None
    from_copy: bool = False


@dataclass(frozen=True)
class PlaceReturned(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    replica: ReplicaId
    node: NodeId


@dataclass(frozen=True)
class CopyDropped(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    """Whole copies: with one of its replicas, all of the copy is lost."""

    nodes: tuple[NodeId, ...]
    replicas: tuple[ReplicaId, ...]


@dataclass(frozen=True)
class CopyPlaced(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    """Whole copies: another one begins, or one that lacks something is completed."""

    node: NodeId
    replicas: tuple[ReplicaId, ...]
    completes: bool = False


@dataclass(frozen=True)
class CopyJoined(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    node: NodeId
    replicas: tuple[ReplicaId, ...]


@dataclass(frozen=True)
class FlowRedundant(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """Whole copies: there are as many as there should be."""

    took_s: float


@dataclass(frozen=True)
class NodeSuspected(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """``node`` gets no answer from ``suspect``."""

    node: NodeId
    suspect: NodeId
    detail: str


@dataclass(frozen=True)
class SuspicionEnded(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    node: NodeId
    suspect: NodeId


@dataclass(frozen=True)
class WatchEnded(Notice, severity=Severity.INFO, effect=Effect.NOTE):
    """``node`` no longer asks ``suspect``: the replicas that it watched there are elsewhere."""

    node: NodeId
    suspect: NodeId


@dataclass(frozen=True)
class ControllerReplaced(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """``node`` does not answer and is no longer the controller."""

    node: NodeId


@dataclass(frozen=True)
class DocumentForged(Notice, severity=Severity.ERROR, effect=Effect.DOUBT):
    path: str


@dataclass(frozen=True)
class LayoutMissing(Notice, severity=Severity.ERROR, effect=Effect.DOUBT):
    """ZooKeeper has no layout of the run of a node's disk; a node that is ``running`` continues."""

    node: NodeId
    run: str
    running: bool


@dataclass(frozen=True)
class LayoutForeign(Notice, severity=Severity.ERROR, effect=Effect.DOUBT):
    """The disk of a node is of ``run``, and ZooKeeper has the layout of another."""

    node: NodeId
    run: str
    other_run: str


@dataclass(frozen=True)
class FirstLayoutRefused(Notice, severity=Severity.ERROR, effect=Effect.DOUBT):
    """The disks of ``nodes`` belong to ``runs`` whose layout is missing, so no new one is begun."""

    nodes: tuple[NodeId, ...]
    runs: tuple[str, ...]

"""Notices about processes: of nodes, their threads and peers, Spark, ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices.base import Effect, Notice, Severity


@dataclass(frozen=True)
class PeerFlooding(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    node: NodeId
    peer: str


@dataclass(frozen=True)
class MessageRefused(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A peer sends what no node sends in earnest."""

    node: NodeId
    peer: str
    message: str
    detail: str


@dataclass(frozen=True)
class EventUnhandled(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A node ends because its state is wrong after an event."""

    node: NodeId
    event: str
    detail: str


@dataclass(frozen=True)
class LoopStalled(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    node: NodeId
    stalled_s: float


@dataclass(frozen=True)
class ThreadFailed(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    node: NodeId
    thread: str
    detail: str


class SparkEnd(StrEnum):
    """How Spark has come to its end."""

    JVM_ENDED = "jvm ended"
    SUBMIT_ENDED = "spark-submit ended"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"


@dataclass(frozen=True)
class SparkEnded(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A node ends with its Spark; ``code`` is the exit code of the JVM."""

    node: NodeId
    how: SparkEnd
    code: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class ExecutorsLost(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    node: NodeId
    executors: tuple[str, ...]
    left: int


@dataclass(frozen=True)
class ExecutorsAdded(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    node: NodeId
    executors: tuple[str, ...]


@dataclass(frozen=True)
class ProcessDied(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The process of a node has ended; a negative ``code`` is a signal."""

    node: NodeId
    code: int
    log: str


@dataclass(frozen=True)
class ProcessRestarted(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    node: NodeId


@dataclass(frozen=True)
class ZooKeeperRestarted(Notice, severity=Severity.WARNING, effect=Effect.REPAIR):
    """The embedded ZooKeeper had died."""


@dataclass(frozen=True)
class ZooKeeperDown(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The embedded ZooKeeper died and cannot be restarted yet."""

    detail: str


@dataclass(frozen=True)
class NodeDead(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The page sees that the process of a node has ended."""

    node: NodeId
    detail: str = ""


@dataclass(frozen=True)
class NodeGone(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The page sees that the session of a node has ended."""

    node: NodeId
    detail: str = ""


@dataclass(frozen=True)
class NodeSilent(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """The page gets no answer from a node."""

    node: NodeId
    detail: str = ""


@dataclass(frozen=True)
class NodeBack(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    """The page sees a node that was gone, or ``silent``."""

    node: NodeId
    silent: bool = False

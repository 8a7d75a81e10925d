"""Notices about sources and the ingress."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices.base import Effect, Notice, Severity


@dataclass(frozen=True)
class IngressLed(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    """``node`` decides about pulses from here on."""

    node: NodeId
    term: int


@dataclass(frozen=True)
class InSyncProposed(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    node: NodeId
    members: tuple[NodeId, ...]


@dataclass(frozen=True)
class PushMisdirected(Notice, severity=Severity.INFO, effect=Effect.NOTE):
    """Rows are pushed to a node that does not lead the ingress."""

    node: NodeId


@dataclass(frozen=True)
class LeadHandedOver(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The log of a leader ends before that of another member, which is to lead in its place."""

    node: NodeId
    last: int
    successor: NodeId
    successor_last: int


@dataclass(frozen=True)
class LogEntriesLost(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A member has started without entries that are committed; the ingress continues without it."""

    node: NodeId
    last: int
    committed: int


@dataclass(frozen=True)
class LogContradicted(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The log of the leader differs from what a member has committed; the member continues without it."""

    node: NodeId
    leader: NodeId
    entry: int
    term: int
    committed_term: int


@dataclass(frozen=True)
class IngressFailing(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    node: NodeId
    detail: str


@dataclass(frozen=True)
class IngressJobSetAside(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A job of the ingress fails again and again for a reason that lies in the data."""

    node: NodeId
    detail: str


@dataclass(frozen=True)
class EntrySetAside(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """No node can read an entry of the log."""

    entry: int
    detail: str


@dataclass(frozen=True)
class SourcesUnanswered(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """A pulse has no rows, as the sources could not be asked."""

    node: NodeId
    detail: str


@dataclass(frozen=True)
class RowsSetAside(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    """Rows make the code of their source fail, and are dead letters."""

    source: str
    detail: str


@dataclass(frozen=True)
class RowsSkipped(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    """An operator has skipped the rows of a source in a pulse."""

    source: str
    pulse: int
    detail: str


@dataclass(frozen=True)
class SourceUnreadable(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    source: str
    node: NodeId
    detail: str


@dataclass(frozen=True)
class SourceReadable(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    source: str
    node: NodeId


@dataclass(frozen=True)
class ClockOff(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """The clock of a node is so far ahead of the time of the flow, or behind it if that is negative.

    The time of the flow follows it by ``slew`` seconds per second.
    """

    node: NodeId
    offset_s: float
    slew: float


@dataclass(frozen=True)
class ClockAgrees(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    node: NodeId


@dataclass(frozen=True)
class CutTimeLeapt(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    """The first cut after a restart of the whole ingress is long after the last one before it."""

    node: NodeId
    from_ms: int
    to_ms: int


@dataclass(frozen=True)
class IngressLogWaits(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    longest_s: float
    detail: str


@dataclass(frozen=True)
class IngressDiskFailed(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The ingress cannot write to its disk: the node ends."""

    node: NodeId
    detail: str


@dataclass(frozen=True)
class IngressUnopened(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The ingress cannot continue from what the disk holds: the node ends."""

    node: NodeId
    detail: str


@dataclass(frozen=True)
class IngressOverwhelmed(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """The ingress is so many entries behind its log that the node ends."""

    node: NodeId
    entries: int

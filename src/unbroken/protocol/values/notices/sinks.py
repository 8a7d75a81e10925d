"""Notices about sinks and dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.notices.base import Effect, Notice, Severity


@dataclass(frozen=True)
class UnitsUncertain(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """At most once: units were being delivered when a replica was lost, and are given up."""

    stream: StreamId
    first: int
    last: int


@dataclass(frozen=True)
class UnitGivenUp(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """At most once: a sink failed with a unit that it may have."""

    stream: StreamId
    unit: int
    detail: str


@dataclass(frozen=True)
class UnitSetAside(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A sink refuses a unit, whose rows are dead letters."""

    stream: StreamId
    unit: int
    detail: str


@dataclass(frozen=True)
class SinkStopped(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    """A sink refuses a unit and takes none after it."""

    stream: StreamId
    unit: int
    detail: str


@dataclass(frozen=True)
class SinkUnopened(Notice, severity=Severity.WARNING, effect=Effect.DOUBT):
    stream: StreamId
    detail: str


@dataclass(frozen=True)
class SinkOpened(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    stream: StreamId


@dataclass(frozen=True)
class DeadLettersUnwritten(Notice, severity=Severity.ERROR, effect=Effect.LOSS):
    directory: str
    detail: str


@dataclass(frozen=True)
class DeadLettersWritten(Notice, severity=Severity.INFO, effect=Effect.REPAIR):
    directory: str
    lost_rows: int

"""Notices about generations of the user's code."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices.base import Effect, Notice, Severity


@dataclass(frozen=True)
class UpgradePrepared(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    generation: int
    running: int


@dataclass(frozen=True)
class UpgradeReady(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    generation: int


@dataclass(frozen=True)
class UpgradeDone(Notice, severity=Severity.INFO, effect=Effect.CHANGE):
    generation: int
    parts: tuple[str, ...]


@dataclass(frozen=True)
class UpgradeSetBack(Notice, severity=Severity.WARNING, effect=Effect.LOSS):
    """Replicas of the code that comes are lost before it is ready, and begin with a later state."""

    generation: int
    replicas: tuple[ReplicaId, ...]


@dataclass(frozen=True)
class UpgradeRefused(Notice, severity=Severity.ERROR, effect=Effect.CHANGE):
    """``generation`` is not taken, ``running`` continues: a ``replica`` of it failed, or it was withdrawn."""

    generation: int
    running: int
    replica: ReplicaId | None = None
    detail: str = ""

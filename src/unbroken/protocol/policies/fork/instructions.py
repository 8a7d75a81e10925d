"""What a shell does with forks, and with the queries that rest while a fork runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.vocabulary import PolicyEffects, PolicyInstruction


@dataclass(frozen=True)
class ForkReplica(PolicyInstruction):
    """Copy the state of ``replica`` at ``version`` to the directory of ``fork`` and start a query on it.

    If that fails, ``QueryFailed`` reports it.
    """

    replica: ReplicaId
    fork: ReplicaId
    version: int

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        ForkEffects.of(shell).fork_replica(self)


@dataclass(frozen=True)
class FeedFork(PolicyInstruction):
    """What the inbox of ``replica`` has as unit ``number`` of ``stream`` is unit ``as_number`` of that input of a fork.

    A tentative unit is kept under the stream of the fork that made it; for this one it is part of the stream's home.
    """

    replica: ReplicaId
    stream: StreamId
    number: int
    fork: ReplicaId
    as_number: int

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        ForkEffects.of(shell).feed_fork(self)


@dataclass(frozen=True)
class PauseReplica(PolicyInstruction):
    """End the query of a replica for a while; its directory stays, and ``StartReplica`` goes on from it."""

    replica: ReplicaId

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        ForkEffects.of(shell).pause_replica(self)


class ForkEffects(PolicyEffects, ABC):
    """Runs queries on copies of a replica's state."""

    @abstractmethod
    def fork_replica(self, step: ForkReplica) -> None: ...

    @abstractmethod
    def feed_fork(self, step: FeedFork) -> None: ...

    @abstractmethod
    def pause_replica(self, step: PauseReplica) -> None: ...

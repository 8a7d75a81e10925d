"""What a shell does for a replica that is rebuilt from what its producers keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.protocol.instructions import NoteOwed
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.vocabulary import PolicyEffects, PolicyInstruction


@dataclass(frozen=True)
class BeginReplica(PolicyInstruction):
    """Make an empty directory for a replica whose first micro-batch is unit ``base + 1`` of its input; report back by
    ``StateArrived`` without a donor, or ``FetchFailed``, like for a state that is fetched.

    Up to unit ``valid`` its results are not for anybody, because its state is still being built. What is ``owed`` to
    its consumers is noted before the directory can be found: a process that ends right after could not tell.
    """

    replica: ReplicaId
    base: int
    valid: int
    owed: tuple[NoteOwed, ...] = ()

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        RebuildEffects.of(shell).begin_replica(self)


class RebuildEffects(PolicyEffects, ABC):
    """Makes place for replicas that begin with nothing but their input."""

    @abstractmethod
    def begin_replica(self, step: BeginReplica) -> None: ...

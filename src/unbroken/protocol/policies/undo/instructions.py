"""What a shell does to undo the tentative state of a replica."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.vocabulary import PolicyEffects, PolicyInstruction


@dataclass(frozen=True)
class UndoReplica(PolicyInstruction):
    """Forget the state of a replica whose query is paused. It begins with unit ``base + 1`` of the input that its inbox
    still holds; up to unit ``valid`` its results are there already."""

    replica: ReplicaId
    base: int
    valid: int

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        UndoEffects.of(shell).undo_replica(self)


class UndoEffects(PolicyEffects, ABC):
    """Sets replicas back to input that they have processed before."""

    @abstractmethod
    def undo_replica(self, step: UndoReplica) -> None: ...

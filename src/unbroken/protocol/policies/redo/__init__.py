"""Redo: a replica's own query rests while its fork runs, and resumes from the state that it has kept."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policy import Policy
from unbroken.protocol.surroundings import DeclaredFlow
from unbroken.protocol.values.consistency import Reconcile


@dataclass
class Redo(Policy):
    """Lets queries rest; their last committed state is what they are set back to."""

    around: DeclaredFlow

    def rests(self, part: str) -> bool:
        how = self.around.topology.availability.get(part)
        return how is not None and how.reconcile is Reconcile.REDO


def build(kernel: Kernel) -> Redo:
    return Redo(kernel.around)

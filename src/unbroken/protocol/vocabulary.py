"""What a policy may add to the words of the protocol: messages, events, and instructions with those who carry them out.

The kernel has its own messages, events and instructions; their types are known one by one, and so is what becomes of
each. Those that only one policy needs are declared by its package, in ``VOCABULARY``. The kernel knows them by the
classes here and hands them on: a message and an event to the policy that handles it, an instruction to the interface
that the policy's package declares next to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Self


class PolicyMessage:
    """A message between nodes that only one policy sends and understands; the same policy has a check for it.

    ``acknowledges``: its bytes are counted as those of acknowledgements.
    """

    acknowledges: ClassVar[bool] = False


class PolicyEvent:
    """An event that only one policy handles."""


class PolicyEffects:
    """What a shell does for one policy: one method for each of the policy's instructions."""

    @classmethod
    def of(cls, shell: Iterable[PolicyEffects]) -> Self:
        """The part of a shell that carries out the instructions of this interface."""
        for each in shell:
            if isinstance(each, cls):
                return each
        raise LookupError(f"the shell has no {cls.__name__}")


class PolicyInstruction(ABC):
    """An instruction that only one policy gives."""

    @abstractmethod
    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        """Call the method of the policy's own interface that does what this says."""

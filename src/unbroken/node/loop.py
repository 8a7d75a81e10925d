"""The loop around the protocol: one event after the other, and what each of them leads to, carried out in order.

The same loop runs in a node, where a thread waits for events, and in the simulator, where virtual time passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from unbroken.protocol.effects import Effects, carry_out
from unbroken.protocol.events import Event
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.machine import NodeProtocol

Rows = TypeVar("Rows")


class Keeper(Protocol):
    """Keeps a journal of what the loop does."""

    def handled(self, at_ms: float, event: Event, steps: Sequence[Instruction]) -> None: ...

    def failed(self, at_ms: float, event: Event, error: BaseException) -> None: ...


class Loop(Generic[Rows]):
    """Hands events to the protocol object of a node.

    Invariant: the instructions of an event are carried out, all of them and in their order, before the next event is
    handled; what they give the loop itself comes after them.
    """

    def __init__(
        self,
        protocol: NodeProtocol,
        effects: Effects[Rows],
        clock_ms: Callable[[], float],
        journal: Keeper | None = None,
    ) -> None:
        self.protocol = protocol
        self.effects = effects
        self._clock_ms = clock_ms
        self._journal = journal
        self.turned_ms = clock_ms()
        """When the loop has begun with its last event."""

    def decide(self, event: Event) -> Sequence[Instruction]:
        """Let the protocol handle an event; what it leads to, which is to be carried out next."""
        now_ms = self.turned_ms = self._clock_ms()
        if self._journal is None:
            return self.protocol.handle(event, now_ms)
        try:
            steps = self.protocol.handle(event, now_ms)
        except Exception as error:
            self._journal.failed(now_ms, event, error)
            raise
        self._journal.handled(now_ms, event, steps)
        return steps

    def carry_out(self, steps: Sequence[Instruction], rows: Rows) -> None:
        """Carry out what an event, which came with these rows, has led to."""
        for step in steps:
            carry_out(self.effects, step, rows)

    def wait_ms(self, most_ms: float) -> float:
        """How long the protocol has nothing to do if no event comes; no longer than ``most_ms``."""
        wake = self.protocol.next_wake_ms()
        return most_ms if wake is None else min(most_ms, max(0.0, wake - self._clock_ms()))

"""Whose event is next: the events of each sender, a link or a part of the node, wait in a line of their own.

One line for all would let the fastest sender decide when the others are heard. Senders take turns, by group first: a
group has one turn however many senders it has, so that a hundred clients together weigh as much as one node.

Events that the consumer gives itself while it handles another one are served before all others. They need no quota:
nothing else is taken until they are handled, so no more of them wait than one event from outside leads to. Their
number is bounded all the same, because a cascade without an end is a defect that must not look like work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from unbroken.errors import require

T = TypeVar("T")

QueueAnswer = Literal["taken", "full", "flooded"]

SENDER_EVENTS = 10_000
"""Events of one sender that wait. The protocol has a few hundred under way on a link; a loop that stood still for a
second meets a few thousand."""

SENDER_BYTES = 512 * 1024 * 1024
"""Bytes that the events of one sender carry, units above all. A single unit may be larger; it then waits alone."""

FLOOD_S = 5.0
"""A sender whose line was full and has not been nearly empty for this long sends more than the loop can handle, or the
loop is stuck. A backlog from a pause of the loop is handled in a fraction of it."""

OWN_EVENTS = 100_000
"""Events that one event from outside may lead to; a node with a thousand streams needs a few thousand."""


@dataclass(frozen=True)
class Sender:
    """Who sends events, and the group that it shares a turn with."""

    group: str
    name: str


@dataclass
class _Line(Generic[T]):
    events: deque[tuple[T, int]] = field(default_factory=deque)
    size: int = 0
    crowded_since_s: float | None = None


class FairQueue(Generic[T]):
    """The events that wait, by sender.

    Invariant: a sender has at most ``limit`` events and ``limit_bytes`` bytes (or one larger event) waiting beyond
    those that were forced; its events come out in the order in which they came in; between two turns of a group every
    other group that has events has had one; no event is lost but by ``clear``.
    """

    def __init__(
        self,
        limit: int = SENDER_EVENTS,
        limit_bytes: int = SENDER_BYTES,
        flood_s: float = FLOOD_S,
        own_limit: int = OWN_EVENTS,
    ) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._flood_s = flood_s
        self._own_limit = own_limit
        self._own: deque[T] = deque()
        self._lines: dict[Sender, _Line[T]] = {}
        self._turns: dict[str, deque[Sender]] = {}
        """Groups that have events, the next one first, and their senders that have events, the next one first."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting + len(self._own)

    def waiting(self, sender: Sender) -> int:
        known = self._lines.get(sender)
        return 0 if known is None else len(known.events)

    def put_own(self, event: T) -> None:
        """An event that the consumer gives itself."""
        require(len(self._own) < self._own_limit, f"one event leads to more than {self._own_limit} others")
        self._own.append(event)

    def offer(self, sender: Sender, event: T, now_s: float, size: int = 0) -> QueueAnswer:
        """Take an event if its sender has room. ``flooded`` says that waiting for room is of no use."""
        known = self._lines.get(sender)
        if known is not None and known.events:
            many = len(known.events) >= self._limit
            if many or known.size + size > self._limit_bytes:
                if many and known.crowded_since_s is None:
                    known.crowded_since_s = now_s
                since_s = known.crowded_since_s
                return "flooded" if since_s is not None and now_s - since_s >= self._flood_s else "full"
        self.force(sender, event, size)
        return "taken"

    def force(self, sender: Sender, event: T, size: int = 0) -> None:
        """Take an event whatever waits; for those that come once for each thing that was let in."""
        known = self._lines.setdefault(sender, _Line())
        if not known.events:
            self._turns.setdefault(sender.group, deque()).append(sender)
        known.events.append((event, size))
        known.size += size
        self._waiting += 1

    def last(self, sender: Sender) -> T | None:
        """The event of a sender that came in last, if it still waits."""
        known = self._lines.get(sender)
        return known.events[-1][0] if known is not None and known.events else None

    def roomy(self, sender: Sender, size: int = 0) -> bool:
        """Whether one who waits for room should try again: half of it is free, so it need not ask for each event."""
        known = self._lines.get(sender)
        return known is None or (2 * len(known.events) <= self._limit and known.size + size <= self._limit_bytes)

    def clear(self, sender: Sender) -> int:
        """Forget what waits of a sender; how many events that was."""
        known = self._lines.pop(sender, None)
        if known is None:
            return 0
        if known.events:
            self._leave(sender)
        self._waiting -= len(known.events)
        return len(known.events)

    def take(self) -> tuple[T, Sender | None] | None:
        """The next event and its sender (None for the consumer's own); None if no event waits."""
        if self._own:
            return self._own.popleft(), None
        if not self._turns:
            return None
        group = next(iter(self._turns))
        senders = self._turns.pop(group)
        sender = senders.popleft()
        known = self._lines[sender]
        event, size = known.events.popleft()
        known.size -= size
        self._waiting -= 1
        if len(known.events) * 10 <= self._limit:
            known.crowded_since_s = None
        if known.events:
            senders.append(sender)
        else:
            del self._lines[sender]
        if senders:
            self._turns[group] = senders  # at the end: every other group is next before it
        return event, sender

    def check(self) -> None:
        """Assert the invariant as far as it can be seen from here."""
        held = {sender for sender, known in self._lines.items() if known.events}
        require(held == self._lines.keys(), "a line without events is kept")
        turns = [sender for senders in self._turns.values() for sender in senders]
        require(len(turns) == len(held) and set(turns) == held, "each sender with events has one turn")
        require(all(self._turns.values()), "a group without events has a turn")
        require(self._waiting == sum(len(known.events) for known in self._lines.values()), "events are counted")
        for sender, known in self._lines.items():
            require(known.size == sum(size for _, size in known.events), f"bytes of {sender.name} are counted")

    def _leave(self, sender: Sender) -> None:
        senders = self._turns[sender.group]
        senders.remove(sender)
        if not senders:
            del self._turns[sender.group]

"""The events that wait for a node's loop; from all threads; who is next, `unbroken.node.fair_queue` decides."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

from unbroken.node.fair_queue import FairQueue, Sender

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a thread waits for room. A loop that makes none for this long is stuck, as ``/live`` says."""


class EventQueue(Generic[T]):
    """A fair queue that threads share: any number that put, and one, the loop, that takes.

    The loop's own thread never waits here.
    """

    def __init__(self, waiting: FairQueue[T] | None = None, patience_s: float = PATIENCE_S) -> None:
        self._waiting: FairQueue[T] = FairQueue() if waiting is None else waiting
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._roomy = threading.Condition(self._lock)
        self._blocked = 0
        self._loop: int | None = None
        self._doors: dict[Sender, QueueInlet[T]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def belong(self) -> None:
        """The calling thread is the loop from here on."""
        self._loop = threading.get_ident()

    @property
    def own(self) -> bool:
        """Whether the calling thread is the loop."""
        return threading.get_ident() == self._loop

    def get(self, timeout_s: float) -> T | None:
        """The next event; None if there is none in time."""
        with self._lock:
            found = self._waiting.take()
            if found is None and timeout_s > 0:
                self._filled.wait(timeout_s)
                found = self._waiting.take()
            if found is None:
                return None
            event, sender = found
            if self._blocked and sender is not None and self._waiting.roomy(sender):
                self._roomy.notify_all()
            return event

    def put(self, event: T, sender: Sender, size: int = 0) -> bool:
        """Add an event, waiting for room; False if there is none in time. The loop's own thread never waits."""
        with self._lock:
            if threading.get_ident() == self._loop:
                self._waiting.force(sender, event, size)
                return True
            return self._wait_and_put(event, sender, size, None)

    def put_own(self, event: T) -> bool:
        """Add an event of the loop's own; False if another thread calls."""
        if threading.get_ident() != self._loop:
            return False
        with self._lock:
            self._waiting.put_own(event)
        return True

    def force(self, event: T, sender: Sender) -> None:
        """Add an event without waiting, whatever waits; for few."""
        with self._lock:
            self._waiting.force(sender, event)
            self._filled.notify()

    def room(self, sender: Sender, timeout_s: float) -> bool:
        """Wait until a sender has room; False if it has none in time."""
        with self._lock:
            return self._await_room(sender, 0, time.monotonic() + timeout_s, None)

    def open(self, sender: Sender) -> QueueInlet[T]:
        """A link's way into the queue. Nothing comes in any longer through the door that was there before."""
        with self._lock:
            door = self._doors[sender] = QueueInlet(self, sender)
            self._roomy.notify_all()
            return door

    def opened(self, group: str) -> int:
        """How many senders of a group have a door."""
        with self._lock:
            return sum(sender.group == group for sender in self._doors)

    def has_door(self, sender: Sender) -> bool:
        with self._lock:
            return sender in self._doors

    def put_through(self, door: QueueInlet[T], event: T, size: int) -> bool:
        with self._lock:
            return self._wait_and_put(event, door.sender, size, door)

    def shut(self, door: QueueInlet[T], last: T, flooded: bool) -> None:
        """Nothing more comes in through a door but ``last``; nothing happens if it has been replaced."""
        with self._lock:
            if self._doors.get(door.sender) is not door:
                return
            del self._doors[door.sender]
            if flooded:
                self._waiting.clear(door.sender)
            if self._waiting.last(door.sender) != last:
                self._waiting.force(door.sender, last)
            self._filled.notify()
            self._roomy.notify_all()

    def _wait_and_put(self, event: T, sender: Sender, size: int, door: QueueInlet[T] | None) -> bool:
        deadline_s = time.monotonic() + self._patience_s
        while door is None or self._doors.get(sender) is door:
            now_s = time.monotonic()
            verdict = self._waiting.offer(sender, event, now_s, size)
            if verdict == "taken":
                self._filled.notify()
                return True
            if door is not None and verdict == "flooded":
                door.flooded = True
                return False
            if not self._await_room(sender, size, deadline_s, door):
                if door is not None and time.monotonic() >= deadline_s:
                    door.flooded = True
                return False
        return False

    def _await_room(self, sender: Sender, size: int, deadline_s: float, door: QueueInlet[T] | None) -> bool:
        """Wait, with the lock released, until a sender has room again; not for a door that is shut meanwhile."""
        self._blocked += 1
        try:
            while not self._waiting.roomy(sender, size):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or (door is not None and self._doors.get(sender) is not door):
                    return False
                self._roomy.wait(left_s)
            return True
        finally:
            self._blocked -= 1


class QueueInlet(Generic[T]):
    """One link's way into the queue, until it is shut or another link of the same peer replaces it."""

    def __init__(self, events: EventQueue[T], sender: Sender) -> None:
        self._events = events
        self.sender = sender
        self.flooded = False
        """Whether more came through it than the loop could handle."""

    def put(self, event: T, size: int = 0) -> bool:
        """Add an event, waiting for room; False if the link has to end: it floods, or it was replaced."""
        return self._events.put_through(self, event, size)

    def close(self, last: T) -> None:
        """Shut it and add ``last``; of a link that floods, what waits is not handled."""
        self._events.shut(self, last, self.flooded)

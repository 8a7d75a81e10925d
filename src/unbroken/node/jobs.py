"""Work that the loop hands to a thread: handing it over never waits, whatever the thread waits for."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Jobs(queue.Queue[T]):
    """A bounded queue whose ``put`` never waits; what does not fit is dropped, and ``overflow`` says so.

    The thread that takes the jobs may itself wait for the loop, so a loop that waits here would wait for ever.
    """

    def __init__(self, limit: int, overflow: Callable[[], None]) -> None:
        super().__init__(limit)
        self._overflow = overflow

    def put(self, item: T, block: bool = False, timeout: float | None = None) -> None:
        try:
            super().put(item, block=False)
        except queue.Full:
            self._overflow()

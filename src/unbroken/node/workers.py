"""Work that is not done on the loop: jobs, one after the other, on a thread or in virtual time."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from unbroken.threads import LastingThread

Job = Callable[[], None]


class Worker(ABC):
    """Does jobs in the order in which they are submitted, each when the one before it has ended.

    Submitting never waits. A job reports to the loop by an event.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin with what was submitted already."""

    @abstractmethod
    def submit(self, job: Job) -> None: ...

    @abstractmethod
    def later(self, delay_s: float, job: Job) -> None:
        """Do a job when so much time has passed, unless the worker is closed by then. For jobs of this worker."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Do what was submitted, and end; a job that takes longer is not waited for. A job may close its own worker."""


class ThreadWorker(Worker):
    """Does jobs on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = LastingThread(self._work, name)
        self._delayed: list[tuple[float, int, Job]] = []
        self._order = itertools.count()

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def later(self, delay_s: float, job: Job) -> None:
        heapq.heappush(self._delayed, (time.monotonic() + delay_s, next(self._order), job))

    def close(self, timeout_s: float) -> None:
        self._jobs.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=timeout_s)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Job | None:
        """The next job that is due; None when the worker is closed."""
        while self._delayed:
            left_s = self._delayed[0][0] - time.monotonic()
            if left_s <= 0:
                return heapq.heappop(self._delayed)[2]
            try:
                return self._jobs.get(timeout=left_s)
            except queue.Empty:
                continue
        return self._jobs.get()

"""Work off the loop in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from unbroken.node.workers import Job, Worker
from unbroken_lab.sim.files import Interrupted

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess

MOST_OPERATIONS = 6
"""How many operations of a job may be done before the end of its process: more than most jobs have."""


class VirtualWorker(Worker):
    """Does a job when ``takes_ms`` have passed; one that is under way when its process ends may be done in part."""

    def __init__(self, process: NodeProcess, takes_ms: Callable[[], float]) -> None:
        self._process = process
        self._takes_ms = takes_ms
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._started = False
        self._closed = False

    def start(self) -> None:
        self._started = True
        if self._jobs:
            self._process.later(self._takes_ms(), self._work)

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1 and self._started and not self._busy:
            self._process.later(self._takes_ms(), self._work)

    def later(self, delay_s: float, job: Job) -> None:
        self._process.later(1000 * delay_s, lambda _: None if self._closed else self.submit(job))

    def close(self, timeout_s: float) -> None:
        """All that was submitted is done before time passes."""
        while self._jobs and self._started:
            self._jobs.popleft()()
        self._jobs.clear()
        self._closed = True

    def interrupt(self) -> None:
        """The process ends: of the job that is under way nothing is done, or some of its operations."""
        files, random = self._process.disk.files, self._process.random
        if self._jobs and self._started and not self._busy and random.random() < 0.75:
            files.fuse = random.randint(0, MOST_OPERATIONS)
            try:
                self._jobs[0]()
            except (Interrupted, OSError):
                self._process.world.counts["interrupted jobs"] += 1
            finally:
                files.fuse = None
        self._jobs.clear()
        self._closed = True

    def _work(self, _: object) -> None:
        if not self._jobs or self._busy:
            return
        self._busy = True
        try:
            self._jobs.popleft()()
        except Interrupted:
            self._process.lose_power()
        finally:
            self._busy = False
        if self._jobs:
            self._process.later(self._takes_ms(), self._work)

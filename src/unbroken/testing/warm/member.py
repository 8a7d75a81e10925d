"""A node process of a pool, as the pool sees it: what it does at this moment, and how it is told what to do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess
from unbroken.testing.warm.orders import BUSY, IDLE, ProcessLine, ProcessOrder, ProcessState, Recipe, StopNode

STARTING = "starting"
DEAD = "dead"

LOOK_S = 0.05


class WarmProcess:
    """One process. Its state is what it said last, or `DEAD` when its line or the process has ended."""

    def __init__(self, name: str, recipe: Recipe, process: OwnedProcess) -> None:
        self.name = name
        self.recipe = recipe
        self.process = process
        self.failure = ""
        """Why the last order could not be done; empty if it could."""
        self.warm_s: float | None = None
        """How long its Spark session took to start."""
        self._line: ProcessLine | None = None
        self._state = STARTING
        self._changed = threading.Condition()
        self._since = 0

    @property
    def state(self) -> str:
        if self._state != DEAD and not self.process.alive():
            self._become(DEAD)
        return self._state

    @property
    def log(self) -> Path:
        """What the process and its JVM write."""
        return self.process.log_file

    def connected(self, line: ProcessLine) -> None:
        """The process has called; what it says is read from here on."""
        self._line = line
        threading.Thread(target=self._listen, args=(line,), name=f"hear-{self.name}", daemon=True).start()

    def order(self, order: ProcessOrder) -> None:
        """Give an idle process something to do."""
        if self.state != IDLE or self._line is None:
            raise UnbrokenError(f"process {self.name} is {self.state} and cannot be given anything; see {self.log}")
        self.failure = ""
        # Before it says so itself: nobody else may give it something meanwhile.
        self._become(BUSY)
        # What it writes from here on belongs to this order.
        self._since = self.log.stat().st_size
        if not self._line.send(order):
            self._become(DEAD)

    def stop_node(self) -> None:
        """Ask for the end of the node that runs in it; it is idle when that has ended."""
        if self._line is not None:
            self._line.send(StopNode())

    def wait(self, *states: str, deadline_s: float) -> bool:
        """Wait until it is in one of these states, or dead; whether it is in one of them."""
        end = time.monotonic() + deadline_s
        with self._changed:
            while self.state not in (*states, DEAD) and time.monotonic() < end:
                self._changed.wait(LOOK_S)
        return self.state in states

    def written_since_order(self) -> bytes:
        """What the process and its JVM have written since the last order."""
        with self.log.open("rb") as file:
            file.seek(self._since)
            return file.read()

    def end(self) -> None:
        """End the process; ending it again does nothing."""
        self._become(DEAD)
        if self._line is not None:
            self._line.close()
        self.process.stop(0.0)

    def _listen(self, line: ProcessLine) -> None:
        while isinstance(said := line.receive(), ProcessState):
            self._hear(said)
        self._become(DEAD)

    def _hear(self, said: ProcessState) -> None:
        if said.took_s is not None:
            self.warm_s = said.took_s
        self.failure = said.failure or self.failure
        self._become(said.state)

    def _become(self, state: str) -> None:
        with self._changed:
            if self._state != DEAD:
                self._state = state if state in (IDLE, BUSY) else DEAD
            self._changed.notify_all()

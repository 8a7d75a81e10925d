"""Unbroken with two replicas on two nodes, of which one is killed and stays dead."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from unbroken.client import Result, Subscription
from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.observation.observed import Observed, Reader, Say, observed
from unbroken_lab.experiments.peers.observation import Observation
from unbroken_lab.experiments.peers.peer import Peer


class Replicas(Peer):
    name = "unbroken"
    title = "Unbroken, two replicas"

    def __init__(self, observation: Observation, directory: Path, say: Say) -> None:
        super().__init__(observation, directory, say)
        self._stack = ExitStack()
        self._run: Observed | None = None
        self._victim: str | None = None

    def start(self) -> None:
        load = self.observation.load
        environment = {"RATE": load.rate, "ROWS": load.rows, "BEGAN_MS": int(load.began_ms)}
        reading = observed("events.py", environment, lambda results: _Taken(results, self.observation))
        self._run = self._stack.enter_context(reading)

    def aim(self) -> str:
        if self._run is None:
            raise UnbrokenError("Unbroken does not run; start it first")
        self._victim = self._run.leader()
        return f"{self._victim}, which leads the ingress"

    def kill(self) -> None:
        if self._run is not None and self._victim is not None:
            self._run.kill(self._victim)

    def check(self) -> None:
        if self._run is None:
            return
        try:
            self._run.reader.ended()
        except Exception as error:
            raise UnbrokenError(f"Unbroken's results could not be read: {error}") from error
        for name, process in self._run.cluster.nodes.items():
            if name != self._victim and process.returncode not in (None, 0):
                raise UnbrokenError(f"{name} ended with code {process.returncode}")

    def stop(self) -> None:
        self._stack.close()


class _Taken(Reader):
    """Hands results to the observation as they come."""

    def __init__(self, subscription: Subscription, observation: Observation) -> None:
        super().__init__(subscription)
        self._observation = observation

    def take(self, result: Result) -> None:
        table = result.table
        columns = [table[name].to_numpy() for name in ("k", "n", "top")]
        self._observation.add(result.arrived_ms, *columns)
        super().take(result)

    def counted(self, table: pa.Table) -> Iterable[tuple[Hashable, int]]:
        """Nothing: the observation counts."""
        return ()

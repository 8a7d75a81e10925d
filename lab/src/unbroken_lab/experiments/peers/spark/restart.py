"""Plain Structured Streaming in one process that a supervisor starts again as soon as it has died."""

from __future__ import annotations

from pathlib import Path

from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess
from unbroken_lab.experiments.observation.observed import Say
from unbroken_lab.experiments.peers.observation import Observation
from unbroken_lab.experiments.peers.peer import Peer, refuse_dead
from unbroken_lab.experiments.peers.spark.files import ResultFiles, start_query

SWEEP_S = 10.0
"""How long what a killed query leaves behind may take to end: two queries on one checkpoint are refused by Spark."""


class RestartedSpark(Peer):
    name = "spark"
    title = "Structured Streaming, restarted at once"

    def __init__(self, observation: Observation, directory: Path, say: Say) -> None:
        super().__init__(observation, directory, say)
        self._results = directory / "results"
        self._reader = ResultFiles(self._results, observation)
        self._queries: list[OwnedProcess] = []

    def start(self) -> None:
        self._reader.start()
        self._start_query()

    def aim(self) -> str:
        if not self._queries:
            raise UnbrokenError("Structured Streaming does not run; start it first")
        return "the query's process, which is started again"

    def kill(self) -> None:
        killed = self._queries[-1]
        killed.kill9()
        killed.wait(SWEEP_S)
        self._start_query()

    def check(self) -> None:
        self._reader.check()
        refuse_dead(("Structured Streaming", query) for query in self._queries[-1:])

    def stop(self) -> None:
        for query in self._queries:
            query.stop(0)
        self._reader.stop()

    def _start_query(self) -> None:
        number = len(self._queries) + 1
        self._queries.append(start_query(self.observation.load, self.directory, self._results, number=number))

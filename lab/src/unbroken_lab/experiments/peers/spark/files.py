"""Starts the query of the two Spark systems, and takes its results from the files that it leaves."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa

from unbroken.flow.settings import Settings
from unbroken.local.processes import OwnedProcess, spawn
from unbroken.spark.java import java_environment
from unbroken.spark.session import SMALL_JVM, spark_settings
from unbroken_lab.experiments.parameters.events import Load
from unbroken_lab.experiments.peers.observation import Observation
from unbroken_lab.experiments.peers.peer import FileReader, now_ms
from unbroken_lab.experiments.peers.spark.query import RESULT, PeerQuery

LOCAL = f"local[{Settings().node_cores}]"
"""As many task slots as a node of Unbroken has."""


class ResultFiles(FileReader):
    """Takes the files of a directory in the order of their names, and deletes them."""

    def __init__(self, directory: Path, observation: Observation) -> None:
        super().__init__(self._look)
        self._directory = directory
        self._observation = observation
        directory.mkdir(parents=True, exist_ok=True)

    def _look(self) -> None:
        for name in sorted(name for name in os.listdir(self._directory) if name.endswith(RESULT)):
            path = self._directory / name
            with pa.OSFile(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
            self._observation.add(now_ms(), *(table[column].to_numpy() for column in ("k", "n", "top")))
            path.unlink()


def start_query(load: Load, directory: Path, results: Path, master: str = LOCAL, number: int = 1) -> OwnedProcess:
    """Start the query as a process of its own; one that comes after another goes on from its checkpoint."""
    environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
    checkpoint, described = str(directory / "checkpoint"), directory / "query.json"
    query = PeerQuery(load.rate, load.rows, load.began_ms, master, settings_for(master), checkpoint, str(results))
    query.write(described)
    command = [sys.executable, "-m", "unbroken_lab.experiments.peers.spark.query", str(described)]
    return spawn(command, log_file=directory / f"query-{number}.log", env=environment)


def settings_for(master: str) -> dict[str, str]:
    """Those of a node of Unbroken, which were chosen for short micro-batches, and the like for executors."""
    settings = spark_settings(Settings())
    if master == LOCAL:
        return settings
    return {
        **settings,
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": SMALL_JVM,
        # Executors would tell of every task.
        "spark.log.level": "WARN",
        # One partition of the state for each executor.
        "spark.sql.shuffle.partitions": "2",
    }

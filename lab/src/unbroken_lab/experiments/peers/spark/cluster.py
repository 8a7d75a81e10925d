"""A Spark standalone cluster on this machine: a master, two workers with an executor each, and the query's driver.

An executor is killed. Its worker and the driver notice that at once; the micro-batch goes on with the other executor,
which loads the lost partitions of the state from the checkpoint, and the worker starts an executor again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess
from unbroken.local.spark_cluster import StandaloneCluster
from unbroken_lab.experiments.observation.observed import Say
from unbroken_lab.experiments.peers.observation import Observation
from unbroken_lab.experiments.peers.peer import Peer, free_ports, refuse_dead
from unbroken_lab.experiments.peers.spark.files import ResultFiles, start_query


class SparkCluster(Peer):
    name = "spark-cluster"
    title = "Spark standalone cluster, executor lost"

    def __init__(self, observation: Observation, directory: Path, say: Say) -> None:
        super().__init__(observation, directory, say)
        self._results = directory / "results"
        self._reader = ResultFiles(self._results, observation)
        self._cluster: StandaloneCluster | None = None
        self._driver: OwnedProcess | None = None
        self._victim: psutil.Process | None = None

    def start(self) -> None:
        (port,) = free_ports(1)
        self._cluster = StandaloneCluster(self.directory, port)
        self._cluster.start()
        self._reader.start()
        self._driver = start_query(self.observation.load, self.directory, self._results, self._cluster.url)

    def aim(self) -> str:
        if self._cluster is not None:
            for name in self._cluster.workers:
                for executor in self._cluster.executors(name):
                    self._victim = executor
                    return f"the executor of {name.replace('-', ' ')}, which its worker starts again"
        raise UnbrokenError("no worker has an executor")

    def kill(self) -> None:
        if self._victim is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._victim.kill()

    def check(self) -> None:
        self._reader.check()
        processes = {} if self._cluster is None else dict(self._cluster.processes)
        if self._driver is not None:
            processes["driver"] = self._driver
        refuse_dead((f"the cluster's {name}", process) for name, process in processes.items())

    def stop(self) -> None:
        # The driver first: a cluster that goes before it makes it wait for another.
        if self._driver is not None:
            self._driver.stop(0)
        if self._cluster is not None:
            self._cluster.stop()
        self._reader.stop()

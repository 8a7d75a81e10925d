"""A Spark standalone cluster on this machine: a master, two workers with an executor each, and the query's driver.

An executor is killed. Its worker and the driver notice that at once; the micro-batch goes on with the other executor,
which loads the lost partitions of the state from the checkpoint, and the worker starts an executor again.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import psutil

from unbroken.bench.observed import Say
from unbroken.bench.peers.observation import Observation
from unbroken.bench.peers.peer import Peer, free_ports, refuse_dead
from unbroken.bench.peers.spark_files import ResultFiles, start_query
from unbroken.cluster.java import java_environment
from unbroken.cluster.processes import OwnedProcess, spawn
from unbroken.errors import UnbrokenError

WORKERS = 2
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
HOST = "127.0.0.1"


class SparkCluster(Peer):
    name = "spark-cluster"
    title = "Spark standalone cluster, executor lost"

    def __init__(self, observation: Observation, directory: Path, say: Say) -> None:
        super().__init__(observation, directory, say)
        self._results = directory / "results"
        self._reader = ResultFiles(self._results, observation)
        self._processes: dict[str, OwnedProcess] = {}
        self._victim: psutil.Process | None = None

    def start(self) -> None:
        (port,) = free_ports(1)
        url = f"spark://{HOST}:{port}"
        # A worker that comes before its master tries again: nothing has to be waited for.
        self._launch("master", [MASTER, "--host", HOST, "--port", str(port), "--webui-port", "0"])
        for number in range(1, WORKERS + 1):
            place = self.directory / f"worker-{number}"
            size = ["--cores", "1", "--memory", "1500m", "--work-dir", str(place)]
            self._launch(f"worker-{number}", [WORKER, "--host", HOST, "--webui-port", "0", *size, url])
        self._reader.start()
        self._processes["driver"] = start_query(self.observation.load, self.directory, self._results, url)

    def aim(self) -> str:
        for number in range(1, WORKERS + 1):
            executor = _executor_of(self._processes[f"worker-{number}"].pid)
            if executor is not None:
                self._victim = executor
                return f"the executor of worker {number}, which its worker starts again"
        raise UnbrokenError("no worker has an executor")

    def kill(self) -> None:
        if self._victim is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._victim.kill()

    def check(self) -> None:
        self._reader.check()
        refuse_dead((f"the cluster's {name}", process) for name, process in self._processes.items())

    def stop(self) -> None:
        # The driver first: a cluster that goes before it makes it wait for another.
        for name in sorted(self._processes, key=lambda name: name != "driver"):
            self._processes[name].stop(0)
        self._reader.stop()

    def _launch(self, name: str, command: list[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            **java_environment(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        log_file = self.directory / f"{name}.log"
        self._processes[name] = spawn([home / "bin" / "spark-class", *command], log_file=log_file, env=environment)


def _executor_of(worker: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(worker).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(EXECUTOR in argument for argument in child.cmdline()):
                    return child
    return None

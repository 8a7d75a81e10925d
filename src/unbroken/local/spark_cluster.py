"""A Spark standalone cluster on this machine: a master and its workers, from the jars of the pyspark package.

For measurements, for tests, and for trying out what `unbroken node --spark-master` does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType

import psutil

from unbroken.local.processes import OwnedProcess, spawn
from unbroken.spark.java import java_environment
from unbroken.spark.master import SECRET_VARIABLE

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"

DAEMON_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"
"""A master has little to do: it starts sooner without the full compiler, and nobody asks it over HTTP."""


AUTHENTICATED = "-Dspark.authenticate=true -Dspark.network.crypto.enabled=true"


class StandaloneCluster:
    """A master and some workers, owned by this process.

    Each process has a log, and each worker a directory for its executors' logs, below ``directory``. Killing a worker
    ends its executors as well, as the loss of its machine would.

    Parameters
    ----------
    directory
        Where logs go; made if it is missing.
    port
        Where the master listens. It must be free.
    workers, cores, memory
        How many workers there are, and what each of them has to give to executors.

    secret
        What drivers have to know. Without one the cluster lets anyone in.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1500m",
        host: str = "127.0.0.1",
        secret: str | None = None,
    ) -> None:
        self.directory = directory
        self.url = f"spark://{host}:{port}"
        self.workers = tuple(f"worker-{number}" for number in range(1, workers + 1))
        self.processes: dict[str, OwnedProcess] = {}
        self._host = host
        self._port = port
        self.environment = {} if secret is None else {SECRET_VARIABLE: secret}
        """What the environment of a driver has to have."""
        self._size = ["--cores", str(cores), "--memory", memory]

    def start(self) -> None:
        # A worker that comes before its master tries again: nothing has to be waited for.
        self._launch("master", [MASTER, "--host", self._host, "--port", str(self._port), "--webui-port", "0"])
        for name in self.workers:
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """Start a worker, or start it again after it was killed."""
        place = ["--host", self._host, "--webui-port", "0", "--work-dir", str(self.directory / name)]
        self._launch(name, [WORKER, *place, *self._size, self.url])

    def executors(self, worker: str) -> list[psutil.Process]:
        """The executors that a worker has started, of whatever application, oldest first."""
        found: list[tuple[float, psutil.Process]] = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.processes[worker].pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any(EXECUTOR in argument for argument in child.cmdline()):
                        found.append((child.create_time(), child))
        return [process for _, process in sorted(found, key=lambda each: each[0])]

    def stop(self) -> None:
        """End all processes at once; stopping again does nothing."""
        for process in self.processes.values():
            process.stop(0)

    def __enter__(self) -> StandaloneCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, name: str, command: list[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            **java_environment(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": self._host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{DAEMON_JVM} {AUTHENTICATED}" if self.environment else DAEMON_JVM,
            **self.environment,
        }
        log_file = self.directory / f"{name}.log"
        self.processes[name] = spawn([home / "bin" / "spark-class", *command], log_file=log_file, env=environment)

"""Apache Flink on this machine: a JobManager and two TaskManagers, of which the one with the source is killed.

The job is SQL and runs in Java alone (``java/RunningCount.java``); its ``print`` sink writes every result to the
standard output of its TaskManager, which is a file here that is read as it grows. The killed TaskManager stays dead:
the other has slots for the whole job, so that Flink has to wait for nothing but its own detection and recovery.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess, spawn, tail
from unbroken.spark.java import find_java
from unbroken_lab.experiments.observation.observed import Say, wait_until
from unbroken_lab.experiments.parameters.events import FACTOR, KEYS, MODULUS, STEP
from unbroken_lab.experiments.peers.flink.install import Flink, build_job, install_flink
from unbroken_lab.experiments.peers.flink.rest import FlinkRest
from unbroken_lab.experiments.peers.flink.settings import (
    EAGER,
    PARALLELISM,
    TUNED,
    Ports,
    configuration,
    java_options,
    write_configuration,
)
from unbroken_lab.experiments.peers.observation import Observation
from unbroken_lab.experiments.peers.peer import FileReader, Peer, free_ports, now_ms

JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
ENTRY = "RunningCount"
MANAGERS = ("tm-1", "tm-2")
READY_S = 90.0

RESULT = re.compile(rb"\+[IU]\[(\d+), (\d+), (\d+)\]\n")
"""A new or changed row; rows that are taken back before they change begin with -U."""


class FlinkCluster(Peer):
    """Flink as it comes, heartbeats every 10 s."""

    name = "flink"
    title = "Flink, default heartbeats"
    tuning: ClassVar[Mapping[str, str]] = {}

    def __init__(self, observation: Observation, directory: Path, say: Say) -> None:
        super().__init__(observation, directory, say)
        self._flink: Flink | None = None
        self._jar = directory / "job.jar"
        self._processes: dict[str, OwnedProcess] = {}
        self._outputs = [Output(directory / f"{name}.out") for name in MANAGERS]
        self._reader = FileReader(self._take)
        self._job: str | None = None
        self._victim: str | None = None
        rpc, rest = free_ports(2)
        self._ports = Ports(rpc, rest)
        self._rest = FlinkRest(rest)

    def prepare(self) -> None:
        self._flink = install_flink(self.say)
        self._jar = build_job(self._flink, self.directory)

    def start(self) -> None:
        for name in ("temporary", "upload", "checkpoints"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        write_configuration(self._configured, configuration(self.directory, self._ports, self.tuning))
        self._launch("jobmanager", JOB_MANAGER)
        for name in MANAGERS:
            self._launch(name, TASK_MANAGER, "-D", f"taskmanager.resource-id={name}")
        self._reader.start()
        wait_until(self._ready, READY_S, "Flink's TaskManagers")
        load = self.observation.load
        numbers = (load.rows, int(load.began_ms), load.rate, KEYS, STEP, FACTOR, MODULUS)
        self._job = self._rest.run(self._jar, ENTRY, [str(number) for number in numbers], PARALLELISM)

    def aim(self) -> str:
        if self._job is None:
            raise UnbrokenError("Flink runs no job; start it first")
        self._victim = self._rest.source_manager(self._job)
        spread = len(self._rest.hosts(self._job))
        return f"{self._victim}, which runs the source; {spread} TaskManagers run the job"

    def kill(self) -> None:
        if self._victim is not None:
            self._processes[self._victim].kill9()

    def check(self) -> None:
        self._reader.check()
        alive = [name for name in MANAGERS if name in self._processes and self._processes[name].alive()]
        if "jobmanager" in self._processes and not self._processes["jobmanager"].alive():
            raise UnbrokenError(f"Flink's JobManager ended; {_reason(self._log('jobmanager'))}")
        if self._processes and not alive:
            raise UnbrokenError(f"no TaskManager of Flink is left; {_reason(self._log(MANAGERS[0]))}")

    def stop(self) -> None:
        for process in self._processes.values():
            process.stop(0)
        self._reader.stop()

    @property
    def _configured(self) -> Path:
        return self.directory / "conf"

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _ready(self) -> bool:
        self.check()
        return len(self._rest.task_managers()) == len(MANAGERS)

    def _launch(self, name: str, entry: str, *arguments: str) -> None:
        if self._flink is None:
            raise UnbrokenError("Flink is not installed; prepare it first")
        command = [str(find_java().executable), *java_options(self._configured, self._log(name))]
        command += ["-cp", self._flink.classpath, entry, "--configDir", str(self._configured), *arguments]
        self._processes[name] = spawn(command, log_file=self.directory / f"{name}.out")

    def _take(self) -> None:
        for output in self._outputs:
            found = output.read()
            if len(found):
                self.observation.add(now_ms(), *found.T)


def _reason(log_file: Path) -> str:
    """What a log says about the end of its process: the innermost of its errors."""
    lines = tail(log_file, lines=200, most_bytes=200_000).splitlines()
    causes = [line for line in lines if line.startswith("Caused by:") or " ERROR " in line]
    return f"its log says:\n{causes[-1]}" if causes else "the end of its log:\n" + "\n".join(lines[-10:])


class TunedFlink(FlinkCluster):
    name = "flink-tuned"
    title = "Flink, heartbeats every second"
    tuning = TUNED


class EagerFlink(FlinkCluster):
    name = "flink-eager"
    title = "Flink, heartbeats every 200 ms"
    tuning = EAGER


class Output:
    """The results in the standard output of a TaskManager, as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._rest = b""

    def read(self) -> Any:
        """Rows ``key, count, maximum`` that were written since the last call."""
        if not self._path.exists():
            return np.empty((0, 3), dtype=np.int64)
        with self._path.open("rb") as file:
            file.seek(self._place)
            text = file.read()
        self._place += len(text)
        whole, newline, self._rest = (self._rest + text).rpartition(b"\n")
        rows = RESULT.findall(whole + newline)
        return np.array(rows, dtype="S20").astype(np.int64).reshape(-1, 3)

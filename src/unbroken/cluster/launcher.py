"""A whole flow on this machine: embedded ZooKeeper and one process per node, all owned by this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from unbroken.client import Subscription
from unbroken.cluster.java import java_environment
from unbroken.cluster.processes import OwnedProcess, spawn, tail
from unbroken.cluster.run_directory import RUN_FILE as RUN_FILE
from unbroken.cluster.run_directory import RunInfo as RunInfo
from unbroken.cluster.run_directory import clear, refuse_used
from unbroken.cluster.status_reader import StatusReader
from unbroken.cluster.zookeeper import EmbeddedZooKeeper, ZooKeeperError
from unbroken.errors import UnbrokenError
from unbroken.flow import Dataflow
from unbroken.plan import build_topology, load_flow
from unbroken.transport.auth import create_token

RESTART_DEADLINE_S = 10.0
RESTART_PAUSE_S = 5.0
"""Pause between attempts to restart ZooKeeper: results go on meanwhile, and each attempt starts a JVM."""


class LocalCluster:
    """Starts a flow's nodes, watches over them and ends them.

    Directory layout: ``logs/`` one file per process, ``token``, ``zookeeper/``, one directory per node, and
    ``dead-letters/``.
    """

    def __init__(self, flow_file: Path, directory: Path, *, nodes: int | None = None, fresh: bool = False) -> None:
        self.flow_file = flow_file.resolve()
        self.directory = directory.resolve()
        self.flow: Dataflow = load_flow(self.flow_file)
        self.count = nodes or self.flow.settings.nodes
        self.topology = build_topology(self.flow, self.count)
        self.logs = self.directory / "logs"
        self._prepare(fresh)
        # The token comes first: it marks the directory as a run's own.
        self.token = create_token(self.directory / "token")
        self.logs.mkdir()
        self.zookeeper = EmbeddedZooKeeper(self.directory / "zookeeper", self.logs / "zookeeper.log")
        self.nodes: dict[str, OwnedProcess] = {}
        self._reader: StatusReader | None = None
        self._told_dead: set[str] = set()
        self._restart_after = 0.0

    def start(self) -> None:
        """Start ZooKeeper and every node; returns before the nodes are ready."""
        self.zookeeper.start()
        token_file = self.directory / "token"
        RunInfo(self.flow.name, self.zookeeper.address, token_file, self.directory, os.getpid()).write()
        self._reader = StatusReader(self.zookeeper.address, self.flow.name, self.token)
        for number in range(1, self.count + 1):
            self.start_node(f"node-{number}")

    def start_node(self, name: str) -> None:
        command = [
            *(sys.executable, "-m", "unbroken", "node"),
            *("--name", name, "--flow", str(self.flow_file), "--zookeeper", self.zookeeper.address),
            *("--dir", str(self.directory / name), "--token-file", str(self.directory / "token")),
            *("--nodes", str(self.count)),
        ]
        environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
        self.nodes[name] = spawn(command, log_file=self.logs / f"{name}.log", env=environment)

    def wait_ready(self, deadline_s: float = 120, progress: Callable[[str], None] | None = None) -> None:
        """Wait until every node has started its queries."""
        deadline = time.monotonic() + deadline_s
        while True:
            states = self.status()
            ready = [s["node"] for s in states if s.get("state") == "running"]
            if progress is not None:
                progress(f"{len(ready)} of {self.count} nodes are ready")
            if len(ready) == self.count:
                return
            self._raise_if_dead()
            if time.monotonic() > deadline:
                raise UnbrokenError(f"only {ready} of {self.count} nodes are ready; their logs are in {self.logs}")
            time.sleep(0.2)

    def status(self) -> list[dict[str, Any]]:
        """The status of every node; ``dead`` is one whose process has ended, whatever was heard of it before."""
        if self._reader is None:
            raise UnbrokenError(f"flow {self.flow.name} does not run; start it first")
        states = {state["node"]: state for state in self._reader.read()}
        for name, process in self.nodes.items():
            if not process.alive():
                states[name] = {"node": name, "state": "dead", "reason": _how_it_ended(process)}
        return [states[name] for name in sorted(states)]

    def tend(self) -> list[str]:
        """Restart ZooKeeper if it died; what there is to say about that and about nodes that died since."""
        out: list[str] = []
        for name, process in self.nodes.items():
            if name not in self._told_dead and not process.alive():
                self._told_dead.add(name)
                out.append(f"{name} is dead: {_how_it_ended(process)}; its log is {self.logs / name}.log")
        if not self.zookeeper.alive() and time.monotonic() >= self._restart_after:
            out.append(self._restart_zookeeper())
        return out

    def subscribe(self, sink: str) -> Subscription:
        """Read the results of a client sink of this flow."""
        segment = self.flow.segments[self.flow.sinks[sink].input]
        subscription = Subscription(self.zookeeper.address, self.flow.name, sink, self.token)
        try:
            subscription.open(segment.name, segment.shards)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def stop(self) -> None:
        """End every process; stopping again does nothing."""
        for process in self.nodes.values():
            process.stop(deadline_s=10)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self.zookeeper.stop()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self, fresh: bool) -> None:
        """Make the directory ready; everything that speaks against it is found before anything is deleted."""
        for name, sink in self.flow.sinks.items():
            taken = sink.connector.occupied()
            if taken is not None:
                raise UnbrokenError(f"sink {name}: {taken}. Move or delete it, or let the sink write elsewhere.")
        refuse_used(self.directory, fresh)
        if self.flow_file.is_relative_to(self.directory):
            raise UnbrokenError(
                f"{self.flow_file} lies in {self.directory}, where the run keeps its state and --fresh deletes "
                "everything. Give another directory with --dir."
            )
        clear(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def _restart_zookeeper(self) -> str:
        try:
            self.zookeeper.start(RESTART_DEADLINE_S)
        except ZooKeeperError as error:
            self._restart_after = time.monotonic() + RESTART_PAUSE_S
            what = str(error).splitlines()[0]
            return f"ZooKeeper died and cannot be started again yet; results go on without it: {what}"
        return "ZooKeeper died and was started again on its data"

    def _raise_if_dead(self) -> None:
        for name, process in self.nodes.items():
            if not process.alive():
                log_file = self.logs / f"{name}.log"
                raise UnbrokenError(f"{name} ended while starting; the end of {log_file}:\n{tail(log_file)}")


def _how_it_ended(process: OwnedProcess) -> str:
    code = process.returncode or 0
    return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"

"""A whole flow on this machine: embedded ZooKeeper and one process per node, all owned by this process."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from unbroken.client import Subscription
from unbroken.cluster.coordination import connect, read_members
from unbroken.cluster.java import java_environment
from unbroken.cluster.processes import OwnedProcess, spawn, tail
from unbroken.cluster.zookeeper import EmbeddedZooKeeper
from unbroken.errors import UnbrokenError
from unbroken.flow import Dataflow
from unbroken.plan import build_topology, load_flow
from unbroken.transport.auth import call_options, create_token

RUN_FILE = "run.json"
STATUS_DEADLINE_S = 2.0


@dataclass(frozen=True)
class RunInfo:
    """How to reach a running flow, kept in its directory for the other commands."""

    flow: str
    zookeeper: str
    token_file: Path
    directory: Path

    def write(self) -> None:
        value = {"flow": self.flow, "zookeeper": self.zookeeper, "token_file": str(self.token_file)}
        (self.directory / RUN_FILE).write_text(json.dumps(value))

    @classmethod
    def read(cls, directory: Path) -> RunInfo:
        try:
            value = json.loads((directory / RUN_FILE).read_text())
        except FileNotFoundError:
            raise UnbrokenError(
                f"no flow has been started in {directory}. Start one with `unbroken run FILE`, "
                "or name its directory with --dir."
            ) from None
        return cls(value["flow"], value["zookeeper"], Path(value["token_file"]), directory)


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
        self.token = create_token(self.directory / "token")
        self.zookeeper = EmbeddedZooKeeper(self.directory / "zookeeper", self.logs / "zookeeper.log")
        self.nodes: dict[str, OwnedProcess] = {}

    def start(self) -> None:
        """Start ZooKeeper and every node; returns before the nodes are ready."""
        self.zookeeper.start()
        info = RunInfo(self.flow.name, self.zookeeper.address, self.directory / "token", self.directory)
        info.write()
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
        """Wait until every node runs its queries."""
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
        """The status of every node that answers."""
        return fetch_status(self.zookeeper.address, self.flow.name, self.token)

    def subscribe(self, sink: str) -> Subscription:
        """Read the results of a client sink of this flow."""
        segment = self.flow.segments[self.flow.sinks[sink].input]
        subscription = Subscription(self.zookeeper.address, self.flow.name, sink, self.token)
        subscription.open(segment.name, segment.shards)
        return subscription

    def stop(self) -> None:
        for process in self.nodes.values():
            process.stop(deadline_s=10)
        self.zookeeper.stop()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self, fresh: bool) -> None:
        if self.directory.exists() and any(self.directory.iterdir()):
            if not fresh:
                raise UnbrokenError(
                    f"{self.directory} holds the state of an earlier run. Give another directory with --dir, "
                    "or start over with --fresh, which deletes it (results in sinks stay where they are)."
                )
            shutil.rmtree(self.directory)
        for name, sink in self.flow.sinks.items():
            taken = sink.connector.occupied()
            if taken is not None:
                raise UnbrokenError(f"sink {name}: {taken}. Move or delete it, or let the sink write elsewhere.")
        self.logs.mkdir(parents=True)

    def _raise_if_dead(self) -> None:
        for name, process in self.nodes.items():
            if not process.alive():
                log_file = self.logs / f"{name}.log"
                raise UnbrokenError(f"{name} ended while starting; the end of {log_file}:\n{tail(log_file)}")


def fetch_status(zookeeper: str, flow: str, token: str) -> list[dict[str, Any]]:
    """Ask every member of a flow for its status; a node that does not answer is listed as silent."""
    client = connect(zookeeper, 10)
    try:
        members = read_members(client, flow)
    finally:
        client.stop()
        client.close()
    out: list[dict[str, Any]] = []
    for member in members.values():
        try:
            connection = flight.connect(f"grpc://{member.address}")
            action = flight.Action("status", b"{}")
            answers = list(connection.do_action(action, call_options(token, STATUS_DEADLINE_S)))
            out.append(json.loads(answers[0].body.to_pybytes()))
            connection.close()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            out.append({"node": member.node, "state": "silent", "reason": str(error).splitlines()[0]})
    return out

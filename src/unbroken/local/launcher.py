"""A whole flow on this machine: embedded ZooKeeper and one process per node, all owned by this process."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from unbroken.client.subscription import Subscription
from unbroken.coordination.client import close_server
from unbroken.coordination.documents import connect
from unbroken.coordination.run_info import RUN_FILE as RUN_FILE
from unbroken.coordination.run_info import RunInfo as RunInfo
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Program
from unbroken.local.processes import OwnedProcess, spawn, tail
from unbroken.local.run_directory import can_resume, clear, refuse_other_shape, write_shape
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.sink_occupancy import PERMISSION, refuse_occupied
from unbroken.observe.notices.processes import ending
from unbroken.observe.status.node import NodeState, NodeStatus
from unbroken.observe.status.reader import StatusReader
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.processes import ProcessDied, ProcessRestarted, ZooKeeperDown, ZooKeeperRestarted
from unbroken.security.private_files import make_private
from unbroken.spark.java import java_environment
from unbroken.transport.auth import create_token, read_token

RESTART_DEADLINE_S = 10.0
RESTART_PAUSE_S = 5.0
"""Pause between attempts to restart ZooKeeper: results go on meanwhile, and each attempt starts a JVM."""

NODE_PAUSE_S = 1.0
LONGEST_NODE_PAUSE_S = 60.0
"""Pause before a dead node is started again; doubled each time it dies, so that one that cannot live costs little."""

START_RESTARTS = 2
"""How often a node that dies while the flow starts is restarted. One that dies three times will not live."""

RESTART_GRACE_S = 60.0
"""By how much each restart of a node puts off the deadline for the start: Spark starts anew."""

REFUSED = 2
"""The exit code of a node that cannot run the flow as it is declared: a restart does not help."""


class LocalCluster:
    """Starts a flow's nodes, watches over them and ends them.

    A directory that an earlier run has left is gone on with, unless it is to be ``fresh``. With ``supervise`` a node
    that dies is started again by ``tend``. Nodes count up from ``metrics_port`` (0: each takes a free one); without it
    the flow's setting holds.

    Directory layout: ``logs/`` one file per process, ``token``, ``zookeeper/``, one directory per node, and
    ``dead-letters/``.
    """

    def __init__(
        self,
        flow_file: Path,
        directory: Path,
        *,
        nodes: int | None = None,
        standbys: int | None = None,
        fresh: bool = False,
        supervise: bool = True,
        metrics_port: int | None = None,
        add_to_sinks: bool = False,
    ) -> None:
        self.flow_file = flow_file.resolve()
        self.directory = directory.resolve()
        self.flow: Dataflow = load_flow(self.flow_file)
        self.count = nodes or self.flow.settings.nodes
        self.topology = build_topology(self.flow, self.count)
        self.logs = self.directory / "logs"
        self.standbys = self.flow.settings.standbys if standbys is None else standbys
        self.metrics_port = self.flow.settings.metrics_port if metrics_port is None else metrics_port
        self.add_to_sinks = add_to_sinks
        self.resumed = self._prepare(fresh)
        # The token comes first: it marks the directory as a run's own.
        token_file = self.directory / "token"
        self.token = read_token(token_file) if self.resumed else create_token(token_file)
        self.logs.mkdir(exist_ok=True)
        self.zookeeper = EmbeddedZooKeeper(self.directory / "zookeeper", self.logs / "zookeeper.log")
        self.nodes: dict[str, OwnedProcess] = {}
        self._reader: StatusReader | None = None
        self._supervise = supervise
        self._told_dead: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._start_again: dict[str, float] = {}
        self._restarts = 0
        self._restart_after = 0.0

    def start(self) -> None:
        """Start ZooKeeper and every node; returns before the nodes are ready."""
        self.zookeeper.start()
        self._close_zookeeper()
        token_file = self.directory / "token"
        RunInfo(self.flow.name, self.zookeeper.address, token_file, self.directory, os.getpid()).write()
        self._reader = StatusReader(self.zookeeper.address, self.flow.name, self.token)
        for number in range(1, self.count + 1):
            self.start_node(f"node-{number}")
        for number in range(1, self.standbys + 1):
            self.start_node(f"standby-{number}", standby=True)

    def start_node(self, name: str, standby: bool = False) -> None:
        """Start a node, or start it again on what its directory holds."""
        self._told_dead.discard(name)
        command = [
            *self.program_of(name),
            *("--name", name, "--flow", str(self.flow_file), "--zookeeper", self.zookeeper_for(name)),
            *("--dir", str(self.directory / name), "--token-file", str(self.directory / "token")),
            *("--nodes", str(self.count)),
            *(["--standby"] if standby else []),
            *([PERMISSION] if self.add_to_sinks else []),
            *self._metrics_option(name),
            *self.ways_of(name),
        ]
        environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
        self.nodes[name] = spawn(command, log_file=self.logs / f"{name}.log", env=environment)

    def wait_ready(
        self,
        deadline_s: float = 120,
        progress: Callable[[str], None] | None = None,
        say: Callable[[Notice], None] | None = None,
    ) -> None:
        """Wait until every node has started its queries; ``say`` is told what happens to nodes meanwhile.

        With supervision a node that dies is restarted, a few times. UnbrokenError with the end of its log if that does
        not help, and at the deadline, which each restart puts off.
        """
        began = time.monotonic()
        while True:
            states = self.status()
            ready = [state.node for state in states if state.running]
            wanted = self.count + self.standbys
            told = f"{len(ready)} of {wanted} nodes are ready"
            if any(state.state is NodeState.UNADOPTED for state in states):
                # An operator has to act, which takes as long as it takes.
                began = time.monotonic()
                told += f"; ZooKeeper has lost the documents of the run: `unbroken adopt --dir {self.directory}`"
            if progress is not None:
                progress(told)
            if len(ready) >= wanted:
                # What happened at the start does not count against a node that has started.
                self._deaths.clear()
                self._restarts = 0
                return
            self._raise_if_dead_for_good()
            for notice in self.tend() if self._supervise else []:
                if say is not None:
                    say(notice)
            if time.monotonic() > began + deadline_s + self._restarts * RESTART_GRACE_S:
                raise UnbrokenError(f"only {ready} of {wanted} nodes are ready; their logs are in {self.logs}")
            time.sleep(0.2)

    def status(self) -> list[NodeStatus]:
        """The status of every node; ``dead`` is one whose process has ended, whatever was heard of it before."""
        if self._reader is None:
            raise UnbrokenError(f"flow {self.flow.name} does not run; start it first")
        states = {state.node: state for state in self._reader.read()}
        for name, process in self.nodes.items():
            if not process.alive():
                states[name] = NodeStatus(node=name, state=NodeState.DEAD, reason=_how_it_ended(process))
        return [states[name] for name in sorted(states)]

    def tend(self) -> list[Notice]:
        """Restart what has died; the notices about it."""
        out: list[Notice] = []
        now = time.monotonic()
        for name, process in list(self.nodes.items()):
            if process.alive():
                continue
            if name not in self._told_dead:
                self._told_dead.add(name)
                out.append(ProcessDied(name, process.returncode or 0, f"{self.logs / name}.log"))
                if self._supervise and process.returncode != 0:
                    self._deaths[name] += 1
                    pause = min(LONGEST_NODE_PAUSE_S, NODE_PAUSE_S * 2 ** (self._deaths[name] - 1))
                    self._start_again[name] = now + pause
            elif self._start_again.get(name, now + 1) <= now:
                del self._start_again[name]
                self._restarts += 1
                out.append(ProcessRestarted(name))
                self.start_node(name, standby=name.startswith("standby-"))
        if not self.zookeeper.alive() and time.monotonic() >= self._restart_after:
            out.append(self._restart_zookeeper())
        return out

    def hopeless(self) -> bool:
        """Whether no node is left and none will be started again."""
        return not self._start_again and not any(process.alive() for process in self.nodes.values())

    def subscribe(self, sink: str, after: int = 0) -> Subscription:
        """Read the results of a client sink of this flow, all or those behind unit ``after``."""
        segment = self.flow.segments[self.flow.sinks[sink].input]
        address, routes = self.zookeeper.address, self.routes_here()
        subscription = Subscription(address, self.flow.name, sink, self.token, after=after, routes=routes)
        try:
            subscription.open(segment.name, segment.shards)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def stop(self) -> None:
        """End every process; stopping again does nothing."""
        # All at once: those that are left would otherwise begin to replace the ones that went.
        with ThreadPoolExecutor(max(1, len(self.nodes))) as pool:
            list(pool.map(lambda process: process.stop(deadline_s=10), self.nodes.values()))
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self.zookeeper.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- how nodes are started and reached; on one machine at the addresses that they announce ----------

    def program_of(self, name: str) -> list[str]:
        """The program of a node, before its options."""
        return [sys.executable, "-m", "unbroken", "node"]

    def zookeeper_for(self, name: str) -> str:
        """Where a node finds ZooKeeper."""
        return self.zookeeper.address

    def ways_of(self, name: str) -> list[str]:
        """Options of a node that say where it listens, and where it finds others."""
        return []

    def routes_here(self) -> list[str]:
        """Where subscribers in this process find nodes."""
        return []

    def _prepare(self, fresh: bool) -> bool:
        """Make the directory ready; True if it holds a run to go on with.

        Everything that speaks against it is found before anything is deleted.
        """
        resumed = can_resume(self.directory, fresh)
        if self.flow_file.is_relative_to(self.directory):
            raise UnbrokenError(
                f"{self.flow_file} lies in {self.directory}, where the run keeps its state and --fresh deletes "
                "everything. Give another directory with --dir."
            )
        program = Program.first(self.flow, self.topology, str(self.flow_file), self.flow_file.read_text())
        if resumed:
            refuse_other_shape(self.directory, program)
            make_private(self.directory)
            return True
        if not self.add_to_sinks:
            refuse_occupied(self.flow)
        clear(self.directory)
        make_private(self.directory)
        write_shape(self.directory, program)
        return False

    def _close_zookeeper(self) -> None:
        """Keep other users of this machine out of the run's own ZooKeeper; its data keep that."""
        client = connect(self.zookeeper.address, RESTART_DEADLINE_S, RESTART_DEADLINE_S, token=self.token)
        try:
            close_server(client, self.zookeeper.address)
        finally:
            client.stop()
            client.close()

    def _metrics_option(self, name: str) -> list[str]:
        """The port of a node's metrics: the same again whenever it is started, and another than those of the others."""
        if self.metrics_port is None:
            return []
        kind, _, number = name.rpartition("-")
        if not self.metrics_port or not number.isdigit():
            return ["--metrics-port", "0"]
        place = int(number) - 1 + (self.count if kind == "standby" else 0)
        return ["--metrics-port", str(self.metrics_port + place)]

    def _restart_zookeeper(self) -> Notice:
        try:
            self.zookeeper.start(RESTART_DEADLINE_S)
            self._close_zookeeper()  # its data may be lost, and who may write there is part of them
        except UnbrokenError as error:
            self._restart_after = time.monotonic() + RESTART_PAUSE_S
            return ZooKeeperDown(str(error).splitlines()[0])
        return ZooKeeperRestarted()

    def _raise_if_dead_for_good(self) -> None:
        """A node that died while the flow starts, and whose restart would not help, or has not helped."""
        for name, process in self.nodes.items():
            if process.alive():
                continue
            useless = not self._supervise or process.returncode in (0, REFUSED)
            # The death at hand is counted when it is tended to.
            died = self._deaths[name] + (name not in self._told_dead)
            if useless or died > START_RESTARTS:
                log_file = self.logs / f"{name}.log"
                often = f" {died} times" if died > 1 else ""
                what = f"{name} ended{often} while starting ({_how_it_ended(process)})"
                raise UnbrokenError(f"{what}; the end of {log_file}:\n{tail(log_file)}")


def _how_it_ended(process: OwnedProcess) -> str:
    return ending(process.returncode or 0)

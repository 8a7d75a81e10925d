"""One running flow that cases are tried on, one after the other: what is done to it, and what is seen of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner

from recovery.detour import Detour
from support import wait_until
from unbroken.cli import cli
from unbroken.client import Result, Subscription
from unbroken.local.launcher import LocalCluster
from unbroken.local.processes import spawn
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.spark.java import java_environment
from unbroken.testing.shortage import shortage_of
from unbroken_lab.chaos.judge import judge
from unbroken_lab.chaos.stage import Stage

SEED = 7
NODES = 4
ODD: NodeId = "node-4"
"""The node whose way to ZooKeeper can be cut and whose disk can be filled."""

KEYS, GROUPS = ShardId("keys", 0), ShardId("groups", 0)
"""The shards of producer and consumer."""

FLOW_FILE = Path(__file__).with_name("single_flow.py")
DISK_MB = 48
"""Size of the odd node's disk: its state is a few megabytes."""

FIRST_S = 180.0
RESULTS_S = 120.0
NOTICED_S = 90.0
WHOLE_S = 240.0
"""Deadlines for a machine with other things to do; everything here usually takes a few seconds."""

FURTHER = 3
"""Results that have to come for the flow to be going on: the first ones may have been on their way."""


class OddCluster(LocalCluster):
    """A local cluster with the odd node, which is started as a user would start one by hand."""

    detour: Detour | None = None
    mounted = False

    def start_node(self, name: str, standby: bool = False) -> None:
        if name != ODD:
            super().start_node(name, standby)
            return
        if self.detour is None:
            self.detour = Detour(self.zookeeper.host, self.zookeeper.port)
            self.mounted = _mount(self.directory / name)
        self._told_dead.discard(name)
        command = [
            *(sys.executable, "-m", "unbroken", "node"),
            *("--name", name, "--flow", str(self.flow_file), "--zookeeper", self.detour.address),
            *("--dir", str(self.directory / name), "--token-file", str(self.directory / "token")),
        ]
        environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
        self.nodes[name] = spawn(command, log_file=self.logs / f"{name}.log", env=environment)

    def stop(self) -> None:
        super().stop()
        if self.detour is not None:
            self.detour.close()
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.directory / ODD)], check=True)
            self.mounted = False


def _mount(path: Path) -> bool:
    """Make ``path`` a small disk of its own; False if that is not permitted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(path)]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class Running(Stage):
    """The flow, a reader of its results, and the faults of this directory's tests.

    A case that leaves the flow unable to recover fails the following ones at once.
    """

    cluster: OddCluster

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.received: list[Result] = []
        self.given_up = ""
        self._live: Subscription | None = None
        self._reading = threading.Thread(target=self._read, name="results", daemon=True)
        super().__init__(directory / "state", 0, self.say)

    def __enter__(self) -> Running:
        return self

    def begin(self) -> None:
        self.start()
        self._live = self.subscribe(0)
        self._reading.start()
        wait_until(lambda: self.received, FIRST_S, "the first result")

    def close(self) -> None:
        self._closed.set()
        if self._reading.is_alive():
            self._reading.join()
        if self._live is not None:
            self._live.close()
        super().close()

    def end(self) -> None:
        """Let the source end, and wait until everything is delivered."""
        (self.directory / "stop").touch()
        wait_until(lambda: self.received[-1].header.final, RESULTS_S, "the final unit")
        wait_until(self.delivered, RESULTS_S, "the final unit in the files")

    # --- what is seen ---------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        assert self._watch is not None
        wait_until(self._watch.refresh, RESULTS_S, "ZooKeeper to answer")
        layout = self._watch.layout
        assert layout is not None
        return layout

    def is_member(self, node: NodeId) -> bool:
        assert self._watch is not None
        return self._watch.refresh() and node in self._watch.members

    def redundant(self) -> bool:
        """Whether every shard has its replicas on nodes that are there, whoever else is missing."""
        assert self._watch is not None
        layout = self.layout
        return shortage_of(layout, self._watch.members, self.cluster.topology) is None

    def spares(self, *victims: NodeId) -> bool:
        """Whether every shard has a replica elsewhere."""
        layout = self.layout
        return all(set(layout.full_nodes_of(shard)) - set(victims) for shard in self.cluster.topology.placed_shards)

    def sentences(self) -> list[str]:
        return [str(entry["sentence"]) for entry in self.history()]

    def totals(self, part: str) -> Counter[str]:
        """What all nodes have counted so far under ``part`` of their status."""
        out: Counter[str] = Counter()
        for state in self.cluster.status():
            out.update(state[part])
        return out

    def complaints(self, complete: bool = False) -> list[str]:
        """What is wrong with the results, up to now or as a whole."""
        judgement = judge(SEED, list(self.received), self.directory / "results", complete=complete)
        return [*judgement.complaints, *sorted(self.divergences)]

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time without a result since a moment."""
        arrived = [result.arrived_ms / 1000 for result in self.received]
        before = [moment for moment in arrived if moment < since_s][-1:]
        after = [moment for moment in arrived if moment >= since_s]
        return max(later - earlier for earlier, later in pairwise([*before, *after, time.time()]))

    # --- what is done ---------------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """Run an `unbroken` command as a user does; what it printed."""
        result = CliRunner().invoke(cli, [*words, "--dir", str(self.cluster.directory)])
        assert result.exit_code == 0, f"unbroken {' '.join(words)}: {result.output}"
        return result.output

    def lose(self, *nodes: NodeId) -> None:
        """Kill nodes at once, and wait until results go on and everything is redundant again."""
        before = {replica for node in nodes for replica in self.layout.hosted(node)}
        pids = {node: self.cluster.nodes[node].pid for node in nodes}
        self.say(f"kill -9 of {', '.join(nodes)}, which have {', '.join(sorted(map(str, before)))}")
        for node in nodes:
            self.cluster.nodes[node].kill9()
        self.await_results()
        wait_until(lambda: self._noticed(before, pids), NOTICED_S, f"{', '.join(nodes)} to be missed", 0.2)
        self.await_whole()

    def wipe(self, *nodes: NodeId) -> None:
        """Kill nodes at once and delete their disks before they are started again."""
        self.say(f"kill -9 of {', '.join(nodes)}, and their disks deleted")
        with self._lock:
            for node in nodes:
                self.cluster.nodes[node].kill9()
            for node in nodes:
                assert self.cluster.nodes[node].wait(30) is not None, f"{node} did not end"
                for path in (self.cluster.directory / node).iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fill the odd node's disk, also with what is deleted there, as somebody else's log would."""
        over = threading.Event()
        ballast = self.cluster.directory / ODD / "ballast"

        def fill() -> None:
            with ballast.open("ab", buffering=0) as file:
                while not over.is_set():
                    try:
                        file.write(b"x" * 4096)
                    except OSError as error:
                        assert error.errno == errno.ENOSPC, error
                        over.wait(0.02)

        self.say(f"the disk of {ODD} is filled")
        filling = threading.Thread(target=fill, name="fill", daemon=True)
        filling.start()
        try:
            yield
        finally:
            over.set()
            filling.join()
            ballast.unlink()
            self.say(f"the disk of {ODD} has space again")

    def occupy(self, node: NodeId, shard: ShardId) -> ReplicaId:
        """See to it that ``node`` has a replica of ``shard``; which one that is."""
        if self.layout.replica_on(node, shard) is None:
            # With two nodes out of use the shard has nowhere else to go.
            host, *_ = hosts = list(self.layout.nodes_of(shard))
            bystander = next(other for other in self.cluster.nodes if other not in (node, *hosts))
            self.command("drain", bystander, "--wait", "0")
            self.command("drain", host)
            for other in (bystander, host):
                self.command("drain", other, "--undo")
            self.await_whole()
        found = self.layout.replica_on(node, shard)
        assert found is not None
        return found

    # --- what is waited for ---------------------------------------------------------------------------

    def await_results(self, further: int = FURTHER) -> None:
        seen = len(self.received)
        wait_until(lambda: len(self.received) >= seen + further, RESULTS_S, "further results", 0.05)

    def await_whole(self) -> None:
        """Wait until all nodes are there, every shard is redundant, and results come."""
        self.await_redundancy()
        self.await_results()

    def await_redundancy(self) -> None:
        assert not self.given_up, f"not tried, because of an earlier failure: {self.given_up}"
        try:
            wait_until(lambda: self.shortage() is None, WHOLE_S, lambda: f"the flow is whole: {self.shortage()}", 0.2)
        except AssertionError as error:
            self.given_up = str(error)
            raise

    def _noticed(self, before: set[ReplicaId], pids: dict[NodeId, int]) -> bool:
        """Whether lost replicas are given up, or their nodes are back on their disks before anybody missed them."""
        layout = self.layout
        assert self._watch is not None
        members = self._watch.members
        back = all(node in members and members[node].pid != pid for node, pid in pids.items())
        return back or not before & set(layout.placement)

    def _read(self) -> None:
        assert self._live is not None
        while not self._closed.is_set():
            result = self._live.next(0.2)
            if result is not None:
                self.received.append(result)
            elif self._live.ended:
                return

    def say(self, sentence: str) -> None:
        """Keep a sentence beside what the nodes tell."""
        with (self.directory / "run.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")

    def _make(self) -> OddCluster:
        return OddCluster(FLOW_FILE, self._directory, nodes=NODES, standbys=0, supervise=True)

"""A flow whose tasks run in the executors of a Spark cluster: an executor is killed, then a worker, with kill -9.

A master and two workers run on this machine, each worker with room for one executor. So the two nodes have an executor
each, on different workers, and what one loses does not concern the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from kit.support import wait_until
from system.deploy.remote import LAUNCHER, RemoteCluster, registered
from unbroken.client import Result, Subscription
from unbroken.flow.environment import variables
from unbroken.local.spark_cluster import StandaloneCluster
from unbroken.local.terminal import has_ended
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.observe.status.notices import reports_of
from unbroken.observe.status.reader import StatusReader
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import ReplicaRenewed
from unbroken.protocol.values.notices.processes import ExecutorsAdded, ExecutorsLost
from unbroken.protocol.values.notices.replicas import ReplicaBehind, ReplicaDiverged, ReplicaHalted
from unbroken.spark.java import java_environment
from unbroken.spark.master import SECRET_VARIABLE
from unbroken.transport.auth import create_token
from unbroken_lab.experiments.peers.peer import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_200)]

FLOW_FILE = Path(__file__).with_name("remote_flow.py")
KEYS = 17
SECRET = "only-drivers-that-know-this-get-executors"
START_S = 400.0
STEP_S = 200.0
"""Deadlines for a machine with other things to do; everything here usually takes a few seconds."""

FURTHER = 3


Change = ExecutorsLost | ExecutorsAdded


class Running:
    """The flow on its Spark cluster, and what is read of it."""

    def __init__(self, cluster: RemoteCluster, spark: StandaloneCluster, live: Subscription) -> None:
        self.cluster = cluster
        self.spark = spark
        self.live = live
        self.received: list[Result] = []

    def take(self) -> None:
        result = self.live.next(0.1)
        if result is not None:
            self.received.append(result)

    def await_results(self, further: int = FURTHER) -> None:
        wanted = len(self.received) + further

        def there() -> bool:
            self.take()
            return len(self.received) >= wanted

        wait_until(there, STEP_S, f"{further} further results")

    def await_executors(
        self, kind: type[ExecutorsLost | ExecutorsAdded], executor: str
    ) -> ExecutorsLost | ExecutorsAdded:
        """Wait until a node reports that it has lost or got an executor; the notice."""
        found: list[ExecutorsLost | ExecutorsAdded] = []

        def said() -> bool:
            self.take()
            found.extend(each for each in self.notices() if isinstance(each, kind) and executor in each.executors)
            return bool(found)

        wait_until(said, STEP_S, lambda: f"{kind.kind} {executor} in {self.notices()}", 0.2)
        return found[0]

    def notices(self) -> list[Notice]:
        return [reported.notice for state in self.cluster.status() for reported in reports_of(state)]

    def committed(self, node: str) -> int | None:
        """How far the replica of a node is; None if the node does not answer."""
        for state in self.cluster.status():
            for replica in state.replicas if state.node == node else ():
                assert replica.state == "active", replica
                return replica.committed
        return None

    def await_caught_up(self, node: str) -> None:
        """Wait until the replica of a node has what there was of results when this was asked."""
        newest = self.received[-1].header.number

        def caught_up() -> bool:
            self.take()
            committed = self.committed(node)
            return committed is not None and committed >= newest

        wait_until(caught_up, STEP_S, f"{node} to have committed unit {newest}", 0.2)

    def read_to_the_end(self) -> None:
        def ended() -> bool:
            self.take()
            return self.live.ended

        wait_until(ended, STEP_S, "the end of the flow")
        while (result := self.live.next(0.5)) is not None:
            self.received.append(result)
        states = self.cluster.status
        wait_until(lambda: has_ended(self.cluster.topology, states()), STEP_S, "the last unit in the files", 0.2)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    environment = {
        SECRET_VARIABLE: SECRET,
        "UNBROKEN_CHAOS_OUT": str(tmp_path / "results"),
        "UNBROKEN_CHAOS_STOP": str(tmp_path / "stop"),
        "UNBROKEN_CHAOS_SEED": "0",
    }
    (port,) = free_ports(1)
    with variables(environment), StandaloneCluster(tmp_path / "spark", port, secret=SECRET) as spark:
        wait_until(lambda: registered(spark) == len(spark.workers), START_S, "the workers to register", 0.2)
        cluster = RemoteCluster(FLOW_FILE, tmp_path / "state", supervise=False)
        cluster.master = spark.url
        with cluster:
            cluster.start()
            cluster.wait_ready(START_S)
            with cluster.subscribe("live") as live:
                yield Running(cluster, spark, live)


def test_losses_of_executors_and_workers_are_masked(running: Running, tmp_path: Path) -> None:
    running.await_results()
    assert [len(running.spark.executors(worker)) for worker in running.spark.workers] == [1, 1]

    (executor,) = running.spark.executors("worker-1")
    executor.kill()
    first = running.await_executors(ExecutorsLost, "0")
    hit = first.node
    assert first == ExecutorsLost(hit, ("0",), left=0)
    running.await_results()
    assert running.await_executors(ExecutorsAdded, "1").node == hit
    running.await_caught_up(hit)

    running.spark.processes["worker-1"].kill9()
    assert running.await_executors(ExecutorsLost, "1").node == hit
    before = running.committed(hit)
    running.await_results()
    after = running.committed(hit)
    assert before is not None and after is not None
    assert after <= before + 1, "nothing but what was under way: there is nobody to compute it"
    assert running.received[-1].header.number > after, "the other node's results are what was read"
    running.spark.start_worker("worker-1")
    assert running.await_executors(ExecutorsAdded, "2").node == hit
    running.await_caught_up(hit)

    (tmp_path / "stop").touch()
    running.read_to_the_end()
    wrong = (ReplicaHalted, ReplicaDiverged, ReplicaBehind, ReplicaRenewed)
    assert not [notice for notice in running.notices() if isinstance(notice, wrong)]
    check_results(running.received, tmp_path / "results")


def check_results(received: list[Result], files: Path) -> None:
    """Every unit once, and every row in it exactly once."""
    assert [result.header.number for result in received] == list(range(1, len(received) + 1))
    live: dict[int, tuple[int, int]] = {}
    last = -1
    for result in received:
        for row in result.table.to_pylist():
            live[row["k"]] = (row["n"], row["total"])
            last = max(last, row["last"])
    expected: dict[int, tuple[int, int]] = {}
    for value in range(last + 1):
        count, total = expected.get((value * 31) % KEYS, (0, 0))
        expected[(value * 31) % KEYS] = (count + 1, total + value)
    assert last > 0 and live == expected
    lines = [json.loads(line) for path in sorted(files.glob("*.jsonl")) for line in path.read_text().splitlines()]
    written = sorted((row["k"], row["n"], row["total"]) for row in lines)
    rows = [row for result in received for row in result.table.to_pylist()]
    assert written == sorted((row["k"], row["n"], row["total"]) for row in rows)


ALONE = """
from unbroken import Client, Dataflow, Generator

flow = Dataflow("alone", nodes=1, replicas=1, node_memory="600m", node_cores=1)
numbers = flow.source("numbers", Generator(rate=10))


@flow.segment(numbers)
def evens(rows):
    return rows.where("n % 2 = 0")


flow.sink("live", evens, Client())
"""


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_submitted_node_ends_with_the_jvm_that_started_it(tmp_path: Path) -> None:
    """Nobody but the node itself is there to notice: it has no guardian here, and what it writes goes to the JVM."""
    (tmp_path / "alone.py").write_text(ALONE)
    token = create_token(tmp_path / "token")
    home = Path(pyspark.__file__).parent
    with EmbeddedZooKeeper(tmp_path / "zookeeper", tmp_path / "zookeeper.log") as zookeeper:
        command: list[str | Path] = [
            *(home / "bin" / "spark-submit", "--master", "local[1]", "--driver-memory", "600m", LAUNCHER),
            *("--name", "a", "--flow", tmp_path / "alone.py", "--zookeeper", zookeeper.address),
            *("--dir", tmp_path / "a", "--token-file", tmp_path / "token"),
        ]
        environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
        with (tmp_path / "node.log").open("wb") as log:
            submitted = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            with StatusReader(zookeeper.address, "alone", token) as reader:
                wait_until(lambda: [s.state for s in reader.read()] == ["running"], START_S, "the node to run", 0.2)
                (state,) = reader.read()
            node = psutil.Process(state.pid)
            assert node.ppid() == submitted.pid, "Python is the child of the JVM"
            submitted.kill()
            submitted.wait(STEP_S)
            wait_until(lambda: not runs(node), STEP_S, "the node to end")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(submitted.pid, signal.SIGKILL)

"""The processes of a pool and what they are told, without Spark: lines, states, surroundings, and their end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings
from unbroken.local.processes import spawn
from unbroken.testing.warm.deployment import WarmDeployment
from unbroken.testing.warm.member import DEAD, WarmProcess
from unbroken.testing.warm.orders import (
    BUSY,
    IDLE,
    RECIPE,
    ProcessLine,
    ProcessOrder,
    ProcessState,
    Recipe,
    ReferenceTask,
    StopNode,
)
from unbroken.testing.warm.surroundings import ProcessSurroundings

DEADLINE_S = 60.0


def order(**changes: Any) -> ProcessOrder:
    return ProcessOrder(ReferenceTask("root", "out"), "node-1.log", os.getcwd(), **changes)


def test_what_is_said_over_a_line_arrives_and_its_end_is_heard() -> None:
    ours, theirs = (ProcessLine(end) for end in socket.socketpair())
    assert ours.send(order(path=("a", "b"), environment={"X": "1\n2"}))
    assert theirs.receive() == order(path=("a", "b"), environment={"X": "1\n2"})
    ours.close()
    assert theirs.receive() is None
    theirs.close()
    assert not theirs.send(StopNode())


def test_a_line_on_which_something_else_is_said_counts_as_ended() -> None:
    ours, theirs = socket.socketpair()
    line = ProcessLine(theirs)
    ours.sendall(b'{"what": "run"}\n')
    assert line.receive() is None
    ours.close()
    line.close()


def test_flows_share_processes_unless_their_sessions_have_to_differ() -> None:
    plain = Recipe.of(Settings())
    assert Recipe.of(Settings(nodes=5, partitions=4, pulse_min=20)) == plain
    other = Recipe.of(Settings(node_memory="2g", spark={"spark.a": "b"}))
    assert other != plain and RECIPE.decode(RECIPE.encode(other)) == other
    assert other.settings().spark == {"spark.a": "b"} and other.settings().node_memory == "2g"


@pytest.fixture
def member(tmp_path: Path) -> Any:
    """A process that does nothing, and the pool's end of it; what it would say is said by the test."""
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    made = WarmProcess("process-1", Recipe.of(Settings()), spawn(command, log_file=tmp_path / "log"))
    ours, theirs = socket.socketpair()
    made.connected(ProcessLine(ours))
    yield made, ProcessLine(theirs)
    made.end()


def test_a_process_is_what_it_said_last(member: tuple[WarmProcess, ProcessLine]) -> None:
    pool_side, process_side = member
    assert pool_side.state == "starting"
    with pytest.raises(UnbrokenError, match="process-1 is starting and cannot be given anything"):
        pool_side.order(order())
    process_side.send(ProcessState(IDLE, took_s=1.5))
    assert pool_side.wait(IDLE, deadline_s=DEADLINE_S) and pool_side.warm_s == 1.5
    pool_side.order(order())
    assert pool_side.state == BUSY and process_side.receive() == order()
    pool_side.stop_node()
    assert process_side.receive() == StopNode()
    process_side.send(ProcessState(IDLE, "the flow does not load"))
    assert pool_side.wait(IDLE, deadline_s=DEADLINE_S) and pool_side.failure == "the flow does not load"
    assert not pool_side.wait(BUSY, deadline_s=0.05)


def test_a_killed_process_is_dead_and_stays_so(member: tuple[WarmProcess, ProcessLine]) -> None:
    pool_side, process_side = member
    process_side.send(ProcessState(IDLE))
    assert pool_side.wait(IDLE, deadline_s=DEADLINE_S)
    pool_side.process.kill9()
    assert not pool_side.wait("never", deadline_s=DEADLINE_S) and pool_side.state == DEAD
    process_side.send(ProcessState(IDLE))
    process_side.close()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "hear-process-1"], DEADLINE_S, "its end")
    assert pool_side.state == DEAD


class Session:
    """What is told to a Spark session."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.conf = SimpleNamespace(set=self.told.__setitem__)
        self.sparkContext = SimpleNamespace(environment={"LEFT": "by another"})


def test_a_process_is_as_the_test_is_that_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUMMAND", "1")
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    session: Any = Session()
    surroundings = ProcessSurroundings(session)
    before = (os.getcwd(), list(sys.path), dict(os.environ))
    for value in ("2", "3"):
        folder = tmp_path / value
        folder.mkdir()
        (folder / "beside_a_flow.py").write_text(f"VALUE = {value}")
        environment = {**os.environ, "SUMMAND": value, "PYSPARK_PYTHON": "theirs", "PYTEST_CURRENT_TEST": value}
        given = ProcessOrder(
            ReferenceTask("", ""), "", str(folder), (str(folder), *sys.path), environment, partitions=4
        )
        with surroundings.of(given):
            import beside_a_flow  # type: ignore[import-not-found]

            assert int(value) == beside_a_flow.VALUE
            assert os.environ["SUMMAND"] == value and os.environ["PYSPARK_PYTHON"] == "mine"
            assert os.getcwd() == str(folder)
            assert session.sparkContext.environment == {"SUMMAND": value, "PYTHONPATH": str(folder)}
            assert session.told == {"spark.sql.shuffle.partitions": "4"}
        assert (os.getcwd(), list(sys.path), dict(os.environ)) == before
        assert "beside_a_flow" not in sys.modules and "unbroken.testing.warm.surroundings" in sys.modules


def deployed(gone: set[str], **members: str) -> WarmDeployment:
    """A deployment without processes: those of its nodes are in these states."""
    made = WarmDeployment.__new__(WarmDeployment)
    made.gone = gone
    named = {name.replace("_", "-"): state for name, state in members.items()}
    made.members = {name: SimpleNamespace(state=state, failure="it broke") for name, state in named.items()}  # type: ignore[misc]
    return made


def test_a_node_that_nobody_has_killed_and_that_is_not_there_is_a_failure() -> None:
    assert deployed(set(), node_1=BUSY, node_2=BUSY).failure() is None
    assert deployed({"node-1"}, node_1=DEAD, node_2=BUSY).failure() is None
    assert deployed(set(), node_1=IDLE).failure() == "node-1 ended: it broke"


OWNER = """
import sys, time
from pathlib import Path
from unbroken.testing.warm.pool import WarmCluster

with WarmCluster(Path(sys.argv[1]), nodes=1) as cluster:
    cluster.zookeeper.start()
    print("started", flush=True)
    time.sleep(600)
"""


@pytest.mark.cluster
def test_nothing_is_left_of_a_test_process_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OWNER, str(tmp_path / "pool")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"started\n"
        started = psutil.Process(owner.pid).children(recursive=True)
        assert len(started) >= 4, "a process and ZooKeeper, each with its guardian"
        os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(_runs, started)), DEADLINE_S, lambda: f"the end of {list(filter(_runs, started))}")


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

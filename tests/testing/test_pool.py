"""The processes of a pool and what they are told, without Spark: lines, states, surroundings, and their end."""

from __future__ import annotations

import json
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

from support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings
from unbroken.local.processes import spawn
from unbroken.testing.deployment import Deployment
from unbroken.testing.member import DEAD, Member
from unbroken.testing.orders import BUSY, IDLE, RUN, Line, Order, Recipe
from unbroken.testing.surroundings import Surroundings

DEADLINE_S = 60.0


def order(**changes: Any) -> Order:
    return Order(RUN, {"name": "node-1"}, "node-1.log", os.getcwd(), **changes)


def test_what_is_said_over_a_line_arrives_and_its_end_is_heard() -> None:
    ours, theirs = (Line(end) for end in socket.socketpair())
    assert ours.send(order(path=("a", "b"), environment={"X": "1"}).to_json())
    heard = theirs.receive()
    assert heard is not None and Order.from_json(heard) == order(path=("a", "b"), environment={"X": "1"})
    ours.close()
    assert theirs.receive() is None
    theirs.close()
    assert not theirs.send({})


def test_flows_share_processes_unless_their_sessions_have_to_differ() -> None:
    plain = Recipe.of(Settings())
    assert Recipe.of(Settings(nodes=5, partitions=4, pulse_min=20)) == plain
    other = Recipe.of(Settings(node_memory="2g", spark={"spark.a": "b"}))
    assert other != plain and Recipe.from_json(other.to_json()) == other
    assert other.settings().spark == {"spark.a": "b"} and other.settings().node_memory == "2g"


@pytest.fixture
def member(tmp_path: Path) -> Any:
    """A process that does nothing, and the pool's end of it; what it would say is said by the test."""
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    made = Member("process-1", Recipe.of(Settings()), spawn(command, log_file=tmp_path / "log"))
    ours, theirs = socket.socketpair()
    made.connected(Line(ours))
    yield made, Line(theirs)
    made.end()


def test_a_process_is_what_it_said_last(member: tuple[Member, Line]) -> None:
    pool_side, process_side = member
    assert pool_side.state == "starting"
    with pytest.raises(UnbrokenError, match="process-1 is starting and cannot be given anything"):
        pool_side.order(order())
    process_side.send({"state": IDLE, "took_s": 1.5})
    assert pool_side.wait(IDLE, deadline_s=DEADLINE_S) and pool_side.warm_s == 1.5
    pool_side.order(order())
    assert pool_side.state == BUSY and process_side.receive() == json.loads(json.dumps(order().to_json()))
    pool_side.stop_node()
    assert process_side.receive() == {"what": "stop"}
    process_side.send({"state": IDLE, "failure": "the flow does not load"})
    assert pool_side.wait(IDLE, deadline_s=DEADLINE_S) and pool_side.failure == "the flow does not load"
    assert not pool_side.wait(BUSY, deadline_s=0.05)


def test_a_killed_process_is_dead_and_stays_so(member: tuple[Member, Line]) -> None:
    pool_side, process_side = member
    process_side.send({"state": IDLE})
    assert pool_side.wait(IDLE, deadline_s=DEADLINE_S)
    pool_side.process.kill9()
    assert not pool_side.wait("never", deadline_s=DEADLINE_S) and pool_side.state == DEAD
    process_side.send({"state": IDLE})
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
    surroundings = Surroundings(session)
    before = (os.getcwd(), list(sys.path), dict(os.environ))
    for value in ("2", "3"):
        folder = tmp_path / value
        folder.mkdir()
        (folder / "beside_a_flow.py").write_text(f"VALUE = {value}")
        environment = {**os.environ, "SUMMAND": value, "PYSPARK_PYTHON": "theirs", "PYTEST_CURRENT_TEST": value}
        given = Order(RUN, {}, "", str(folder), (str(folder), *sys.path), environment, partitions=4)
        with surroundings.of(given):
            import beside_a_flow  # type: ignore[import-not-found]

            assert int(value) == beside_a_flow.VALUE
            assert os.environ["SUMMAND"] == value and os.environ["PYSPARK_PYTHON"] == "mine"
            assert os.getcwd() == str(folder)
            assert session.sparkContext.environment == {"SUMMAND": value, "PYTHONPATH": str(folder)}
            assert session.told == {"spark.sql.shuffle.partitions": "4"}
        assert (os.getcwd(), list(sys.path), dict(os.environ)) == before
        assert "beside_a_flow" not in sys.modules and "unbroken.testing.surroundings" in sys.modules


def deployed(states: list[dict[str, Any]], killed: set[str], **members: str) -> Deployment:
    """A deployment without processes: its nodes are in these states."""
    made = Deployment.__new__(Deployment)
    made.killed = killed
    made.states = states
    named = {name.replace("_", "-"): state for name, state in members.items()}
    made.members = {name: SimpleNamespace(state=state, failure="it broke") for name, state in named.items()}  # type: ignore[misc]
    return made


def replica(name: str, reason: str = "") -> dict[str, str]:
    return {"replica": name, "reason": reason}


def test_a_flow_that_cannot_go_on_says_why() -> None:
    stopped, works = replica("sums.0#0", "division by zero"), replica("sums.0#1")
    one = {"node": "node-1", "replicas": [stopped]}
    other = {"node": "node-2", "replicas": [works]}
    assert deployed([one, other], set(), node_1=BUSY, node_2=BUSY).failure() is None
    assert deployed([], {"node-1"}, node_1=DEAD, node_2=BUSY).failure() is None
    assert deployed([], set(), node_1=IDLE).failure() == "node-1 ended: it broke"
    told = deployed([one], set(), node_1=BUSY).failure()
    assert told == "all replicas of sums.0 have stopped; node-1: division by zero"


OWNER = """
import sys, time
from pathlib import Path
from unbroken.testing.pool import WarmCluster

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

"""A node that dies while the flow starts: it is restarted a few times, and then the run ends and says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kit.places import FLOWS
from kit.statuses import status
from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.local import launcher
from unbroken.local.launcher import REFUSED, START_RESTARTS, LocalCluster
from unbroken.local.processes import spawn
from unbroken.observe.status.node import NodeStatus
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.processes import ProcessDied, ProcessRestarted

COUNTED = FLOWS / "counted.py"

NODE = """
import os, pathlib, signal, sys, time
attempts = pathlib.Path(sys.argv[1])
attempt = len(attempts.read_text()) + 1 if attempts.exists() else 1
attempts.write_text("x" * attempt)
print("attempt", attempt, flush=True)
if attempt <= int(sys.argv[2]):
    code = int(sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL) if code < 0 else os._exit(code)
(attempts.parent / (attempts.name + ".ready")).touch()
time.sleep(100)
"""


class Mortal(LocalCluster):
    """A local run without ZooKeeper, whose nodes are processes that die ``deaths`` times before they are ready."""

    def __init__(self, directory: Path, deaths: dict[str, int], code: int = -9, supervise: bool = True) -> None:
        os.environ["FLOW_OUT"] = str(directory / "out")
        super().__init__(COUNTED, directory / "state", supervise=supervise)
        self._mortality, self._code = deaths, code
        self.zookeeper = SimpleNamespace(alive=lambda: True, stop=lambda: None)  # type: ignore[assignment]

    def start(self) -> None:
        for number in range(1, self.count + 1):
            self.start_node(f"node-{number}")

    def start_node(self, name: str, standby: bool = False) -> None:
        self._told_dead.discard(name)
        deaths = str(self._mortality.get(name, 0))
        command = [sys.executable, "-c", NODE, str(self.directory / name), deaths, str(self._code)]
        self.nodes[name] = spawn(command, log_file=self.logs / f"{name}.log")

    def status(self) -> list[NodeStatus]:
        ready = [name for name in self.nodes if (self.directory / f"{name}.ready").exists()]
        return [status(name) for name in ready if self.nodes[name].alive()]

    def attempts(self, name: str) -> int:
        return len((self.directory / name).read_text())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "NODE_PAUSE_S", 0.05)
    monkeypatch.setenv("FLOW_OUT", "")


@pytest.mark.parametrize("code", [-9, 1])
def test_a_node_that_dies_while_starting_is_restarted_and_reported(tmp_path: Path, code: int) -> None:
    said: list[Notice] = []
    with Mortal(tmp_path, {"node-2": START_RESTARTS}, code) as cluster:
        cluster.start()
        cluster.wait_ready(120, say=said.append)
        assert (cluster.attempts("node-1"), cluster.attempts("node-2")) == (1, START_RESTARTS + 1)
        log = str(cluster.logs / "node-2.log")
        assert said == [ProcessDied("node-2", code, log), ProcessRestarted("node-2")] * START_RESTARTS
        assert not cluster._deaths, "the next pause is short"


@pytest.mark.parametrize("code", [-9, 1])
def test_a_node_that_always_dies_at_its_start_ends_the_run_with_its_log(tmp_path: Path, code: int) -> None:
    how = "killed by signal 9" if code < 0 else "ended with code 1"
    with Mortal(tmp_path, {"node-1": 1_000}, code) as cluster:
        cluster.start()
        with pytest.raises(
            UnbrokenError, match=rf"(?s)node-1 ended 3 times while starting \({how}\); the end of .*\n.*attempt 3"
        ):
            cluster.wait_ready(120)
        assert cluster.attempts("node-1") == START_RESTARTS + 1


@pytest.mark.parametrize(("code", "supervise"), [(REFUSED, True), (0, True), (1, False), (-9, False)])
def test_a_node_that_a_restart_does_not_help_ends_the_run_at_once(tmp_path: Path, code: int, supervise: bool) -> None:
    with Mortal(tmp_path, {"node-1": 1_000}, code, supervise) as cluster:
        cluster.start()
        with pytest.raises(UnbrokenError, match=r"node-1 ended while starting"):
            cluster.wait_ready(120)
        assert cluster.attempts("node-1") == 1


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_kill_9_during_the_start_does_not_end_the_run(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "unbroken",
        "run",
        str(COUNTED),
        "--dir",
        str(tmp_path / "state"),
        "--no-page",
        "--json",
    ]
    environment = {**os.environ, "FLOW_OUT": str(tmp_path / "out")}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: list[str] = []
    assert run.stdout is not None
    reader = threading.Thread(target=lines.extend, args=(run.stdout,), daemon=True)
    reader.start()
    try:
        node = find(run.pid, "node-1", 60)
        node.kill()
        wait_until(lambda: any('"event": "ready"' in line for line in lines) or run.poll() is not None, 200, "ready")
        assert run.poll() is None, "".join(lines)
        told = [json.loads(line) for line in lines if line.startswith("{")]
        reports = [(each["kind"], each["fields"]) for each in told if each["event"] == "report"]
        (died,) = [fields for kind, fields in reports if kind == ProcessDied.kind]
        assert (died["node"], died["code"]) == ("node-1", -signal.SIGKILL)
        assert (ProcessRestarted.kind, {"node": "node-1"}) in reports
    finally:
        run.send_signal(signal.SIGTERM)
        try:
            run.wait(60)
        except subprocess.TimeoutExpired:
            run.kill()


def find(owner: int, name: str, deadline_s: float) -> psutil.Process:
    """The process of a node; its guardian has the same words on its command line, and is its parent."""
    found: list[psutil.Process] = []

    def look() -> bool:
        for process in psutil.Process(owner).children(recursive=True):
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if words[1:4] == ["-m", "unbroken", "node"] and name in words:
                found.append(process)
        return bool(found)

    wait_until(look, deadline_s, f"the process of {name}")
    return found[-1]

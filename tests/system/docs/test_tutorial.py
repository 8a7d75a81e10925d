"""The tutorial and the way of a first-time user, done for real, as their readers do them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT, write_files
from kit.support import wait_until
from unbroken.local.processes import OwnedProcess, spawn

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

STEP_S = 300
"""What one step may take on a machine that has other things to do."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_files("docs/tutorial.md", tmp_path)
    return tmp_path


class Terminal:
    """The first terminal of the tutorial, in which the flow runs, and the second, in which things are typed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.runs = 0
        self.process = self.run()

    def run(self) -> OwnedProcess:
        self.runs += 1
        command = [sys.executable, "-m", "unbroken", "run", "shop.py"]
        log = self.place / f"run-{self.runs}.txt"
        self.process = spawn(command, log_file=log, env=ENVIRONMENT, cwd=self.place)
        return self.process

    def type(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=self.place, env=ENVIRONMENT, capture_output=True, text=True, timeout=STEP_S
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def unbroken(self, *words: str) -> str:
        return self.type("-m", "unbroken", *words)

    def history(self) -> str:
        return self.unbroken("history")

    def units(self) -> int:
        return len(list((self.place / "totals").glob("*.jsonl")))

    def await_units(self, more: int) -> None:
        wanted = self.units() + more
        wait_until(lambda: self.units() >= wanted, STEP_S, lambda: f"{wanted} files, {self.units()} are there")


@pytest.fixture
def terminal(place: Path) -> Iterator[Terminal]:
    terminal = Terminal(place)
    yield terminal
    terminal.process.stop(30)


@pytest.mark.timeout(1_800)
def test_the_tutorial_ends_with_the_right_totals(terminal: Terminal) -> None:
    assert "ok shop: 4 streams" in terminal.unbroken("check", "shop.py")
    terminal.await_units(6)
    terminal.unbroken("kill", "node-2", "--yes")
    terminal.await_units(4)
    redundant = "redundancy: every shard has all its replicas"
    wait_until(lambda: "is restarted" in (terminal.place / "run-1.txt").read_text(), STEP_S, "node-2 again")
    wait_until(lambda: redundant in terminal.unbroken("status"), STEP_S, terminal.history)
    leader = leading(terminal)
    terminal.unbroken("kill", leader, "--freeze", "--yes")
    wait_until(lambda: leading(terminal) not in ("", leader), STEP_S, terminal.history)
    terminal.await_units(4)
    terminal.unbroken("kill", leader, "--thaw")
    # Closing the window: nobody is asked, nothing is tidied up.
    terminal.process.kill9()
    terminal.run()
    wait_until(lambda: not terminal.process.alive(), STEP_S * 3, "the flow to end by itself")
    assert terminal.process.returncode == 0
    assert "everything is delivered" in (terminal.place / "run-2.txt").read_text()
    assert "every order of every shop is counted once" in terminal.type("verify.py")


def leads(node: dict[str, Any]) -> bool:
    return node["ingress"] is not None and node["ingress"]["leading"]


def leading(terminal: Terminal) -> str:
    """The node that leads the ingress by the word of those that answer; nobody, while that is being changed."""
    found = [node["node"] for node in json.loads(terminal.unbroken("status", "--json"))["nodes"] if leads(node)]
    return found[0] if len(found) == 1 else ""


@pytest.mark.timeout(1_200)
def test_the_test_of_the_tutorial_passes(place: Path) -> None:
    test = place / "test_shop.py"
    # The one thing that is changed: a machine that has other things to do gets more time.
    test.write_text(test.read_text().replace("cluster=unbroken_cluster)", "cluster=unbroken_cluster, deadline_s=600)"))
    assert "deadline_s=600" in test.read_text()
    known = any(point.value == "unbroken.testing.plugin" for point in entry_points(group="pytest11"))
    plugin = [] if known else ["-p", "unbroken.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_shop.py"]
    done = subprocess.run(command, cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=1_100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(3_600)
def test_a_new_user_gets_results() -> None:
    """How long it takes is for a machine without other work to say; that it works is for every one."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "new_user.py")], stdout=subprocess.PIPE, text=True
    )
    try:
        out, _ = process.communicate(timeout=3_500)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    times = json.loads(out.splitlines()[-1])
    print(times)
    assert process.returncode == 0
    assert 0 < times["ready_s"] < times["first_result_s"] < times["total_s"]

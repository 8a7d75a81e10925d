"""`unbroken kill`: only nodes of a run of this host, only after a question, and nothing else that looks alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kit.support import wait_until
from unbroken.coordination.run_info import RunInfo
from unbroken.local.strikes import node_of
from unit.cli.asking import ask, facts, run_directory

DEADLINE_S = 20.0
STANDS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
"""A module that stands for Unbroken: what counts is its command line."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return run_directory(tmp_path, "clicks")


@pytest.fixture
def node(directory: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "unbroken.py").write_text(STANDS)
    words = [sys.executable, "-m", "unbroken", "node", "--name", "node-1", "--dir", str(directory.resolve() / "node-1")]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait(DEADLINE_S)
    process.stdout.close()


def test_a_node_is_killed_after_a_question(node: subprocess.Popen[bytes]) -> None:
    kept = ask("kill", "node-1", input="n\n")
    assert kept.exit_code == 2 and "nothing was done" in kept.stderr and node.poll() is None
    unasked = ask("kill", "node-1")
    assert unasked.exit_code == 2 and node.poll() is None, "where nobody answers, nothing is done"
    told = ask("kill", "node-1", input="y\n")
    assert told.exit_code == 0, told.stderr
    assert f"kill node-1 of clicks (process {node.pid})?" in told.stderr
    assert "node-1 was killed" in told.stdout and "unbroken status --watch" in told.stdout
    assert node.wait(DEADLINE_S) == -9


def test_a_node_is_frozen_and_thawed(node: subprocess.Popen[bytes]) -> None:
    assert ask("kill", "node-1", "--thaw").exit_code == 2, "it is not frozen"
    found = facts("kill", "node-1", "--freeze", "--yes")
    assert found == {"ok": True, "flow": "clicks", "node": "node-1", "pid": node.pid, "fault": "freeze"}
    process = psutil.Process(node.pid)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, DEADLINE_S, "it to be frozen")
    assert "goes on" in ask("kill", "node-1", "--thaw").stdout
    wait_until(lambda: process.status() != psutil.STATUS_STOPPED, DEADLINE_S, "it to go on")


def test_nodes_that_are_not_there(node: subprocess.Popen[bytes]) -> None:
    told = ask("kill", "node-2", "--yes")
    assert told.exit_code == 2 and "nodes of this run: node-1" in told.stderr
    assert ask("kill", "node-1", "--zookeeper", "zk:2181").exit_code == 2, "a local run has no --zookeeper"


def test_a_run_that_has_ended(directory: Path, node: subprocess.Popen[bytes]) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    RunInfo("clicks", "127.0.0.1:1", directory / "token", directory, int(ended.stdout)).write()
    told = ask("kill", "node-1", "--yes")
    assert told.exit_code == 3 and "on this host" in told.stderr and node.poll() is None


def test_only_nodes_of_this_run_are_taken_for_nodes() -> None:
    home = Path("/runs/clicks")
    words = ["python", "-m", "unbroken", "node", "--name", "node-1", "--dir", "/runs/clicks/node-1"]
    assert node_of(words, home) == "node-1"
    assert node_of(["python", "/usr/bin/unbroken", *words[3:]], home) == "node-1"
    assert node_of(words, Path("/runs/other")) is None
    assert node_of(["python", "guardian.py", *words], home) is None, "its guardian has its words as arguments"
    assert node_of(["vim", "unbroken", "node"], home) is None
    assert node_of([*words[:-1], "/runs/clicks/node-2"], home) is None
    assert node_of([], home) is None

"""Whatever is killed, nothing is left. The trees here are real: each level is a Python process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kit.support import wait_until
from unbroken.local.processes import OwnedProcess, ProcessError, spawn, tail
from unbroken.spark.java import java_environment

pytestmark = pytest.mark.cluster

# A command with a child and a grandchild. The grandchild has a process group of its own, like pyspark.daemon,
# and optionally a session of its own. Each writes its id to a file named after its level.
TREE = """
import os, subprocess, sys, time, pathlib
level, detach, directory = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
if level < 3:
    own = {"process_group": 0} if level == 2 and detach == "group" else {}
    own = {"start_new_session": True} if level == 2 and detach == "session" else own
    subprocess.Popen([sys.executable, __file__, str(level + 1), detach, str(directory)], **own)
partial = directory / f"{level}.partial"
partial.write_text(str(os.getpid()))
partial.rename(directory / str(level))
time.sleep(600)
"""

# An owner that spawns the tree and tells the command's and the guardian's id.
OWNER = """
import pathlib, sys, time
from unbroken.local.processes import spawn
directory = pathlib.Path(sys.argv[1])
owned = spawn([sys.executable, sys.argv[2], "1", "group", str(directory)], log_file=directory / "log")
(directory / "partial").write_text(str(owned.guardian_pid))
(directory / "partial").rename(directory / "guardian")
time.sleep(600)
"""

# What a node does: a JVM through py4j, and Python workers under it that have a process group of their own.
SPARK = """
import time
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(3).select(F.udf(lambda x: x + 1, "long")("id")).collect()
print("collected", flush=True)
time.sleep(600)
"""


def running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int]) -> None:
    wait_until(lambda: not any(running(pid) for pid in pids), 15, lambda: f"end of {[p for p in pids if running(p)]}")


def read_pids(directory: Path, names: list[str]) -> list[int]:
    wait_until(lambda: all((directory / name).exists() for name in names), 30, f"{names} in {directory}")
    return [int((directory / name).read_text()) for name in names]


def tree_script(directory: Path) -> Path:
    script = directory / "tree.py"
    script.write_text(TREE)
    return script


def start_tree(directory: Path, detach: str) -> tuple[OwnedProcess, list[int]]:
    script = tree_script(directory)
    owned = spawn([sys.executable, script, "1", detach, directory], log_file=directory / "log")
    pids = read_pids(directory, ["1", "2", "3"])
    assert pids[0] == owned.pid
    assert all(running(pid) for pid in pids)
    return owned, pids


@pytest.mark.parametrize("detach", ["none", "group"])
def test_kill9_of_the_command_takes_its_descendants(tmp_path: Path, detach: str) -> None:
    owned, pids = start_tree(tmp_path, detach)
    owned.kill9()
    assert owned.wait(15) == -signal.SIGKILL
    gone([*pids, owned.guardian_pid])
    assert not owned.alive()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans can be adopted only on Linux")
def test_descendants_with_a_session_of_their_own_go_too(tmp_path: Path) -> None:
    owned, pids = start_tree(tmp_path, "session")
    owned.kill9()
    assert owned.wait(15) == -signal.SIGKILL
    gone(pids)


def test_kill9_of_the_middle_of_the_tree_leaves_nothing_after_stop(tmp_path: Path) -> None:
    owned, pids = start_tree(tmp_path, "group")
    os.kill(pids[1], signal.SIGKILL)
    gone([pids[1]])
    assert owned.alive()
    owned.stop(5)
    assert owned.returncode == -signal.SIGTERM
    gone(pids)


def test_kill9_of_the_guardian_takes_everything(tmp_path: Path) -> None:
    owned, pids = start_tree(tmp_path, "group")
    os.kill(owned.guardian_pid, signal.SIGKILL)
    gone(pids)
    assert owned.wait(15) is not None
    assert not owned.alive()


def _owner(directory: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    script = directory / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, str(script), str(directory), str(tree_script(directory))])
    return owner, read_pids(directory, ["1", "2", "3", "guardian"])


@pytest.mark.parametrize("end", [subprocess.Popen.kill, subprocess.Popen.terminate], ids=["kill -9", "terminated"])
def test_everything_goes_with_the_owner(tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None]) -> None:
    owner, pids = _owner(tmp_path)
    end(owner)
    owner.wait(15)
    gone(pids)


def test_owner_and_guardian_killed_together(tmp_path: Path) -> None:
    owner, pids = _owner(tmp_path)
    os.kill(pids[-1], signal.SIGKILL)
    owner.kill()
    owner.wait(15)
    gone(pids)


def test_sigterm_to_the_guardian_stops_the_command(tmp_path: Path) -> None:
    owned, pids = start_tree(tmp_path, "group")
    os.kill(owned.guardian_pid, signal.SIGTERM)
    assert owned.wait(15) == -signal.SIGTERM
    gone(pids)


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    owned = spawn([sys.executable, "-c", code], log_file=tmp_path / "log")
    wait_until(lambda: "deaf" in tail(tmp_path / "log"), 30, "the command to ignore SIGTERM")
    owned.stop(0.2)
    assert owned.returncode == -signal.SIGKILL
    gone([owned.pid])
    owned.stop(0.2)  # stopping twice does no harm


def test_frozen_processes_can_be_thawed_and_stopped(tmp_path: Path) -> None:
    owned, pids = start_tree(tmp_path, "group")

    def all_in(states: set[str]) -> bool:
        return all(psutil.Process(pid).status() in states for pid in pids)

    owned.freeze()
    wait_until(lambda: all_in({psutil.STATUS_STOPPED}), 30, "all processes to be frozen")
    owned.thaw()
    wait_until(lambda: all_in({psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING}), 30, "all to go on")
    owned.freeze()
    owned.stop(5)
    gone(pids)


@pytest.mark.spark
def command_of(process: psutil.Process) -> str:
    """Its command line; empty for a short-lived one, such as Hadoop's calls of chmod, that has just ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def test_a_killed_driver_leaves_no_jvm_and_no_python_workers(tmp_path: Path) -> None:
    log_file = tmp_path / "log"
    env = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
    owned = spawn([sys.executable, "-c", SPARK], log_file=log_file, env=env)
    try:
        wait_until(lambda: "collected" in tail(log_file), 120, lambda: f"a result from Spark\n{tail(log_file)}")
        tree = psutil.Process(owned.pid).children(recursive=True)
        commands = [command_of(each) for each in tree]
        assert any("java" in command for command in commands)
        assert any("pyspark.daemon" in command for command in commands)
        owned.kill9()
        assert owned.wait(15) == -signal.SIGKILL
        gone([each.pid for each in tree])
    finally:
        owned.stop(0)


def test_exit_code_environment_directory_and_log_reach_the_owner(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['COLOUR'], os.getcwd(), flush=True); sys.exit(7)"
    log_file = tmp_path / "logs" / "log"
    env = {**os.environ, "COLOUR": "green"}
    owned = spawn([sys.executable, "-c", code], log_file=log_file, env=env, cwd=tmp_path)
    assert owned.wait(30) == 7
    assert log_file.read_text().split() == ["green", str(tmp_path)]
    gone([owned.guardian_pid])


def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="no-such-command"):
        spawn(["no-such-command"], log_file=tmp_path / "log")

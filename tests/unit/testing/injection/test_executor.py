"""Every fault of the vocabulary is done to real processes, disks and links, and ended when its time is over."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess, spawn
from unbroken.testing.faults import (
    EVERYTHING,
    KINDS,
    ZOOKEEPER,
    ClockStep,
    DiskFull,
    Fault,
    Freeze,
    Kill,
    Partition,
    Restart,
    SlowDisk,
    SourceFails,
    Wipe,
)
from unbroken.testing.injection import conditions
from unbroken.testing.injection.condition_files import Conditions, ConditionsFile
from unbroken.testing.injection.disks import SmallDisk, mountable
from unbroken.testing.injection.executor import Executor
from unbroken.testing.network.partitions import Partitions
from unbroken.testing.targets import Roles

WAIT_S = 30.0
NODE = """
import os, sys, time
while True:
    began = time.monotonic()
    handle = os.open(sys.argv[1] + "/force", os.O_CREAT | os.O_WRONLY)
    os.fsync(handle)
    os.close(handle)
    took = time.monotonic() - began
    with open(sys.argv[1] + "/seen.new", "w") as file:
        file.write(f"{time.time()} {took}")
    os.replace(sys.argv[1] + "/seen.new", sys.argv[1] + "/seen")
    time.sleep(0.02)
"""
"""A node that does nothing but say what time it is and how long its disk takes."""


class Server:
    """A ZooKeeper as far as faults see it."""

    def __init__(self, start: Callable[[], OwnedProcess]) -> None:
        self._start = start
        self._process = start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.alive() else None

    def alive(self) -> bool:
        return self._process.alive()

    def kill9(self) -> None:
        self._process.kill9()

    def start(self) -> None:
        if not self.alive():
            self._process = self._start()

    def stop(self) -> None:
        self._process.stop(0.0)


class Links(Partitions):
    """Links that are only counted."""

    def host(self, member: str) -> str:
        raise NotImplementedError

    def free_port(self, member: str) -> int:
        raise NotImplementedError

    def enter(self, member: str) -> list[str]:
        raise NotImplementedError

    def within(self, member: str, make: Callable[[], object]) -> object:  # type: ignore[override]
        raise NotImplementedError

    def way(self, a: str, b: str, port: int) -> str:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def _apply(self, added: set[tuple[str, str]], removed: set[tuple[str, str]]) -> None:
        pass


class Yard:
    """A ground of two small processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.names = ["node-1", "node-2"]
        self.links: Links | None = Links([*self.names, ZOOKEEPER])
        self.processes: dict[str, OwnedProcess] = {}
        self.disks: dict[str, SmallDisk] = {}
        self.expected_dead: set[str] = set()
        self.failing: set[str] = set()
        self.asked_roles = 0
        self.patience = 0
        for name in self.names:
            (directory / name).mkdir()
            self.start_again(name)
        self.zookeeper_server = Server(lambda: self._spawn("zookeeper", ["-c", "import time; time.sleep(600)"]))

    def close(self) -> None:
        for process in self.processes.values():
            process.stop(0.0)
        for disk in self.disks.values():
            disk.close()
        self.zookeeper_server.stop()

    def roles(self) -> Roles:
        self.asked_roles += 1
        return Roles("node-2", None, self.names)

    def process_of(self, node: str) -> OwnedProcess:
        return self.processes[node]

    def directory_of(self, node: str) -> Path:
        return self._directory / node

    def disk_of(self, node: str) -> SmallDisk | None:
        return self.disks.get(node)

    def conditions_of(self, node: str) -> ConditionsFile | None:
        return ConditionsFile(self._directory / "conditions" / node)

    def killed(self, node: str, *, comes_back: bool) -> None:
        self.expected_dead.add(node)

    def start_again(self, node: str) -> bool:
        if self.patience:
            self.patience -= 1
            return False
        file, directory = self.conditions_of(node), self.directory_of(node)
        assert file is not None
        program = directory.parent / "program.py"
        program.write_text(NODE)
        sys.path.insert(0, str(directory.parent))
        words = ["-m", conditions.__name__, str(file.path), "program", str(directory)]
        self.processes[node] = self._spawn(node, words)
        self.expected_dead.discard(node)
        return True

    def revive(self, node: str) -> bool:
        return self.processes[node].alive() or self.start_again(node)

    def restart_zookeeper(self) -> None:
        self.zookeeper_server.start()

    def restart_everything(self) -> None:
        self.restart_zookeeper()
        for name in self.names:
            self.start_again(name)

    def let_source_fail(self, source: str, fails: bool) -> None:
        self.failing ^= {source}

    def seen(self, node: str) -> tuple[float, float]:
        """The time of a node, and what forcing data takes there."""
        file = self.directory_of(node) / "seen"
        wait_until(file.exists, WAIT_S, "the node says something", 0.01)
        now, took = file.read_text().split()
        return float(now), float(took)

    def _spawn(self, name: str, words: list[str]) -> OwnedProcess:
        path = os.pathsep.join([str(self._directory), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path}
        return spawn([sys.executable, *words], log_file=self._directory / f"{name}.log", env=environment)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path)
    yield found
    found.close()


@pytest.fixture
def executor(yard: Yard) -> Executor:
    return Executor(yard, yard.roles)  # type: ignore[arg-type]


def end(executor: Executor) -> None:
    """Let the time of everything that lasts be over."""
    executor.lasting = [replace(each, until=0.0) for each in executor.lasting]
    wait_until(lambda: executor.end_due() or not executor.lasting, WAIT_S, "the fault ends", 0.01)


def status(process: OwnedProcess | Server) -> str:
    assert process.pid is not None
    return str(psutil.Process(process.pid).status())


def test_a_killed_node_stays_dead_or_comes_back_once_nothing_of_it_is_left(yard: Yard, executor: Executor) -> None:
    first = yard.processes["node-1"]
    struck = executor.strike(Kill(1))
    assert struck.done and struck.nodes == ("node-1",) and abs(struck.at_s - time.time()) < WAIT_S
    assert first.wait(WAIT_S) == -signal.SIGKILL and yard.expected_dead == {"node-1"}
    assert not executor.lasting
    assert not executor.strike(Kill(1)).done
    second = yard.processes["node-2"]
    yard.patience = 1
    executor.strike(Kill("leader", back_after_s=60))
    assert yard.asked_roles == 1 and not executor.end_due()
    end(executor)
    assert yard.processes["node-2"] is not second and yard.processes["node-2"].alive()


def test_zookeeper_is_always_restarted(yard: Yard, executor: Executor) -> None:
    executor.strike(Kill(ZOOKEEPER))
    wait_until(lambda: not yard.zookeeper_server.alive(), WAIT_S, "it dies", 0.01)
    assert not executor.strike(Kill(ZOOKEEPER)).done
    assert 0 < executor.left_s() <= 1
    end(executor)
    assert yard.zookeeper_server.alive()


@pytest.mark.parametrize("subject", ["node-1", ZOOKEEPER])
def test_frozen_processes_resume(yard: Yard, executor: Executor, subject: str) -> None:
    process = yard.zookeeper_server if subject == ZOOKEEPER else yard.processes[subject]
    assert executor.strike(Freeze(subject, for_s=60)).done
    wait_until(lambda: status(process) == psutil.STATUS_STOPPED, WAIT_S, "it is stopped", 0.01)
    end(executor)
    wait_until(lambda: status(process) != psutil.STATUS_STOPPED, WAIT_S, "it resumes", 0.01)
    process.kill9()
    wait_until(lambda: not process.alive(), WAIT_S, "it dies", 0.01)
    assert not executor.strike(Freeze(subject, for_s=60)).done and not executor.lasting


@pytest.mark.parametrize("fault", [Kill(1, jvm=True), Freeze(1, for_s=1, jvm=True)])
def test_a_node_without_a_jvm_is_not_hit(executor: Executor, fault: Fault) -> None:
    assert not executor.strike(fault).done and not executor.lasting


def test_a_restarted_node_has_its_disk_and_a_wiped_one_has_not(yard: Yard, executor: Executor) -> None:
    kept, lost = (yard.directory_of(name) / "state" / "file" for name in yard.names)
    for file in (kept, lost):
        file.parent.mkdir()
        file.touch()
    before = dict(yard.processes)
    assert executor.strike(Restart(1)).done and executor.strike(Wipe(2)).done
    assert kept.exists() and not lost.exists()
    assert all(yard.processes[name] is not before[name] and yard.processes[name].alive() for name in yard.names)
    yard.patience = 2
    executor.strike(Wipe(2))
    assert yard.expected_dead == {"node-2"} and executor.lasting
    end(executor)
    assert not yard.expected_dead


def test_everything_is_killed_and_restarted(yard: Yard, executor: Executor) -> None:
    executor.strike(Freeze(1, for_s=60))
    before = {*yard.processes.values()}
    assert executor.strike(Restart(EVERYTHING)).nodes == ("node-1", "node-2")
    assert all(process.wait(WAIT_S) == -signal.SIGKILL for process in before)
    assert all(process.alive() for process in yard.processes.values()) and yard.zookeeper_server.alive()
    assert not executor.lasting


def test_links_are_cut_between_two_or_from_all(yard: Yard, executor: Executor) -> None:
    links = yard.links
    assert links is not None
    executor.strike(Partition(1, 2, for_s=60))
    assert links.is_cut("node-1", "node-2") and links.is_cut("node-2", "node-1")
    assert not links.is_cut("node-1", ZOOKEEPER)
    end(executor)
    assert not links.is_cut("node-1", "node-2")
    executor.strike(Partition("leader", for_s=60))
    assert links.is_cut("node-2", "node-1") and links.is_cut("node-2", ZOOKEEPER)
    executor.settle()
    assert not links.is_cut("node-2", ZOOKEEPER)
    with pytest.raises(UnbrokenError, match="both ends of it are node-2"):
        executor.strike(Partition("leader", 2, for_s=1))
    yard.links = None
    with pytest.raises(UnbrokenError, match="can be cut"):
        executor.strike(Partition(1, for_s=1))


def test_a_clock_that_is_set_is_that_of_one_node(yard: Yard, executor: Executor) -> None:
    executor.strike(ClockStep(1, by_s=3_600, for_s=60))
    wait_until(lambda: yard.seen("node-1")[0] > time.time() + 3_000, WAIT_S, "the clock is set", 0.01)
    assert abs(yard.seen("node-2")[0] - time.time()) < 60
    end(executor)
    wait_until(lambda: yard.seen("node-1")[0] < time.time() + 60, WAIT_S, "the clock is right", 0.01)
    executor.strike(ClockStep(2, by_s=-3_600))
    wait_until(lambda: yard.seen("node-2")[0] < time.time() - 3_000, WAIT_S, "the clock is set back", 0.01)
    assert not executor.lasting, "for good"


def test_a_slow_disk_takes_longer_to_force_data(yard: Yard, executor: Executor) -> None:
    executor.strike(SlowDisk(1, for_s=60, delay_ms=150))
    wait_until(lambda: yard.seen("node-1")[1] >= 0.15, WAIT_S, "the disk is slow", 0.01)
    # A clock that is set meanwhile changes nothing about that.
    executor.strike(ClockStep(1, by_s=3_600))
    file = yard.conditions_of("node-1")
    assert file is not None and file.read() == Conditions(3_600, 150)
    end(executor)
    assert file.read() == Conditions(3_600, 0)
    wait_until(lambda: yard.seen("node-1")[1] < 0.15, WAIT_S, "the disk is quick", 0.01)


def test_a_dead_node_takes_over_no_conditions(yard: Yard, executor: Executor) -> None:
    executor.strike(Kill(1))
    yard.processes["node-1"].wait(WAIT_S)
    with pytest.raises(UnbrokenError, match="node-1 did not take over"):
        executor.strike(ClockStep(1, by_s=1))


@pytest.mark.skipif(bool(mountable()), reason=mountable() or "small disks can be made")
def test_a_full_disk_has_no_space_whatever_is_deleted_there(yard: Yard, executor: Executor, tmp_path: Path) -> None:
    yard.disks["node-1"] = disk = SmallDisk(tmp_path / "small", size_mb=4)
    file = disk.path / "log"
    file.write_bytes(b"x" * 100_000)
    assert executor.strike(DiskFull(1, for_s=60)).done
    assert yard.expected_dead == {"node-1"}, "it may end of it"
    assert not executor.strike(DiskFull(1, for_s=60)).done
    file.unlink()
    wait_until(lambda: os.statvfs(disk.path).f_bavail == 0, WAIT_S, "the space to be taken again")
    with pytest.raises(OSError) as caught:
        (disk.path / "other").write_bytes(b"x" * 100_000)
    assert caught.value.errno == errno.ENOSPC
    end(executor)
    (disk.path / "other").write_bytes(b"x" * 100_000)
    disk.close()
    disk.close()
    assert not os.path.ismount(disk.path)


def test_a_node_without_a_small_disk_cannot_have_a_full_one(executor: Executor) -> None:
    with pytest.raises(UnbrokenError, match="no disk of its own"):
        executor.strike(DiskFull(1, for_s=1))


def test_a_source_fails_for_a_while(yard: Yard, executor: Executor) -> None:
    executor.strike(SourceFails("clicks", for_s=60))
    assert yard.failing == {"clicks"}
    end(executor)
    assert not yard.failing


def test_an_unknown_node_is_refused(executor: Executor) -> None:
    with pytest.raises(UnbrokenError, match=r"Kill\(node=7\) could not be done: there is no node node-7"):
        executor.strike(Kill(7))


def test_every_kind_is_known_to_the_executor(executor: Executor) -> None:
    """A kind that is added to the vocabulary and to no executor is found here."""
    with pytest.raises(UnbrokenError, match="no executor knows"):
        executor.strike(Fault())
    faults = (Kill(7), Freeze(7, 1), Restart(7), Wipe(7), DiskFull(7, 1), SlowDisk(7, 1, 1), ClockStep(7, 1))
    for fault in faults:
        with pytest.raises(UnbrokenError, match="there is no node node-7"):
            executor.strike(fault)
    assert {type(fault) for fault in faults} | {Partition, SourceFails} == set(KINDS.values())

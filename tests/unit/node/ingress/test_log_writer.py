"""Group commit: what waits is forced to disk together, in order, and counts only then."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.support import wait_until
from unbroken.data import files
from unbroken.node.ingress import log_file as logfile
from unbroken.node.ingress import log_writer as logwriter
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.log_writer import LogWriter
from unbroken.node.workers import ThreadWorker
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.ingress import IngressLogWaits

DEADLINE_S = 20.0


def entry(index: int, body: bytes = b"body") -> Entry:
    return Entry(index, 1, body, pulse=index)


class Disk:
    """What the operating system is told to force, with a gate to hold it up."""

    def __init__(self) -> None:
        self.forced: list[str] = []
        self.asked = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def sync(self, path: Path) -> None:
        self.asked.set()
        assert self.open.wait(DEADLINE_S)
        self.forced.append(path.name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(files, "force_path", made.sync)
    return made


@pytest.fixture
def done() -> queue.SimpleQueue[int]:
    return queue.SimpleQueue()


@pytest.fixture
def writer(tmp_path: Path, done: queue.SimpleQueue[int]) -> Iterator[LogWriter]:
    made = LogWriter(True, done.put, lambda error: pytest.fail(str(error)), print, ThreadWorker("log"))
    made.start(IngressLogFile(tmp_path / "replicas" / "ingress" / "log"))
    yield made
    made.close()


def test_an_entry_counts_when_it_is_forced_with_the_names_of_its_file_and_directories(
    tmp_path: Path, disk: Disk, writer: LogWriter, done: queue.SimpleQueue[int]
) -> None:
    disk.open.clear()
    writer.write(entry(1))
    assert disk.asked.wait(DEADLINE_S) and done.empty()
    assert writer.busy_s > 0, "a disk that hangs is seen"
    disk.open.set()
    assert done.get(timeout=DEADLINE_S) == 1
    wait_until(lambda: writer.busy_s == 0, DEADLINE_S, "the end of the group")
    assert sorted(disk.forced) == ["00000001-0000000000000001.log", "ingress", "log", "replicas"]
    assert IngressLogFile(tmp_path / "replicas" / "ingress" / "log").read() == [entry(1)]


def test_what_waits_while_the_disk_is_busy_is_one_group(
    tmp_path: Path, disk: Disk, writer: LogWriter, done: queue.SimpleQueue[int]
) -> None:
    disk.open.clear()
    writer.write(entry(1))
    assert disk.asked.wait(DEADLINE_S)
    for index in range(2, 50):
        writer.write(entry(index))
    disk.open.set()
    assert [done.get(timeout=DEADLINE_S), done.get(timeout=DEADLINE_S)] == [1, 48]
    assert disk.forced.count("00000001-0000000000000001.log") == 2, "once for each group"
    assert disk.forced.count("log") == 1, "no name has come since"


def test_every_file_of_a_group_is_forced(
    monkeypatch: pytest.MonkeyPatch, disk: Disk, writer: LogWriter, done: queue.SimpleQueue[int]
) -> None:
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 1)
    disk.open.clear()
    writer.write(entry(1))
    assert disk.asked.wait(DEADLINE_S)
    for index in (2, 3):
        writer.write(entry(index))
    disk.open.set()
    assert done.get(timeout=DEADLINE_S) + done.get(timeout=DEADLINE_S) == 3
    assert {name for name in disk.forced if name.endswith(".log")} == {
        f"{number:08d}-{number:016d}.log" for number in (1, 2, 3)
    }
    assert disk.forced.count("log") == 2


def test_without_force_an_entry_counts_when_the_operating_system_has_it(
    tmp_path: Path, disk: Disk, done: queue.SimpleQueue[int]
) -> None:
    writer = LogWriter(False, done.put, lambda error: pytest.fail(str(error)), print, ThreadWorker("log"))
    writer.start(IngressLogFile(tmp_path))
    writer.write(entry(1))
    assert done.get(timeout=DEADLINE_S) == 1 and disk.forced == []
    writer.close()


def test_a_base_is_written_after_the_entries_that_it_relies_on_are_on_disk(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = IngressLogFile(tmp_path)
    for index in range(1, 4):
        log.append(entry(index))
    monkeypatch.setattr(IngressBase, "write", lambda self, directory, files: disk.forced.append("base"))
    assert log.rebase(IngressBase(3, 3, finished=True))
    assert disk.forced[-1] == "base" and "00000001-0000000000000001.log" in disk.forced


def test_a_disk_that_takes_no_more_is_reported_and_nothing_counts(
    tmp_path: Path, done: queue.SimpleQueue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "force_path", full)
    failed: queue.SimpleQueue[OSError] = queue.SimpleQueue()
    writer = LogWriter(True, done.put, failed.put, print, ThreadWorker("log"))
    writer.start(IngressLogFile(tmp_path))
    writer.write(entry(1))
    assert failed.get(timeout=DEADLINE_S).errno == 28
    writer.write(entry(2))
    writer.close()
    assert done.empty()


def test_what_waits_is_written_before_the_end(tmp_path: Path, disk: Disk, done: queue.SimpleQueue[int]) -> None:
    writer = LogWriter(True, done.put, lambda error: pytest.fail(str(error)), print, ThreadWorker("log"))
    for index in range(1, 4):
        writer.write(entry(index))
    writer.start(IngressLogFile(tmp_path))
    writer.close()
    assert IngressLogFile(tmp_path).read() == [entry(index) for index in range(1, 4)]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("where", ["force", "append"])
def test_that_no_file_can_be_opened_is_waited_out_and_told_once(
    tmp_path: Path, done: queue.SimpleQueue[int], monkeypatch: pytest.MonkeyPatch, code: int, where: str
) -> None:
    log = IngressLogFile(tmp_path)
    failures, told, real = [1, 2, 3], list[Notice](), getattr(log, where)

    def crowded(*arguments: Entry) -> None:
        if failures:
            failures.pop()
            raise OSError(code, os.strerror(code))
        real(*arguments)

    monkeypatch.setattr(log, where, crowded)
    writer = LogWriter(True, done.put, lambda error: pytest.fail(str(error)), told.append, ThreadWorker("log"))
    writer.start(log)
    writer.write(entry(1))
    assert done.get(timeout=DEADLINE_S) == 1
    writer.close()
    assert told == [IngressLogWaits(logwriter.PASSING_S, os.strerror(code))]
    assert IngressLogFile(tmp_path).read() == [entry(1)]


def test_that_no_file_can_be_opened_for_long_is_a_failure(
    tmp_path: Path, done: queue.SimpleQueue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crowded(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(files, "force_path", crowded)
    monkeypatch.setattr(logwriter, "PASSING_S", 0.2)
    failed: queue.SimpleQueue[OSError] = queue.SimpleQueue()
    writer = LogWriter(True, done.put, failed.put, print, ThreadWorker("log"))
    writer.start(IngressLogFile(tmp_path))
    writer.write(entry(1))
    assert failed.get(timeout=DEADLINE_S).errno == errno.EMFILE
    writer.close()
    assert done.empty()


def test_a_group_that_failed_between_two_files_is_written_again_in_one_piece(
    tmp_path: Path, disk: Disk, done: queue.SimpleQueue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 1)
    log = IngressLogFile(tmp_path)
    failures, real = [1, 2], log._open

    def crowded(first: int) -> None:
        if first == 3 and failures:
            failures.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        real(first)

    monkeypatch.setattr(log, "_open", crowded)
    writer = LogWriter(True, done.put, lambda error: pytest.fail(str(error)), print, ThreadWorker("log"))
    for index in range(1, 5):
        writer.write(entry(index))
    writer.start(log)
    assert done.get(timeout=DEADLINE_S) == 4
    writer.close()
    assert IngressLogFile(tmp_path).read() == [entry(index) for index in range(1, 5)]


def test_a_base_relies_on_no_file_of_an_earlier_process_that_is_not_on_disk(tmp_path: Path, disk: Disk) -> None:
    """A process that is killed between writing and forcing leaves files which the next one must not take for safe."""
    killed = IngressLogFile(tmp_path)
    for index in range(1, 6):
        killed.append(entry(index))
    assert disk.forced == []
    log = IngressLogFile(tmp_path)
    assert [found.index for found in log.read()] == [1, 2, 3, 4, 5]
    log.append(entry(6))
    log.force()
    first = {"00000001-0000000000000001.log", "00000002-0000000000000006.log", tmp_path.name}
    assert first <= set(disk.forced)
    disk.forced.clear()
    log.append(entry(7))
    log.force()
    assert disk.forced == ["00000002-0000000000000006.log"], "what is on disk is not forced again"


def test_a_base_of_an_earlier_process_is_forced_with_what_it_relies_on(tmp_path: Path, disk: Disk) -> None:
    """Also without ``sync``, where nothing but a base forces anything."""
    killed = IngressLogFile(tmp_path)
    for index in range(1, 6):
        killed.append(entry(index))
    log = IngressLogFile(tmp_path)
    log.append(entry(6))
    assert log.rebase(IngressBase(6, 25, waiting={"s": (3, 4)}))
    assert "00000001-0000000000000001.log" in disk.forced
    disk.forced.clear()
    IngressLogFile(tmp_path).force()
    assert "base.json" in disk.forced

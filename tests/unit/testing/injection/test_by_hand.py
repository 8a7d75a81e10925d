"""Faults by hand: the right process of this host is touched, or none."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from kit.support import wait_until
from unbroken.coordination.documents import Member
from unbroken.errors import UnbrokenError
from unbroken.testing.faults import Fault, Freeze, Kill
from unbroken.testing.injection.by_hand import UNTIL_THAWED_S, faults_by_hand
from unbroken.testing.injection.executor import Executor, Struck
from unbroken.testing.injection.found_nodes import is_here, is_node, own_addresses

SLEEP = "import sys, time; time.sleep(300)"


@contextlib.contextmanager
def process(*words: str, own_session: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing and has these words in its command line."""
    command = [sys.executable, "-c", SLEEP, *words]
    with subprocess.Popen(command, start_new_session=own_session) as found:
        try:
            # For a moment after it is started a process has no command line.
            wait_until(lambda: bool(psutil.Process(found.pid).cmdline()), 30, "the process to have its command line")
            yield found
        finally:
            with contextlib.suppress(OSError):
                os.kill(found.pid, signal.SIGKILL)


def member(name: str, pid: int, host: str = "127.0.0.1") -> dict[str, Member]:
    return {name: Member(name, f"{host}:1", "", host, pid, "x")}


NODE = ("unbroken", "node", "--name", "a")


def test_a_node_is_killed() -> None:
    with process(*NODE) as found:
        by_hand = faults_by_hand(lambda: member("a", found.pid))
        assert by_hand.local() == {"a"}
        assert by_hand.kill("a") == found.pid
        assert found.wait(30) == -signal.SIGKILL
        assert by_hand.local() == set()
        with pytest.raises(UnbrokenError, match="no process on this host"):
            by_hand.kill("a")


def test_a_node_is_frozen_and_goes_on() -> None:
    with process(*NODE) as found:
        by_hand = faults_by_hand(lambda: member("a", found.pid))
        by_hand.freeze("a")
        wait_until(lambda: by_hand.frozen() == {"a"}, 30, "the node to be stopped")
        with pytest.raises(UnbrokenError, match="frozen already"):
            by_hand.freeze("a")
        by_hand.thaw("a")
        wait_until(lambda: by_hand.frozen() == set(), 30, "the node to go on")
        with pytest.raises(UnbrokenError, match="is not frozen"):
            by_hand.thaw("a")


def test_each_wish_is_a_fault_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[Fault] = []
    strike = Executor.strike

    def noted(self: Executor, fault: Fault) -> Struck:
        struck.append(fault)
        return strike(self, fault)

    monkeypatch.setattr(Executor, "strike", noted)
    with process(*NODE) as found:
        by_hand = faults_by_hand(lambda: member("a", found.pid))
        by_hand.freeze("a")
        by_hand.kill("a")
        assert struck == [Freeze("a", UNTIL_THAWED_S), Kill("a")]


def test_what_was_frozen_goes_on_when_the_page_ends() -> None:
    with process(*NODE) as found:
        by_hand = faults_by_hand(lambda: member("a", found.pid))
        by_hand.freeze("a")
        wait_until(lambda: by_hand.frozen() == {"a"}, 30, "the node to be stopped")
        by_hand.close()
        wait_until(lambda: psutil.Process(found.pid).status() != psutil.STATUS_STOPPED, 30, "the node to go on")


@pytest.mark.parametrize(
    ("words", "own_session", "host"),
    [
        (("something", "else"), True, "127.0.0.1"),
        (("unbroken", "node", "--name", "b"), True, "127.0.0.1"),
        (("unbroken", "run", "--name", "a"), True, "127.0.0.1"),
        (NODE, False, "127.0.0.1"),
        (NODE, True, "203.0.113.9"),
        (NODE, True, "elsewhere.example"),
    ],
)
def test_another_process_is_left_alone(words: tuple[str, ...], own_session: bool, host: str) -> None:
    with process(*words, own_session=own_session) as found:
        by_hand = faults_by_hand(lambda: member("a", found.pid, host))
        assert by_hand.local() == set()
        with pytest.raises(UnbrokenError):
            by_hand.kill("a")
        assert found.poll() is None


def test_a_number_that_nobody_has() -> None:
    assert faults_by_hand(lambda: member("a", 2**22 + 1)).local() == set()
    assert faults_by_hand(dict).local() == set()


@pytest.mark.parametrize(
    ("words", "yes"),
    [
        ([sys.executable, "-m", "unbroken", "node", "--name", "a", "--flow", "x.py"], True),
        (["/usr/bin/python3", "/usr/local/bin/unbroken", "node", "--name=a"], True),
        ([sys.executable, "-m", "unbroken", "node", "--name", "b"], False),
        ([sys.executable, "-m", "unbroken", "run", "x.py"], False),
        ([], False),
    ],
)
def test_command_lines(words: list[str], yes: bool) -> None:
    assert is_node(words, "a") is yes


def test_a_node_without_a_name_has_that_of_its_host() -> None:
    words = [sys.executable, "-m", "unbroken", "node", "--flow", "x.py"]
    assert is_node(words, f"{socket.gethostname()}-17")
    assert not is_node(words, "somebody-17")


def test_addresses_of_this_host() -> None:
    own = own_addresses()
    assert "127.0.0.1" in own
    here = ["127.0.0.1", "127.0.0.2", "::1", "localhost", socket.gethostname()]
    assert all(is_here(host, own) for host in here)
    assert not any(is_here(host, own) for host in ("203.0.113.9", "example.org", ""))

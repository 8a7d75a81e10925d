"""What a system has to offer to be measured: be started, lose a process, and be ended; and how its results are read."""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess, tail
from unbroken_lab.experiments.observation.observed import Say
from unbroken_lab.experiments.peers.observation import Observation

POLL_S = 0.005
"""How often files with results are looked at: what this adds to a latency is little beside any of them."""

READER_END_S = 5.0


class Peer(ABC):
    """A system that processes the events of a load. All its processes are descendants of this one.

    Results are given to the ``observation`` by a thread of the system's own from ``start`` on, with the time at which
    this process had them in its hands: this is outside of every system, and the same clock for all.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, observation: Observation, directory: Path, say: Say) -> None:
        self.observation = observation
        self.directory = directory
        self.say = say

    def prepare(self) -> None:  # noqa: B027 - most systems need nothing
        """Install what is needed; done before the load is fixed, because it may take long."""

    @abstractmethod
    def start(self) -> None:
        """Start everything; events are due from ``observation.load.began_ms`` on."""

    @abstractmethod
    def aim(self) -> str:
        """Choose the process whose loss is felt most; what it is."""

    @abstractmethod
    def kill(self) -> None:
        """``kill -9`` the chosen process at once; whoever supervises the system then acts without delay."""

    @abstractmethod
    def check(self) -> None:
        """Raise if something of the system has ended that should not have."""

    @abstractmethod
    def stop(self) -> None:
        """End everything; also when ``start`` failed, and again."""


class FileReader:
    """Looks for results in files on a thread of its own until it is stopped."""

    def __init__(self, take: Callable[[], None]) -> None:
        self._take = take
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        if self._failure is not None:
            raise UnbrokenError(f"results could not be read: {self._failure}") from self._failure

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(READER_END_S)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(POLL_S):
                self._take()
        except Exception as error:
            self._failure = error


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def refuse_dead(processes: Iterable[tuple[str, OwnedProcess]]) -> None:
    """Raise with the end of its log if one of the named processes has ended."""
    for name, process in processes:
        if not process.alive():
            raise UnbrokenError(f"{name} ended; the end of its log:\n{tail(process.log_file)}")


def now_ms() -> float:
    return time.time() * 1000

"""Warm node processes and one ZooKeeper that the tests of a session share.

Starting Spark is most of what it takes to start a flow. So the processes of a pool start it once and then run the nodes
of one test after the other (`host.py`). A process that a test has killed is replaced in the background, while the next
test may already begin with the others.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from unbroken.coordination.documents import connect
from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings
from unbroken.local.processes import spawn, tail
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.spark.java import java_environment
from unbroken.testing.injection import conditions
from unbroken.testing.warm.member import DEAD, WarmProcess
from unbroken.testing.warm.orders import IDLE, RECIPE, ProcessCalled, ProcessLine, Recipe

if TYPE_CHECKING:
    from unbroken.testing.result import Run

NODES = 3
"""Processes that are started before anybody has asked: as many nodes as a flow has unless it says otherwise."""

MOST_PROCESSES = 8
"""Processes of a pool, each of about 1 GB; idle ones of other flows' settings are ended before there are more."""

START_DEADLINE_S = 180.0
"""How long Spark may take to start: 5 s on a machine with nothing else to do, much longer on one that starts many."""

IDLE_DEADLINE_S = 30.0
"""How long a node may take to end and to be idle again, before it is given up and replaced."""

CALL_DEADLINE_S = 10.0


class WarmCluster:
    """A pool of node processes; the fixture ``unbroken_cluster`` is one.

    One flow runs at a time. ``directory`` is for logs and the directories of runs; without one, a temporary directory
    is made, and removed at the end unless a run has failed.
    """

    def __init__(self, directory: Path | None = None, nodes: int = NODES) -> None:
        self._own_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="unbroken-")) if directory is None else directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._first = nodes
        self._members: list[WarmProcess] = []
        self._waiting: dict[str, WarmProcess] = {}
        self._numbers = itertools.count(1)
        self._runs = itertools.count(1)
        self._done: list[Run] = []
        self._lock = threading.RLock()
        self._busy = threading.Lock()
        self._closed = False
        # The path of a Unix socket is short by law; test directories are deep.
        self._socket_directory = Path(tempfile.mkdtemp(prefix="ub-"))
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(self._socket_directory / "s"))
        self._server.listen(MOST_PROCESSES)
        threading.Thread(target=self._answer, name="unbroken-pool", daemon=True).start()
        self.zookeeper = EmbeddedZooKeeper(self.directory / "zookeeper", self.logs / "zookeeper.log")
        self.keep = False
        """Whether the directory is to stay after the end, because there is something to be looked at."""

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        """Begin to start the first processes; returns before they are warm."""
        recipe = Recipe.of(Settings())
        with self._lock:
            if not self._members and not self._closed:
                for _ in range(self._first):
                    self._spawn(recipe)

    @contextlib.contextmanager
    def leased(self, count: int, recipe: Recipe, deadline_s: float = START_DEADLINE_S) -> Iterator[list[WarmProcess]]:
        """So many idle processes, for one flow; afterwards those that are not idle again are replaced."""
        if not self._busy.acquire(timeout=deadline_s):
            raise UnbrokenError(f"another run of this cluster did not end within {deadline_s:g} s; run one at a time")
        try:
            members = self._take(count, recipe, deadline_s)
            try:
                yield members
            finally:
                self._give_back(recipe)
        finally:
            self._busy.release()

    def spare(self, recipe: Recipe, used: list[WarmProcess]) -> WarmProcess | None:
        """An idle process beside those of a lease, for a node that comes back; None while it is being started."""
        alive = sum(member.state != DEAD for member in used)
        self._prepare(alive + 1, recipe)
        with self._lock:
            fit = [each for each in self._members if each.recipe == recipe and each not in used]
        return next((member for member in fit if member.state == IDLE), None)

    def make_run_directory(self) -> Path:
        path = self.directory / f"run-{next(self._runs)}"
        path.mkdir()
        return path

    def open_chroot(self, name: str, token: str) -> str:
        """A place in ZooKeeper that is empty, belongs to a run's token, and where nothing of other runs is seen."""
        self.zookeeper.start()
        client = connect(self.zookeeper.address, CALL_DEADLINE_S, token=token)
        try:
            client.ensure_path(f"/{name}")
        finally:
            client.stop()
            client.close()
        return f"/{name}"

    def note(self, run: Run) -> None:
        """Remember a run, for whoever looks after the directory."""
        self._done.append(run)

    def take_runs(self) -> list[Run]:
        """The runs since this was last asked."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """End every process; closing again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            members = list(self._members)
        self._server.close()
        for member in members:
            member.end()
        self.zookeeper.stop(1.0)
        shutil.rmtree(self._socket_directory, ignore_errors=True)
        if self._own_directory and not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> WarmCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- processes ------------------------------------------------------------------------------------

    def _take(self, count: int, recipe: Recipe, deadline_s: float) -> list[WarmProcess]:
        end = time.monotonic() + deadline_s
        self._prepare(count, recipe)
        with self._lock:
            fit = [each for each in self._members if each.recipe == recipe and each.state != DEAD]
            wanted = sorted(fit, key=lambda member: member.state != IDLE)[:count]
        for member in wanted:
            if not member.wait(IDLE, deadline_s=max(0.0, end - time.monotonic())):
                what = "ended" if member.state == DEAD else f"was not ready within {deadline_s:g} s"
                member.end()
                raise UnbrokenError(f"process {member.name} {what}; the end of {member.log}:\n{tail(member.log)}")
        return wanted

    def _prepare(self, count: int, recipe: Recipe) -> None:
        """Start what is missing, after ending what nobody needs and has no room beside it."""
        with self._lock:
            if self._closed:
                raise UnbrokenError("this cluster is closed; make another one")
            self._members = [member for member in self._members if member.state != DEAD]
            missing = count - sum(member.recipe == recipe for member in self._members)
            others = [each for each in self._members if each.recipe != recipe]
            while others and len(self._members) + missing > MOST_PROCESSES:
                ended = others.pop()
                self._members.remove(ended)
                ended.end()
            for _ in range(missing):
                self._spawn(recipe)

    def _give_back(self, recipe: Recipe) -> None:
        """Wait until processes are idle, and replace those that a test has killed, or that do not become idle."""
        end = time.monotonic() + IDLE_DEADLINE_S
        with self._lock:
            members = list(self._members)
        used = [member for member in members if member.recipe == recipe]
        for member in used:
            if member.state not in (IDLE, DEAD) and member.warm_s is not None:
                member.wait(IDLE, deadline_s=max(0.0, end - time.monotonic()))
                if member.state != IDLE:
                    member.end()
        self._prepare(len(used), recipe)

    def _spawn(self, recipe: Recipe) -> None:
        name = f"process-{next(self._numbers)}"
        address = str(self._socket_directory / "s")
        host = ("unbroken.testing.warm.host", address, name, RECIPE.encode(recipe).decode())
        command = [sys.executable, "-m", conditions.__name__, conditions.NO_FILE, *host]
        process = spawn(command, log_file=self.logs / f"{name}.log", env=_environment())
        member = WarmProcess(name, recipe, process)
        self._members.append(member)
        self._waiting[name] = member

    def _answer(self) -> None:
        """Take the calls of processes that have been started."""
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            line = ProcessLine(connection)
            said = line.receive()
            with self._lock:
                member = self._waiting.pop(said.name, None) if isinstance(said, ProcessCalled) else None
            if member is None:
                line.close()
            else:
                member.connected(line)


def _environment() -> dict[str, str]:
    """The environment of this process, in which another one finds Java, and this package where it is not installed."""
    environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
    home = Path(__file__).resolve().parents[3]
    if home.name not in ("site-packages", "dist-packages"):
        known = environment.get("PYTHONPATH", "")
        if str(home) not in known.split(os.pathsep):
            environment["PYTHONPATH"] = f"{home}{os.pathsep}{known}" if known else str(home)
    return environment

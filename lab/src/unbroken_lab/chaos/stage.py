"""The cluster that a schedule is played on: it is tended and watched by a thread, and can be started over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.client import Subscription
from unbroken.coordination.directory import Directory
from unbroken.coordination.documents import connect, read_history
from unbroken.errors import UnbrokenError
from unbroken.local.launcher import LocalCluster
from unbroken.local.terminal import has_ended
from unbroken.testing.shortage import shortage_of
from unbroken_lab.chaos.faults import Effect, jvm_of, strike
from unbroken_lab.chaos.schedule import NODES, Fault

FLOW_FILE = Path(__file__).with_name("flow.py")
SINK = "live"
TEND_S = 0.5
ASK_S = 1.5
"""Nodes are asked this often how they are; each time costs them a few milliseconds."""

HISTORY_DEADLINE_S = 10.0
END_DEADLINE_S = 20.0
"""How long killed processes may be seen after the end of a run."""


class Stage:
    """One local cluster, or several in succession on the same directory.

    A thread tends the cluster and asks the nodes, always under a lock that faults take, too.
    """

    def __init__(self, directory: Path, standbys: int, tell: Callable[[str], None]) -> None:
        self._directory = directory
        self._standbys = standbys
        self._tell = tell
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._strangers = set(psutil.Process().children(recursive=True))
        self._ours: set[psutil.Process] = set()
        self._watch: Directory | None = None
        self._thread = threading.Thread(target=self._work, name="chaos-tend", daemon=True)
        self._told: set[tuple[str, int, str]] = set()
        self.states: list[dict[str, Any]] = []
        self.divergences: set[str] = set()
        self.cluster = self._make()

    def start(self) -> None:
        """Start everything for the first time and wait until all nodes run."""
        self.cluster.start()
        self.cluster.wait_ready(300)
        self._watch = Directory(self.cluster.zookeeper.address, self.cluster.flow.name, token=self.cluster.token)
        self._thread.start()

    def strike(self, fault: Fault) -> Effect:
        with self._lock:
            return strike(self.cluster, fault)

    def strike_and_restart(self, fault: Fault) -> Effect:
        """Do a fault that ends everything, then go on with what is on disk."""
        with self._lock:
            effect = strike(self.cluster, fault)
            if self._watch is not None:
                self._watch.close()
            self._watch = None
            self.cluster.stop()
            self.cluster = self._make()
            if not self.cluster.resumed:
                raise UnbrokenError(f"the run in {self._directory} was not taken for one to go on with")
            self.cluster.start()
            self._watch = Directory(self.cluster.zookeeper.address, self.cluster.flow.name, token=self.cluster.token)
        return effect

    def has_jvm(self, node: str) -> bool:
        return jvm_of(self.cluster, node) is not None

    def subscribe(self, after: int) -> Subscription:
        """Results behind unit ``after``."""
        cluster = self.cluster
        segment = cluster.flow.segments[cluster.flow.sinks[SINK].input]
        subscription = Subscription(cluster.zookeeper.address, cluster.flow.name, SINK, cluster.token, after=after)
        try:
            subscription.open(segment.name, segment.shards)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def shortage(self) -> str | None:
        """What is missing for the flow to be whole; None if nothing is."""
        if self._watch is None or not self._watch.refresh():
            return "ZooKeeper does not answer"
        members, layout = self._watch.members, self._watch.layout
        absent = set(self.cluster.nodes) - set(members)
        if absent:
            return f"{', '.join(sorted(absent))} not there"
        return "no layout" if layout is None else shortage_of(layout, members, self.cluster.topology)

    def delivered(self) -> bool:
        """Whether the flow has ended and the nodes have put everything into the files."""
        return has_ended(self.cluster.topology, self.states)

    def history(self) -> list[dict[str, Any]]:
        """The flow's history; empty if ZooKeeper does not answer."""
        try:
            client = connect(
                self.cluster.zookeeper.address, HISTORY_DEADLINE_S, HISTORY_DEADLINE_S, token=self.cluster.token
            )
        except UnbrokenError:
            return []
        try:
            return read_history(client, self.cluster.flow.name)
        except (KazooException, KazooTimeoutError):
            return []
        finally:
            client.stop()
            client.close()

    def close(self) -> None:
        """End every process; closing again does nothing."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._watch is not None:
                self._watch.close()
            self._watch = None
            self.cluster.stop()

    def left_behind(self) -> list[str]:
        """Processes of the run that are still there a while after its end."""
        deadline = time.monotonic() + END_DEADLINE_S
        self._note_processes()
        while (left := [process for process in self._ours if _runs(process)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [f"process {process.pid}" for process in left]

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> LocalCluster:
        return LocalCluster(FLOW_FILE, self._directory, nodes=NODES, standbys=self._standbys, supervise=True)

    def _work(self) -> None:
        ask = 0.0
        while not self._closed.wait(TEND_S):
            with self._lock:
                try:
                    for sentence in self.cluster.tend():
                        self._tell(sentence)
                    if time.monotonic() >= ask:
                        ask = time.monotonic() + ASK_S
                        self._note(self.cluster.status())
                        self._note_processes()
                except (UnbrokenError, OSError) as error:
                    self._tell(f"the cluster could not be tended: {error}")

    def _note(self, states: list[dict[str, Any]]) -> None:
        self.states = states
        for state in states:
            self.divergences |= set(state.get("divergences", []))
            for entry in state.get("story", []):
                key = (str(state["node"]), int(entry["time_ms"]), str(entry["sentence"]))
                if key not in self._told:
                    self._told.add(key)
                    when = time.strftime("%H:%M:%S", time.localtime(key[1] / 1000))
                    self._tell(f"{when} {key[0]}: {key[2]}")

    def _note_processes(self) -> None:
        self._ours |= set(psutil.Process().children(recursive=True)) - self._strangers


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

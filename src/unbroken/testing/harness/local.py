"""A flow on processes that are started for it, as `unbroken run` starts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from unbroken.client import Subscription
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.local.launcher import LocalCluster
from unbroken.local.processes import OwnedProcess
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.observe.status.node import NodeStatus
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices import Notice
from unbroken.testing.harness.cluster import ExposedCluster
from unbroken.testing.injection.condition_files import ConditionsFile
from unbroken.testing.injection.disks import SmallDisk
from unbroken.testing.network.partitions import Partitions

GONE_S = 30.0
"""How long the processes that a killed node leaves behind may take to end."""

END_S = 20.0
"""How long processes may be seen after the end of a run."""

C = TypeVar("C", bound=LocalCluster)


class LocalDeployment(Generic[C]):
    """One local cluster, or several in succession on the same directory; a `Deployment`.

    ``make`` makes the cluster, and makes it again after everything was killed. What can be done to its links, disks
    and clocks depends on whether it is an `ExposedCluster`. ``tended``: nodes that have died are restarted.
    """

    def __init__(self, make: Callable[[], C], *, tended: bool = True) -> None:
        self._make = make
        self._tended = tended
        self._strangers = set(psutil.Process().children(recursive=True))
        self._ours: set[psutil.Process] = set()
        self.cluster = make()

    @property
    def flow(self) -> Dataflow:
        return self.cluster.flow

    @property
    def topology(self) -> Topology:
        return self.cluster.topology

    @property
    def zookeeper(self) -> str:
        return self.cluster.zookeeper.address

    @property
    def token(self) -> str:
        return self.cluster.token

    @property
    def gone(self) -> Collection[NodeId]:
        if self._tended:
            return ()
        return [name for name, process in self.cluster.nodes.items() if not process.alive()]

    def start(self, ready_s: float, progress: Callable[[str], None]) -> None:
        self.cluster.start()
        self.cluster.wait_ready(ready_s, progress=progress)

    def status(self) -> list[NodeStatus]:
        self._note_processes()
        return self.cluster.status()

    def failure(self) -> str | None:
        return "no node is left, and none is restarted" if self.cluster.hopeless() else None

    def tend(self) -> list[Notice]:
        return self.cluster.tend() if self._tended else []

    def subscribe(self, sink: str, after: int = 0) -> Subscription:
        return self.cluster.subscribe(sink, after)

    def close(self) -> None:
        self.cluster.stop()

    def left_behind(self) -> list[str]:
        """Processes of the run that are still there a while after its end."""
        deadline = time.monotonic() + END_S
        self._note_processes()
        while (left := [process for process in self._ours if _runs(process)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [f"process {process.pid}" for process in left]

    def _note_processes(self) -> None:
        self._ours |= set(psutil.Process().children(recursive=True)) - self._strangers

    # --- the ground of faults -------------------------------------------------------------------------

    @property
    def names(self) -> Sequence[NodeId]:
        return list(self.cluster.nodes)

    @property
    def zookeeper_server(self) -> EmbeddedZooKeeper:
        return self.cluster.zookeeper

    @property
    def links(self) -> Partitions | None:
        return self.cluster.links if isinstance(self.cluster, ExposedCluster) else None

    def process_of(self, node: NodeId) -> OwnedProcess:
        return self.cluster.nodes[node]

    def directory_of(self, node: NodeId) -> Path:
        return self.cluster.directory / node

    def disk_of(self, node: NodeId) -> SmallDisk | None:
        return self.cluster.disks.get(node) if isinstance(self.cluster, ExposedCluster) else None

    def conditions_of(self, node: NodeId) -> ConditionsFile | None:
        return self.cluster.conditions_of(node) if isinstance(self.cluster, ExposedCluster) else None

    def killed(self, node: NodeId, *, comes_back: bool) -> None:
        """Nothing to note: its process tells."""

    def start_again(self, node: NodeId) -> bool:
        process = self.cluster.nodes[node]
        if process.alive():
            return True
        if process.wait(GONE_S) is None:
            raise UnbrokenError(f"{node} (process {process.pid}) was killed and did not end within {GONE_S:g} s")
        self.cluster.start_node(node, standby=node.startswith("standby-"))
        return True

    def revive(self, node: NodeId) -> bool:
        return self._tended or self.start_again(node)

    def restart_zookeeper(self) -> None:
        self.cluster.zookeeper.start()

    def restart_everything(self) -> None:
        self.cluster.stop()
        self.cluster = self._make()
        if not self.cluster.resumed:
            raise UnbrokenError(f"the run in {self.cluster.directory} was not taken for one to resume")
        self.cluster.start()

    def let_source_fail(self, source: str, fails: bool) -> None:
        raise UnbrokenError(f"source {source} is the flow's own, which cannot be made to fail from here")


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

"""Where a flow runs, as far as faults have to know it: its processes, disks, links and sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.protocol.values.ids import NodeId
from unbroken.testing.injection.condition_files import ConditionsFile
from unbroken.testing.injection.disks import SmallDisk
from unbroken.testing.network.partitions import Partitions


class TargetProcess(Protocol):
    """The process of a node, whether it is owned or was found."""

    pid: int

    def alive(self) -> bool: ...

    def kill9(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def wait(self, deadline_s: float) -> int | None:
        """The exit code once it has ended; None if it has not in time."""
        ...

    def stop(self, deadline_s: float = 10.0) -> None:
        """Ask it to end, and kill it if it has not in time."""
        ...


class Ground(Protocol):
    """The nodes of a flow on this machine. Methods raise UnbrokenError for what this ground cannot do."""

    @property
    def names(self) -> Sequence[NodeId]:
        """All nodes, dead or alive."""
        ...

    @property
    def zookeeper_server(self) -> EmbeddedZooKeeper: ...

    @property
    def links(self) -> Partitions | None:
        """The links between nodes, if they can be cut."""
        ...

    def process_of(self, node: NodeId) -> TargetProcess: ...

    def directory_of(self, node: NodeId) -> Path: ...

    def disk_of(self, node: NodeId) -> SmallDisk | None:
        """The disk of a node, if it is a small one."""
        ...

    def conditions_of(self, node: NodeId) -> ConditionsFile | None:
        """Where a node reads its conditions, if it was started to do so."""
        ...

    def killed(self, node: NodeId, *, comes_back: bool) -> None:
        """Note that a node was killed on purpose, and whether it will be restarted."""
        ...

    def revive(self, node: NodeId) -> bool:
        """Restart a node that has ended of a fault that it may have survived; False if that is not possible yet."""
        ...

    def start_again(self, node: NodeId) -> bool:
        """Restart a node on what its disk holds; False if that is not possible yet."""
        ...

    def restart_zookeeper(self) -> None: ...

    def restart_everything(self) -> None:
        """Restart a ground on which everything was killed."""
        ...

    def let_source_fail(self, source: str, fails: bool) -> None: ...

"""What the replicas of a real node stand on: its directories, its sinks, its ingress, and ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unbroken.node.ingress.service import IngressService
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.hosting import LayoutReporter
from unbroken.node.replicas.outlets import SinkOutlets
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices import Notice


@dataclass(frozen=True)
class NodeHost:
    """A `HostingNode` of the parts of a node. ``coordination`` gives None where there is no ZooKeeper."""

    name: NodeId
    dirs: ReplicaDirs
    outlets: SinkOutlets
    topology_of: Callable[[Layout], Topology]
    open_ingress: Callable[[ReplicaId], IngressService]
    dropped: Callable[[ReplicaId], None]
    tell: Callable[[Notice], None]
    coordination: Callable[[], LayoutReporter | None]

    @property
    def controller(self) -> LayoutReporter | None:
        return self.coordination()

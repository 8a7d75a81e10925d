"""What the replicas of a simulated node stand on: its disk, its sinks, its ingress, and ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbroken.node.replicas.hosting import HostingNode, Outlets
from unbroken.protocol.registry import offered
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices import Notice
from unbroken_lab.sim.content import is_fork
from unbroken_lab.sim.coordination import StoreClient
from unbroken_lab.sim.directories import SimulatedDirectories
from unbroken_lab.sim.sources import Ingress

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedOutlets(Outlets):
    """The sinks that the replicas of one process deliver to."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    def open(self, replica: ReplicaId) -> None:
        """All sinks are open."""

    def close_one(self, replica: ReplicaId) -> None:
        if not is_fork(replica):
            self._process.effects.forget_deliveries(replica)

    def close(self) -> None:
        """Nothing is left to be closed."""


class SimulatedHost(HostingNode[Ingress]):
    """Gives hosting what it needs of a simulated node."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._outlets = SimulatedOutlets(process)

    @property
    def name(self) -> NodeId:
        return self._process.name

    @property
    def dirs(self) -> SimulatedDirectories:
        return self._process.dirs

    @property
    def outlets(self) -> SimulatedOutlets:
        return self._outlets

    @property
    def controller(self) -> StoreClient:
        return self._process.client

    def topology_of(self, layout: Layout) -> Topology:
        return self._process.use(layout)

    def open_ingress(self, replica: ReplicaId) -> Ingress:
        kinds: list[type[Ingress]] = offered("unbroken_lab.sim.policies", "INGRESS")
        kind = next((kind for kind in kinds if kind.suits(self._process.world.topology)), Ingress)
        return kind(self._process, replica, self._process.disk.replicas[replica])

    def dropped(self, replica: ReplicaId) -> None:
        for policy in self._process.policies if not is_fork(replica) else ():
            policy.dropped(replica.shard)

    def tell(self, notice: Notice) -> None:
        self._process.world.tell(self._process.name, notice)

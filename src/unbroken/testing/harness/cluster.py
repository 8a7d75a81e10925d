"""A local flow that is exposed to faults: links that can be cut, disks that can be filled, clocks that can be set."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from unbroken.local.launcher import LocalCluster
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.testing.faults import ZOOKEEPER
from unbroken.testing.injection import conditions
from unbroken.testing.injection.condition_files import ConditionsFile
from unbroken.testing.injection.disks import SmallDisk
from unbroken.testing.network.partitions import HERE, Partitions
from unbroken.testing.network.proxies import Proxies
from unbroken.testing.targets import node_names


class PlacedZooKeeper(EmbeddedZooKeeper):
    """A ZooKeeper in its place of a network."""

    def __init__(self, network: Partitions, data_dir: Path, log_file: Path) -> None:
        super().__init__(data_dir, log_file, network.host(ZOOKEEPER), network.free_port(ZOOKEEPER))
        self._network = network

    def _check_port(self, port: int) -> None:
        """The port is one of another place, which has been asked for it."""

    def _command(self, config: Path) -> list[str]:
        return [*self._network.enter(ZOOKEEPER), *super()._command(config)]


class ExposedCluster(LocalCluster):
    """Like ``LocalCluster``, for faults that need something to be prepared before nodes start.

    ``network``: links between nodes, ZooKeeper and readers, which can be cut; it is closed by whoever made it.
    ``cuttable`` makes one of proxies that ends with the cluster. ``small_disks``: these nodes have small disks of
    their own. ``conditioned``: nodes follow conditions, so that their clocks can be set and their disks be slowed down.

    Whatever asks nodes for something from here, such as their status, does so directly and is not cut off.
    """

    def __init__(
        self,
        flow_file: Path,
        directory: Path,
        *,
        network: Partitions | None = None,
        cuttable: bool = False,
        small_disks: Collection[str] = (),
        conditioned: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(flow_file, directory, **options)
        self.names = node_names(self.count, self.standbys)
        self._own = Proxies([*self.names, ZOOKEEPER]) if cuttable and network is None else None
        self.links = network or self._own
        self._small_disks = small_disks
        self._conditioned = conditioned
        self.disks: dict[str, SmallDisk] = {}
        self._ports: dict[str, int] = {}
        if self.links is not None:
            self._ports = {name: self.links.free_port(name) for name in self.names}
        if network is not None:
            self.zookeeper = PlacedZooKeeper(network, self.directory / "zookeeper", self.logs / "zookeeper.log")

    def start_node(self, name: str, standby: bool = False) -> None:
        if name in self._small_disks and name not in self.disks:
            self.disks[name] = SmallDisk(self.directory / name)
        super().start_node(name, standby)

    def stop(self) -> None:
        """End every process, the small disks and the proxies; stopping again does nothing."""
        super().stop()
        for disk in self.disks.values():
            disk.close()
        if self._own is not None:
            self._own.close()

    def conditions_of(self, name: str) -> ConditionsFile | None:
        return ConditionsFile(self.directory / "conditions" / name) if self._conditioned else None

    def program_of(self, name: str) -> list[str]:
        entered = [] if self.links is None else self.links.enter(name)
        file = self.conditions_of(name)
        if file is None:
            return [*entered, *super().program_of(name)]
        return [*entered, sys.executable, "-m", conditions.__name__, str(file.path), "unbroken", "node"]

    def zookeeper_for(self, name: str) -> str:
        if self.links is None:
            return super().zookeeper_for(name)
        return self.links.way(name, ZOOKEEPER, self.zookeeper.port)

    def ways_of(self, name: str) -> list[str]:
        if self.links is None:
            return super().ways_of(name)
        routes = self._routes(name, [other for other in self.names if other != name])
        place = ("--host", self.links.host(name), "--port", str(self._ports[name]))
        return [*place, *(option for route in routes for option in ("--route", route))]

    def routes_here(self) -> list[str]:
        return [] if self._own is None else self._routes(HERE, self.names)

    def way(self, client: str, node: str) -> str:
        """The address at which ``client`` reaches a node."""
        assert self.links is not None, "only a cluster with links has ways"
        return self.links.way(client, node, self._ports[node])

    def _routes(self, origin: str, others: list[str]) -> list[str]:
        return [f"{other}={self.way(origin, other)}" for other in others]

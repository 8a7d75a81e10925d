"""A local flow whose links can be cut: every way between nodes, to ZooKeeper and to readers leads through a proxy."""

from __future__ import annotations

from pathlib import Path

from unbroken.local.launcher import LocalCluster
from unbroken.testing.faults import ZOOKEEPER
from unbroken.testing.partitions import HERE
from unbroken.testing.proxies import Proxies
from unbroken.testing.targets import node_names


class LinkedCluster(LocalCluster):
    """Like ``LocalCluster``, with ``links`` between its nodes, ZooKeeper and the subscribers of this process.

    Whatever else asks nodes for something, such as their status, does so directly and is not cut off.
    """

    def __init__(self, flow_file: Path, directory: Path, *, supervise: bool = True) -> None:
        super().__init__(flow_file, directory, supervise=supervise)
        self._names = node_names(self.count, self.standbys)
        self.links = Proxies([*self._names, ZOOKEEPER])
        self._ports = {name: self.links.free_port(name) for name in self._names}

    def stop(self) -> None:
        """End every process and the proxies; stopping again does nothing."""
        super().stop()
        self.links.close()

    def zookeeper_for(self, name: str) -> str:
        return self.links.way(name, ZOOKEEPER, self.zookeeper.port)

    def ways_of(self, name: str) -> list[str]:
        routes = self._routes(name, [other for other in self._names if other != name])
        return ["--port", str(self._ports[name]), *(option for route in routes for option in ("--route", route))]

    def routes_here(self) -> list[str]:
        return self._routes(HERE, self._names)

    def _routes(self, origin: str, others: list[str]) -> list[str]:
        return [f"{other}={self.links.way(origin, other, self._ports[other])}" for other in others]

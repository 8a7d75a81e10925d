"""A whole flow on a network whose links can be cut: real processes, each in its own place."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from partitions.reader import Reader, start_reader
from support import wait_until
from unbroken.coordination.documents import connect, read_in_sync
from unbroken.local.launcher import LocalCluster
from unbroken.local.processes import spawn
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.spark.java import java_environment
from unbroken.testing.partitions import Partitions
from unbroken_lab.chaos.stage import Stage

ZOOKEEPER = "zookeeper"
CLIENT = "client"

ANSWER_S = 30.0
WHOLE_S = 180.0
RESULTS_S = 120.0
"""Deadlines for a machine with other things to do; everything here usually takes a few seconds."""


class PlacedZooKeeper(EmbeddedZooKeeper):
    """A ZooKeeper in its place of a network."""

    def __init__(self, network: Partitions, data_dir: Path, log_file: Path) -> None:
        super().__init__(data_dir, log_file, network.host(ZOOKEEPER), network.free_port(ZOOKEEPER))
        self._network = network

    def _check_port(self, port: int) -> None:
        """The port is one of another place, which has been asked for it."""

    def _command(self, config: Path) -> list[str]:
        return [*self._network.enter(ZOOKEEPER), *super()._command(config)]


class PlacedCluster(LocalCluster):
    """A flow's nodes and ZooKeeper, each in its place of a network."""

    def __init__(self, flow_file: Path, directory: Path, network: Partitions, **options: Any) -> None:
        super().__init__(flow_file, directory, **options)
        self.network = network
        self.zookeeper = PlacedZooKeeper(network, self.directory / "zookeeper", self.logs / "zookeeper.log")
        names = node_names(self.count)
        self._ports = {name: network.free_port(name) for name in names}

    def start_node(self, name: str, standby: bool = False) -> None:
        network = self.network
        self._told_dead.discard(name)
        others = [other for other in self._ports if other != name]
        routes = [f"{other}={network.way(name, other, self._ports[other])}" for other in others]
        command = [
            *(*network.enter(name), sys.executable, "-m", "unbroken", "node", "--name", name),
            *("--flow", str(self.flow_file), "--zookeeper", network.way(name, ZOOKEEPER, self.zookeeper.port)),
            *("--dir", str(self.directory / name), "--token-file", str(self.directory / "token")),
            *("--nodes", str(self.count), "--host", network.host(name), "--port", str(self._ports[name])),
            *(word for route in routes for word in ("--route", route)),
        ]
        environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
        self.nodes[name] = spawn(command, log_file=self.logs / f"{name}.log", env=environment)

    def way_to(self, client: str, node: NodeId) -> str:
        """Where a client reaches a node."""
        return self.network.way(client, node, self._ports[node])


def node_names(count: int) -> list[NodeId]:
    return [f"node-{number}" for number in range(1, count + 1)]


class PartitionedFlow(Stage):
    """The flow of ``text`` on ``nodes`` nodes: what is done to its links, and what is seen of it.

    ``make`` makes the network: ``Network`` or ``Proxies``. Its members are the nodes, ``zookeeper``, the ``clients``
    and ``others``, for which nothing is started. The test process itself, at the place ``here``, asks nodes and
    ZooKeeper how they are; so leave its links alone, or know that they are cut.

    What happens is told in ``run.log`` of the directory. Dead nodes are started again.
    """

    cluster: PlacedCluster

    def __init__(
        self,
        text: str,
        directory: Path,
        make: Callable[[Iterable[str]], Partitions],
        *,
        nodes: int,
        clients: Sequence[str] = (CLIENT,),
        others: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.readers: list[Reader] = []
        self._nodes = nodes
        self._flow_file = directory / "flow.py"
        self._flow_file.write_text(text)
        self.network = make([*node_names(nodes), ZOOKEEPER, *clients, *others])
        try:
            super().__init__(directory / "state", 0, self.say)
        except BaseException:
            self.network.close()
            raise

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        for reader in self.readers:
            reader.stop()
        try:
            super().close()
        finally:
            self.network.close()

    # --- what is done ---------------------------------------------------------------------------------

    def read(self, sink: str, client: str = CLIENT, *, routed: bool = False) -> Reader:
        """Start a client that reads a sink, in its place.

        It goes to where the nodes say they are. Behind proxies its links can only be cut if it is ``routed``.
        """
        cluster, network = self.cluster, self.network
        zookeeper = network.way(client, ZOOKEEPER, cluster.zookeeper.port)
        routes = [f"{node}={cluster.way_to(client, node)}" for node in cluster.nodes] if routed else []
        file = self.directory / "clients" / f"{client}-{len(self.readers)}.results"
        token = cluster.directory / "token"
        reader = start_reader(network.enter(client), zookeeper, cluster.flow.name, sink, token, file, routes=routes)
        self.readers.append(reader)
        return reader

    def cut(self, a: str, *others: str, one_way: bool = False) -> float:
        """Cut ``a`` from others; when that was, in seconds of the clock that results are stamped with."""
        for other in others:
            self.network.cut(a, other, one_way=one_way)
        self.say(f"{a} {'cannot send to' if one_way else 'is cut from'} {', '.join(others)}")
        return time.time()

    def heal(self) -> float:
        """Heal everything; when that was."""
        self.network.heal_all()
        self.say("all links are healed")
        return time.time()

    # --- what is seen ---------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        assert self._watch is not None
        wait_until(self._watch.refresh, ANSWER_S, "ZooKeeper to answer")
        layout = self._watch.layout
        assert layout is not None
        return layout

    def hosts(self, shard: ShardId = INGRESS) -> list[NodeId]:
        """The nodes that have a counted replica of a shard, those of the ingress by default."""
        return sorted(self.layout.full_nodes_of(shard))

    def in_sync(self) -> InSync:
        """The members of the ingress and its leader."""
        client = connect(self.cluster.zookeeper.address, ANSWER_S, ANSWER_S, token=self.cluster.token)
        try:
            found = read_in_sync(client, self.cluster.flow.name)
        finally:
            client.stop()
            client.close()
        assert found is not None
        return found

    def pulse(self) -> int:
        """The latest pulse of the ingress, as the nodes said when they were asked last."""
        return max((int(state["ingress"]["pulse"]) for state in self.states if "ingress" in state), default=0)

    def is_member(self, node: NodeId) -> bool:
        """Whether ZooKeeper holds a node for alive."""
        assert self._watch is not None
        return self._watch.refresh() and node in self._watch.members

    def sentences(self) -> list[str]:
        return [str(entry["sentence"]) for entry in self.history()]

    def deaths(self) -> list[str]:
        """What was told about nodes that have died; nobody ends them here, so there should be none."""
        log = self.directory / "run.log"
        return [line for line in log.read_text().splitlines() if " is dead: " in line] if log.exists() else []

    def await_whole(self) -> None:
        """Wait until all nodes are there and every shard is redundant."""
        wait_until(lambda: self.shortage() is None, WHOLE_S, lambda: f"the flow is whole: {self.shortage()}", 0.2)

    def await_delivered(self) -> None:
        """Wait until the flow has ended and everything is in the files."""
        wait_until(self.delivered, RESULTS_S, "everything in the files", 0.2)

    def say(self, sentence: str) -> None:
        """Keep a sentence beside what the nodes tell."""
        with (self.directory / "run.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")

    def _make(self) -> PlacedCluster:
        state = self.directory / "state"
        return PlacedCluster(self._flow_file, state, self.network, nodes=self._nodes, standbys=0, supervise=True)

"""A whole flow on a network whose links can be cut: real processes, each in its own place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from kit.support import wait_until
from system.partitions.reader import Reader, start_reader
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.processes import ProcessDied
from unbroken.testing.faults import ZOOKEEPER as ZOOKEEPER
from unbroken.testing.harness.cluster import ExposedCluster
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken.testing.network.partitions import Partitions
from unbroken.testing.targets import node_names

CLIENT = "client"

ANSWER_S = 30.0
WHOLE_S = 300.0
RESULTS_S = 180.0
"""Deadlines for a machine with other things to do; everything here usually takes a few seconds."""


class PartitionedFlow(Harness[LocalDeployment[ExposedCluster]]):
    """The flow of ``text`` on ``nodes`` nodes: what is done to its links, and what is seen of it.

    ``make`` makes the network: ``Network`` or ``Proxies``. Its members are the nodes, ``zookeeper``, the ``clients``
    and ``others``, for which nothing is started. The test process itself, at the place ``here``, asks nodes and
    ZooKeeper how they are; so leave its links alone, or know that they are cut.

    What happens is told in ``run.log`` of the directory. Dead nodes are started again.
    """

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
        self._flow_file = directory / "flow.py"
        self._flow_file.write_text(text)
        self.network = network = make([*node_names(nodes, 0), ZOOKEEPER, *clients, *others])

        def make_cluster() -> ExposedCluster:
            return ExposedCluster(self._flow_file, directory / "state", network=network, nodes=nodes, standbys=0)

        try:
            super().__init__(LocalDeployment(make_cluster), self.say)
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

    @property
    def cluster(self) -> ExposedCluster:
        return self.deployment.cluster

    # --- what is done ---------------------------------------------------------------------------------

    def read(self, sink: str, client: str = CLIENT, *, routed: bool = False) -> Reader:
        """Start a client that reads a sink, in its place.

        It goes to where the nodes say they are. Behind proxies its links can only be cut if it is ``routed``.
        """
        cluster, network = self.cluster, self.network
        zookeeper = network.way(client, ZOOKEEPER, cluster.zookeeper.port)
        routes = [f"{node}={cluster.way(client, node)}" for node in cluster.nodes] if routed else []
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

    def hosts(self, shard: ShardId = INGRESS) -> list[NodeId]:
        """The nodes that have a counted replica of a shard, those of the ingress by default."""
        return sorted(self.layout.full_nodes_of(shard))

    def in_sync(self) -> InSync:
        """The members of the ingress and its leader."""
        found = super().in_sync()
        assert found is not None
        return found

    def pulse(self) -> int:
        """The latest pulse of the ingress, as the nodes said when they were asked last."""
        return max((state.ingress.pulse for state in self.states if state.ingress is not None), default=0)

    def is_member(self, node: NodeId) -> bool:
        """Whether ZooKeeper holds a node for alive."""
        return node in self.members

    def deaths(self) -> list[ProcessDied]:
        """The nodes that have died; no test ends them, so there should be none."""
        return [each for each in self.tended if isinstance(each, ProcessDied)]

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

"""Nodes as ZooKeeper sees them, and the server that they have in common."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kit.support import TOKEN, wait_until
from kit.topologies import chain
from unbroken.coordination.documents import (
    Member,
    connect,
    read_history,
    read_layout,
)
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.program import Program
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.membership.controller import ControlSettings
from unbroken.node.membership.session import Callbacks, Coordination
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.spark.analysis.analysis import Analysis

SESSION_S = 6.0
TOPOLOGY = chain((1,))
S0 = ShardId("s0", 0)
flows = (f"flow-{number}" for number in itertools.count())


def programs_of(topology: Topology) -> Programs:
    """The only generation of a flow whose code nobody looks at."""

    def unknown(generation: int) -> Program:
        raise AssertionError(f"somebody asked for generation {generation} of the code")

    first = Program(1, "flow.py", "", topology, {})
    return Programs(first, Dataflow("flow", nodes=2), unknown, lambda flow, order: Analysis({}))


class Node:
    """A node as ZooKeeper sees it; remembers what it was told."""

    def __init__(
        self,
        name: NodeId,
        address: str,
        flow: str,
        topology: Topology = TOPOLOGY,
        *,
        wanted: int = 2,
        standby: bool = False,
        disk: str = "disk",
        name_deadline_s: float = 10.0,
    ) -> None:
        self.member = Member(name, f"{name}:1", "", "here", 1, f"{name}-{id(self)}", disk, standby)
        self.client = connect(address, SESSION_S, token=TOKEN)
        self.members: dict[NodeId, Member] = {}
        self.known: set[NodeId] = set()
        self.layouts: list[Layout] = []
        self.syncs: list[InSync] = []
        self.connected: set[NodeId] = set()
        self.noted: list[Reported] = []
        told = (self._members, self.layouts.append, self.syncs.append, self._tell, self.noted.append)
        callbacks = Callbacks(*told, linked=self._linked, connected=lambda: self.connected)
        settings = ControlSettings(wanted, transfers=4, return_grace_s=30)
        programs = programs_of(topology)
        self.coordination = Coordination(self.client, flow, self.member, programs, settings, callbacks, name_deadline_s)

    def _members(self, members: dict[NodeId, Member]) -> None:
        self.members = members
        self.known |= set(members)

    def _linked(self) -> list[NodeId]:
        return list(self.known)

    def _tell(self, notice: Notice) -> None:
        self.coordination.report(notice)

    def __enter__(self) -> Node:
        try:
            self.coordination.start()
        except UnbrokenError:
            self.coordination.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.coordination.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with EmbeddedZooKeeper(directory / "zk", directory / "zk.log") as running:
        yield running


@pytest.fixture(scope="module")
def zk(server: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = connect(server.address, SESSION_S, token=TOKEN)
    yield client
    client.stop()
    client.close()


def notices(zk: KazooClient, flow: str) -> list[Notice]:
    return [reported.notice for reported in read_history(zk, flow)]


def lost(zk: KazooClient, flow: str) -> set[str]:
    """The replicas of the first layout that are not counted any more."""
    layout = read_layout(zk, flow)
    first = [replica for shard in TOPOLOGY.placed_shards for replica in TOPOLOGY.replicas_of(shard)]
    return set() if layout is None else {str(replica) for replica in first if replica not in layout.placement}


def missed_since(node: Node, missed: NodeId) -> float:
    """Since when the controller on ``node`` misses another node."""
    return node.coordination._controller.absence.since.get(missed, math.inf)


def wait_for_layout(zk: KazooClient, flow: str, *nodes: Node) -> Layout:
    wait_until(lambda: all(node.layouts and node.syncs for node in nodes), 30, "the first layout")
    layout = read_layout(zk, flow)
    assert layout is not None
    return layout


def expire(node: Node, address: str) -> None:
    """End a node's session behind its back, as a long absence would."""
    thief = KazooClient(hosts=address, client_id=node.client.client_id)
    thief.start(timeout=10)
    thief.stop()
    thief.close()

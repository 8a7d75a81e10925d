"""Two whole nodes in one process that share one Spark session: everything but ZooKeeper is the real thing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import Member
from unbroken.data.unit_store import decode_unit
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Program
from unbroken.node.node import Node
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.programs import Programs
from unbroken.observe.status.node import CoordinationStatus
from unbroken.observe.tracing.tracing import Tracing
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.notices import Notice
from unbroken.spark.analysis.analysis import analyse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Store:
    """What ZooKeeper does for nodes that stay: it keeps the in-sync set, and tells everybody what it is."""

    def __init__(self, sync: InSync, nodes: Iterable[Node]) -> None:
        self._sync = sync
        self._nodes = list(nodes)
        self._lock = threading.Lock()

    def propose(self, proposal: ProposeInSync, replica: ReplicaId) -> None:
        with self._lock:
            if proposal.replaces == self._sync.version:
                self._sync = proposal.proposal
            for node in self._nodes:
                node.on_in_sync(self._sync)

    def report(self, notice: Notice) -> None:
        """There is no history."""

    def replica_stopped(self, replica: ReplicaId, reason: str) -> None:
        """There is no controller."""

    def caught_up(self, replica: ReplicaId) -> None:
        """There is no controller."""

    def switched(self, shard: ShardId) -> None:
        """There is no controller."""

    def suspects(self, node: str, reason: str) -> None:
        """There is no controller."""

    def trusts(self, node: str) -> None:
        """There is no controller."""

    def belong(self, run: str) -> None:
        """There is no other run."""

    def status(self) -> CoordinationStatus:
        """There is no ZooKeeper to be connected to."""
        return CoordinationStatus(connected=False, controller=False)

    def close(self) -> None:
        """Nothing is open."""


def _no_other_generation(generation: int) -> Program:
    raise AssertionError(f"somebody asked for generation {generation} of the code")


class TwoNodes:
    """Runs a flow on nodes ``a`` and ``b``; results are read from the outboxes of both."""

    def __init__(
        self,
        flow: Dataflow,
        session: SparkSession,
        directory: Path,
        traced: Callable[[Node, Layout, InSync], Tracing] | None = None,
    ) -> None:
        self.flow = flow
        self._session = session
        self._traced = traced
        self.topology = build_topology(flow, 2)
        self.nodes = {
            name: Node(name, flow, self._programs(), ReplicaDirs(directory / name), TOKEN, "127.0.0.1", 0)
            for name in ("a", "b")
        }
        self._threads: list[threading.Thread] = []

    def _programs(self) -> Programs:
        programs = Programs(
            Program.first(self.flow, self.topology, "flow.py", ""),
            self.flow,
            fetch=_no_other_generation,
            analyse=lambda flow, order: analyse(flow, order, self._session),
        )
        programs.load_first()
        return programs

    def start(self) -> None:
        layout = chained_placement(self.topology, {name: node.dirs.identity() for name, node in self.nodes.items()})
        ingress = layout.nodes_of(INGRESS)
        sync = InSync(1, next(iter(ingress)), frozenset(ingress), 0)
        members = {name: Member(name, node.server.address, "", "here", 0, name) for name, node in self.nodes.items()}
        store = Store(sync, self.nodes.values())
        for node in self.nodes.values():
            node.coordination = store  # type: ignore[assignment]
            node.members = members
            engine, queries = node.run_on(self._session)
            node.tracing = None if self._traced is None else self._traced(node, layout, sync)
            node.begin(layout, sync)
            engine.open(queries.look)
            thread = threading.Thread(target=node.loop, name=f"loop-{node.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait_for_unit(self, stream: StreamId, number: int, deadline_s: float) -> None:
        """Wait until both nodes have produced unit ``number``."""

        def there() -> bool:
            for node in self.nodes.values():
                assert not any(replica.reason for replica in node.status().replicas), node.status()
            return all(self.outbox_path(name, stream, number).exists() for name in self.nodes)

        wait_until(there, deadline_s, f"unit {number} of {stream}")

    def unit(self, node: str, stream: StreamId, number: int) -> pa.Table:
        return decode_unit(self.nodes[node].store.read(self.outbox_path(node, stream, number)))[1]

    def outbox_path(self, node: str, stream: StreamId, number: int) -> Path:
        """Where a node keeps a unit that a replica there has produced."""
        view = self.nodes[node].view
        assert view is not None
        replica = view.layout.replica_on(node, self.topology.host_shard(stream.producer))
        assert replica is not None
        return self.nodes[node].store.outbox_path(replica, stream, number)

    def input_unit(self, stream: StreamId, number: int) -> pa.Table:
        return self.unit("a", stream, number)

    def __enter__(self) -> TwoNodes:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.close()

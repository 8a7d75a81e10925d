"""What a node says about orders when ZooKeeper has lost its data: whether they were there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unbroken import Client, Dataflow, Push
from unbroken.coordination.documents import DISK
from unbroken.flow.plan import build_topology
from unbroken.node.membership.documents_copy import CoordinationCopy
from unbroken.node.node import Node
from unbroken.node.policies.leader.order_logs import OrderLogs
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.values.run import RunIdentity


@pytest.mark.parametrize(
    ("ordering", "order_log", "lost"),
    [
        ("leader", "zookeeper", ("sums",)),
        ("leader", "kafka://k1:9092", ()),
        ("leader", "kafka://k1:9092/orders", ()),
        ("pulse", "zookeeper", ()),
    ],
)
def test_only_orders_that_were_in_zookeeper_are_lost(
    tmp_path: Any, ordering: str, order_log: str, lost: tuple[str, ...]
) -> None:
    flow = Dataflow("shop", nodes=2, order_log=order_log)
    flow.source("orders", Push("shop string"))
    flow.segment("orders", name="sums", ordering=ordering)(lambda orders: orders)
    flow.sink("live", "sums", Client())
    dirs = ReplicaDirs(tmp_path / "a")
    dirs.identity()
    dirs.belong(RunIdentity("r1", frozenset()))
    node: Any = SimpleNamespace(
        name="a",
        protocol=None,
        unadopted=True,
        copy=CoordinationCopy(dirs),
    )
    programs: Any = SimpleNamespace(topology=build_topology(flow))
    node.policies = [OrderLogs("a", programs, order_log, lambda *_: pytest.fail("no log is opened"), print)]
    report = DISK.decode(Node.disk_document(node)).report
    assert (report.run, report.orders_lost) == ("r1", lost)

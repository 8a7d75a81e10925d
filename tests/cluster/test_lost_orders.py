"""What a node says about orders when ZooKeeper has lost its data: whether they were there."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from unbroken import Client, Dataflow, Push
from unbroken.flow.plan import build_topology
from unbroken.node.membership.documents_copy import CoordinationCopy
from unbroken.node.node import Node
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.placement.adoption import DiskReport
from unbroken.protocol.values.run import Run


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
    dirs.belong(Run("r1", frozenset()))
    node: Any = SimpleNamespace(
        name="a",
        protocol=None,
        unadopted=True,
        settings=flow.settings,
        programs=SimpleNamespace(topology=build_topology(flow)),
        copy=CoordinationCopy(dirs),
    )
    report = DiskReport.from_json(json.loads(Node.disk_document(node))["report"])
    assert (report.run, report.orders_lost) == ("r1", lost)

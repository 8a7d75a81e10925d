"""What nodes say about themselves and ZooKeeper, and who counts a loss; with a real ZooKeeper, without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from msgspec import to_builtins

from kit.coordination import S0 as SHARD
from kit.coordination import (
    Node,
    flows,
    lost,
    wait_for_layout,
)
from kit.coordination import server as server
from kit.coordination import zk as zk
from kit.support import wait_until
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.membership.failovers import CAUSES
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS

pytestmark = pytest.mark.cluster

NONE = dict.fromkeys(CAUSES, 0)


def facts(node: Node) -> dict[str, Any]:
    return to_builtins(node.coordination.status())


def test_the_controller_that_is_left_counts_what_was_lost(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("b", server.address, flow) as b:
        with Node("a", server.address, flow) as a:
            wait_for_layout(zk, flow, a, b)
            wait_until(lambda: facts(a)["controller"] or facts(b)["controller"], 30, "a controller")
            assert facts(a)["connected"] and facts(b)["connected"]
            assert facts(a)["controller"] is not facts(b)["controller"]
            assert facts(a)["failovers"] == facts(b)["failovers"] == NONE
        wait_until(lambda: facts(b)["failovers"]["node_lost"] == 2, 30, lambda: f"b has told {facts(b)}")
        assert facts(b)["controller"] and sum(facts(b)["failovers"].values()) == 2
        assert not facts(a)["connected"] and not facts(a)["controller"]


def test_a_stopped_replica_is_counted_by_one_node(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        a.coordination.replica_stopped(ReplicaId(SHARD, 1), "it diverged")
        wait_until(lambda: lost(zk, flow) == {str(ReplicaId(SHARD, 1))}, 20, "the layout without it")

        def counted() -> list[int]:
            return sorted(facts(node)["failovers"]["replica_stopped"] for node in (a, b))

        wait_until(lambda: counted() == [0, 1], 30, lambda: f"counted: {counted()}")


def test_whoever_takes_the_lead_of_the_ingress_counts_it(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        leader, other = (a, b) if a.syncs[0].leader == "a" else (b, a)
        mine = other.layouts[0].replica_on(other.member.node, INGRESS)
        assert mine is not None
        name = other.member.node
        other.coordination.propose(ProposeInSync(InSync(2, name, frozenset({name}), 1), 0), mine)
        wait_until(lambda: facts(other)["failovers"]["ingress_leader_lost"] == 1, 30, "the lead is taken")
        wait_until(lambda: leader.syncs[-1].leader == name, 30, "the other one knows")
        assert facts(leader)["failovers"]["ingress_leader_lost"] == 0

"""Several nodes' dealings with a real ZooKeeper, without Spark: layout, in-sync set, controller, lost sessions."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kit.coordination import (
    S0,
    SESSION_S,
    Node,
    expire,
    flows,
    lost,
    missed_since,
    notices,
    wait_for_layout,
)
from kit.coordination import server as server
from kit.coordination import zk as zk
from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import (
    FLOW,
    InSyncDocument,
    Member,
    connect,
    read_in_sync_document,
    read_layout,
    read_members,
    read_stopped,
)
from unbroken.errors import UnbrokenError
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.placement.absence import ABSENCE_S
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.placement import (
    ControllerReplaced,
    FirstLayout,
    NodeReady,
    ReplicaJoined,
    ReplicasDropped,
    ShardRedundant,
)

pytestmark = pytest.mark.cluster


def test_the_first_layout_comes_with_all_that_belongs_to_it(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a:
        wait_until(lambda: set(a.members) == {"a"}, 30, "a to see itself")
        assert read_layout(zk, flow) is None
        with Node("b", server.address, flow) as b:
            layout = wait_for_layout(zk, flow, a, b)
            assert set(layout.nodes) == {"a", "b"} and a.layouts == b.layouts == [layout]
            assert a.syncs[0] == b.syncs[0] == InSync(1, "a", frozenset({"a", "b"}), 0)
            found: dict[str, Any] = {n: zk.get(f"/unbroken/{flow}/{n}") for n in ("layout", "in-sync", "topology")}
            assert len({stat.czxid for _, stat in found.values()}) == 1
            sink = FLOW.decode(found["topology"][0]).sinks["sink"]
            assert (sink.part, sink.shards, sink.client) == ("s0", 1, False)
            wait_until(lambda: notices(zk, flow) == [FirstLayout(("a", "b"))], 30, "the history")


def test_of_two_changes_of_the_in_sync_set_one_succeeds(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        for node in (a, b):
            alone = InSync(2, node.member.node, frozenset({node.member.node}), 0)
            replica = a.layouts[-1].replica_on(node.member.node, INGRESS)
            assert replica is not None
            node.coordination.propose(ProposeInSync(alone, replaces=0), replica)
        wait_until(lambda: a.syncs[-1].version == b.syncs[-1].version == 1, 30, "both to see the change")
        assert a.syncs[-1] == b.syncs[-1] and a.syncs[-1].leader in {"a", "b"}
        stored = read_in_sync_document(zk, flow)
        alone = InSync(2, a.syncs[-1].leader, frozenset({a.syncs[-1].leader}), 1)
        assert stored == InSyncDocument(alone, a.layouts[-1].run, 0)


def test_a_member_that_the_layout_has_given_up_changes_nothing(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        alone = InSync(2, "a", frozenset({"a"}), 0)
        seen = len(a.syncs)
        a.coordination.propose(ProposeInSync(alone, replaces=0), ReplicaId(INGRESS, 7))
        wait_until(lambda: len(a.syncs) > seen, 30, "the answer")
        assert a.syncs[-1].members == {"a", "b"} and a.syncs[-1].version == 0


def test_another_node_takes_over_from_a_controller_that_leaves(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a:
        wait_until(lambda: zk.exists(f"/unbroken/{flow}/controller"), 30, "a to be a candidate")
        with Node("b", server.address, flow) as b:
            wait_for_layout(zk, flow, a, b)
            a.coordination.close()
            wait_until(lambda: lost(zk, flow) == {"ingress.0#0", "s0.0#1"}, 30, "b to drop a")
            wait_until(lambda: b.layouts[-1].version >= 2, 30, "b to hear of it")
            wait_until(
                lambda: any(isinstance(each, ReplicasDropped) and each.lost == ("a",) for each in notices(zk, flow)),
                30,
                "the history",
            )


def in_line(zk: KazooClient, flow: str) -> list[str]:
    """Who stands in line, first the controller; who leaves the line while it is read is not in it."""
    path, found = f"/unbroken/{flow}/controller", list[str]()
    for name in sorted(zk.get_children(path), key=lambda name: name[-10:]):
        with contextlib.suppress(NoNodeError):
            found.append(zk.get(f"{path}/{name}")[0].decode())
    return found


def test_a_controller_that_does_not_answer_is_replaced_before_its_session_ends(
    server: EmbeddedZooKeeper, zk: KazooClient
) -> None:
    """It lives on, here, so its session never ends; and it notices that it has lost the office."""
    flow = next(flows)
    with Node("a", server.address, flow) as a:
        wait_until(lambda: zk.exists(f"/unbroken/{flow}/controller"), 30, "a to be a candidate")
        with Node("b", server.address, flow) as b:
            wait_for_layout(zk, flow, a, b)
            b.connected = {"a"}
            b.coordination.suspects("a", "no answer")
            wait_until(lambda: bool(zk.get_children(f"/unbroken/{flow}/suspected")), 30, "the suspicion")
            assert in_line(zk, flow) == ["a", "b"], "whom the next in line can reach keeps the office"
            b.connected = set()
            b.coordination.trusts("a")
            wait_until(lambda: not zk.get_children(f"/unbroken/{flow}/suspected"), 30, "the suspicion to be taken back")
            b.coordination.suspects("a", "no answer")
            wait_until(lambda: ControllerReplaced("a") in notices(zk, flow), 30, "a to be deposed")
            wait_until(lambda: in_line(zk, flow) == ["b", "a"], 30, "a to stand in line again")


def test_a_stopped_replica_is_dropped_and_the_last_one_is_not(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    first, second = ReplicaId(S0, 0), ReplicaId(S0, 1)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        a.coordination.replica_stopped(second, "its query failed")
        a.coordination.replica_stopped(second, "told twice")
        wait_until(lambda: lost(zk, flow) == {"s0.0#1"}, 30, "the stopped replica to be dropped")
        b.coordination.replica_stopped(first, "its query failed, too")
        wait_until(
            lambda: set(read_stopped(zk, flow)) == {first}, 30, "the second stop to be known, the first forgotten"
        )
        # A node that leaves makes the controller decide once more, with the stop in view.
        b.coordination.close()
        wait_until(lambda: "ingress.0#1" in lost(zk, flow), 30, "b to be dropped")
        assert lost(zk, flow) == {"s0.0#1", "ingress.0#1"}
        assert read_stopped(zk, flow)[first] == "its query failed, too"


def test_orders_of_shards_that_are_no_more_are_removed(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        for shard in (S0, "s0@2.0"):
            zk.create(f"/unbroken/{flow}/orders/{shard}/1", b"an order", makepath=True)
        a.coordination.replica_stopped(ReplicaId(S0, 1), "so that there is another layout")
        orders = f"/unbroken/{flow}/orders"
        wait_until(lambda: zk.get_children(orders) == [str(S0)], 20, lambda: f"left: {zk.get_children(orders)}")
        assert zk.get_children(f"{orders}/{S0}") == ["1"]


def test_a_shard_keeps_its_last_replica_when_all_its_nodes_go(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        with Node("spare", server.address, flow) as spare:
            a.coordination.close()
            wait_until(lambda: lost(zk, flow) == {"ingress.0#0", "s0.0#1"}, 30, "a to be dropped")
            b.coordination.close()
            wait_until(lambda: set(spare.members) == {"spare"}, 30, "the spare node to be alone")
            controllers = f"/unbroken/{flow}/controller"
            wait_until(lambda: len(zk.get_children(controllers)) == 1, 30, "the spare node to be the controller")
            wait_until(lambda: time.monotonic() - missed_since(spare, "b") > ABSENCE_S, 30, "b to be missed for long")
            spare.coordination._controller.decide()
            layout = read_layout(zk, flow)
            assert layout is not None and layout.counted(S0) and layout.counted(INGRESS)


def test_a_node_whose_session_ended_is_back_before_it_is_missed(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        for node in (a, b):
            before = node.client.client_id
            expire(node, server.address)
            wait_until(lambda: node.client.client_id not in (None, before), 30, "a session of its own")  # noqa: B023
        wait_until(lambda: set(read_members(zk, flow)) == {"a", "b"}, 30, "both to be members again")
        owners = {zk.get(f"/unbroken/{flow}/members/{node.member.node}")[1].ephemeralOwner for node in (a, b)}
        assert owners == {node.client.client_id[0] for node in (a, b)}
        assert lost(zk, flow) == set()


def test_a_name_is_given_once(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a:
        with (
            pytest.raises(UnbrokenError, match="a node named a is already part of the flow"),
            Node("a", server.address, flow, name_deadline_s=0.5),
        ):
            pass
        with Node("b", server.address, flow) as b:
            wait_for_layout(zk, flow, a, b)


def test_the_name_of_a_killed_process_is_free_when_its_session_has_ended(
    server: EmbeddedZooKeeper, zk: KazooClient
) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a:
        orphan = Member("b", "b:1", "", "here", 1, "killed", "disk")
        create = f"create('/unbroken/{flow}/members/b', {orphan.to_bytes()!r}, ephemeral=True)"
        code = (
            "import time; from unbroken.coordination.documents import connect; "
            f"connect('{server.address}', {SESSION_S}, token={TOKEN!r}).{create}; time.sleep(60)"
        )
        process = subprocess.Popen([sys.executable, "-c", code])
        wait_until(lambda: "b" in read_members(zk, flow), 20, "the process to join")
        process.kill()
        process.wait()
        with Node("b", server.address, flow) as b:
            wait_for_layout(zk, flow, a, b)
            assert read_members(zk, flow)["b"].incarnation == b.member.incarnation


def test_a_standby_is_left_out_at_first_and_gets_what_a_lost_node_had(
    server: EmbeddedZooKeeper, zk: KazooClient
) -> None:
    flow = next(flows)
    with Node("spare", server.address, flow, standby=True) as spare, Node("a", server.address, flow) as a:
        with Node("b", server.address, flow) as b:
            layout = wait_for_layout(zk, flow, a, b)
            assert not layout.hosted("spare")
        wait_until(lambda: spare.layouts and "spare" in spare.layouts[-1].nodes, 30, "the spare node to be known")
        wait_until(lambda: len(spare.layouts[-1].hosted("spare")) == 2, 30, "the spare node to get b's replicas")
        newcomer = spare.layouts[-1].replica_on("spare", S0)
        assert newcomer == ReplicaId(S0, 2) and newcomer in spare.layouts[-1].joining
        spare.coordination.caught_up(newcomer)
        wait_until(lambda: newcomer in spare.layouts[-1].full(S0), 30, "the newcomer to count")
        wait_until(lambda: ReplicaJoined(newcomer, "spare") in notices(zk, flow), 30, "the history")
        redundant = [each for each in notices(zk, flow) if isinstance(each, ShardRedundant)]
        assert [(each.shard, each.again) for each in redundant] == [(S0, True)]


def test_a_node_that_lost_its_disk_hosts_nothing(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a:
        with Node("b", server.address, flow) as b:
            wait_for_layout(zk, flow, a, b)
        with Node("b", server.address, flow, disk="another") as b:
            wait_until(lambda: b.layouts and b.layouts[-1].nodes.get("b") == "another", 30, "the disk to be known")
            assert lost(zk, flow) == {"ingress.0#1", "s0.0#0"}
            wait_until(lambda: len(b.layouts[-1].joining) == 2, 30, "b to be given replicas anew")


def test_everything_goes_on_after_zookeeper_was_killed(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log")
    with server, Node("a", server.address, "killed") as a, Node("b", server.address, "killed") as b:
        wait_until(lambda: all(node.layouts and node.syncs for node in (a, b)), 30, "the first layout")
        server.kill9()
        wait_until(lambda: not a.client.connected and not b.client.connected, 30, "the loss to be noticed")
        a.coordination.report(NodeReady("said while ZooKeeper was away"))
        server.start()
        wait_until(lambda: a.client.connected and b.client.connected, 30, "both sessions to be back")
        zk = connect(server.address, SESSION_S, token=TOKEN)
        try:
            wait_until(lambda: NodeReady("said while ZooKeeper was away") in notices(zk, "killed"), 30, "the report")
            wait_until(lambda: set(read_members(zk, "killed")) == {"a", "b"}, 30, "both members to be there")
            assert lost(zk, "killed") == set()
            a.coordination.close()
            wait_until(lambda: "s0.0#1" in lost(zk, "killed"), 30, "b to drop a")
        finally:
            zk.stop()
            zk.close()

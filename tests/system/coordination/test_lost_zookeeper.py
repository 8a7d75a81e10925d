"""A real ZooKeeper loses its data while nodes run, or before they start: nothing begins anew, all is adopted."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

from kit.coordination import SESSION_S, TOPOLOGY, notices, programs_of
from kit.coordination import server as server
from kit.coordination import zk as zk
from kit.support import TOKEN, wait_until
from unbroken.cli import cli
from unbroken.coordination.documents import (
    DISK,
    DiskDocument,
    Member,
    connect,
    read_disks,
    read_flow_document,
    read_in_sync,
    read_layout,
    read_members,
    root_of,
)
from unbroken.errors import Refused
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.membership import session as coordination
from unbroken.node.membership.controller import ControlSettings
from unbroken.node.membership.documents_copy import CoordinationCopy
from unbroken.node.membership.session import Callbacks, Coordination
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.operations import adopt as adopting
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import FirstLayoutRefused, LayoutForeign, NodeReady

pytestmark = pytest.mark.cluster

flows = (f"lost-{number}" for number in itertools.count())


class Node:
    """A node with a disk, as ZooKeeper sees it; takes layouts and in-sync sets as a real one does."""

    def __init__(self, name: NodeId, address: str, flow: str, root: Path, running: bool = True) -> None:
        self.name, self.flow, self.running = name, flow, running
        self.dirs = ReplicaDirs(root / name)
        self.copy = CoordinationCopy(self.dirs)
        self.client = connect(address, SESSION_S, token=TOKEN)
        self.members: dict[NodeId, Member] = {}
        self.layouts: list[Layout] = []
        self.syncs: list[InSync] = []
        callbacks = Callbacks(
            self._members,
            self._layout,
            self._in_sync,
            lambda notice: self.coordination.report(notice),
            lambda _: None,
            linked=lambda: list(self.members),
            connected=lambda: list(self.members),
            disk=lambda: DISK.encode(DiskDocument(self.copy.report(name, self.running), self.copy.flow)),
        )
        run = self.dirs.run().id
        me = Member(name, f"{name}:1", "", "here", 1, f"{name}-{id(self)}", self.dirs.identity(), run=run)
        settings = ControlSettings(2, transfers=4, return_grace_s=30)
        self.coordination = Coordination(self.client, flow, me, programs_of(TOPOLOGY), settings, callbacks)

    def _members(self, members: dict[NodeId, Member]) -> None:
        self.members = members

    def _layout(self, layout: Layout) -> None:
        self.copy.keep_layout(layout)
        self.layouts.append(layout)

    def _in_sync(self, sync: InSync) -> None:
        self.copy.keep_in_sync(sync)
        self.syncs.append(sync)

    def begin(self) -> None:
        """Take the place that the layout has for this node."""
        wait_until(lambda: bool(self.layouts and self.syncs), 30, "the layout")
        document = read_flow_document(self.client, self.flow)
        self.dirs.belong(document.run)
        self.copy.keep_flow(document)
        self.dirs.begin(self.layouts[-1].hosted(self.name))
        self.coordination.belong(self.layouts[-1].run)

    def __enter__(self) -> Node:
        self.coordination.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.coordination.close()


def said(zk: KazooClient, flow: str, about: Callable[[Notice], bool]) -> Callable[[], bool]:
    return lambda: any(about(each) for each in notices(zk, flow))


def delete_all(zk: KazooClient, flow: str) -> None:
    """Delete a flow's documents; nodes that run may add others at the same time."""
    with contextlib.suppress(NotEmptyError):
        zk.delete(root_of(flow), recursive=True)
    assert read_layout(zk, flow) is None


def test_documents_that_are_deleted_under_a_running_flow_are_adopted(
    server: EmbeddedZooKeeper, zk: KazooClient, tmp_path: Path
) -> None:
    flow = next(flows)
    with Node("a", server.address, flow, tmp_path) as a, Node("b", server.address, flow, tmp_path) as b:
        for node in (a, b):
            node.begin()
        before, run = a.layouts[-1], a.layouts[-1].run
        second = InSync(2, "a", frozenset({"a", "b"}), 1)
        replica = before.replica_on("a", INGRESS)
        assert replica is not None
        a.coordination.propose(ProposeInSync(second, replaces=0), replica)
        wait_until(lambda: a.syncs[-1].term == b.syncs[-1].term == 2, 30, "another in-sync set")
        wait_until(lambda: {m.run for m in read_members(zk, flow).values()} == {run}, 30, "the run to be announced")
        delete_all(zk, flow)
        wait_until(lambda: set(read_members(zk, flow)) == {"a", "b"}, 20, "both to register again")
        wait_until(lambda: set(read_disks(zk, flow)) == {"a", "b"}, 20, "both to say what they have")
        wait_until(
            said(zk, flow, lambda each: isinstance(each, FirstLayoutRefused) and set(each.runs) == {run}),
            30,
            "the refusal",
        )
        assert read_layout(zk, flow) is None and len(a.layouts) == 1
        told = CliRunner().invoke(
            cli, ["adopt", "--zookeeper", server.address, flow, "--json"], env={"UNBROKEN_TOKEN": TOKEN}
        )
        assert told.exit_code == 0, told.output
        wait_until(lambda: a.layouts[-1].version == b.layouts[-1].version == before.version + 1, 30, "the layout")
        assert a.layouts[-1].placement == before.placement and a.layouts[-1].run == run
        assert a.syncs[-1].term == 2 and a.syncs[-1].version > 1 and a.syncs[-1] == b.syncs[-1]
        assert read_in_sync(zk, flow) == a.syncs[-1]
        wait_until(lambda: not read_disks(zk, flow), 30, "the offers to be taken back")
        # Everything works as before: a proposal on the adopted set, and the loss of a node.
        both = InSync(3, "a", frozenset({"a", "b"}), a.syncs[-1].version + 1)
        a.coordination.propose(ProposeInSync(both, replaces=a.syncs[-1].version), replica)
        wait_until(lambda: b.syncs[-1] == both, 30, "the in-sync set to change")
        b.coordination.close()
        wait_until(lambda: set(a.members) == {"a"}, 15, "a to see that b went")
        with pytest.raises(Refused, match="nothing to adopt"):
            adopting.adopt(zk, flow)


def test_members_that_vanish_register_again_and_hold_nothing_up(
    server: EmbeddedZooKeeper, zk: KazooClient, tmp_path: Path
) -> None:
    flow = next(flows)
    with Node("a", server.address, flow, tmp_path) as a, Node("b", server.address, flow, tmp_path) as b:
        for node in (a, b):
            node.begin()
        for part in ("members", "history", "suspected", "stopped"):
            zk.delete(f"{root_of(flow)}/{part}", recursive=True)
        a.coordination.report(NodeReady("a"))
        wait_until(said(zk, flow, lambda each: each == NodeReady("a")), 30, "other jobs to be done")
        wait_until(lambda: set(read_members(zk, flow)) == {"a", "b"}, 20, "both to register again")
        wait_until(lambda: set(a.members) == set(b.members) == {"a", "b"}, 20, "both to see each other")
        b.coordination.close()
        wait_until(lambda: set(a.members) == {"a"}, 15, "a to see that b went")


def test_nodes_that_start_on_their_disks_wait_and_are_adopted(
    server: EmbeddedZooKeeper, zk: KazooClient, tmp_path: Path
) -> None:
    flow = next(flows)
    with Node("a", server.address, flow, tmp_path) as a, Node("b", server.address, flow, tmp_path) as b:
        for node in (a, b):
            node.begin()
        before = a.layouts[-1]
    delete_all(zk, flow)
    held = {name: ReplicaDirs(tmp_path / name).present() for name in "ab"}
    with Node("a", server.address, flow, tmp_path, running=False) as a:
        with pytest.raises(Refused, match="b with"):
            wait_until(lambda: bool(read_disks(zk, flow)), 30, "a to say what it has")
            adopting.adopt(zk, flow)
        with (
            Node("b", server.address, flow, tmp_path, running=False) as b,
            Node("fresh", server.address, flow, tmp_path) as fresh,
        ):
            wait_until(lambda: set(read_disks(zk, flow)) == {"a", "b"}, 30, "both to say what they have")
            wait_until(lambda: set(read_members(zk, flow)) == {"a", "b", "fresh"}, 30, "all to be there")
            assert read_layout(zk, flow) is None and not fresh.layouts
            decided = adopting.adopt(zk, flow)
            assert decided.layout.placement == before.placement and decided.layout.run == before.run
            wait_until(lambda: bool(a.layouts and b.layouts and fresh.layouts), 30, "the layout")
            wait_until(lambda: "fresh" in a.layouts[-1].nodes, 30, "the newcomer to be taken")
            assert {name: ReplicaDirs(tmp_path / name).present() for name in "ab"} == held


def test_a_zookeeper_that_comes_back_empty_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses clients that have seen more than it has; running nodes get over that, and still nothing begins."""
    monkeypatch.setattr(coordination, "LOST_DATA_S", 2.0)
    server = EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log")
    with server, Node("a", server.address, "e", tmp_path) as a, Node("b", server.address, "e", tmp_path) as b:
        for node in (a, b):
            node.begin()
        run = a.layouts[-1].run
        server.kill9()
        wait_until(lambda: not a.client.connected and not b.client.connected, 30, "the loss to be noticed")
        shutil.rmtree(tmp_path / "zk" / "data")
        server.start()
        zk = connect(server.address, SESSION_S, 60, token=TOKEN)
        try:
            wait_until(lambda: set(read_disks(zk, "e")) == {"a", "b"}, 40, "both to say what they have")
            assert read_layout(zk, "e") is None
            assert adopting.adopt(zk, "e").layout.run == run
            wait_until(lambda: a.layouts[-1].version == b.layouts[-1].version == 2, 30, "the layout")
        finally:
            zk.stop()
            zk.close()


def test_a_controller_leaves_the_documents_of_another_run_alone(
    server: EmbeddedZooKeeper, zk: KazooClient, tmp_path: Path
) -> None:
    flow = next(flows)
    with Node("a", server.address, flow, tmp_path) as a, Node("b", server.address, flow, tmp_path) as b:
        for node in (a, b):
            node.begin()
        mine = a.layouts[-1]
    delete_all(zk, flow)
    others = tmp_path / "others"
    with Node("c", server.address, flow, others) as c, Node("d", server.address, flow, others) as d:
        for node in (c, d):
            node.begin()
        theirs = read_layout(zk, flow)
        assert theirs is not None and theirs.run != mine.run
    with Node("a", server.address, flow, tmp_path), Node("b", server.address, flow, tmp_path):
        wait_until(
            said(
                zk,
                flow,
                lambda each: isinstance(each, LayoutForeign) and (each.run, each.other_run) == (mine.run, theirs.run),
            ),
            30,
            "the refusal",
        )
        assert read_layout(zk, flow) == theirs

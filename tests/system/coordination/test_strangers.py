"""What a client of ZooKeeper can do without the token: nothing. With the password alone: nothing that counts.

With a real ZooKeeper, without Spark.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import InvalidACLError, NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from kit.coordination import Node, flows, notices, wait_for_layout
from kit.coordination import server as server
from kit.coordination import zk as zk
from kit.support import TOKEN, wait_until
from unbroken.client import push_addresses
from unbroken.coordination.client import USER, claim_root, close_server
from unbroken.coordination.directory import Directory
from unbroken.coordination.documents import (
    LAYOUT,
    PAUSE,
    REPORTED,
    UPGRADE,
    InSyncDocument,
    Member,
    UpgradeDocument,
    connect,
    read_members,
    read_names,
    read_pause,
    read_wish,
    root_of,
)
from unbroken.errors import UnbrokenError
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Program
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.replicas.programs import CODE, CodeDocument, Programs, read_program, write_first_program
from unbroken.operations import upgrade as upgrading
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.controller import Decision, first_layout
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import DocumentForged, NodeReady
from unbroken.protocol.values.pause import Pause
from unbroken.security.keys import derive
from unbroken.security.sealing import ForgedDocument

pytestmark = pytest.mark.cluster

OTHER = "another token, as long as it has to be"


@pytest.fixture(params=["nobody", "a user of ZooKeeper", "the owner of another flow"])
def stranger(request: pytest.FixtureRequest, server: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    auth = {"a user of ZooKeeper": [("digest", "unbroken:guessed")]}.get(request.param)
    other = request.param == "the owner of another flow"
    client = connect(server.address, 5, token=OTHER) if other else KazooClient(server.address, auth_data=auth)
    client.start(timeout=10)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def insider(server: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """The password of ZooKeeper without the token, as one has who has read it on the wire or administers ZooKeeper."""
    password = derive(TOKEN, "zookeeper").hex()
    acl = [make_digest_acl(USER, password, all=True)]
    client = KazooClient(server.address, auth_data=[("digest", f"{USER}:{password}")], default_acl=acl)
    client.start(timeout=10)
    yield client
    client.stop()
    client.close()


def below(zk: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in zk.get_children(path):
        yield from below(zk, f"{path}/{name}")


def test_a_stranger_neither_reads_nor_writes_documents(
    server: EmbeddedZooKeeper, zk: KazooClient, stranger: KazooClient
) -> None:
    flow = next(flows)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        wait_for_layout(zk, flow, a, b)
        paths = list(below(zk, root_of(flow)))
        assert len(paths) > 12
        for path in paths:
            for attempt in (
                lambda p: stranger.get(p),
                lambda p: stranger.get_children(p),
                lambda p: stranger.set(p, b"x"),
                lambda p: stranger.create(f"{p}/x", b"x"),
                lambda p: stranger.delete(p),
                lambda p: stranger.set_acls(p, OPEN_ACL_UNSAFE),
                lambda p: stranger.get_acls(p),
            ):
                with pytest.raises((NoAuthError, InvalidACLError)):
                    attempt(path)


def test_a_server_of_one_flow_is_closed_to_others(server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log") as own:
        owner, other = connect(own.address, 5, token=TOKEN), KazooClient(own.address)
        other.start(timeout=10)
        try:
            close_server(owner, own.address)
            claim_root(owner, "mine")
            for path in ("/x", "/unbroken/x", "/unbroken/mine/x", "/zookeeper/quota/x"):
                with pytest.raises(NoAuthError):
                    other.create(path, b"")
            for path in ("/unbroken", "/unbroken/mine", "/"):
                with pytest.raises(NoAuthError):
                    other.set(path, b"x")
            assert other.get_children("/unbroken") == ["mine"], "a command finds the only flow"
            close_server(owner, own.address)  # as a run that is continued does
        finally:
            for client in (owner, other):
                client.stop()
                client.close()


def test_flows_with_tokens_of_their_own_share_an_ensemble(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    mine, theirs = next(flows), next(flows)
    claim_root(zk, mine)
    other = connect(server.address, 5, token=OTHER)
    try:
        claim_root(other, theirs)
        for client, flow in ((zk, theirs), (other, mine)):
            with pytest.raises(UnbrokenError, match="does not belong to the token of this flow"):
                claim_root(client, flow)
        with pytest.raises(UnbrokenError, match=f"the token does not open flow {mine}"):
            Directory(server.address, mine, token=OTHER)
    finally:
        other.stop()
        other.close()


def test_a_root_that_a_stranger_made_is_not_used(server: EmbeddedZooKeeper, zk: KazooClient) -> None:
    """Its owner could delete what the flow writes there, and write what the flow reads."""
    flow = next(flows)
    squatter = KazooClient(server.address)
    squatter.start(timeout=10)
    claim_root(zk, next(flows))
    squatter.create(root_of(flow), b"", acl=OPEN_ACL_UNSAFE)
    squatter.stop()
    squatter.close()
    with pytest.raises(UnbrokenError, match="does not belong to the token"), Node("a", server.address, flow):
        pass


def test_forged_documents_are_ignored_and_reported_once(
    server: EmbeddedZooKeeper, zk: KazooClient, insider: KazooClient
) -> None:
    flow = next(flows)
    root = root_of(flow)
    with Node("a", server.address, flow) as a, Node("b", server.address, flow) as b:
        layout = wait_for_layout(zk, flow, a, b)
        seen = [(list(node.layouts), list(node.syncs)) for node in (a, b)]
        good = {name: insider.get(f"{root}/{name}")[0] for name in ("layout", "in-sync")}
        evil = replace(layout, version=layout.version + 5, generation=2, generations=(2,))
        fake = Member("zz", "127.0.0.1:1", "127.0.0.1:2", "h", 1, "i")
        insider.set(f"{root}/layout", LAYOUT.encode(evil))
        insider.set(f"{root}/in-sync", InSyncDocument(InSync(9, "zz", frozenset({"zz"}), 1), layout.run).to_bytes())
        insider.create(f"{root}/members/zz", fake.to_bytes())
        insider.create(f"{root}/members/moved", insider.get(f"{root}/members/a")[0])
        insider.create(f"{root}/paused", PAUSE.encode(Pause(1, "x")))
        insider.create(f"{root}/upgrade", UPGRADE.encode(UpgradeDocument(2)))
        for part, name in (("draining", "a"), ("renewed", "s0.0#0"), ("switched", "s0.0"), ("caught-up", "s0.0#0")):
            insider.create(f"{root}/{part}/{name}", b"")
        insider.create(f"{root}/stopped/s0.0#0", b"because")
        insider.create(f"{root}/suspected/a~b", json.dumps({"suspect": "a", "by": "b", "reason": ""}).encode())
        insider.create(f"{root}/history/e", REPORTED.encode(Reported(1, "a", NodeReady("lie"))), sequence=True)

        wait_until(lambda: DocumentForged(f"{root}/members/zz") in notices(zk, flow), 30, "a notice in the history")
        assert NodeReady("lie") not in notices(zk, flow)
        assert [(list(node.layouts), list(node.syncs)) for node in (a, b)] == seen
        assert set(a.members) == {"a", "b"} == set(read_members(zk, flow)) == set(b.members)
        assert read_pause(zk, flow) is None and read_wish(zk, flow) is None
        assert not any(
            read_names(zk, flow, part) for part in ("draining", "renewed", "switched", "caught-up", "stopped")
        )
        with contextlib.closing(Directory(server.address, flow, token=TOKEN)) as directory:
            assert directory.refresh() and set(directory.members) == {"a", "b"} and directory.layout is None
        # With the documents restored the flow proceeds: neither node has stopped to look.
        for name, data in good.items():
            insider.set(f"{root}/{name}", data)
        insider.delete(f"{root}/stopped/s0.0#0")
        a.coordination.replica_stopped(ReplicaId(ShardId("s0", 0), 0), "for good")
        wait_until(lambda: a.layouts[-1].version > layout.version, 30, "a layout that follows from a real document")
        assert notices(zk, flow).count(DocumentForged(f"{root}/members/zz")) <= 2, "once for each node"


FILE = """from unbroken import Console, Dataflow, Generator
flow = Dataflow("{flow}", nodes=2)
c = flow.source("c", Generator(rate=10))
@flow.segment(c)
def seg(c): return c
flow.sink("screen", seg, Console())
"""


@pytest.fixture
def written(zk: KazooClient, tmp_path: Path) -> tuple[str, Path, Program]:
    """A flow that has begun: its name, its file and its program, with members and a layout in ZooKeeper."""
    flow, file = next(flows), tmp_path / "clicks.py"
    file.write_text(FILE.format(flow=flow))
    loaded = load_flow(file)
    first = Program.first(loaded, build_topology(loaded), str(file), file.read_text())
    decision = first_layout(first.topology, 2, {"a": "d1", "b": "d2"}, {}, "run")
    assert isinstance(decision, Decision)
    claim_root(zk, flow)
    zk.create(f"{root_of(flow)}/layout", LAYOUT.encode(decision.layout))
    for name in "ab":
        zk.create(
            f"{root_of(flow)}/members/{name}", Member(name, "127.0.0.1:1", "", "h", 1, "i").to_bytes(), makepath=True
        )
    write_first_program(zk, flow, first, "run")
    return flow, file, first


def marking(program: Program, generation: int, mark: Path) -> bytes:
    """The document of a program that leaves a mark when it is executed."""
    text = f"open({str(mark)!r}, 'w').write('x')\n{program.text}"
    return CODE.encode(CodeDocument(replace(program, generation=generation, text=text)))


def test_a_node_does_not_execute_code_that_a_stranger_wrote(
    zk: KazooClient, insider: KazooClient, written: tuple[str, Path, Program], tmp_path: Path
) -> None:
    flow, file, first = written
    mark = tmp_path / "executed"
    insider.create(f"{root_of(flow)}/code/2", marking(first, 2, mark))
    analysis: Any = SimpleNamespace(horizons={}, schemas=dict.fromkeys(["c", "seg"]))
    programs = Programs(first, load_flow(file), lambda g: read_program(zk, flow, g), lambda _flow, _order: analysis)
    layout = first_layout(first.topology, 2, {"a": "d1", "b": "d2"}, {}, "run")
    assert isinstance(layout, Decision)
    with pytest.raises(ForgedDocument, match="code/2"):
        programs.use(replace(layout.layout, version=9, generation=2, generations=(2,)))
    programs.code(ShardId("seg", 0))
    assert not mark.exists() and programs.newest == first


@pytest.mark.parametrize("sealed", [False, True])
def test_an_upgrade_executes_the_operators_file_only(
    zk: KazooClient, insider: KazooClient, written: tuple[str, Path, Program], tmp_path: Path, sealed: bool
) -> None:
    """Not even text with a seal: it is compared as it stands."""
    flow, file, first = written
    mark = tmp_path / "executed"
    (zk if sealed else insider).set(f"{root_of(flow)}/code/1", marking(first, 1, mark))
    file.write_text(file.read_text().replace("return c", "return c.distinct()"))
    if sealed:
        assert upgrading.propose(zk, flow, file).generation == 2
    else:
        with pytest.raises(ForgedDocument, match="code/1"):
            upgrading.propose(zk, flow, file)
    assert not mark.exists()


def test_an_upgrade_that_changes_more_than_code_is_refused(zk: KazooClient, written: tuple[str, Path, Program]) -> None:
    flow, file, _ = written
    file.write_text(file.read_text().replace("rate=10", "rate=20"))
    with pytest.raises(UnbrokenError, match="its rate was"):
        upgrading.propose(zk, flow, file)
    assert read_wish(zk, flow) is None


def test_a_producer_is_not_told_of_an_invented_node(
    server: EmbeddedZooKeeper, zk: KazooClient, insider: KazooClient, tmp_path: Path
) -> None:
    flow = next(flows)
    (tmp_path / "token").write_text(TOKEN)
    claim_root(zk, flow)
    real, fake = (Member(name, "127.0.0.1:1", f"127.0.0.1:{port}", "h", 1, "i") for name, port in (("a", 7), ("zz", 8)))
    zk.create(f"{root_of(flow)}/members/a", real.to_bytes(), makepath=True)
    insider.create(f"{root_of(flow)}/members/zz", fake.to_bytes())
    assert push_addresses(server.address, flow, tmp_path / "token") == ["127.0.0.1:7"]

"""Looking at a flow by what ZooKeeper says of it; nodes that do not answer are part of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kit.page.flows import NOW_MS, layout, states, suspicion
from kit.statuses import status
from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import LAYOUT, REPORTED, Member, connect, root_of
from unbroken.errors import UnbrokenError
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.page.page import PageOptions, page_of_flow
from unbroken.page.reader import FlowReader
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.protocol.values.notices.placement import FirstLayout, ReplicasDropped
from unbroken.testing.injection.by_hand import faults_by_hand

pytestmark = pytest.mark.cluster

FLOW = "clicks"


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path / "data", tmp_path / "zookeeper.log") as server:
        yield server


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    found = connect(zookeeper.address, 10, token=TOKEN)
    yield found
    found.stop()
    found.close()


BEGAN = FirstLayout(("a", "b", "c"))
LOST = ReplicasDropped((ReplicaId.parse("sums.1#1"),), lost=("c",))


def tell(client: KazooClient, notice: Notice, after_ms: int) -> None:
    entry = REPORTED.encode(Reported(NOW_MS + after_ms, "a", notice))
    client.create(f"{root_of(FLOW)}/history/e", entry, sequence=True, makepath=True)


def test_what_zookeeper_says_is_read_again_and_again(zookeeper: EmbeddedZooKeeper, client: KazooClient) -> None:
    found = states()
    with FlowReader(zookeeper.address, FLOW, TOKEN, ask=lambda: [status(**one) for one in found.values()]) as reader:
        seen = reader.look()
        assert (seen.layout, seen.history, seen.suspicions) == (None, (), ())
        assert [state.node for state in seen.states] == ["a", "b", "c"]
        client.create(f"{root_of(FLOW)}/layout", LAYOUT.encode(layout()), makepath=True)
        tell(client, BEGAN, 0)
        doubt = suspicion("c", "a")
        client.create(f"{root_of(FLOW)}/suspected/{doubt.name}", doubt.to_bytes(), makepath=True)
        seen = reader.look()
        assert seen.layout == layout()
        assert [one.notice for one in seen.history] == [BEGAN]
        assert seen.suspicions == (doubt,)
        first = seen.history
        tell(client, LOST, 5)
        client.delete(f"{root_of(FLOW)}/suspected/{doubt.name}")
        seen = reader.look()
        assert [one.notice for one in seen.history] == [first[0].notice, LOST]
        assert seen.suspicions == ()
        assert reader.look().history is seen.history, "what has not changed is not made again"
        client.delete(f"{root_of(FLOW)}/history/{min(client.get_children(f'{root_of(FLOW)}/history'))}")
        assert len(reader.look().history) == 1


def test_a_flow_is_shown_while_zookeeper_is_away(zookeeper: EmbeddedZooKeeper, client: KazooClient) -> None:
    client.create(f"{root_of(FLOW)}/layout", LAYOUT.encode(layout()), makepath=True)
    tell(client, BEGAN, 0)
    found = states()
    with FlowReader(zookeeper.address, FLOW, TOKEN, ask=lambda: [status(**one) for one in found.values()]) as reader:
        assert not reader.look().zookeeper_away
        zookeeper.kill9()
        wait_until(lambda: reader.look().zookeeper_away, 30, "the loss of ZooKeeper")
        seen = reader.look()
        assert seen.layout == layout()
        assert [one.notice for one in seen.history] == [BEGAN]


def test_a_page_of_nodes_that_do_not_answer(zookeeper: EmbeddedZooKeeper, client: KazooClient) -> None:
    client.create(f"{root_of(FLOW)}/layout", LAYOUT.encode(layout()), makepath=True)
    member = Member("a", "127.0.0.1:1", "", "127.0.0.1", 1, "x")
    client.create(f"{root_of(FLOW)}/members/a", member.to_bytes(), makepath=True, ephemeral=True)
    with page_of_flow(zookeeper.address, FLOW, TOKEN, PageOptions(faults=faults_by_hand)) as page:
        wait_until(lambda: page.feed.latest is not None, 30, "an update")
        assert page.feed.latest is not None
        view = json.loads(bytes(page.feed.latest.view))
    assert {node["node"]: node["state"] for node in view["nodes"]} == {"a": "silent", "b": "lost", "c": "lost"}
    assert view["counts"]["suspected"] == 2 and view["counts"]["dead"] == 4


def test_without_a_zookeeper_there_is_no_page() -> None:
    with pytest.raises(UnbrokenError, match="no ZooKeeper answers"):
        page_of_flow("127.0.0.1:1", FLOW, TOKEN, PageOptions(), deadline_s=0.5)

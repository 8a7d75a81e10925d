"""What may be done to a flow from its page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from kit.page.flows import layout
from kit.support import TOKEN
from unbroken.coordination.documents import LAYOUT, Member, connect, root_of
from unbroken.errors import Refused, UnbrokenError, Unreachable
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.page.actions import ActionRequest, FlowActions, NoActions, TokenCheck

flows = (f"page-{number}" for number in itertools.count())


def test_the_door_opens_to_the_token_alone() -> None:
    door = TokenCheck("secret")
    assert door.opens_to("secret")
    for other in ("", "Secret", "secre", "secrets", "sécret", "\udcff"):
        assert not door.opens_to(other)


def test_a_door_without_a_token_would_be_open_to_all() -> None:
    with pytest.raises(Refused, match="--token-file"):
        TokenCheck("")


def test_a_wish_names_a_node() -> None:
    assert ActionRequest.from_json("reinit", {"node": "a", "shard": "sums.0"}) == ActionRequest("reinit", "a", "sums.0")
    wrongs: list[Any] = [None, [], {}, {"node": ""}, {"node": 3}, {"node": "a", "shard": 3}]
    for wrong in wrongs:
        with pytest.raises(Refused):
            ActionRequest.from_json("drain", wrong)


def test_a_page_that_only_shows() -> None:
    assert NoActions().offered == ()
    with pytest.raises(Refused):
        NoActions().do(ActionRequest("drain", "a"))


class Away:
    """A ZooKeeper that is not there, or is lost in the middle."""

    def __init__(self, connected: bool) -> None:
        self.connected = connected

    def __getattr__(self, name: str) -> Any:
        def lost(*_: object, **__: object) -> None:
            raise ConnectionLoss()

        return lost


def test_nothing_waits_for_a_zookeeper_that_is_away() -> None:
    with pytest.raises(Unreachable, match="until it is back"):
        FlowActions(Away(False), "clicks").do(ActionRequest("drain", "a"))
    with pytest.raises(Unreachable, match="try again"):
        FlowActions(Away(True), "clicks").do(ActionRequest("drain", "a"))


def test_killing_is_not_offered_unless_it_is_asked_for() -> None:
    actions = FlowActions(Away(True), "clicks")
    assert actions.offered == ("drain", "undrain", "reinit")
    with pytest.raises(Refused, match="there is no action 'kill' here"):
        actions.do(ActionRequest("kill", "a"))


class Processes:
    """Notes what is done to processes."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        def note(node: str) -> int:
            self.done.append((name, node))
            return 4711

        return note


def test_a_demonstration_may_kill_freeze_and_thaw() -> None:
    processes = Processes()
    actions = FlowActions(Away(False), "clicks", processes)  # type: ignore[arg-type]
    assert actions.do(ActionRequest("kill", "a")) == "a was killed (process 4711)"
    assert actions.do(ActionRequest("freeze", "b")) == "b is frozen (process 4711)"
    assert actions.do(ActionRequest("thaw", "b")) == "b continues (process 4711)"
    assert processes.done == [("kill", "a"), ("freeze", "b"), ("thaw", "b")]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with EmbeddedZooKeeper(directory / "data", directory / "zookeeper.log") as server:
        yield server


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    found = connect(zookeeper.address, 10, token=TOKEN)
    yield found
    found.stop()
    found.close()


@pytest.fixture
def flow(client: KazooClient) -> str:
    """A flow of three nodes, as ZooKeeper knows it."""
    name = next(flows)
    client.create(f"{root_of(name)}/layout", LAYOUT.encode(layout()), makepath=True)
    for node in "abc":
        member = Member(node, f"{node}:1", "", "127.0.0.1", 1, node)
        client.create(f"{root_of(name)}/members/{node}", member.to_bytes(), makepath=True, ephemeral=True)
    return name


@pytest.mark.cluster
def test_a_node_is_drained_and_used_again(client: KazooClient, flow: str) -> None:
    actions = FlowActions(client, flow)
    assert "is to be left" in actions.do(ActionRequest("drain", "c"))
    assert client.get_children(f"{root_of(flow)}/draining") == ["c"]
    assert actions.do(ActionRequest("undrain", "c")) == "c may be used again"
    assert client.get_children(f"{root_of(flow)}/draining") == []
    with pytest.raises(UnbrokenError, match="not being drained"):
        actions.do(ActionRequest("undrain", "c"))
    with pytest.raises(UnbrokenError, match="has no node 'x'"):
        actions.do(ActionRequest("drain", "x"))


@pytest.mark.cluster
def test_a_replica_is_built_again(client: KazooClient, flow: str) -> None:
    actions = FlowActions(client, flow)
    assert actions.do(ActionRequest("reinit", "c", "sums.1")) == "sums.1#1 on c is to be built again from its peer"
    assert client.get_children(f"{root_of(flow)}/renewed") == ["sums.1#1"]
    with pytest.raises(UnbrokenError, match="has no replica on c"):
        actions.do(ActionRequest("reinit", "c", "sums.0"))
    with pytest.raises(UnbrokenError, match="is not a shard"):
        actions.do(ActionRequest("reinit", "c", "sums"))

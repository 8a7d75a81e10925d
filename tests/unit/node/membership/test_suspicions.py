"""How a node's suspicions become documents, without ZooKeeper: a client that keeps them in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.exceptions import ConnectionLoss, NodeExistsError, NoNodeError

from kit.hosts import hosting
from unbroken.coordination.documents import Member, Suspicion, read_suspicions
from unbroken.coordination.history import History
from unbroken.flow.settings import Settings
from unbroken.node.links import Links
from unbroken.node.membership.controller import Controller, ControlSettings
from unbroken.node.membership.session import Callbacks, Coordination
from unbroken.protocol.events import LinkLost, LinkUp
from unbroken.protocol.instructions import Suspect, Trust
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import NodeSuspected, SuspicionEnded, WatchEnded

ROOT = "/unbroken/flow/suspected"


class Client:
    """The few calls of kazoo's client that are made here, on a dictionary of (owner, data)."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[int, bytes]] = {}
        self.client_id = (1, b"")
        self.away = False
        self.writes = 0

    def get_children(self, path: str) -> list[str]:
        if self.away:
            raise ConnectionLoss
        return [name.removeprefix(f"{path}/") for name in self.documents if name.startswith(f"{path}/")]

    def get(self, path: str) -> tuple[bytes, Any]:
        if path not in self.documents:
            raise NoNodeError
        owner, data = self.documents[path]
        return data, SimpleNamespace(ephemeralOwner=owner)

    def get_async(self, path: str) -> Any:
        return SimpleNamespace(get=lambda timeout=None: self.get(path))

    def exists(self, path: str) -> Any:
        return self.get(path)[1] if path in self.documents else None

    def create(self, path: str, data: bytes, ephemeral: bool = False, makepath: bool = False) -> None:
        assert ephemeral
        if path in self.documents:
            raise NodeExistsError
        self.documents[path] = (self.client_id[0], data)
        self.writes += 1

    def delete(self, path: str) -> None:
        if self.documents.pop(path, None) is None:
            raise NoNodeError
        self.writes += 1


def _nothing(_: object) -> None:
    """Nobody is told anything."""


def coordination(client: Client) -> Coordination:
    me = Member("a", "a:1", "", "here", 1, "a")
    callbacks = Callbacks(_nothing, _nothing, _nothing, _nothing, _nothing, linked=list, connected=list)
    return Coordination(cast(Any, client), "flow", me, cast(Any, None), ControlSettings(2, 1, 1), callbacks)


def work(found: Coordination) -> int:
    """Do what waits to be done; how much that was."""
    jobs = found._jobs.qsize()
    for _ in range(jobs):
        found._jobs.get_nowait()()
    return jobs


def test_a_suspicion_is_a_document_until_it_is_taken_back() -> None:
    client = Client()
    found = coordination(client)
    found.suspects("b", "no answer")
    assert not client.documents, "the loop does not wait for ZooKeeper"
    assert work(found) == 1
    assert read_suspicions(cast(Any, client), "flow") == [Suspicion("b", "a", "no answer")]
    assert list(client.documents) == [f"{ROOT}/b~a"]
    found.trusts("b")
    assert work(found) == 1 and not client.documents


def test_what_others_say_is_left_alone() -> None:
    client = Client()
    other = Suspicion("b", "c", "no answer")
    client.documents[f"{ROOT}/{other.name}"] = (7, other.to_bytes())
    found = coordination(client)
    found.suspects("b", "no answer")
    work(found)
    found.trusts("b")
    work(found)
    assert read_suspicions(cast(Any, client), "flow") == [other]


def test_a_link_that_comes_and_goes_while_zookeeper_is_away_leaves_one_job() -> None:
    client = Client()
    found = coordination(client)
    for number in range(100):
        found.suspects("b", f"broke {number}")
        found.trusts("b")
    found.suspects("b", "the last word")
    client.away = True
    assert found._jobs.qsize() == 1
    job = found._jobs.get_nowait()
    with pytest.raises(ConnectionLoss):
        job()
    found.suspects("c", "no answer")
    client.away = False
    job()
    assert {each.reason for each in read_suspicions(cast(Any, client), "flow")} == {"the last word", "no answer"}
    writes = client.writes
    assert work(found) == 1 and client.writes == writes, "what is as it should be is left as it is"


def test_a_new_session_says_it_again() -> None:
    client = Client()
    found = coordination(client)
    found.suspects("b", "no answer")
    work(found)
    client.client_id = (2, b"")
    found._suspicions.refresh()
    work(found)
    assert client.documents[f"{ROOT}/b~a"][0] == 2, "the one of the earlier session would vanish with it"


def test_the_controller_reads_who_is_suspected_by_whom() -> None:
    client = Client()
    for each in (Suspicion("b", "a", ""), Suspicion("b", "c", ""), Suspicion("d", "a", "")):
        client.documents[f"{ROOT}/{each.name}"] = (1, each.to_bytes())
    history, settings = History(cast(Any, client), "flow", "a"), ControlSettings(2, 1, 1)
    controller = Controller(
        cast(Any, client), "flow", "a", cast(Any, None), settings, history, _nothing, _nothing, list, list
    )
    assert controller._suspicions() == {"b": {"a", "c"}, "d": {"a"}}


def test_links_know_who_is_linked_at_this_moment() -> None:
    posted: list[object] = []
    events: Any = SimpleNamespace(post_link=lambda _peer, event: posted.append(event))
    links = Links("a", Settings(), "", cast(Any, None), events)
    links._handlers.up("b")
    assert links.connected == links.known == {"a", "b"}
    links._handlers.lost("b")
    assert links.connected == {"a"} and links.known == {"a", "b"}
    assert posted == [LinkUp("b"), LinkLost("b")]


def test_the_history_says_who_suspects_whom_and_for_how_long() -> None:
    client, told = Client(), list[Notice]()
    found = coordination(client)
    host = hosting(name="a", tell=told.append, controller=found)
    host.suspect(Suspect("b", "the connection to b broke"))
    work(found)
    assert len(client.documents) == 1
    host.trust(Trust("b"))
    host.suspect(Suspect("b", "no answer"))
    host.trust(Trust("b", heard=False))
    work(found)
    assert not client.documents
    assert told == [
        NodeSuspected("a", "b", "the connection to b broke"),
        SuspicionEnded("a", "b"),
        NodeSuspected("a", "b", "no answer"),
        WatchEnded("a", "b"),
    ]

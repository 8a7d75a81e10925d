"""What a controller has decided and the notices of it: one change in ZooKeeper, told on its node once."""

from __future__ import annotations

import pytest
from kazoo.exceptions import ConnectionLoss

from kit.coordination import S0, programs_of
from kit.memory_zookeeper import MemoryClient, Store
from kit.topologies import chain
from unbroken.coordination import history as histories
from unbroken.coordination.documents import Member, Suspicion, read_history, read_layout, read_stopped, root_of
from unbroken.coordination.election import Office
from unbroken.coordination.history import History
from unbroken.node.membership.controller import Controller, ControlSettings
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.protocol.values.notices.placement import ControllerReplaced, FirstLayout, ReplicasDropped

FLOW = "flow"
ROOT = root_of(FLOW)
FIRST = FirstLayout(("a", "b"))
STOPPED = ReplicaId(S0, 1)


class Elected:
    """A controller, and what its node was told."""

    def __init__(self, client: MemoryClient, name: str = "a") -> None:
        self.client = client
        self.refusals: list[Notice] = []
        self.told: list[Reported] = []
        settings = ControlSettings(2, transfers=4, return_grace_s=30)
        history = History(client, FLOW, name)
        controller = Controller(
            client,
            FLOW,
            name,
            programs_of(chain((1,))),
            settings,
            history,
            report=self.refusals.append,
            noted=self.told.append,
            linked=lambda: ("a", "b"),
            connected=lambda: ("a", "b"),
        )
        self.decide = controller.decide
        self.counts = controller.failovers.counts

    def notices(self) -> list[Notice]:
        return [reported.notice for reported in self.told]


@pytest.fixture
def store() -> Store:
    store = Store()
    client = MemoryClient(store)
    for part in ("members", "stopped"):
        client.ensure_path(f"{ROOT}/{part}")
    for name in ("a", "b"):
        member = Member(name, f"{name}:1", "", "here", 1, name, "disk")
        client.create(f"{ROOT}/members/{name}", member.to_bytes())
    return store


@pytest.fixture
def elected(store: Store) -> Elected:
    return Elected(MemoryClient(store))


def history(store: Store) -> list[Reported]:
    """What any reader finds."""
    return read_history(MemoryClient(store), FLOW)


def layout(store: Store) -> Layout:
    found = read_layout(MemoryClient(store), FLOW)
    assert found is not None
    return found


def made_by(store: Store, part: str) -> set[int]:
    """The changes that have made the documents of a part."""
    return {made for path, (_, _, made) in store.nodes.items() if path.startswith(f"{ROOT}/{part}")}


def stop(store: Store) -> None:
    MemoryClient(store).create(f"{ROOT}/stopped/{STOPPED}", b"its query failed")


def test_the_first_layout_and_its_notice_are_one_change(store: Store, elected: Elected) -> None:
    elected.decide()
    assert made_by(store, "layout") == made_by(store, "history/e") == made_by(store, "in-sync")
    assert [reported.notice for reported in history(store)] == [FIRST]
    assert elected.told == history(store)


def test_a_layout_and_its_notices_are_one_change(
    store: Store, elected: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees the layout sees its notices, also if the controller is killed right after the change."""
    elected.decide()
    stop(store)
    transactions = store.together
    seen: list[tuple[int, int]] = []

    def together(operations: list[object]) -> list[object]:
        before = layout(store).version, len(history(store))
        answers = transactions(operations)
        seen.extend([before, (layout(store).version, len(history(store)))])
        return answers

    store.together = together  # type: ignore[method-assign]
    elected.decide()
    dropped = [notice for notice in elected.notices() if isinstance(notice, ReplicasDropped)]
    assert [notice.stopped for notice in dropped] == [(STOPPED,)]
    decided = len(elected.told) - 1
    assert seen == [(1, 1), (2, 1 + decided)] and decided > 0
    assert elected.told == history(store), "each of them once, and as it was told here"


def test_a_change_that_is_refused_leaves_no_notice(store: Store, elected: Elected) -> None:
    elected.decide()
    stop(store)
    transactions = store.together

    def overtaken(operations: list[object]) -> list[object]:
        client = MemoryClient(store)
        client.set(f"{ROOT}/in-sync", client.get(f"{ROOT}/in-sync")[0])
        return transactions(operations)

    store.together = overtaken  # type: ignore[method-assign]
    elected.decide()
    assert layout(store).version == 1 and elected.notices() == [FIRST]
    assert [reported.notice for reported in history(store)] == [FIRST]


@pytest.mark.parametrize("first", [True, False])
def test_what_was_decided_is_told_once_if_the_answer_is_lost(store: Store, elected: Elected, first: bool) -> None:
    """Of the layout and its notices ZooKeeper has both; the controller finds its change done when it looks again."""
    if not first:
        elected.decide()
        stop(store)
    known = len(elected.told)
    elected.client.lose_answer = True
    with pytest.raises(ConnectionLoss):
        elected.decide()
    assert len(elected.told) == known, "nobody knows at this moment whether it was done"
    for _ in range(3):
        elected.decide()
    assert elected.told == history(store) and len(elected.told) > known
    if not first:
        assert elected.counts()["replica_stopped"] == 1
        assert read_stopped(elected.client, FLOW) == {}


def test_what_another_controller_decided_is_not_told_here(store: Store, elected: Elected) -> None:
    elected.decide()
    stop(store)
    elected.client.lose_answer = True
    transactions = store.together
    store.together = lambda operations: []  # type: ignore[method-assign]
    with pytest.raises(ConnectionLoss):
        elected.decide()
    store.together = transactions  # type: ignore[method-assign]
    other = Elected(MemoryClient(store), "b")
    other.decide()
    elected.decide()
    assert elected.notices() == [FIRST]
    assert [reported.node for reported in history(store)] == ["a", *["b"] * len(other.told)]


def test_the_history_keeps_its_limit_and_may_be_missing(
    store: Store, elected: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "HISTORY_LIMIT", 2)
    elected.decide()
    entries = History(elected.client, FLOW, "a")
    for node in "xyz":
        entries.write(entries.entry(ControllerReplaced(node)))
    assert [reported.notice for reported in history(store)] == [ControllerReplaced(node) for node in "yz"]
    stop(store)
    elected.decide()
    assert len(elected.told) == 3 and history(store) == elected.told[1:]
    elected.client.delete(f"{ROOT}/history", recursive=True)
    MemoryClient(store).create(f"{ROOT}/members/c", Member("c", "c:1", "", "here", 1, "c", "disk").to_bytes())
    elected.decide()
    assert layout(store).nodes.keys() == {"a", "b", "c"}, "a history that was deleted keeps nothing up"
    assert history(store) == elected.told[3:]


def test_secrets_are_masked_in_what_is_written_and_told(
    store: Store, elected: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "masked", lambda text: text.replace("a", "*"))
    elected.decide()
    assert elected.notices() == [reported.notice for reported in history(store)] == [FirstLayout(("*", "b"))]


def test_a_controller_is_replaced_and_that_is_reported_in_one_change(store: Store) -> None:
    client = MemoryClient(store)
    client.ensure_path(f"{ROOT}/controller")
    client.ensure_path(f"{ROOT}/suspected")
    for number, name in enumerate("ab"):
        client.create(f"{ROOT}/controller/x__lock__{number:010}", name.encode())
    suspicion = Suspicion("a", "b", "no answer")
    client.create(f"{ROOT}/suspected/{suspicion.name}", suspicion.to_bytes())
    told: list[Reported] = []
    office = Office(client, FLOW, "b", lambda: (), History(client, FLOW, "b"), told.append)
    transactions = store.together
    seen: list[tuple[int, int]] = []

    def together(operations: list[object]) -> list[object]:
        answers = transactions(operations)
        seen.append((len(client.get_children(f"{ROOT}/controller")), len(history(store))))
        return answers

    store.together = together  # type: ignore[method-assign]
    office.depose()
    assert seen == [(1, 1)] and told == history(store)
    assert [reported.notice for reported in told] == [ControllerReplaced("a")]
    office.depose()
    assert len(history(store)) == 1

"""What the harness makes of what a deployment and its coordination say, without processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kit.statuses import status
from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.observe.status.node import NodeStatus
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.processes import ProcessRestarted
from unbroken.testing.faults import EVERYTHING, Fault, Freeze, Kill, Restart, SlowDisk
from unbroken.testing.harness import harness as module
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.waiting import Overdue, Patience, until
from unbroken.testing.injection.condition_files import Conditions


class Node:
    pid = 1

    def __init__(self) -> None:
        self.alive_now = True

    def alive(self) -> bool:
        return self.alive_now

    def kill9(self) -> None:
        self.alive_now = False

    def freeze(self) -> None:
        pass

    def thaw(self) -> None:
        pass


class Conditioned:
    def read(self) -> Conditions:
        return Conditions()

    def impose(self, wanted: Conditions, alive: object) -> bool:
        return True


class Yard:
    """A deployment of three nodes that only says what it is asked for."""

    topology: Any = None
    links = None

    def __init__(self) -> None:
        self.nodes = {f"node-{number}": Node() for number in (1, 2, 3)}
        self.gone: set[str] = set()
        self.said: list[NodeStatus] = []
        self.notices: list[Notice] = []
        self.trouble = ""
        self.done: list[str] = []

    @property
    def names(self) -> list[str]:
        return list(self.nodes)

    @property
    def zookeeper_server(self) -> Any:
        return Node()

    def process_of(self, node: str) -> Node:
        return self.nodes[node]

    def conditions_of(self, node: str) -> Conditioned:
        return Conditioned()

    def killed(self, node: str, *, comes_back: bool) -> None:
        self.gone.add(node)

    def start(self, ready_s: float, progress: Any) -> None:
        progress("3 of 3 nodes are ready")

    def status(self) -> list[NodeStatus]:
        return self.said

    def failure(self) -> str | None:
        return None

    def tend(self) -> list[Notice]:
        if self.trouble:
            raise UnbrokenError(self.trouble)
        told, self.notices = self.notices, []
        return told

    def subscribe(self, sink: str, after: int = 0) -> Subscribed:
        self.done.append(f"subscribed behind {after}")
        return Subscribed(self, after)

    def restart_everything(self) -> None:
        self.done.append("restarted")
        for node in self.nodes.values():
            node.alive_now = True

    def close(self) -> None:
        self.done.append("closed")


class Subscribed:
    """Gives two results behind those that came before, and no more."""

    def __init__(self, yard: Yard, after: int) -> None:
        self._yard = yard
        self._left = [after + 1, after + 2]
        self.ended = after > 0

    def next(self, timeout_s: float) -> Any:
        if self._left:
            return Unit(self._left.pop(0))
        time.sleep(timeout_s)
        return None

    def close(self) -> None:
        self._yard.done.append("closed the subscription")


class Unit:
    """A result, as far as it is looked at."""

    def __init__(self, number: int) -> None:
        self.header = self
        self.stream = "the one of its sink"
        self.number = number
        self.arrived_ms = 1_000.0 * number


class Coordinated:
    """Who is there, as ZooKeeper says."""

    layout: Any = "a layout"

    def __init__(self, *members: str) -> None:
        self.members = dict.fromkeys(members)


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.fixture
def harness(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness[Any]]:
    monkeypatch.setattr(module, "shortage_of", lambda *_: None)
    monkeypatch.setattr(module, "TEND_S", 0.0)
    with Harness(yard, ask_s=0.05) as made:  # type: ignore[type-var]
        yield made


def seen(harness: Harness[Any], monkeypatch: pytest.MonkeyPatch, *members: str) -> str | None:
    monkeypatch.setattr(harness, "coordination", lambda: Coordinated(*members))
    return harness.shortage()


def test_a_killed_node_has_to_be_missed_before_a_flow_counts_as_whole(
    harness: Harness[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen(harness, monkeypatch, "node-1", "node-2", "node-3") is None
    assert seen(harness, monkeypatch, "node-1", "node-2") == "node-3 not there"
    harness.strike(Kill(1))
    assert seen(harness, monkeypatch, "node-1", "node-2", "node-3") == "node-1 has yet to be missed"
    assert seen(harness, monkeypatch, "node-2", "node-3") is None


@pytest.mark.parametrize(("fault", "counts"), [(Freeze(2, for_s=60), False), (SlowDisk(2, for_s=60, delay_ms=1), True)])
def test_a_node_that_stands_still_does_not_count(
    harness: Harness[Any], monkeypatch: pytest.MonkeyPatch, fault: Fault, counts: bool
) -> None:
    with harness.during(fault):
        assert (seen(harness, monkeypatch, "node-1", "node-2", "node-3") is None) == counts
        assert (seen(harness, monkeypatch, "node-1", "node-3") is None) != counts
    assert seen(harness, monkeypatch, "node-1", "node-2", "node-3") is None


def test_whoever_is_not_asked_for_may_be_missing(harness: Harness[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "coordination", lambda: Coordinated("node-1"))
    assert harness.shortage(without=["node-2", "node-3"]) is None
    assert harness.shortage(without=["node-2"]) == "node-3 not there"


def test_a_flow_that_cannot_go_on_says_why(harness: Harness[Any], yard: Yard) -> None:
    stopped, works = {"replica": "sums.0#0", "reason": "division by zero"}, {"replica": "sums.0#1", "reason": ""}
    one, other = status("node-1", replicas=[stopped]), status("node-2", replicas=[works])
    harness.states = [one, other]
    assert harness.failure() is None
    harness.states = [one]
    assert harness.failure() == "all replicas of sums.0 have stopped; node-1: division by zero"


def test_what_keeps_the_harness_from_its_work_is_a_failure_until_it_is_over(harness: Harness[Any], yard: Yard) -> None:
    harness.start()
    yard.trouble = "no room"
    wait_until(lambda: harness.failure() == "it could not be looked after: no room", 10, "the failure")
    yard.trouble = ""
    wait_until(lambda: harness.failure() is None, 10, "the end of it")


def test_nodes_are_asked_and_tended_once_they_run(harness: Harness[Any], yard: Yard) -> None:
    yard.said = [status("node-1")]
    yard.notices = [ProcessRestarted("node-2")]
    time.sleep(0.1)
    assert harness.states == [] and harness.tended == []
    harness.start()
    wait_until(lambda: harness.states == yard.said and harness.tended, 10, "states and notices")


def test_results_are_read_on_behind_the_last_one_when_everything_is_restarted(
    harness: Harness[Any], yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unbroken.testing.injection.executor.Executor._restart_everything", _restart_everything)
    results = harness.collect("live")
    wait_until(lambda: len(results.received) == 2, 10, "two results")
    assert not results.ended
    harness.strike(Restart(EVERYTHING))
    wait_until(lambda: len(results.received) == 4, 10, "two more")
    assert [result.header.number for result in results.received] == [1, 2, 3, 4]
    steps = ["subscribed behind 0", "closed the subscription", "restarted", "subscribed behind 2"]
    assert yard.done == steps
    wait_until(lambda: results.ended, 10, "the end")
    harness.close()
    assert yard.done == [*steps, "closed the subscription", "closed"]
    assert results.longest_gap_s(3.5) > time.time() - 5


def _restart_everything(executor: Any) -> Any:
    executor._ground.restart_everything()
    from unbroken.testing.injection.executor import Impact

    return Impact("all restarted")


def test_a_condition_is_waited_for_and_returned() -> None:
    values = iter([None, "", "found"])
    assert until(lambda: next(values), 10, "a value", 0.0) == "found"
    with pytest.raises(Overdue, match=r"^not within 0 s: nothing, at last$"):
        until(lambda: None, 0.0, lambda: "nothing, at last", 0.0)


def test_what_looks_hopeless_is_given_up_after_a_while_without_a_break() -> None:
    patience = Patience(0.05)
    for failure in ("dead", None, "dead"):
        patience.bear(failure)
        time.sleep(0.06)
    with pytest.raises(UnbrokenError, match="cannot go on: still dead"):
        patience.bear("still dead")
    Patience(60).bear("dead")

"""A source is disconnected for a while: results go on without it, and in the end they are as if it had not been."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from consistency.lacking_flow import RATE
from support import wait_until
from unbroken.bench.interrupted import KEYS, WINDOW_MS, Stream
from unbroken.client import Event, Reconciled, Result, Subscription, Undo
from unbroken.cluster.launcher import LocalCluster
from unbroken.environment import variables

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

FIRST_S, NEXT_S = 150.0, 120.0
WARM = 14
"""Units before the failure: a replica that has just begun takes nothing for late."""


@dataclass
class Lacking:
    """The running flow and what a client has seen of it."""

    cluster: LocalCluster
    subscription: Subscription
    switch: Path
    results: Path
    begin_ms: int
    events: list[Event] = field(default_factory=list)

    def take(self, timeout_s: float) -> Event | None:
        event = self.subscription.next_event(timeout_s)
        if event is not None:
            self.events.append(event)
        return event

    def await_event(self, what: str, wanted: type[Event], deadline_s: float = NEXT_S, *, stable: bool = True) -> Event:
        """The next event of a kind; of results the next stable or tentative one."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            event = self.take(0.5)
            if isinstance(event, wanted) and (not isinstance(event, Result) or event.stable == stable):
                return event
        raise AssertionError(f"no {what} within {deadline_s:.0f} s; the last events: {self.events[-5:]}")

    def stable(self) -> list[Result]:
        return [event for event in self.events if isinstance(event, Result) and event.stable]

    def tentative(self) -> list[Result]:
        return [event for event in self.events if isinstance(event, Result) and not event.stable]

    def check_stable(self) -> None:
        """Units are numbered without a hole, and windows that were begun and ended meanwhile have every row once."""
        numbers = [result.header.number for result in self.stable()]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        last: dict[tuple[int, int], tuple[int, int]] = {}
        windows: list[int] = []
        for result in self.stable():
            for row in result.table.to_pylist():
                last[row["w"], row["k"]] = (row["n0"], row["n1"])
                windows.append(row["w"])
        begun, ended = min(windows) + WINDOW_MS, max(windows) - WINDOW_MS
        assert ended > begun, "too short a run to judge"
        rows = Stream(self.begin_ms, RATE)
        for window in range(begun, ended, WINDOW_MS):
            first, behind = rows.due(window), rows.due(window + WINDOW_MS)
            for key in range(KEYS):
                count = len(range(first + (key - first) % KEYS, behind, KEYS))
                assert last[window, key] == (count, count), f"window {window}, key {key}"


@contextmanager
def running(tmp_path: Path, reconcile: str) -> Iterator[Lacking]:
    switch, results, begin_ms = tmp_path / "away", tmp_path / "results", int(time.time() * 1000)
    environment = {
        "UNBROKEN_TEST_OUT": str(results),
        "UNBROKEN_TEST_SWITCH": str(switch),
        "UNBROKEN_TEST_BEGIN_MS": str(begin_ms),
        "UNBROKEN_TEST_RECONCILE": reconcile,
    }
    flow = Path(__file__).with_name("lacking_flow.py")
    with variables(environment), LocalCluster(flow, tmp_path / "state") as cluster:
        cluster.start()
        with Subscription.of(cluster.zookeeper.address, "lacking", "live", cluster.token) as subscription:
            lacking = Lacking(cluster, subscription, switch, results, begin_ms)
            lacking.await_event("first result", Result, FIRST_S)
            while len(lacking.stable()) < WARM:
                lacking.await_event("further result", Result)
            yield lacking


def _goes_on_and_is_put_right(flow: Lacking) -> None:
    flow.switch.touch()
    first = flow.await_event("tentative result", Result, stable=False)
    assert isinstance(first, Result) and first.header.since < first.header.pulse
    flow.await_event("second tentative result", Result, stable=False)
    wait_until(lambda: any(flow.results.rglob("*tentative*")), NEXT_S, "a tentative file", 0.1)
    before = len(flow.stable())
    flow.switch.unlink()
    flow.await_event("undo", Undo)
    flow.await_event("reconciled", Reconciled)
    corrections = [result for result in flow.stable()[before:] if result.correction]
    assert corrections, "nothing was corrected"
    assert {result.header.pulse for result in flow.tentative()} <= set(
        range(corrections[0].header.pulse, flow.stable()[-1].header.pulse + 1)
    )
    for _ in range(8):
        flow.await_event("result after the failure", Result)
    flow.check_stable()


def test_results_go_on_without_a_source_and_are_put_right(tmp_path: Path) -> None:
    with running(tmp_path, "fork") as flow:
        _goes_on_and_is_put_right(flow)
        wait_until(lambda: _states(flow) == {"stable"}, NEXT_S, "every replica to be stable", 0.2)
        wait_until(lambda: not _tentative_files(flow), NEXT_S, "the tentative files to be replaced", 0.2)
        # One that is kept ready may be there already; the one that has been used is not.
        wait_until(lambda: max(_forks(tmp_path), default=0) <= 1, NEXT_S, "the forks to be gone", 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("reconcile", ["redo", "undo"])
def test_a_replica_is_set_back(tmp_path: Path, reconcile: str) -> None:
    with running(tmp_path, reconcile) as flow:
        _goes_on_and_is_put_right(flow)
        wait_until(lambda: _states(flow) == {"stable"}, NEXT_S, "every replica to be stable", 0.2)


@pytest.mark.slow
def test_a_node_with_a_fork_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, "fork") as flow:
        flow.switch.touch()
        flow.await_event("tentative result", Result, stable=False)
        flow.cluster.nodes["node-2"].kill9()
        flow.await_event("tentative result of the other node", Result, stable=False)
        flow.switch.unlink()
        flow.await_event("reconciled", Reconciled)
        for _ in range(8):
            flow.await_event("result after the failure", Result)
        flow.check_stable()


def _forks(tmp_path: Path) -> list[int]:
    """How many forks each node has a directory of."""
    return [len(list(node.glob("replicas/counted~*"))) for node in (tmp_path / "state").glob("node-*")]


def _states(flow: Lacking) -> set[str]:
    return {replica["consistency"] for node in flow.cluster.status() for replica in node.get("replicas", [])}


def _tentative_files(flow: Lacking) -> list[Path]:
    return [path for path in flow.results.rglob("*.parquet") if "tentative" in str(path.relative_to(flow.results))]

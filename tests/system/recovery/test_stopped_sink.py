"""A sink that stops at a unit that it refuses: the flow continues, and the sink when no node remembers it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.places import FLOWS
from kit.support import wait_until
from unbroken.local.launcher import LocalCluster
from unbroken.node.sink_threads import STOPPED

FLOW = FLOWS / "stopping.py"
DEADLINE_S = 120.0
FEW = 6
"""Units that show that something continues."""


class Run:
    """Two nodes on one state, and what their sink has taken."""

    def __init__(self, cluster: LocalCluster, place: Path) -> None:
        self.cluster = cluster
        self.place = place

    def mails(self) -> list[int]:
        return sorted(int(path.name) for path in (self.place / "mails").iterdir())

    def stopped(self) -> set[str]:
        """The nodes whose sink has stopped."""
        states = self.cluster.status()
        return {state.node for state in states for sink in state.sinks.values() if sink.stopped is not None}

    def await_stopped(self) -> None:
        wait_until(lambda: self.stopped() == {"node-1", "node-2"}, DEADLINE_S, lambda: str(self.cluster.status()), 0.2)

    def await_results(self) -> None:
        """The flow itself continues."""
        with self.cluster.subscribe("seen") as results:
            first = results.next(DEADLINE_S)
            assert first is not None
            wait_until(
                lambda: (found := results.next(1)) is not None and found.header.number > first.header.number + FEW,
                DEADLINE_S,
                "further results",
            )


def notes(state: Path) -> list[Path]:
    return sorted(state.glob(f"node-*/{STOPPED}/*.json"))


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_stopped_sink_continues_when_no_node_remembers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, state = tmp_path / "place", tmp_path / "state"
    (place / "mails").mkdir(parents=True)
    monkeypatch.setenv("FLOW_PLACE", str(place))
    with LocalCluster(FLOW, state) as cluster:
        cluster.start()
        cluster.wait_ready(300)
        run = Run(cluster, place)
        wait_until(run.mails, DEADLINE_S, lambda: str(cluster.status()), 0.2)
        (place / "refusing").touch()
        run.await_stopped()
        before = run.mails()
        run.await_results()
        assert run.mails() == before
        # A node that has forgotten it hears of it from its sibling.
        (place / "refusing").unlink()
        cluster.nodes["node-1"].stop(deadline_s=20)
        for note in state.glob(f"node-1/{STOPPED}/*.json"):
            note.unlink()
        cluster.start_node("node-1")
        cluster.wait_ready(300)
        run.await_stopped()
        run.await_results()
        assert run.mails() == before
    assert notes(state), "the node that kept running remembers it"
    for note in notes(state):
        note.unlink()
    with LocalCluster(FLOW, state) as cluster:
        cluster.start()
        cluster.wait_ready(300)
        run = Run(cluster, place)
        wait_until(lambda: len(run.mails()) > len(before) + FEW, DEADLINE_S, lambda: str(cluster.status()), 0.2)
        assert run.stopped() == set()
        first = next(number for number in run.mails() if number > before[-1])
        assert first > before[-1] + FEW, "units of the time in which it was stopped are not delivered"

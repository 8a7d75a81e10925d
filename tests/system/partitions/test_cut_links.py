"""Links of a running flow are cut and healed: results go on where they can, and are the same as without any cut.

Three nodes: the ingress is on the first two, the segment ``totals`` on the last two; see ``chained_placement``.
All cases are tried on one flow, one after the other, each of which leaves it as it found it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.support import wait_until
from system.partitions.cluster import CLIENT, RESULTS_S, ZOOKEEPER, PartitionedFlow
from system.partitions.cut_flow import SINK, TOTALS, complaints, file_complaints, flow_text
from system.partitions.reader import Reader
from unbroken.testing.network.namespaces import NamespaceNetwork, available
from unbroken.testing.network.proxies import Proxies

allowed, why_not = available()
needs_namespaces = pytest.mark.skipif(not allowed, reason=why_not)
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NODES = 3
FURTHER = 26
"""Results during a cut: at one per pulse more time than any time-out that is involved takes."""

WAYS = (BOTH, DEAF, MUTE) = ("both ways", "deaf", "mute")
NOTICED_S = 60.0
LINK_TIMEOUT_S = 10
GAP_S = 8.0
"""A gap worth mentioning: a flow that waits for a node that is cut off has one of `LINK_TIMEOUT_S`. A pulse takes half
a second, and several times that while others compute on the same cores."""


class Flow(PartitionedFlow):
    """The flow of these tests with one client that reads all of it."""

    live: Reader

    def begin(self, *, routed: bool = False) -> None:
        self.start()
        self.live = self.read(SINK, routed=routed)
        self.live.wait_further(3, RESULTS_S)

    @property
    def replica(self) -> str:
        """A node with a replica of the segment and no part in the ingress."""
        return next(node for node in self.hosts(TOTALS) if node not in self.hosts())

    def cut_client(self, way: str, *others: str) -> float:
        """Cut the client from others in both directions, or so that it does not hear them or is not heard."""
        if way != DEAF:
            return self.cut(CLIENT, *others, one_way=way == MUTE)
        return max(self.cut(other, CLIENT, one_way=True) for other in others)

    def nodes_but(self, *left_out: str) -> list[str]:
        return [node for node in self.cluster.nodes if node not in left_out]

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """A case: before it and after it the flow is whole and all results are right."""
        self.await_whole()
        self.live.wait_further(3, RESULTS_S)
        dead = self.deaths()
        try:
            yield
        finally:
            self.heal()
        self.await_whole()
        self.live.wait_further(3, RESULTS_S)
        assert complaints(self.live.results) == []
        assert not self.divergences
        assert self.deaths() == dead

    def finish(self) -> None:
        """End the flow; everything that it has ever delivered has to be right."""
        (self.directory / "stop").touch()
        results = self.live.wait_end(RESULTS_S)
        assert complaints(results, complete=True) == []
        self.await_delivered()
        assert file_complaints(self.directory, len(results)) == []
        assert not self.divergences


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    directory = tmp_path_factory.mktemp("cut")
    with Flow(flow_text(directory, LINK_TIMEOUT_S), directory, NamespaceNetwork, nodes=NODES) as flow:
        flow.begin()
        yield flow


# First, while the flow that the other tests share does not run yet: two flows at once need more than this machine has.
def test_behind_proxies_neither_a_replica_nor_a_host_of_a_client_is_missed(tmp_path: Path) -> None:
    with Flow(flow_text(tmp_path, LINK_TIMEOUT_S), tmp_path, Proxies, nodes=NODES) as flow:
        flow.begin(routed=True)
        with flow.trial():
            replica = flow.replica
            since = flow.cut(replica, *flow.nodes_but(replica))
            flow.live.wait_further(FURTHER, RESULTS_S)
            assert flow.live.longest_gap_s(since) < GAP_S
        for way in WAYS:
            with flow.trial():
                since = flow.cut_client(way, flow.replica)
                flow.live.wait_further(FURTHER, RESULTS_S)
                assert flow.live.longest_gap_s(since) < GAP_S, way
        flow.finish()


@needs_namespaces
def test_a_replica_cut_from_the_ingress_is_not_missed(running: Flow) -> None:
    with running.trial():
        replica = running.replica
        since = running.cut(replica, *running.nodes_but(replica))
        running.live.wait_further(FURTHER, RESULTS_S)
        assert running.live.longest_gap_s(since) < GAP_S


@needs_namespaces
@pytest.mark.parametrize("mute", [False, True], ids=["deaf", "mute"])
def test_a_replica_cut_in_one_direction_is_not_missed(running: Flow, mute: bool) -> None:
    with running.trial():
        replica = running.replica
        others = running.nodes_but(replica)
        if mute:
            since = running.cut(replica, *others, one_way=True)
        else:
            since = max(running.cut(other, replica, one_way=True) for other in others)
        running.live.wait_further(FURTHER, RESULTS_S)
        assert running.live.longest_gap_s(since) < GAP_S


@needs_namespaces
@pytest.mark.parametrize("leader", [False, True], ids=["replica", "leader"])
def test_a_node_cut_from_zookeeper_alone_is_not_missed(running: Flow, leader: bool) -> None:
    with running.trial():
        node = running.in_sync().leader if leader else running.replica
        since = running.cut(node, ZOOKEEPER)
        wait_until(lambda: not running.is_member(node), NOTICED_S, "the session to end", 0.2)
        running.live.wait_further(FURTHER, RESULTS_S)
        assert running.live.longest_gap_s(since) < GAP_S


@needs_namespaces
@pytest.mark.parametrize("way", [BOTH, *(pytest.param(way, marks=pytest.mark.slow) for way in (DEAF, MUTE))])
def test_a_client_cut_from_one_host_reads_from_the_other(running: Flow, way: str) -> None:
    for host in running.hosts(TOTALS):
        with running.trial():
            since = running.cut_client(way, host)
            running.live.wait_further(FURTHER, RESULTS_S)
            assert running.live.longest_gap_s(since) < GAP_S


@needs_namespaces
@pytest.mark.parametrize("way", [BOTH, *(pytest.param(way, marks=pytest.mark.slow) for way in (DEAF, MUTE))])
def test_a_client_cut_from_everybody_misses_nothing(running: Flow, way: str) -> None:
    with running.trial():
        before = running.live.pulse
        running.cut_client(way, *running.nodes_but(), ZOOKEEPER)
        wait_until(lambda: running.pulse() >= before + FURTHER, RESULTS_S, "the flow to go on", 0.2)
        assert running.live.pulse < before + FURTHER
        running.heal()
        wait_until(lambda: running.live.pulse >= before + FURTHER, RESULTS_S, "what was missed")


@needs_namespaces
def test_an_ingress_leader_cut_from_the_other_nodes_is_replaced(running: Flow) -> None:
    with running.trial():
        leader = running.in_sync().leader
        since = running.cut(leader, *running.nodes_but(leader))
        running.live.wait_further(FURTHER, RESULTS_S)
        assert running.live.longest_gap_s(since) < LINK_TIMEOUT_S + GAP_S
        assert running.in_sync().leader != leader


@needs_namespaces
def test_everything_was_delivered_once(running: Flow) -> None:
    running.finish()


@needs_namespaces
def test_a_node_can_be_stopped_during_a_cut(running: Flow) -> None:
    node, *others = running.nodes_but()
    running.cut(node, *others)
    running.cluster.nodes[node].stop(60)
    assert running.cluster.nodes[node].returncode == 0

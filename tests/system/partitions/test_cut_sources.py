"""The links between a producer and the ingress are cut: results go on without its rows, and are put right with them.

Two nodes, both with the ingress and with the one segment, which puts rows that are pushed beside those of another
source. The producer gives signs of life, so that it is missed and not taken for silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kit.support import wait_until
from system.partitions.cluster import ANSWER_S, RESULTS_S, PartitionedFlow
from system.partitions.cut_flow import SINK
from system.partitions.producer import Producer, start_producer
from system.partitions.reader import Reader
from unbroken.client import Reconciled, Result, Undo
from unbroken.protocol.values.ids import NodeId
from unbroken.testing.network.namespaces import NamespaceNetwork, available
from unbroken.testing.network.partitions import Partitions
from unbroken.testing.network.proxies import Proxies

allowed, why_not = available()
needs_namespaces = pytest.mark.skipif(not allowed, reason=why_not)
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PRODUCER = "producer"
WARM = 14
"""Results before a cut: a replica that has just begun takes nothing for late."""

TEXT = """
from pyspark.sql import functions as F

from unbroken import Availability, Client, Dataflow, Push
from unbroken_lab.experiments.flows.interrupted import InterruptedSource, Stream

flow = Dataflow(
    "pushing", nodes=2, replicas=2, ordering="bucket", bucket="2s", pulse_min=200, pulse_start=200, pulse_max=400
)
clock = flow.source("clock", InterruptedSource(Stream(1700000000000, 20)), event_time="at", disorder="3s")
pushed = flow.source("pushed", Push("at timestamp, number long", heartbeat="1s"), event_time="at", disorder="3s")


@flow.segment(clock, pushed, availability=Availability("4s", alpha=0.5))
def both(clock, pushed):
    named = {"clock": clock, "pushed": pushed}
    first, second = (rows.select(F.lit(name).alias("source"), "number") for name, rows in named.items())
    return first.unionByName(second)


flow.sink("live", both, Client())
"""


class Pushing(PartitionedFlow):
    """The flow with a producer in a place of its own and a client that reads all results."""

    live: Reader
    producer: Producer

    def __init__(self, directory: Path, make: Callable[[Iterable[str]], Partitions]) -> None:
        super().__init__(TEXT, directory, make, nodes=2, others=(PRODUCER,))
        self.routed = make is Proxies

    def begin(self) -> None:
        self.start()
        network = self.network
        ways = [network.way(PRODUCER, node, port) for node, port in self._push_ports().items()]
        token, place = self.cluster.directory / "token", self.directory / PRODUCER
        self.producer = start_producer(network.enter(PRODUCER), ways, token, "pushed", place, routed=self.routed)
        self.live = self.read(SINK, routed=self.routed)

    def close(self) -> None:
        if hasattr(self, "producer"):
            self.producer.process.stop(2.0)
        super().close()

    def _push_ports(self) -> dict[NodeId, int]:
        wait_until(lambda: self.members, ANSWER_S, "ZooKeeper to answer")
        return {node: int(member.push.rsplit(":", 1)[1]) for node, member in self.members.items()}

    def numbers(self, source: str, *, stable: bool) -> list[int]:
        """The rows of a source in the results, in the order in which they came."""
        tables = [result.table for result in self.live.results if result.stable == stable]
        rows = [row for table in tables for row in table.to_pylist()]
        return [row["number"] for row in rows if row["source"] == source]


def cut_both_ways(flow: Pushing) -> None:
    flow.cut(PRODUCER, *flow.hosts())


def cut_rows_off(flow: Pushing) -> None:
    flow.cut(PRODUCER, *flow.hosts(), one_way=True)


def cut_answers_off(flow: Pushing) -> None:
    for host in flow.hosts():
        flow.cut(host, PRODUCER, one_way=True)


@pytest.mark.parametrize("make", [pytest.param(NamespaceNetwork, marks=[needs_namespaces, pytest.mark.slow]), Proxies])
def test_results_go_on_without_a_producer_that_is_cut_off(
    tmp_path: Path, make: Callable[[Iterable[str]], Partitions]
) -> None:
    with Pushing(tmp_path, make) as flow:
        flow.begin()
        for cut in (cut_both_ways, cut_rows_off, cut_answers_off):
            _is_cut_off_for_a_while(flow, cut)
        pushed = flow.producer.finish()
        wait_until(lambda: len(flow.numbers("pushed", stable=True)) >= pushed, RESULTS_S, "all pushed rows", 0.2)
        assert sorted(flow.numbers("pushed", stable=True)) == list(range(pushed))
        clock = flow.numbers("clock", stable=True)
        assert sorted(clock) == list(range(min(clock), max(clock) + 1))


def _is_cut_off_for_a_while(flow: Pushing, cut: Callable[[Pushing], None]) -> None:
    live = flow.live
    wanted = sum(result.stable for result in live.results) + WARM
    wait_until(lambda: sum(r.stable for r in live.results) >= wanted, RESULTS_S, f"stable result {wanted}")
    before = len(live.events)
    cut(flow)

    def since(kind: type) -> list[object]:
        return [event for event in live.events[before:] if isinstance(event, kind)]

    def tentative() -> list[Result]:
        return [event for event in since(Result) if isinstance(event, Result) and not event.stable]

    wait_until(lambda: len(tentative()) >= 3, RESULTS_S, f"tentative results: {cut.__name__}")
    assert set(tentative()[0].table["source"].to_pylist()) == {"clock"}, "there should be no rows of the producer"
    flow.heal()
    wait_until(lambda: since(Undo) and since(Reconciled), RESULTS_S, f"all of them to be put right: {cut.__name__}")

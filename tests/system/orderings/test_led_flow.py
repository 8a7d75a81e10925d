"""The node whose replica orders the input of the others is killed or frozen: every count is as without it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kit.faults import during, strike
from kit.support import wait_until
from system.orderings.led_flow import FEW, KEYS, MANY, PULSES
from unbroken.cli import cli
from unbroken.coordination.documents import connect, read_history
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken.local.terminal import has_ended
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices.replicas import LeaderElected
from unbroken.testing.faults import Freeze, Kill

if TYPE_CHECKING:
    from kit.kafka.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

FIRST_S, END_S = 300.0, 300.0
BEFORE, FURTHER = 6, 4
"""Units that are delivered before the fault, and after it while it lasts."""


class Led:
    """The running flow, who leads in it, and what it has delivered."""

    def __init__(self, cluster: LocalCluster, results: Path) -> None:
        self.cluster = cluster
        self.results = results

    def leaders(self) -> list[NodeId]:
        """Who has had the lead, in the order of the terms."""
        client = connect(self.cluster.zookeeper.address, 10, token=self.cluster.token)
        try:
            told = [reported.notice for reported in read_history(client, "led")]
        finally:
            client.stop()
            client.close()
        found = [each for each in told if isinstance(each, LeaderElected) and str(each.shard) == "counted.0"]
        return [each.node for each in sorted(found, key=lambda each: each.term)]

    def units(self) -> list[int]:
        return sorted(int(path.stem.rpartition("-")[2]) for path in self.results.glob("*.parquet"))

    def await_units(self, more: int, deadline_s: float) -> None:
        wanted = max(self.units(), default=0) + more
        wait_until(lambda: max(self.units(), default=0) >= wanted, deadline_s, f"unit {wanted}", 0.1)

    def ended(self) -> bool:
        return has_ended(self.cluster.topology, self.cluster.status())

    def check(self) -> None:
        """Counts only grow, by what a micro-batch took, and in the end every row is in them once."""
        counts: dict[int, int] = {}
        for path in sorted(self.results.glob("*.parquet")):
            for row in pq.read_table(path).to_pylist():
                assert row["count"] > counts.get(row["k"], 0) and row["twice"] == 2 * row["count"]
                counts[row["k"]] = row["count"]
        values = [*range(MANY * PULSES), *range(FEW * PULSES)]
        assert counts == {key: sum(value % KEYS == key for value in values) for key in range(KEYS)}


@contextmanager
def running(tmp_path: Path, orders: str = "zookeeper") -> Iterator[Led]:
    results = tmp_path / "results"
    with (
        variables({"UNBROKEN_TEST_OUT": str(results), "UNBROKEN_TEST_ORDERS": orders}),
        LocalCluster(Path(__file__).with_name("led_flow.py"), tmp_path / "state") as cluster,
    ):
        cluster.start()
        flow = Led(cluster, results)
        flow.await_units(BEFORE, FIRST_S)
        yield flow


def test_the_leader_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as flow:
        leader = flow.leaders()[-1]
        strike(flow.cluster, Kill(leader))
        flow.await_units(FURTHER, END_S)
        assert flow.leaders()[-1] != leader
        wait_until(flow.ended, END_S, "the flow to end", 0.2)
        flow.check()


def test_the_leader_is_killed_with_orders_in_kafka(tmp_path: Path, kafka: Server) -> None:
    with running(tmp_path, f"kafka://{kafka.servers}") as flow:
        leader = flow.leaders()[-1]
        strike(flow.cluster, Kill(leader))
        wait_until(flow.ended, END_S, "the flow to end", 0.2)
        assert flow.leaders()[-1] != leader
        flow.check()


def unadopted(cluster: LocalCluster) -> bool:
    return [state.state for state in cluster.status()] == ["unadopted"] * 3


@contextmanager
def restarted_without_zookeepers_data(tmp_path: Path, orders: str) -> Iterator[Led]:
    """Every process is killed in the middle of the flow, the data of ZooKeeper are deleted, and the nodes started."""
    with running(tmp_path, orders) as flow:
        assert not flow.ended(), "the flow ended before it could be killed"
        for node in flow.cluster.nodes:
            strike(flow.cluster, Kill(node))
        # Not a fault of the vocabulary: there ZooKeeper comes back with its data.
        flow.cluster.zookeeper.kill9()
    shutil.rmtree(tmp_path / "state" / "zookeeper" / "data")
    with (
        variables({"UNBROKEN_TEST_OUT": str(flow.results), "UNBROKEN_TEST_ORDERS": orders}),
        LocalCluster(Path(__file__).with_name("led_flow.py"), tmp_path / "state") as cluster,
    ):
        cluster.start()
        wait_until(lambda: unadopted(cluster), FIRST_S, "nodes that wait", 0.2)
        yield Led(cluster, flow.results)


def test_a_flow_with_orders_in_kafka_is_adopted(tmp_path: Path, kafka: Server) -> None:
    """Its orders outlive ZooKeeper, so what was ordered before is what is processed after."""
    with restarted_without_zookeepers_data(tmp_path, f"kafka://{kafka.servers}") as flow:
        before = flow.units()
        told = CliRunner().invoke(cli, ["adopt", "--dir", str(tmp_path / "state")])
        assert told.exit_code == 0, told.output
        wait_until(flow.ended, END_S, "the flow to end", 0.2)
        assert set(before) < set(flow.units())
        flow.check()


def test_a_flow_with_orders_in_zookeeper_is_not_adopted(tmp_path: Path) -> None:
    with restarted_without_zookeepers_data(tmp_path, "zookeeper") as flow:
        told = CliRunner().invoke(cli, ["adopt", "--dir", str(tmp_path / "state")])
        assert told.exit_code != 0 and "orders of the leaders of counted" in " ".join(told.output.split())
        assert unadopted(flow.cluster)


def test_a_leader_that_was_frozen_cannot_order_any_more(tmp_path: Path) -> None:
    with running(tmp_path) as flow:
        leader = flow.leaders()[-1]
        with during(flow.cluster, Freeze(leader, END_S)):
            flow.await_units(FURTHER, END_S)
            assert flow.leaders()[-1] != leader
        wait_until(flow.ended, END_S, "the flow to end", 0.2)
        flow.check()

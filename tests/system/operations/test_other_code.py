"""A node of a running flow is restarted with an edited file: it is refused, and runs again with the file of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.faults import strike
from kit.support import wait_until
from unbroken.local.launcher import LocalCluster
from unbroken.testing.faults import Kill

pytestmark = [pytest.mark.cluster]

FLOW = """
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Generator


def orders(start, stop, seed):
    import pyarrow as pa

    return pa.table({"shop": [n % 5 for n in range(start, stop)]})


flow = Dataflow("code", nodes=2, replicas=2)
source = flow.source("orders", Generator(orders, schema="shop long", rate=50))


@flow.segment(source, output_mode="update")
def totals(orders):
    return orders.groupBy("shop").agg(F.count("*").alias("orders"))


flow.sink("live", totals, Client())
"""


@pytest.mark.timeout(900)
def test_a_node_with_other_code_than_the_others_is_refused(tmp_path: Path) -> None:
    file, state = tmp_path / "code.py", tmp_path / "state"
    file.write_text(FLOW)
    edited = FLOW.replace('F.count("*")', '(F.count("*") + 1)')
    with LocalCluster(file, state) as cluster:
        cluster.start()
        cluster.wait_ready(deadline_s=300)
        wait_until(lambda: committed(cluster) > 2, 60, "results")
        strike(cluster, Kill("node-2"))
        file.write_text(edited)
        cluster.start_node("node-2")
        wait_until(lambda: not cluster.nodes["node-2"].alive() or committed(cluster) > 2, 90, "an end, or results")
        assert cluster.nodes["node-2"].returncode == 2
        said = "".join((cluster.logs / "node-2.log").read_text().split())
        for wanted in ("the code of totals: not the same as on node-1", "unbroken upgrade"):
            assert "".join(wanted.split()) in said
        file.write_text(FLOW)
        cluster.start_node("node-2")
        cluster.wait_ready(deadline_s=300)
        wait_until(lambda: committed(cluster) > 2, 60, "results of both")
        assert not any(state.divergences for state in cluster.status())
    # As a whole, the flow may be restarted with the edited file.
    file.write_text(edited)
    with LocalCluster(file, state) as cluster:
        cluster.start()
        cluster.wait_ready(deadline_s=300)


def committed(cluster: LocalCluster) -> int:
    """How far both nodes are; 0 if one of them does not answer."""
    found = [r.committed for s in cluster.status() for r in s.replicas]
    return min(found) if len(found) == 2 else 0

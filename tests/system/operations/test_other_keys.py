"""A flow is restarted with a file whose code needs other shard keys: its nodes refuse it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.local.launcher import LocalCluster

pytestmark = [pytest.mark.cluster]

FLOW = """
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Generator


def orders(start, stop, seed):
    import pyarrow as pa

    numbers = range(start, stop)
    return pa.table({"customer": [n % 7 for n in numbers], "shop": [n % 5 for n in numbers]})


flow = Dataflow("keys", nodes=1, replicas=1)
source = flow.source("orders", Generator(orders, schema="customer long, shop long", rate=50))


@flow.segment(source, shards=2, output_mode="update")
def totals(orders):
    return orders.groupBy("shop").agg(F.count("*").alias("orders"))


flow.sink("live", totals, Client())
"""


def test_nodes_refuse_code_whose_state_would_be_split_otherwise(tmp_path: Path) -> None:
    file, state = tmp_path / "keys.py", tmp_path / "state"
    file.write_text(FLOW)
    with LocalCluster(file, state) as cluster:
        cluster.start()
        cluster.wait_ready(deadline_s=300)
        wait_until(lambda: committed(cluster) > 2, 60, "results")
    file.write_text(FLOW.replace('groupBy("shop")', 'groupBy("customer")'))
    with LocalCluster(file, state) as cluster:
        cluster.start()
        with pytest.raises(UnbrokenError) as refused:
            cluster.wait_ready(deadline_s=300)
        assert cluster.nodes["node-1"].returncode == 2
    said = "".join(str(refused.value).split())
    wanted = "the columns by which rows of orders are split for totals: was ['shop'] and is ['customer']"
    assert "".join(wanted.split()) in said and "--fresh" in said
    # Other code by the same keys is what a restart may bring.
    file.write_text(FLOW.replace('F.count("*")', "F.count(F.lit(1))"))
    with LocalCluster(file, state) as cluster:
        cluster.start()
        cluster.wait_ready(deadline_s=300)


def committed(cluster: LocalCluster) -> int:
    return min((r.committed for s in cluster.status() for r in s.replicas), default=0)

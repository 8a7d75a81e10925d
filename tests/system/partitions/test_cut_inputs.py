"""The link by which a segment gets one of its inputs is cut: results go on without it, and are put right after it.

Four nodes, each with one part of the flow and no second copy of it: the ingress, ``west``, ``east``, and ``totals``
that reads both. So a cut link cannot be hidden by replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kit.support import wait_until
from system.partitions.cluster import RESULTS_S, PartitionedFlow
from system.partitions.cut_flow import SINK, TOTALS, complaints, flow_text
from unbroken.protocol.values.ids import ShardId
from unbroken.testing.network.namespaces import NamespaceNetwork, available
from unbroken.testing.network.partitions import Partitions
from unbroken.testing.network.proxies import Proxies

allowed, why_not = available()
needs_namespaces = pytest.mark.skipif(not allowed, reason=why_not)
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WARM = 14
"""Results before the cut: a replica that has just begun takes nothing for late."""


def split_text(directory: Path) -> str:
    """The flow of ``cut_flow``, whose rows take two ways to the segment that counts them."""
    text = flow_text(directory)
    text = text.replace('Dataflow("cut", nodes=3, replicas=2,', 'Dataflow("cut", nodes=4, replicas=1,')
    text = text.replace("import Client,", "import Availability, Client,")
    begin, end = text.index("@flow.segment"), text.index("flow.sink")
    segments = """
@flow.segment(numbers)
def west(rows):
    return rows.where("k < 3")


@flow.segment(numbers)
def east(rows):
    return rows.where("k >= 3")


@flow.segment(west, east, output_mode="update", availability=Availability("4s", alpha=0.5))
def totals(west, east):
    return west.union(east).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


"""
    return text[:begin] + segments + text[end:]


@pytest.mark.parametrize(
    ("one_way", "make"),
    [
        pytest.param(False, NamespaceNetwork, marks=needs_namespaces),
        pytest.param(True, NamespaceNetwork, marks=[needs_namespaces, pytest.mark.slow]),
        pytest.param(False, Proxies, marks=pytest.mark.slow),
        (True, Proxies),
    ],
    ids=["both ways", "one way", "both ways behind proxies", "one way behind proxies"],
)
def test_results_go_on_without_an_input_that_is_cut_off(
    tmp_path: Path, one_way: bool, make: Callable[[Iterable[str]], Partitions]
) -> None:
    with PartitionedFlow(split_text(tmp_path), tmp_path, make, nodes=4) as flow:
        flow.start()
        live = flow.read(SINK)
        live.wait_further(WARM, RESULTS_S)
        (west,), (totals,) = flow.hosts(ShardId("west", 0)), flow.hosts(TOTALS)
        assert west != totals
        flow.cut(west, totals, one_way=one_way)
        wait_until(lambda: sum(not r.stable for r in live.results) >= 3, RESULTS_S, "tentative results")
        early = next(result for result in live.results if not result.stable)
        assert set(early.table["k"].to_pylist()) == {3, 4, 5, 6}, "there should be no rows of the west"
        stable = sum(result.stable for result in live.results)
        flow.heal()
        wait_until(lambda: any(result.correction for result in live.results), RESULTS_S, "corrections")
        wait_until(lambda: sum(r.stable for r in live.results) >= stable + WARM, RESULTS_S, "stable results")
        (tmp_path / "stop").touch()
        live.wait_end(RESULTS_S)
        assert complaints([result for result in live.results if result.stable], complete=True) == []

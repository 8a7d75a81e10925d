"""Which node a fault means."""

from __future__ import annotations

import pytest

from kit.flows.clicks_flow import flow
from unbroken.errors import UnbrokenError
from unbroken.flow.plan import build_topology
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.layout import Layout
from unbroken.testing import Kill, Partition
from unbroken.testing.faults import Fault
from unbroken.testing.targets import Roles, node_names, refuse_unknown

NODES = node_names(3, 1)
TOPOLOGY = build_topology(flow)


def layout() -> Layout:
    return chained_placement(TOPOLOGY, {name: f"disk of {name}" for name in NODES[:3]})


def test_nodes_go_by_number_name_and_role() -> None:
    assert NODES == ["node-1", "node-2", "node-3", "standby-1"]
    roles = Roles("node-2", layout(), NODES)
    assert [roles.find(each) for each in (3, "node-3", "standby-1", "leader")] == [
        "node-3",
        "node-3",
        "standby-1",
        "node-2",
    ]


def test_a_replica_is_on_a_node_that_does_not_lead_if_there_is_one() -> None:
    for leader in NODES[:3]:
        roles = Roles(leader, layout(), NODES)
        for what in ("per_user", "per_user.0", "per_user.1"):
            found = roles.find(f"replica of {what}")
            hosts = {
                node
                for replica, node in layout().placement.items()
                if replica.shard.part == "per_user" and what in ("per_user", str(replica.shard))
            }
            assert found in hosts and found != leader


def test_the_dead_have_no_replicas() -> None:
    hosts = [node for replica, node in layout().placement.items() if str(replica.shard) == "per_user.0"]
    assert Roles(None, layout(), hosts[1:]).find("replica of per_user.0") in hosts[1:]
    with pytest.raises(UnbrokenError, match="no node that is alive has a replica of"):
        Roles(None, layout(), []).find("replica of per_user.0")
    with pytest.raises(UnbrokenError, match="nobody leads the ingress"):
        Roles(None, layout(), NODES).find("leader")
    with pytest.raises(UnbrokenError, match="not known yet"):
        Roles(None, None, NODES).find("replica of per_user")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Kill(4, at_unit=1), "there is no node 'node-4'"),
        (Kill("nod-1", at_unit=1), "did you mean 'node-1'"),
        (Kill("replica of per_usr", at_unit=1), "no segment or shard 'per_usr'; did you mean 'per_user'"),
        (Partition(1, "replica of per_user.7", for_s=1, at_unit=1), "no segment or shard 'per_user.7'"),
        (Kill(1.5, at_unit=1), "1.5 is no node"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_what_the_flow_does_not_have_is_refused(fault: Fault, words: str) -> None:
    with pytest.raises(UnbrokenError, match=words):
        refuse_unknown([fault], NODES, dict(TOPOLOGY.segments))


def test_what_it_has_is_not() -> None:
    fine = [Kill(3, at_unit=1), Kill("zookeeper", at_unit=1), Partition("leader", "zookeeper", for_s=1, at_unit=1)]
    refuse_unknown([*fine, Kill("replica of per_user.1", at_unit=1)], NODES, dict(TOPOLOGY.segments))

"""Losses and orders that so far only the model has seen, on real processes: Spark, ZooKeeper and kill -9.

All cases are tried on one running flow, one after the other. Each begins with a flow that is whole and leaves a whole
one behind, and the results are held against the reference after each case and in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.support import wait_until
from system.recovery.running import GROUPS, KEYS, ODD, SEED, Running
from unbroken.flow.environment import variables
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.ingress import IngressDiskFailed
from unbroken.protocol.values.notices.placement import ReplicaJoined, ReplicaRenewed, ShardRedundant
from unbroken.protocol.values.notices.replicas import ReplicaHalted, ReplicaReplaced, StateTaken
from unbroken.testing.faults import ZOOKEEPER, DiskFull, Partition
from unbroken.testing.injection.disks import mountable

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LONGEST_FAULT_S = 600.0
"""Faults here end when what was waited for has happened."""

LONGEST_GAP_S = 15.0
"""Longest time without a result while an order is carried out: a bound for a busy machine, not a measurement."""


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory: Path = tmp_path_factory.mktemp("survival")
    environment = {
        "UNBROKEN_CHAOS_OUT": str(directory / "results"),
        "UNBROKEN_CHAOS_STOP": str(directory / "stop"),
        "UNBROKEN_CHAOS_SEED": str(SEED),
        "UNBROKEN_RECOVERY_SNAPSHOTS": str(directory / "snapshots"),
    }
    with variables(environment), Running(directory) as running:
        running.begin()
        yield running


@pytest.fixture
def whole(flow: Running) -> Iterator[Running]:
    """The flow as a case finds it and leaves it: redundant, and every result so far as it has to be."""
    flow.await_redundancy()
    yield flow
    flow.await_redundancy()
    assert flow.complaints() == []


def test_single_delivery_sends_each_unit_once_to_each_replica(whole: Running) -> None:
    units, bytes_ = whole.totals("counters"), whole.totals("traffic")
    whole.await_results(10)
    units, bytes_ = whole.totals("counters") - units, whole.totals("traffic") - bytes_
    assert units["units_accepted"] >= 10
    assert units["units_duplicate"] == 0, "somebody is sent what it has"
    assert bytes_["acknowledgements"] > 0, "also those acknowledge that do not send"
    assert bytes_["state"] == 0


def test_one_producer_and_one_consumer_are_lost_at_once(whole: Running) -> None:
    layout = whole.layout
    pairs = [
        (producer, consumer)
        for producer in layout.full_nodes_of(KEYS)
        for consumer in layout.full_nodes_of(GROUPS)
        if whole.spares(producer, consumer)
    ]
    # One node may host both, if the cases before have moved them together.
    whole.lose(*max((set(pair) for pair in pairs), key=len))


def rebuild_producer(flow: Running, with_consumer: bool) -> tuple[NodeId, NodeId]:
    """Build one of the producers again: consumers turn to the other one meanwhile, and stay with it.

    ``with_consumer`` says which one to take if one of them shares its node with a consumer. Returns the nodes of the
    producer nobody reads from and of the one that is read from.
    """
    layout = flow.layout
    producers = sorted(layout.full_nodes_of(KEYS), key=lambda node: (node in layout.nodes_of(GROUPS)) != with_consumer)
    rebuilt, read_from = producers
    flow.command("reinit", str(KEYS), rebuilt)
    flow.await_whole()
    return rebuilt, read_from


@pytest.mark.slow
def test_a_producer_that_nobody_reads_from_is_lost(whole: Running) -> None:
    unread, _ = rebuild_producer(whole, with_consumer=False)
    whole.lose(unread)


def test_the_producer_that_is_read_from_is_lost(whole: Running) -> None:
    _, read_from = rebuild_producer(whole, with_consumer=True)
    whole.lose(read_from)


@pytest.mark.slow
def test_the_oldest_consumer_is_lost(whole: Running) -> None:
    oldest = next(iter(whole.layout.full_nodes_of(GROUPS)))
    whole.lose(oldest)


def test_a_replica_is_built_again_on_demand(whole: Running) -> None:
    node, before = list(whole.layout.full_nodes_of(GROUPS).items())[-1]
    began = time.time()
    told = whole.command("reinit", str(GROUPS), node)
    after = whole.layout.replica_on(node, GROUPS)
    assert after is not None and after.index > before.index
    assert str(before) in told and str(after) in told
    assert ReplicaRenewed(before, node, (after,)) in whole.notices()
    assert ReplicaJoined(after, node) in whole.notices()
    assert any(isinstance(each, ShardRedundant) and each.shard == GROUPS for each in whole.notices())
    check_gap(whole, began)


def test_a_node_is_drained_and_taken_back(whole: Running) -> None:
    layout = whole.layout
    node = max(layout.nodes, key=lambda name: len(layout.hosted(name)))
    count = len(layout.hosted(node))
    began = time.time()
    told = whole.command("drain", node)
    assert whole.layout.hosted(node) == []
    assert f"{node} is being drained of {count} replicas" in told
    assert f"{node} is drained: nothing depends on it any longer" in told
    assert told.splitlines()[-1] == f"{node} can be stopped"
    assert not any("lost" in line or "stopped;" in line for line in told.splitlines())
    whole.command("drain", node, "--undo")
    wait_until(lambda: node not in whole.layout.draining, 60, "the node to be taken back")
    check_gap(whole, began)


def check_gap(flow: Running, since_s: float) -> None:
    flow.await_results()
    gap_s = flow.results.longest_gap_s(since_s)
    flow.say(f"longest time without a result meanwhile: {gap_s:.2f} s")
    assert gap_s < LONGEST_GAP_S


def test_a_node_is_cut_off_from_zookeeper_only(whole: Running) -> None:
    """The others replace its replicas; it goes on until it is told, and nobody gets anything twice."""
    whole.occupy(ODD, GROUPS)
    replicas, pid = whole.layout.hosted(ODD), whole.cluster.nodes[ODD].pid
    with whole.during(Partition(ODD, ZOOKEEPER, for_s=LONGEST_FAULT_S)):
        wait_until(lambda: not whole.is_member(ODD), 60, "the end of its session", 0.2)
        whole.await_results()
        wait_until(lambda: not set(replicas) & set(whole.layout.placement), 120, "its replicas to be given up", 0.2)
        wait_until(whole.redundant, 120, "redundancy without it", 0.2)
        whole.await_results()
    whole.await_whole()
    assert whole.cluster.nodes[ODD].pid == pid, "it was not started again"
    told = whole.notices()
    for replica in replicas:
        assert ReplicaReplaced(replica, ODD) in told


def test_a_disk_is_full(whole: Running) -> None:
    """The replica that cannot write says so and is replaced; the others go on."""
    if mountable():
        pytest.skip(mountable())
    replica = whole.occupy(ODD, GROUPS)
    with whole.during(DiskFull(ODD, for_s=LONGEST_FAULT_S)):
        wait_until(lambda: replica not in whole.layout.placement, 120, "the replica to be given up", 0.2)
        whole.await_results()
        wait_until(whole.redundant, 180, "redundancy elsewhere", 0.2)
        # Long enough for the log of the ingress to meet the end of the disk, if that is here.
        whole.await_results(15)
    # A node of the ingress ends as a whole when its log is the first that cannot be written.
    told = [each for each in whole.notices() if isinstance(each, ReplicaHalted | IngressDiskFailed)]
    assert any(each.node == ODD and "No space left" in each.detail for each in told), told


def test_a_shard_that_is_lost_everywhere_comes_back_from_its_snapshot(whole: Running) -> None:
    if not apart_from_ingress(whole):
        # What leaves a node goes to different ones.
        leaving = next(iter(whole.layout.nodes_of(INGRESS)))
        whole.command("drain", leaving)
        whole.command("drain", leaving, "--undo")
        whole.await_whole()
    shard = apart_from_ingress(whole)[0]
    nodes = list(whole.layout.nodes_of(shard))
    before = set(whole.layout.counted(shard))
    saved = whole.directory / "snapshots"
    wait_until(lambda: list(saved.glob(f"*/*/{shard}/*/manifest.json")), 60, f"a snapshot of {shard}")
    whole.wipe(*nodes)
    wait_until(lambda: not before & set(whole.layout.placement), 120, "the replicas to be given up", 0.2)
    whole.await_whole()
    assert any(
        isinstance(each, StateTaken) and each.replica.shard == shard and each.donor is None for each in whole.notices()
    )


def apart_from_ingress(flow: Running) -> list[ShardId]:
    """Shards that can be lost everywhere without all logs of the ingress, which are in no snapshot."""
    layout = flow.layout
    return [shard for shard in (GROUPS, KEYS) if set(layout.nodes_of(INGRESS)) - set(layout.nodes_of(shard))]


def test_in_the_end_every_result_is_exact_and_nothing_is_left_behind(flow: Running) -> None:
    flow.await_redundancy()
    flow.end()
    assert flow.complaints(complete=True) == []
    flow.close()
    broken = [path.name for path in flow.cluster.logs.glob("*.log") if "InvariantViolation" in path.read_text()]
    assert broken == []
    assert flow.deployment.left_behind() == []

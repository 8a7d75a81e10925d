"""Failures of input that follow each other, forks that end, and what is done with tentative input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.missing_input import (
    BOUND,
    JOINED,
    LAST,
    PATIENCE_MS,
    SETTLED_MS,
    X_MS,
    behind,
    cluster_of,
    forks,
    pass_ms,
    states,
)
from unbroken.protocol.events import Received
from unbroken.protocol.instructions import Send, SendUnit
from unbroken.protocol.messages import Subscribe, Unsubscribe
from unbroken.protocol.policies.fork.messages import Health
from unbroken.protocol.values.consistency import Consistency, DelayBound, InputHandling, Reconcile
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken_lab.sim.content import DELAY_MS, home_shard, is_fork
from unbroken_lab.sim.flows import join
from unbroken_lab.sim.steps.available import AvailableCluster
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.failures import finish, join_of_two
from unbroken_lab.sim.steps.paths import StaticCluster

SUSPENDED = replace(BOUND, during_failure=InputHandling.SUSPEND)
UNDO = replace(BOUND, reconcile=Reconcile.UNDO, horizon_ms=DELAY_MS + 4_000)


# --- several failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", Reconcile, ids=lambda how: how.value)
def test_another_failure_while_the_past_is_put_right(how: Reconcile) -> None:
    """It takes a while to make up for the first failure: nothing is found missing before that is done."""
    cluster = cluster_of(join(), replace(UNDO, reconcile=how), cost_ms=280)
    cluster.leave("right")
    pass_ms(cluster, 10 * X_MS)
    cluster.back("right")
    while Consistency.STABILIZATION not in states(cluster):
        pass_ms(cluster, 250)
    cluster.leave("left")
    pass_ms(cluster, 5 * X_MS)
    assert states(cluster) == {Consistency.UP_FAILURE}
    assert behind(cluster) <= 4
    finish(cluster)


@pytest.mark.parametrize("bound", [BOUND, SUSPENDED, None], ids=["process", "suspend", "wait"])
def test_sources_whose_failures_overlap_never_wait_for_each_other(bound: DelayBound | None) -> None:
    """What the first one has missed is to be processed together, and the other one has not all of that yet: it has to
    be asked for it, although nothing is processed."""
    cluster = cluster_of(join_of_two(), bound)
    cluster.leave("left")
    pass_ms(cluster, X_MS)
    cluster.leave("right")
    pass_ms(cluster, X_MS)
    cluster.back("left")
    pass_ms(cluster, X_MS)
    cluster.back("right")
    due_ms = max(cluster.cuts_ms().values())
    while (shown_ms := cluster.sink.newest_cut_ms(LAST, stable=True)) < due_ms:
        pass_ms(cluster, X_MS)
        assert cluster.now_ms < 25 * X_MS, f"only the cuts up to {shown_ms} of {due_ms} are delivered"
    finish(cluster)


# --- forks that end -------------------------------------------------------------------------------------


def test_a_fork_that_fails_is_made_again_later() -> None:
    cluster = cluster_of(join())
    cluster.leave("right")
    pass_ms(cluster, 2 * X_MS)
    doomed = forks(cluster)
    for process in cluster.world.processes():
        for fork in [fork for fork in doomed if fork in process.disk.replicas]:
            cluster.spoil(process.name, fork)
    pass_ms(cluster, 1)
    assert doomed and not forks(cluster)
    before = cluster.sink.accepted
    pass_ms(cluster, 2 * X_MS)
    assert forks(cluster) and not set(forks(cluster)) & set(doomed)
    assert cluster.sink.accepted > before
    finish(cluster)


def test_a_node_that_restarts_has_no_fork_and_makes_one() -> None:
    cluster = cluster_of(join())
    cluster.leave("right")
    pass_ms(cluster, 2 * X_MS)
    assert forks(cluster)
    for name in ("node-1", "node-2"):
        cluster.kill(name)
    for name in ("node-1", "node-2"):
        cluster.boot(name)
        assert not any(is_fork(replica) for replica in cluster.process(name).disk.replicas)
    before = cluster.sink.accepted
    pass_ms(cluster, 3 * X_MS)
    assert cluster.sink.accepted > before
    finish(cluster)


def between_a_and_join(how: DelayBound, standing: bool = False) -> tuple[StaticCluster, list[tuple[NodeId, NodeId]]]:
    """A flow whose sources are cut together, so that all input comes in time, and the links from a to join."""
    topology = replace(
        join_of_two(),
        availability={"a": BOUND, "b": BOUND, "join": how, "last": BOUND},
        tentative_sinks=frozenset({"sink"}),
    )
    settings = replace(SETTINGS, pulse_min_ms=1_000, standing_ms=250_000 if standing else 0)
    cluster = StaticCluster(topology, 6, settings, fork_ms=250)
    cluster.run_to(SETTLED_MS)
    nodes = {part: cluster.layout.nodes_of(ShardId(part, 0)) for part in ("a", "join")}
    assert not nodes["a"].keys() & nodes["join"].keys()
    return cluster, [(one, other) for one in nodes["a"] for other in nodes["join"]]


def joining(cluster: AvailableCluster) -> list[ReplicaId]:
    return [fork for fork in forks(cluster) if home_shard(fork).part == "join"]


def test_a_fork_that_is_kept_ready_is_used_at_once() -> None:
    cluster, links = between_a_and_join(BOUND, standing=True)
    ready = joining(cluster)
    assert len(ready) == 2, "each replica has one"
    pass_ms(cluster, 10 * X_MS)
    assert joining(cluster) == ready
    for link in links:
        cluster.part(*link)
    pass_ms(cluster, PATIENCE_MS + 1_500)
    assert joining(cluster) == ready and cluster.sink.accepted
    for link in links:
        cluster.heal(*link)
    pass_ms(cluster, 5 * X_MS)
    assert len(joining(cluster)) == 2 and not set(joining(cluster)) & set(ready), "those have tentative state"
    finish(cluster)


# --- redo and undo --------------------------------------------------------------------------------------


def test_one_replica_continues_while_the_other_puts_its_past_right() -> None:
    cluster = cluster_of(join(), replace(BOUND, reconcile=Reconcile.REDO), cost_ms=625)
    cluster.leave("right")
    pass_ms(cluster, 6 * X_MS)
    assert all(watch.paused for _, watch in cluster.watches())
    cluster.back("right")
    seen: list[set[Consistency]] = []
    while states(cluster) != {Consistency.STABLE}:
        pass_ms(cluster, 250)
        seen.append(states(cluster))
        assert cluster.now_ms < 40 * X_MS, "this does not end"
    assert {Consistency.STABILIZATION, Consistency.UP_FAILURE} in seen
    assert {Consistency.STABILIZATION} not in seen
    finish(cluster)


def undo_bases(cluster: AvailableCluster) -> list[tuple[int, int]]:
    return [
        (disk.valid, min(disk.states))
        for process in cluster.world.processes()
        for replica, disk in process.disk.replicas.items()
        if replica.shard.part == "join"
    ]


def test_undo_rebuilds_the_state_from_the_input_that_still_matters() -> None:
    cluster, links = between_a_and_join(UNDO)
    pass_ms(cluster, 10 * X_MS)
    for link in links:
        cluster.part(*link)
    pass_ms(cluster, 3 * X_MS)
    for link in links:
        cluster.heal(*link)
    pass_ms(cluster, 10 * X_MS)
    assert cluster.counts["undos"] == 2
    for valid, base in undo_bases(cluster):
        assert 0 < valid - base < 20, "not everything is processed again"
    finish(cluster)


def test_undo_after_a_restart_begins_with_the_last_state() -> None:
    cluster = cluster_of(join(), UNDO)
    pass_ms(cluster, 5 * X_MS)
    cluster.leave("right")
    for name in ("node-1", "node-2"):
        cluster.kill(name)
        cluster.boot(name)
    pass_ms(cluster, 3 * X_MS)
    cluster.back("right")
    pass_ms(cluster, 10 * X_MS)
    assert cluster.counts["pauses"] and not cluster.counts["undos"], "the input before it is no longer here"
    finish(cluster)


@pytest.mark.parametrize("how", [Reconcile.REDO, Reconcile.UNDO], ids=lambda how: how.value)
def test_a_query_that_is_to_rest_and_has_not_ended_takes_no_half_of_a_cut(how: Reconcile) -> None:
    """It asks for one input after the other, and all of them are there again before it has ended."""
    cluster = cluster_of(join(), replace(UNDO, reconcile=how))
    cluster.world.costs = replace(cluster.world.costs, round_ms=100.0)
    pass_ms(cluster, 5 * X_MS)
    cluster.leave("right")
    cluster.run_until(lambda: all(watch.paused for _, watch in cluster.watches()), without=("end",))
    cluster.back("right")
    cluster.run_until(lambda: not all(watch.paused for _, watch in cluster.watches()), without=("end",))
    cluster.run_turns(40, without=("end",))
    pass_ms(cluster, 10 * X_MS)
    assert states(cluster) == {Consistency.STABLE}
    finish(cluster)


# --- tentative input ------------------------------------------------------------------------------------


def test_a_segment_further_down_takes_tentative_input_from_one_sender() -> None:
    cluster = cluster_of(join_of_two(), nodes=4)
    cluster.leave("left")
    pass_ms(cluster, 3 * X_MS)
    assert states(cluster, "join") == states(cluster, "last") == {Consistency.UP_FAILURE}
    taken = cluster.counts["taken by replicas"]
    assert taken, "what the fork of the join makes is taken by the last segment"
    senders = {w.inputs[s].sender for _, w in cluster.watches() for s in w.inputs if w.inputs[s].units}
    assert len(senders) == 1, "both replicas send, and one of them is listened to"
    cluster.kill(senders.pop() or "")
    pass_ms(cluster, 3 * X_MS)
    assert cluster.counts["taken by replicas"] > taken
    assert behind(cluster, LAST) <= 3
    finish(cluster)


def test_with_single_delivery_a_consumer_turns_to_a_producer_that_lacks_nothing() -> None:
    cluster = cluster_of(join_of_two(), nodes=4, single=True)
    replica = ReplicaId(ShardId("last", 0), 1)
    stream = StreamId(ShardId("join", 0), replica.shard)
    node = cluster.protocol(cluster.layout.placement[replica])
    hosts = cluster.layout.nodes_of(stream.producer)
    feed = node.replicas[replica].feeds[stream]
    (current,) = feed.subscribed
    (other,) = hosts.keys() - {current}
    assert node.me not in hosts

    def heard(name: str, state: Consistency) -> list[tuple[str, str]]:
        """The producers that the consumer leaves and asks, when it hears how one stands."""
        steps = node.handle(Received(name, Health(hosts[name], state)), cluster.now_ms)
        told = [step for step in steps if isinstance(step, Send) and isinstance(step.message, Subscribe | Unsubscribe)]
        return [(type(step.message).__name__, step.to) for step in told]

    assert heard(other, Consistency.UP_FAILURE) == heard(other, Consistency.STABLE) == []
    assert heard(current, Consistency.UP_FAILURE) == [("Unsubscribe", current), ("Subscribe", other)]
    assert heard(other, Consistency.STABILIZATION) == [], "neither of them is better"
    assert heard(current, Consistency.STABLE) == [("Unsubscribe", other), ("Subscribe", current)]
    feed.turn_away()
    feed.update([other])
    assert heard(other, Consistency.UP_FAILURE) == [], "the one that lacks nothing has just been silent for too long"
    feed.fed()
    assert heard(other, Consistency.UP_FAILURE) == [("Unsubscribe", other), ("Subscribe", current)]


@pytest.mark.parametrize("way", ["in", "out", "both"])
def test_a_link_that_stands_still_in_one_direction(way: str) -> None:
    """The last segment does not hear its producers for a while, or is not heard by them."""
    cluster = cluster_of(join_of_two(), nodes=3)
    node = cluster.layout.placement[ReplicaId(ShardId("last", 0), 0)]
    others = [name for name in cluster.running() if name != node]
    for other in others:
        if way != "out":
            cluster.stall(other, node)
        if way != "in":
            cluster.stall(node, other)
    pass_ms(cluster, 3 * X_MS)
    for other in others:
        cluster.heal(node, other)
    pass_ms(cluster, 4 * X_MS)
    assert states(cluster, "last") == {Consistency.STABLE}
    finish(cluster)


def test_a_reader_is_sent_what_it_has_not_heard_of() -> None:
    cluster = cluster_of(join())
    cluster.leave("right")
    pass_ms(cluster, 4 * X_MS)
    name, watch = next(iter(cluster.watches()))
    given = [results.pulse for results in watch.outbox.given]
    assert len(given) > 3

    def asks(heard: int) -> list[int]:
        question = Subscribe(JOINED, "reader", watch.stable, heard)
        steps = cluster.protocol(name).handle(Received("reader", question), cluster.now_ms)
        return [step.header.pulse for step in steps if isinstance(step, SendUnit) and step.to == "reader"]

    assert asks(-1) == [], "not every reader wants what is tentative"
    assert asks(0) == given
    assert asks(given[1]) == given[2:], "what it has, it may have from another replica"
    assert asks(given[-1]) == []


def test_what_a_sink_is_handed_too_late_is_dropped_with_its_fork() -> None:
    """A slow sink holds tentative units of a fork that ends; its delivery ends all the same."""
    cluster = cluster_of(join())
    cluster.leave("right")

    def handed() -> bool:
        return any(stream.home != stream for name in cluster.running() for stream in cluster.delivering(name))

    cluster.run_until(handed, without=("sink",))
    cluster.back("right")
    cluster.run_until(lambda: not forks(cluster), bound=20_000)
    finish(cluster)

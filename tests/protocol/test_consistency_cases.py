"""Single failures of input and what comes of them, in a simulated cluster in which all else happens at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.cluster_effects import SETTINGS
from protocol.consistency_model import AvailableCluster
from protocol.consistency_paths import StaticCluster
from protocol.consistency_schedules import UNENDING, join_of_two
from protocol.model_parts import DELAY, join
from protocol.sim_tentative import is_fork
from unbroken.protocol.events import Received
from unbroken.protocol.instructions import Send, SendUnit
from unbroken.protocol.messages import Health, Subscribe, Unsubscribe
from unbroken.protocol.values.consistency import Availability, Consistency, Policy, Reconcile
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology

X_MS = 200.0
PATIENCE_MS = 100.0
BOUND = Availability(X_MS, alpha=0.5)
SUSPENDED = replace(BOUND, during_failure=Policy.SUSPEND)
LANE = ("join", 0, ShardId("sink", 0))
SETTLED_MS = 400.0
"""By then a flow has processed a few pulses."""


def cluster_of(
    shape: Topology,
    how: Availability | None = BOUND,
    cost_ms: float = 0.0,
    standing: bool = False,
    nodes: int = 2,
    single: bool = False,
) -> StaticCluster:
    """A flow whose segments all have the same bound, and whose sources go their own ways."""
    topology = replace(
        shape,
        availability={} if how is None else dict.fromkeys(shape.segments, how),
        bucketed=True,
        tentative_sinks=frozenset({"sink"}),
    )
    settings = replace(SETTINGS, pulse_min_ms=40, standing_ms=10_000 if standing else 0, single_delivery=single)
    cluster = StaticCluster(topology, nodes, UNENDING, settings, cost_ms=cost_ms, fork_ms=10)
    cluster.run_to(SETTLED_MS)
    return cluster


def pass_ms(cluster: AvailableCluster, ms: float) -> None:
    cluster.run_to(cluster.now + ms)


def states(cluster: AvailableCluster, part: str = "join") -> set[Consistency]:
    return {watch.state for _, watch in cluster.watches() if watch.replica.replica.shard.part == part}


def forks(cluster: AvailableCluster) -> list[ReplicaId]:
    return [replica for node in cluster.nodes.values() for replica in node.disk.replicas if is_fork(replica)]


def finish(cluster: AvailableCluster) -> None:
    cluster.pulses = max(entry.pulse for entry in cluster.entries.values()) + 3
    cluster.settle()


def newest(cluster: AvailableCluster) -> int:
    return max(entry.pulse for entry in cluster.entries.values())


# --- one failure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", Reconcile, ids=lambda how: how.value)
def test_results_go_on_without_a_source_and_are_put_right_when_it_is_back(how: Reconcile) -> None:
    cluster = cluster_of(join(), replace(BOUND, reconcile=how, horizon_ms=DELAY + 40))
    stable = cluster.sink.through(LANE)
    cluster.do_leave("right")
    pass_ms(cluster, PATIENCE_MS - 20)
    assert states(cluster) == {Consistency.STABLE}
    assert not cluster.sink.accepted
    pass_ms(cluster, 4 * X_MS)
    assert states(cluster) == {Consistency.UP_FAILURE}
    assert cluster.sink.through(LANE) <= stable + 1
    assert newest(cluster) - cluster.sink.highest[LANE] <= 2
    cluster.do_back("right")
    pass_ms(cluster, 10 * X_MS)
    assert states(cluster) == {Consistency.STABLE}
    assert not forks(cluster)
    assert not cluster.sink.tentative[LANE]
    assert newest(cluster) - cluster.sink.through(LANE) <= 2
    finish(cluster)


def test_a_short_failure_shows_in_nothing_but_delay() -> None:
    cluster = cluster_of(join())
    for _ in range(5):
        cluster.do_leave("left")
        pass_ms(cluster, PATIENCE_MS / 2)
        cluster.do_back("left")
        pass_ms(cluster, PATIENCE_MS)
    assert not cluster.counts["given"] and not cluster.counts["failures"]
    finish(cluster)


def test_nothing_comes_while_all_sources_are_away() -> None:
    cluster = cluster_of(join())
    for source in ("left", "right"):
        cluster.do_leave(source)
    pass_ms(cluster, 5 * X_MS)
    assert not cluster.counts["given"]
    assert states(cluster) == {Consistency.STABLE}, "there is nothing that could be late"
    finish(cluster)


# --- policies -------------------------------------------------------------------------------------------


def test_delay_holds_every_result_as_long_as_the_bound_allows() -> None:
    delays: dict[Policy, list[float]] = {}
    for policy in (Policy.PROCESS, Policy.DELAY):
        cluster = cluster_of(join(), replace(BOUND, during_failure=policy))
        cluster.do_leave("right")
        pass_ms(cluster, 6 * X_MS)
        reached, cut = cluster.sink.reached[LANE].any, cluster.cut_ms
        late = [pulse for pulse in reached if cut[pulse] > SETTLED_MS + X_MS]
        delays[policy] = [reached[pulse] - cut[pulse] for pulse in late]
        finish(cluster)
    assert max(delays[Policy.PROCESS]) < PATIENCE_MS / 2, "once it has begun, nothing has to wait"
    assert min(delays[Policy.DELAY]) >= PATIENCE_MS
    assert max(delays[Policy.DELAY]) <= X_MS


def test_suspend_waits_for_ever() -> None:
    cluster = cluster_of(join(), SUSPENDED)
    cluster.do_leave("right")
    pass_ms(cluster, 6 * X_MS)
    assert states(cluster) == {Consistency.UP_FAILURE}
    assert not cluster.counts["forks"] and not cluster.counts["given"]
    finish(cluster)


@pytest.mark.parametrize("policy", Policy, ids=lambda policy: policy.value)
def test_input_that_comes_while_the_past_is_put_right(policy: Policy) -> None:
    """A micro-batch takes as long as a pulse: after a long failure it takes a while to catch up."""
    cluster = cluster_of(join(), replace(BOUND, during_stabilization=policy), cost_ms=45)
    cluster.do_leave("right")
    pass_ms(cluster, 15 * X_MS)
    cluster.do_back("right")
    while Consistency.STABILIZATION not in states(cluster):
        pass_ms(cluster, 10)
    healed, given = cluster.now, cluster.sink.accepted
    while states(cluster) != {Consistency.STABLE}:
        pass_ms(cluster, 10)
        assert cluster.now < healed + 40 * X_MS, "this does not end"
    came = {pulse: ms for pulse, ms in cluster.cut_ms.items() if healed <= ms <= cluster.now - X_MS}
    reached = cluster.sink.reached[LANE].any
    if policy is Policy.SUSPEND:
        assert cluster.sink.accepted == given
    else:
        assert cluster.now > healed + X_MS, "this is too quick for anything to be seen"
        late = {pulse: reached[pulse] - ms for pulse, ms in came.items() if reached[pulse] > ms + X_MS + 45}
        assert not late
    finish(cluster)


# --- several failures -----------------------------------------------------------------------------------


def test_overlapping_failures() -> None:
    cluster = cluster_of(join())
    cluster.do_leave("right")
    pass_ms(cluster, 2 * X_MS)
    cluster.do_leave("left")
    pass_ms(cluster, 2 * X_MS)
    first = cluster.sink.accepted
    cluster.do_back("right")
    pass_ms(cluster, 2 * X_MS)
    assert cluster.sink.accepted > first, "it goes on with the one that is back, without the other"
    assert newest(cluster) - cluster.sink.highest[LANE] <= 2
    assert states(cluster) == {Consistency.UP_FAILURE}
    cluster.do_back("left")
    pass_ms(cluster, 5 * X_MS)
    assert states(cluster) == {Consistency.STABLE}
    finish(cluster)


@pytest.mark.parametrize("how", Reconcile, ids=lambda how: how.value)
def test_another_failure_while_the_past_is_put_right(how: Reconcile) -> None:
    cluster = cluster_of(join(), replace(BOUND, reconcile=how, horizon_ms=DELAY + 40), cost_ms=45)
    cluster.do_leave("right")
    pass_ms(cluster, 10 * X_MS)
    cluster.do_back("right")
    while Consistency.STABILIZATION not in states(cluster):
        pass_ms(cluster, 10)
    cluster.do_leave("left")
    pass_ms(cluster, 5 * X_MS)
    assert states(cluster) == {Consistency.UP_FAILURE}
    assert newest(cluster) - cluster.sink.highest[LANE] <= 4
    finish(cluster)


@pytest.mark.parametrize("bound", [BOUND, SUSPENDED, None], ids=["process", "suspend", "wait"])
def test_sources_whose_failures_overlap_never_wait_for_each_other(bound: Availability | None) -> None:
    """What the first one has missed is to be processed together, and the other one has not all of that yet: it has to
    be asked for it, although nothing is processed."""
    cluster = cluster_of(join_of_two(), bound)
    cluster.do_leave("left")
    pass_ms(cluster, X_MS)
    cluster.do_leave("right")
    pass_ms(cluster, X_MS)
    cluster.do_back("left")
    pass_ms(cluster, X_MS)
    cluster.do_back("right")
    due, lane = newest(cluster), ("last", 0, ShardId("sink", 0))
    while cluster.sink.through(lane) < due:
        pass_ms(cluster, X_MS)
        assert cluster.now < 25 * X_MS, f"only {cluster.sink.through(lane)} of {due} are delivered"
    finish(cluster)


# --- forks that end -------------------------------------------------------------------------------------


def test_a_fork_that_fails_is_made_again_later() -> None:
    cluster = cluster_of(join())
    cluster.do_leave("right")
    pass_ms(cluster, 2 * X_MS)
    doomed = forks(cluster)
    for name in list(cluster.nodes):
        for fork in [fork for fork in doomed if fork in cluster.nodes[name].disk.replicas]:
            cluster.do_spoil(name, fork)
    assert not forks(cluster)
    before = cluster.sink.accepted
    pass_ms(cluster, 2 * X_MS)
    assert forks(cluster) and not set(forks(cluster)) & set(doomed)
    assert cluster.sink.accepted > before
    finish(cluster)


def test_a_node_that_restarts_has_no_fork_and_makes_one() -> None:
    cluster = cluster_of(join())
    cluster.do_leave("right")
    pass_ms(cluster, 2 * X_MS)
    for name in ("n0", "n1"):
        cluster.do_kill(name)
    for name in ("n0", "n1"):
        cluster.do_boot(name)
        assert not any(is_fork(replica) for replica in cluster.nodes[name].disk.replicas)
    before = cluster.sink.accepted
    pass_ms(cluster, 3 * X_MS)
    assert cluster.sink.accepted > before
    finish(cluster)


def test_a_fork_that_is_kept_ready_is_used_at_once() -> None:
    cluster = cluster_of(join(), standing=True)
    ready = forks(cluster)
    assert len(ready) == 2, "each replica has one"
    pass_ms(cluster, 10 * X_MS)
    assert forks(cluster) == ready
    cluster.do_leave("right")
    pass_ms(cluster, PATIENCE_MS + 60)
    assert forks(cluster) == ready and cluster.sink.accepted
    cluster.do_back("right")
    pass_ms(cluster, 5 * X_MS)
    assert len(forks(cluster)) == 2 and not set(forks(cluster)) & set(ready), "those have tentative state"
    finish(cluster)


# --- redo and undo --------------------------------------------------------------------------------------


def test_one_replica_goes_on_while_the_other_puts_its_past_right() -> None:
    cluster = cluster_of(join(), replace(BOUND, reconcile=Reconcile.REDO), cost_ms=25)
    cluster.do_leave("right")
    pass_ms(cluster, 6 * X_MS)
    assert all(watch.paused for _, watch in cluster.watches())
    cluster.do_back("right")
    seen: list[set[Consistency]] = []
    while states(cluster) != {Consistency.STABLE}:
        pass_ms(cluster, 10)
        seen.append(states(cluster))
        assert cluster.now < 40 * X_MS, "this does not end"
    assert {Consistency.STABILIZATION, Consistency.UP_FAILURE} in seen
    assert {Consistency.STABILIZATION} not in seen
    finish(cluster)


def undo_bases(cluster: AvailableCluster) -> list[tuple[int, int]]:
    return [
        (disk.valid, min(disk.states))
        for node in cluster.nodes.values()
        for replica, disk in node.disk.replicas.items()
        if replica.shard.part == "join" and not is_fork(replica)
    ]


def test_undo_builds_the_state_again_from_the_input_that_still_matters() -> None:
    cluster = cluster_of(join(), replace(BOUND, reconcile=Reconcile.UNDO, horizon_ms=DELAY + 40))
    pass_ms(cluster, 10 * X_MS)
    cluster.do_leave("right")
    pass_ms(cluster, 3 * X_MS)
    cluster.do_back("right")
    pass_ms(cluster, 10 * X_MS)
    assert cluster.counts["undos"] == 2
    for valid, base in undo_bases(cluster):
        assert 0 < valid - base < 20, "not everything is processed again"
    finish(cluster)


def test_undo_after_a_restart_begins_with_the_last_state() -> None:
    cluster = cluster_of(join(), replace(BOUND, reconcile=Reconcile.UNDO, horizon_ms=DELAY + 40))
    pass_ms(cluster, 5 * X_MS)
    cluster.do_leave("right")
    for name in ("n0", "n1"):
        cluster.do_kill(name)
        cluster.do_boot(name)
    pass_ms(cluster, 3 * X_MS)
    cluster.do_back("right")
    pass_ms(cluster, 10 * X_MS)
    assert cluster.counts["pauses"] and not cluster.counts["undos"], "the input before it is not here any more"
    finish(cluster)


# --- tentative input ------------------------------------------------------------------------------------


def test_a_segment_further_down_takes_tentative_input_from_one_sender() -> None:
    cluster = cluster_of(join_of_two(), nodes=4)
    lane = ("last", 0, ShardId("sink", 0))
    cluster.do_leave("left")
    pass_ms(cluster, 3 * X_MS)
    assert states(cluster, "join") == states(cluster, "last") == {Consistency.UP_FAILURE}
    taken = cluster.counts["taken by replicas"]
    assert taken, "what the fork of the join makes is taken by the last segment"
    senders = {w.inputs[s].sender for _, w in cluster.watches() for s in w.inputs if w.inputs[s].units}
    assert len(senders) == 1, "both replicas send, and one of them is listened to"
    cluster.do_kill(senders.pop() or "")
    pass_ms(cluster, 3 * X_MS)
    assert cluster.counts["taken by replicas"] > taken
    assert newest(cluster) - cluster.sink.highest[lane] <= 3
    finish(cluster)


def test_with_single_delivery_a_consumer_turns_to_a_producer_that_lacks_nothing() -> None:
    cluster = cluster_of(join_of_two(), nodes=4, single=True)
    replica = ReplicaId(ShardId("last", 0), 1)
    stream = StreamId(ShardId("join", 0), replica.shard)
    node = cluster.nodes[cluster.store.layout.placement[replica]].protocol
    hosts = cluster.store.layout.nodes_of(stream.producer)
    feed = node.replicas[replica].feeds[stream]
    (current,) = feed.subscribed
    (other,) = hosts.keys() - {current}
    assert node.me not in hosts

    def heard(name: str, state: Consistency) -> list[tuple[str, str]]:
        """Whom the consumer leaves and whom it asks, when it hears how a producer stands."""
        steps = node.handle(Received(name, Health(hosts[name], state)), cluster.now)
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


@pytest.mark.parametrize("way", ["units", "messages", "both"])
def test_a_link_that_stands_still_in_one_direction(way: str) -> None:
    """The last segment does not hear one of its two producers for a while."""
    cluster = cluster_of(join_of_two(), nodes=3)
    last = ReplicaId(ShardId("last", 0), 0)
    node = cluster.store.layout.placement[last]
    others = [name for name in cluster.nodes if name != node]
    for other in others:
        cluster.do_stall(node, other, way)
    pass_ms(cluster, 3 * X_MS)
    for other in others:
        cluster.do_flow(node, other)
    pass_ms(cluster, 4 * X_MS)
    assert states(cluster, "last") == {Consistency.STABLE}
    finish(cluster)


def test_a_reader_is_sent_what_it_has_not_heard_of() -> None:
    cluster = cluster_of(join())
    cluster.do_leave("right")
    pass_ms(cluster, 4 * X_MS)
    node, watch = next(iter(cluster.watches()))
    stream = StreamId(ShardId("join", 0), ShardId("sink", 0))
    given = [results.pulse for results in watch.outbox.given]
    assert len(given) > 3

    def asks(heard: int) -> list[int]:
        question = Subscribe(stream, "reader", watch.stable, heard)
        steps = node.protocol.handle(Received("reader", question), cluster.now)
        return [step.header.pulse for step in steps if isinstance(step, SendUnit) and step.to == "reader"]

    assert asks(-1) == [], "not everybody wants what is tentative"
    assert asks(0) == given
    assert asks(given[1]) == given[2:], "what it has, it may have from another replica"
    assert asks(given[-1]) == []


def test_what_a_sink_is_handed_too_late_is_dropped_with_its_fork() -> None:
    """A slow sink holds tentative units of a fork that ends meanwhile; its delivery ends all the same."""
    cluster = cluster_of(join())
    cluster.do_leave("right")

    def handed() -> bool:
        return any(stream.home != stream for node in cluster.nodes.values() for stream in node.deliveries)

    cluster.run_until(handed, without=("sink",))
    cluster.do_back("right")
    cluster.run_until(lambda: not forks(cluster), bound=20_000)
    finish(cluster)

"""Replicas that disagree: the younger one stops, is reported once, and the flow goes on."""

from __future__ import annotations

from unbroken.protocol.events import PinAsked, Received
from unbroken.protocol.instructions import RefusePin, SendUnit
from unbroken.protocol.messages import Subscribe
from unbroken.protocol.output.divergence import REMEMBERED, DigestBook
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices.placement import ReplicaPlaced
from unbroken.protocol.values.notices.replicas import ReplicaDiverged
from unbroken.protocol.values.units import Digest
from unbroken_lab.sim.flows import chain
from unbroken_lab.sim.steps.faults import FaultyCluster

SHARD = ShardId("s0", 0)
STREAM = StreamId(SHARD, ShardId("sink", 0))
OLD, YOUNG, THIRD = (ReplicaId(SHARD, i) for i in range(3))


def test_a_mismatch_stops_the_younger_replica_once() -> None:
    book = DigestBook()
    assert book.note(YOUNG, STREAM, 1, Digest(1, 1)) is None
    found = book.note(OLD, STREAM, 1, Digest(1, 2))
    assert found is not None and (found.kept, found.stopped) == (OLD, YOUNG)
    assert found.stopped_digest == Digest(1, 1)
    assert found.notice() == ReplicaDiverged(YOUNG, OLD, STREAM, 1, rows=1, digest="1", kept_rows=1, kept_digest="2")
    assert book.note(OLD, STREAM, 1, Digest(1, 2)) is None
    assert book.note(YOUNG, STREAM, 2, Digest(1, 1)) is None
    assert book.note(OLD, STREAM, 2, Digest(1, 2)) is None


def test_age_goes_before_index() -> None:
    book = DigestBook(born={OLD: 20, YOUNG: 10})
    book.note(OLD, STREAM, 1, Digest(1, 1))
    found = book.note(YOUNG, STREAM, 1, Digest(1, 2))
    assert found is not None and found.stopped == OLD


def test_a_good_third_replica_is_left_alone() -> None:
    book = DigestBook()
    book.note(OLD, STREAM, 1, Digest(1, 1))
    book.note(THIRD, STREAM, 1, Digest(1, 1))
    found = book.note(YOUNG, STREAM, 1, Digest(1, 9))
    assert found is not None and found.stopped == YOUNG
    assert book.stopped == {YOUNG}


def test_the_book_is_bounded_and_can_be_told_again() -> None:
    book = DigestBook()
    for number in range(1, 2 * REMEMBERED):
        book.note(OLD, STREAM, number, Digest(1, number))
        book.note(YOUNG, STREAM, number, Digest(1, number))
        book.check()
    told = book.reported_by(OLD)
    assert [number for _, number, _ in told] == list(range(REMEMBERED, 2 * REMEMBERED))


def slow_corrupt_cluster() -> tuple[FaultyCluster, str]:
    """Replica 1 lags behind and goes wrong at unit 4, so that its siblings' units are taken first."""
    cluster = FaultyCluster(chain((1, 1)), nodes=2, pulses=9)
    host = cluster.layout.placement[YOUNG]
    queries = cluster.process(host).engine.queries
    cluster.run_until(lambda: YOUNG in queries)
    queries[YOUNG].corrupt_from = 4
    return cluster, host


def run_ahead(cluster: FaultyCluster, until: int) -> None:
    """Everything but the young replica runs until unit ``until`` is delivered."""
    cluster.run_until(
        lambda: cluster.delivered() >= until, unless=lambda step: step.kind == "spark" and step.about == YOUNG
    )


def divergence_reports(cluster: FaultyCluster) -> dict[str, int]:
    found = [one.node for one in cluster.world.zookeeper.history if isinstance(one.notice, ReplicaDiverged)]
    return {name: found.count(name) for name in cluster.running()}


def test_a_divergent_replica_is_stopped_and_built_again_and_the_flow_goes_on() -> None:
    cluster, host = slow_corrupt_cluster()
    run_ahead(cluster, until=6)
    cluster.settle()
    assert YOUNG not in cluster.layout.placement
    assert any(isinstance(one, ReplicaPlaced) and one.replica == THIRD for one in cluster.reports()), "in its place"
    assert divergence_reports(cluster) == {"node-1": 1, "node-2": 1}
    assert [d.number for d in cluster.protocol(host).digest_exchange.divergences] == [4]


def test_a_divergence_is_found_though_the_notes_were_lost() -> None:
    """The young replica goes wrong while no link stands; what its sibling told before is told again."""
    cluster, host = slow_corrupt_cluster()
    run_ahead(cluster, until=6)
    cluster.cut_both("node-1", "node-2")
    book = cluster.protocol(host).digest_exchange.books[SHARD]
    book.seen.clear()
    cluster.settle()
    assert YOUNG not in cluster.layout.placement
    assert divergence_reports(cluster) == {"node-1": 1, "node-2": 1}


def test_a_divergent_replica_sends_nothing_and_gives_its_state_to_nobody() -> None:
    cluster, host = slow_corrupt_cluster()
    run_ahead(cluster, until=6)
    protocol = cluster.protocol(host)
    cluster.run_until(lambda: protocol.replicas[YOUNG].stopped is not None, without=("control", "write"))
    other = next(name for name in cluster.running() if name != host)
    stream = cluster.topology.outputs(SHARD)[0]
    assert protocol.outboxes.boxes[stream].muted
    reader = cluster.layout.replica_on(other, stream.consumer)
    asked = protocol.handle(Received(other, Subscribe(stream, str(reader), 0)), cluster.now_ms)
    assert not any(isinstance(step, SendUnit) for step in asked)
    [refusal] = protocol.handle(PinAsked(SHARD, other, 1), cluster.now_ms)
    assert isinstance(refusal, RefusePin)
    cluster.settle()

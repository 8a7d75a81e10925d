"""Replicas that disagree: the younger one stops, is reported once, and the flow goes on."""

from __future__ import annotations

from protocol.cluster_model import Cluster
from protocol.model_parts import chain
from unbroken.protocol.events import PinAsked, Received
from unbroken.protocol.instructions import RefusePin, SendUnit
from unbroken.protocol.messages import Subscribe
from unbroken.protocol.output.divergence import REMEMBERED, DigestBook
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest

SHARD = ShardId("s0", 0)
STREAM = StreamId(SHARD, ShardId("sink", 0))
OLD, YOUNG, THIRD = (ReplicaId(SHARD, i) for i in range(3))


def test_a_mismatch_stops_the_younger_replica_once() -> None:
    book = DigestBook()
    assert book.note(YOUNG, STREAM, 1, Digest(1, 1)) is None
    found = book.note(OLD, STREAM, 1, Digest(1, 2))
    assert found is not None and (found.kept, found.stopped) == (OLD, YOUNG)
    assert found.stopped_digest == Digest(1, 1)
    assert "s0.0#1 diverged from s0.0#0: unit 1" in str(found)
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


def slow_corrupt_cluster() -> tuple[Cluster, str]:
    """Replica 1 lags behind and goes wrong at unit 4, so that its siblings' units are taken first."""
    cluster = Cluster(chain((1, 1)), nodes=2, pulses=9)
    host = cluster.store.layout.placement[YOUNG]
    cluster.nodes[host].sparks[YOUNG].corrupt_from = 4
    return cluster, host


def run_ahead(cluster: Cluster, until: int) -> None:
    """Everything but the young replica runs until unit ``until`` is delivered."""
    for _ in range(2_000):
        actions = [action for action in cluster.enabled() if action[-1] != YOUNG]
        for action in actions:
            cluster.perform(action)
        if cluster.delivered() >= until:
            return
        if not actions:
            cluster.advance()
    raise AssertionError(f"unit {until} is not delivered")


def divergence_reports(cluster: Cluster) -> dict[str, int]:
    return {n: sum("diverged" in r for r in node.reports) for n, node in cluster.nodes.items()}


def test_a_divergent_replica_is_stopped_and_built_again_and_the_flow_goes_on() -> None:
    cluster, host = slow_corrupt_cluster()
    run_ahead(cluster, until=6)
    cluster.settle()
    assert YOUNG not in cluster.store.layout.placement
    assert any("s0.0#2 is placed" in sentence for sentence in cluster.store.sentences), "in its place"
    assert divergence_reports(cluster) == {"n0": 1, "n1": 1}
    assert [d.number for d in cluster.nodes[host].protocol.comparison.divergences] == [4]


def test_a_divergence_is_found_though_the_notes_were_lost() -> None:
    """The young replica goes wrong while no link stands; what its sibling told before is told again."""
    cluster, host = slow_corrupt_cluster()
    run_ahead(cluster, until=6)
    for pair in [("n0", "n1"), ("n1", "n0")]:
        cluster.perform(("cut", *pair, False))
    book = cluster.nodes[host].protocol.comparison.books[SHARD]
    book.seen.clear()
    cluster.settle()
    assert YOUNG not in cluster.store.layout.placement
    assert divergence_reports(cluster) == {"n0": 1, "n1": 1}


def test_a_divergent_replica_sends_nothing_and_gives_its_state_to_nobody() -> None:
    cluster, host = slow_corrupt_cluster()
    run_ahead(cluster, until=6)
    protocol = cluster.nodes[host].protocol
    while protocol.replicas[YOUNG].stopped is None:
        for action in cluster.enabled():
            if action[0] not in ("control", "write"):
                cluster.perform(action)
    other = next(name for name in cluster.nodes if name != host)
    stream = cluster.topology.outputs(SHARD)[0]
    assert protocol.outboxes.boxes[stream].muted
    reader = cluster.store.layout.replica_on(other, stream.consumer)
    asked = protocol.handle(Received(other, Subscribe(stream, str(reader), 0)), cluster.now)
    assert not any(isinstance(step, SendUnit) for step in asked)
    [refusal] = protocol.handle(PinAsked(SHARD, other, 1), cluster.now)
    assert isinstance(refusal, RefusePin)
    cluster.settle()

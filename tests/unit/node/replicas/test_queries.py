"""Which query is started next, and what happens to one that is stopped, dropped or wanted again meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unbroken.node.replicas.queries import END_S, FIRST_QUESTION_S, Engine, Queries, QueryStep
from unbroken.protocol.events import Event, QueryFailed
from unbroken.protocol.values.ids import ReplicaId, ShardId

A, B, C = (ReplicaId(ShardId(part, 0), 0) for part in "abc")


class Spark(Engine):
    """Does nothing before it is told to; ``did`` is what it was asked to do, in this order."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.starts: dict[ReplicaId, Callable[[str | None], None]] = {}
        self.stops: dict[ReplicaId, QueryStep] = {}
        self.failures: dict[ReplicaId, str] = {}

    def start(self, replica: ReplicaId, preparation: QueryStep | None, done: Callable[[str | None], None]) -> None:
        if preparation is not None:
            preparation()
        self.did.append(f"start {replica}")
        self.starts[replica] = done

    def stop(self, replica: ReplicaId, done: QueryStep) -> None:
        self.did.append(f"stop {replica}")
        self.stops[replica] = done

    def failure(self, replica: ReplicaId) -> str | None:
        return self.failures.get(replica)

    def forget(self, replica: ReplicaId) -> None:
        self.did.append(f"forget {replica}")

    def close(self) -> None:
        self.did.append("close")


class Node:
    """The queries of a node, and what they post."""

    def __init__(self) -> None:
        self.spark = Spark()
        self.now_s = 0.0
        self.posted: list[Event] = []
        self.queries = Queries(self.spark, self.posted.append, lambda: self.now_s)

    def run(self, replica: ReplicaId) -> None:
        self.queries.start(replica)
        self.spark.starts.pop(replica)(None)
        self.queries.asked(replica)
        self.spark.did.clear()

    def did(self) -> list[str]:
        done, self.spark.did = self.spark.did, []
        return done

    def note(self, what: str) -> QueryStep:
        return lambda: self.spark.did.append(what)


@pytest.fixture
def node() -> Node:
    return Node()


def test_questions_of_a_query_that_is_to_end_do_not_count(node: Node) -> None:
    node.run(A)
    assert node.queries.asked(A)
    node.queries.pause(A)
    node.queries.start(A)
    assert not node.queries.asked(A), "it would be taken for a question of the query that follows"
    node.spark.stops[A]()
    assert node.queries.asked(A), "that of the query that follows"


def test_questions_of_a_query_that_was_dropped_while_it_was_being_started_do_not_count(node: Node) -> None:
    node.queries.start(A)
    node.queries.drop(A, node.note("put aside"))
    assert not node.queries.asked(A)


def test_the_next_query_is_started_when_the_one_before_has_asked(node: Node) -> None:
    node.queries.start(A)
    node.queries.start(B)
    assert node.did() == [f"start {A}"]
    node.spark.starts[A](None)
    assert node.did() == []
    node.queries.asked(A)
    assert node.did() == [f"start {B}"]


def test_a_query_may_ask_before_its_start_is_reported(node: Node) -> None:
    node.queries.start(A)
    node.queries.start(B)
    node.queries.asked(A)
    assert node.did() == [f"start {A}"]
    node.spark.starts[A](None)
    assert node.did() == [f"start {B}"]


def test_a_query_that_never_asks_holds_up_the_next_one_only_so_long(node: Node) -> None:
    node.queries.start(A)
    node.queries.start(B)
    node.spark.starts[A](None)
    node.now_s = FIRST_QUESTION_S
    node.queries.look()
    assert node.did() == [f"start {A}"]
    node.now_s = FIRST_QUESTION_S + 0.1
    node.queries.look()
    assert node.did() == [f"start {B}"]


@pytest.mark.parametrize("early", [True, False])
def test_a_query_that_fails_is_reported_once_and_the_next_one_is_started(node: Node, early: bool) -> None:
    node.queries.start(A)
    node.queries.start(B)
    if early:
        node.spark.starts[A]("no memory")
    else:
        node.spark.starts[A](None)
        node.spark.failures[A] = "no memory"
        node.queries.look()
        node.queries.look()
    assert node.posted == [QueryFailed(A, "no memory")]
    assert node.did() == [f"start {A}", f"start {B}"]


def test_a_query_is_started_again_when_the_one_before_it_has_ended(node: Node) -> None:
    node.run(A)
    node.queries.pause(A)
    node.queries.prepare(A, node.note("undo"))
    node.queries.start(A)
    node.queries.start(B)
    assert node.did() == [f"stop {A}", f"start {B}"], "others need not wait for the end"
    node.spark.starts[B](None)
    node.queries.asked(B)
    node.spark.stops[A]()
    assert node.did() == ["undo", f"start {A}"]


def test_the_end_of_a_query_that_is_to_be_started_again_is_waited_for_only_so_long(node: Node) -> None:
    node.run(A)
    node.queries.pause(A)
    node.queries.start(A)
    node.now_s = END_S + 1
    node.queries.look()
    node.queries.look()
    [failed] = node.posted
    assert isinstance(failed, QueryFailed) and "did not end" in failed.reason
    node.spark.stops[A]()
    assert node.did() == [f"stop {A}"], "two queries never use one checkpoint"


def test_a_replica_that_is_dropped_while_its_query_is_started_keeps_its_directory_until_that_has_ended(
    node: Node,
) -> None:
    node.queries.start(A)
    node.queries.drop(A, node.note("retire"))
    assert node.did() == [f"start {A}"]
    node.spark.starts[A](None)
    assert node.did() == [f"stop {A}"]
    node.spark.stops[A]()
    assert node.did() == ["retire", f"forget {A}"]
    assert node.posted == []


def test_a_replica_that_is_dropped_before_its_turn_is_not_started(node: Node) -> None:
    node.queries.start(A)
    node.queries.start(B, node.note("copy"))
    node.queries.drop(B, node.note("retire"))
    node.spark.stops[B]()
    node.spark.starts[A](None)
    node.queries.asked(A)
    assert node.did() == [f"start {A}", f"stop {B}", "retire", f"forget {B}"]


def test_a_replica_that_is_begun_anew_is_started_after_the_old_directory_is_put_aside(node: Node) -> None:
    node.run(A)
    node.queries.drop(A, node.note("retire"))
    node.queries.start(A)
    assert node.did() == [f"stop {A}"]
    node.spark.stops[A]()
    assert node.did() == ["retire", f"start {A}"]


def test_a_query_that_was_stopped_for_good_is_not_reported(node: Node) -> None:
    node.run(A)
    node.queries.pause(A)
    node.spark.failures[A] = "it was stopped"
    node.queries.look()
    assert node.posted == []


def test_a_directory_that_cannot_be_put_aside_holds_up_no_query(node: Node) -> None:
    def fail() -> None:
        raise OSError("the disk does not answer")

    node.run(A)
    node.queries.drop(A, fail)
    node.spark.stops[A]()
    node.queries.start(A)
    assert node.did() == [f"stop {A}", f"forget {A}", f"start {A}"]


def test_nothing_is_started_after_the_end(node: Node) -> None:
    node.queries.close()
    node.queries.start(C)
    assert node.did() == ["close"]

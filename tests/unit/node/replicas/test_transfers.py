"""Pins that are asked for and copies that are wanted, or not wanted any more when they arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from unbroken.errors import UnbrokenError
from unbroken.node.replicas.transfers import Copied, Copier, PinAnswer, Pinner, Transfers
from unbroken.node.workers import Job, Worker
from unbroken.protocol.events import Event, FetchFailed, PinAsked, StateArrived
from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.instructions import FetchState, PinState, RefusePin
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.recovery import StoredReplica

SHARD = ShardId("sums", 0)
REPLICA = ReplicaId(SHARD, 2)
FETCH = FetchState(REPLICA, "donor", SHARD)
STATE = StoredReplica(7)

Done = Callable[[Copied[str] | BaseException], None]


class Carrier(Pinner[str], Copier[str]):
    """Pins and copies when it is told to; ``did`` is what became of copies."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.pinned: list[tuple[PinState, PinAnswer[str]]] = []
        self.copies: list[Done] = []
        self.failing: str | None = None

    def pin(self, step: PinState, answer: PinAnswer[str]) -> None:
        self.pinned.append((step, answer))

    def copy(self, step: FetchState, abandoned: threading.Event, done: Done) -> None:
        self.copies.append(done)

    def complete(self, step: FetchState, place: str) -> str:
        self._do("complete")
        return f"complete {place}"

    def adopt(self, step: FetchState, place: str) -> None:
        self._do(f"adopt {place}")

    def discard(self, step: FetchState, place: str) -> None:
        self._do("discard")

    def settle(self, step: FetchState) -> None:
        self._do("settle")

    def state(self, step: FetchState, admission: Admission | None) -> StoredReplica:
        self._do("state")
        return STATE

    def _do(self, what: str) -> None:
        if what == self.failing:
            raise OSError("the disk is full")
        self.did.append(what)


class PatientWorker(Worker):
    """Does its jobs when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self) -> None:
        """Nothing begins by itself."""

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def later(self, delay_s: float, job: Job) -> None:
        raise AssertionError("no job has to wait")

    def close(self, timeout_s: float) -> None:
        """Nothing is open."""


class Node:
    def __init__(self) -> None:
        self.carrier = Carrier()
        self.events: list[Event] = []
        self.worker = PatientWorker()
        self.transfers: Transfers[str, str] = Transfers(
            self.carrier, self.carrier, self.worker, self.events.append, self.events.append
        )


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pin_is_answered_once(node: Node) -> None:
    answers: list[str] = []
    ticket = node.transfers.ask(SHARD, "newcomer", answers.append)
    assert node.events == [PinAsked(SHARD, "newcomer", ticket)]
    node.transfers.pin(PinState(ticket, REPLICA, 7, ()))
    node.transfers.refuse(RefusePin(ticket, "too late"))
    [(_, answer)] = node.carrier.pinned
    answer("here it is")
    assert answers == ["here it is"]


def test_a_pin_that_is_refused_or_forgotten_is_not_made(node: Node) -> None:
    answers: list[str] = []
    refused, forgotten = (node.transfers.ask(SHARD, "newcomer", answers.append) for _ in range(2))
    node.transfers.refuse(RefusePin(refused, "it is not here"))
    node.transfers.forget(forgotten)
    for ticket in (refused, forgotten):
        node.transfers.pin(PinState(ticket, REPLICA, 7, ()))
    assert answers == ["it is not here"] and not node.carrier.pinned


def test_a_copy_counts_when_it_is_in_its_place(node: Node) -> None:
    node.transfers.fetch(FETCH)
    node.carrier.copies[0](Copied(100, "copy"))
    assert node.carrier.did == ["complete", "adopt complete copy", "settle", "state"]
    assert node.events == [StateArrived(REPLICA, STATE, "donor", 100)]


def test_the_copy_that_is_here_is_only_read(node: Node) -> None:
    node.transfers.fetch(FETCH)
    node.carrier.copies[0](Copied(0))
    assert node.carrier.did == ["state"]


@pytest.mark.parametrize("place", ["copy", None])
def test_a_copy_that_arrives_after_it_was_abandoned_replaces_nothing(node: Node, place: str | None) -> None:
    node.transfers.fetch(FETCH)
    node.transfers.abandon(REPLICA)
    node.transfers.fetch(FETCH)
    node.carrier.copies[0](Copied(100, place))
    assert "state" not in node.carrier.did and not any(did.startswith("adopt") for did in node.carrier.did)
    assert ("discard" in node.carrier.did) == (place is not None)
    assert not node.events
    node.carrier.copies[1](Copied(100, "another"))
    assert node.events == [StateArrived(REPLICA, STATE, "donor", 100)]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_failure_of_a_copy_is_reported_while_it_is_wanted(node: Node, wanted: bool) -> None:
    node.transfers.fetch(FETCH)
    if not wanted:
        node.transfers.abandon(REPLICA)
    node.carrier.copies[0](UnbrokenError("the donor is gone"))
    assert node.events == ([FetchFailed(REPLICA, "donor", "the donor is gone")] if wanted else [])


@pytest.mark.parametrize("place", ["complete", "adopt complete copy", "settle", "state"])
def test_a_disk_that_does_not_take_a_copy_fails_it(node: Node, place: str) -> None:
    node.carrier.failing = place
    node.transfers.fetch(FETCH)
    node.carrier.copies[0](Copied(100, "copy"))
    assert node.events == [FetchFailed(REPLICA, "donor", "the disk is full")]


def test_nothing_is_adopted_after_the_end(node: Node) -> None:
    node.transfers.fetch(FETCH)
    node.transfers.close()
    node.carrier.copies[0](Copied(100, "copy"))
    assert not node.events


def test_a_replica_that_begins_with_nothing_counts_when_its_directory_is_in_its_place(node: Node) -> None:
    node.transfers.begin(REPLICA, lambda: "made")
    assert not node.events and not node.carrier.did
    [job] = node.worker.jobs
    job()
    assert node.carrier.did == ["complete", "adopt complete made", "settle", "state"]
    assert node.events == [StateArrived(REPLICA, STATE, None, 0)]


def test_a_replica_that_is_not_wanted_any_more_does_not_begin(node: Node) -> None:
    node.transfers.begin(REPLICA, lambda: "made")
    node.transfers.abandon(REPLICA)
    node.worker.jobs[0]()
    assert node.carrier.did == ["complete", "discard"] and not node.events


def test_a_disk_that_does_not_take_a_directory_fails_the_beginning(node: Node) -> None:
    def make() -> str:
        raise OSError("the disk is full")

    node.transfers.begin(REPLICA, make)
    node.worker.jobs[0]()
    assert node.events == [FetchFailed(REPLICA, None, "the disk is full")]

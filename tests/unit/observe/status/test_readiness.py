"""When a node counts as ready, and what is said when it does not."""

from __future__ import annotations

import pytest

from kit.statuses import changed, joining, replica, running, sink, starting, stuck
from unbroken.observe.status.node import NodeStatus
from unbroken.observe.status.readiness import MAX_LAG_MS, STUCK_MS, Lack, max_lag_of, readiness


def whats(status: NodeStatus, max_lag_ms: float = MAX_LAG_MS) -> list[str]:
    return [lack.what for lack in readiness(status, max_lag_ms).missing]


def test_a_node_whose_replicas_keep_up_is_ready() -> None:
    found = readiness(running())
    assert found.ready and found.missing == ()
    assert found.to_json() == {"node": "a", "ready": True, "max_lag_seconds": 5.0, "missing": []}


def test_a_standby_with_nothing_to_do_is_ready() -> None:
    idle = running(replicas=[], ingress=None)
    assert readiness(idle).ready


def test_a_node_that_starts_is_not() -> None:
    found = readiness(starting())
    assert not found.ready
    assert found.missing == (Lack("a", "it is starting: not all of its queries are started"),)


def test_a_replica_that_has_to_catch_up_says_how_far_its_copy_is() -> None:
    found = readiness(running(joining=joining()))
    assert found.to_json()["missing"] == [
        {
            "what": "sums.0#4",
            "why": "it has yet to catch up (fetching); 1000 of 4000 bytes of its state are here",
        }
    ]


def test_a_replica_that_joins_is_missed_once() -> None:
    late = replica("sums.0#4", lag_ms=60_000.0)
    assert whats(running(replicas=[late], joining={"sums.0#4": {"phase": "catching up"}})) == ["sums.0#4"]


def test_a_replica_that_has_caught_up_is_judged_by_its_lag() -> None:
    caught_up = {"sums.0#1": {"phase": "caught up"}}
    assert readiness(running(joining=caught_up)).ready
    assert whats(running(replicas=[replica(lag_ms=60_000.0)], joining=caught_up)) == ["sums.0#1"]


def test_the_lag_that_is_allowed_is_the_askers_choice() -> None:
    status = running(replicas=[replica(lag_ms=750.0), replica("sums.1#0", lag_ms=20.0)])
    assert whats(status, 750.0) == []
    found = readiness(status, 500.0)
    assert [lack.what for lack in found.missing] == ["sums.0#1"]
    assert found.missing[0].why == "it is 0.8 s and 2 units behind its input; 0.5 s are allowed"
    assert whats(status, 0.0) == ["sums.0#1", "sums.1#0"]


def test_a_replica_that_has_stopped_says_why() -> None:
    found = readiness(running(replicas=[replica(state="stopped", reason="it diverged")]))
    assert found.missing == (Lack("sums.0#1", "it has stopped: it diverged"),)


def test_an_ingress_that_others_went_on_without_is_missed() -> None:
    ingress = changed(running().ingress, members=["b"])
    assert whats(running(ingress=ingress)) == ["ingress"]
    learner = {"ingress.0#2": {"phase": "catching up"}}
    assert whats(running(ingress=ingress, joining=learner)) == ["ingress.0#2"]


@pytest.mark.parametrize(
    ("query", "lag_ms"),
    [("", MAX_LAG_MS), ("max_lag=5s", 5_000), ("max_lag=500ms", 500), ("max_lag=1min", 60_000), ("max_lag=0s", 0)],
)
def test_the_question_says_the_lag(query: str, lag_ms: float) -> None:
    assert max_lag_of(query) == lag_ms


@pytest.mark.parametrize(
    ("query", "complaint"),
    [("max_lag=5", "not a duration"), ("max_lag=", "not a duration"), ("maxlag=5s", "no parameter 'maxlag'")],
)
def test_a_question_that_cannot_be_understood_is_refused(query: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        max_lag_of(query)


def ingress(**changes: object) -> NodeStatus:
    return running(ingress=changed(running().ingress, **changes))


def test_a_stuck_thread_of_the_ingress_is_seen() -> None:
    assert readiness(ingress(busy_ms=STUCK_MS)).ready
    found = readiness(ingress(busy_ms=STUCK_MS + 1_000))
    assert found.missing == (Lack("ingress", "its thread has been at one job for 31 s"),)


def test_a_disk_that_does_not_take_the_log_is_seen() -> None:
    assert readiness(ingress(log_busy_ms=STUCK_MS)).ready
    found = readiness(ingress(log_busy_ms=STUCK_MS + 1_000))
    assert found.missing == (Lack("ingress log", "the disk has been at its last entries for 31 s"),)


def test_a_stuck_source_is_seen_with_its_reason() -> None:
    assert readiness(ingress(stuck={"clicks": stuck(29.0, "no route")})).ready
    (lack,) = readiness(ingress(stuck={"clicks": stuck(61.0, "no route to host")})).missing
    assert lack == Lack("source clicks", "its rows of pulse 43 have not been read for 61 s: no route to host")


def test_a_source_that_does_not_say_how_far_it_can_be_read_is_seen() -> None:
    assert readiness(ingress(asking_s={"clicks": 29.0})).ready
    (lack,) = readiness(ingress(asking_s={"clicks": 61.0})).missing
    assert lack == Lack("source clicks", "it has not said for 61 s how far it can be read")


@pytest.mark.parametrize("facts", [{"waits_ms": 40_000.0}, {"busy_ms": 40_000.0}], ids=str)
def test_a_stuck_sink_is_seen(facts: dict[str, float]) -> None:
    (lack,) = readiness(running(sinks={"sums.0>files.0": sink(**facts)})).missing
    assert lack == Lack("sink sums.0>files.0", "it has not taken its next unit for 40 s")


def test_a_stopped_sink_is_seen() -> None:
    (lack,) = readiness(running(sinks={"sums.0>files.0": sink(stopped=7)})).missing
    assert lack == Lack("sink sums.0>files.0", "it has stopped at unit 7, which it refuses")

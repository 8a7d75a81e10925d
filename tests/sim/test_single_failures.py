"""Single failures of input and what comes of them, in the simulator, where all else happens at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.missing_input import (
    BOUND,
    JOINED,
    PATIENCE_MS,
    SETTLED_MS,
    X_MS,
    behind,
    cluster_of,
    forks,
    pass_ms,
    states,
)
from unbroken.protocol.values.consistency import Consistency, InputHandling, Reconcile
from unbroken_lab.sim.content import DELAY_MS
from unbroken_lab.sim.flows import join
from unbroken_lab.sim.steps.failures import finish

SUSPENDED = replace(BOUND, during_failure=InputHandling.SUSPEND)


# --- one failure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", Reconcile, ids=lambda how: how.value)
def test_results_go_on_without_a_source_and_are_put_right_when_it_is_back(how: Reconcile) -> None:
    cluster = cluster_of(join(), replace(BOUND, reconcile=how, horizon_ms=DELAY_MS + 1_000))
    stable = cluster.sink.through(JOINED)
    cluster.leave("right")
    pass_ms(cluster, PATIENCE_MS - 1_500)
    assert states(cluster) == {Consistency.STABLE}
    assert not cluster.sink.accepted
    pass_ms(cluster, 4 * X_MS)
    assert states(cluster) == {Consistency.UP_FAILURE}
    assert cluster.sink.through(JOINED) <= stable + 1
    assert behind(cluster) <= 2
    cluster.back("right")
    pass_ms(cluster, 10 * X_MS)
    assert states(cluster) == {Consistency.STABLE}
    assert not forks(cluster)
    assert not cluster.sink.tentative.get(JOINED)
    assert behind(cluster, stable=True) <= 2
    finish(cluster)


def test_a_short_failure_shows_in_nothing_but_delay() -> None:
    cluster = cluster_of(join())
    for _ in range(5):
        cluster.leave("left")
        pass_ms(cluster, PATIENCE_MS / 2)
        cluster.back("left")
        pass_ms(cluster, PATIENCE_MS)
    assert not cluster.counts["given"] and not cluster.counts["failures"]
    finish(cluster)


def test_nothing_comes_while_all_sources_are_away() -> None:
    cluster = cluster_of(join())
    for source in ("left", "right"):
        cluster.leave(source)
    pass_ms(cluster, 5 * X_MS)
    assert not cluster.counts["given"]
    assert states(cluster) == {Consistency.STABLE}, "there is nothing that could be late"
    finish(cluster)


# --- policies -------------------------------------------------------------------------------------------


def test_delay_holds_every_result_as_long_as_the_bound_allows() -> None:
    delays: dict[InputHandling, list[float]] = {}
    for policy in (InputHandling.PROCESS, InputHandling.DELAY):
        cluster = cluster_of(join(), replace(BOUND, during_failure=policy))
        cluster.leave("right")
        pass_ms(cluster, 6 * X_MS)
        late = [cut for cut in cluster.cuts_ms().values() if SETTLED_MS + X_MS < cut < cluster.now_ms - X_MS]
        delays[policy] = [(cluster.sink.reached_ms(JOINED, cut, stable=False) or 1e9) - cut for cut in late]
        finish(cluster)
    assert max(delays[InputHandling.PROCESS]) < PATIENCE_MS / 2, "once it has begun, nothing has to wait"
    assert min(delays[InputHandling.DELAY]) >= PATIENCE_MS
    assert max(delays[InputHandling.DELAY]) <= X_MS


def test_suspend_waits_for_ever() -> None:
    cluster = cluster_of(join(), SUSPENDED)
    cluster.leave("right")
    pass_ms(cluster, 6 * X_MS)
    assert states(cluster) == {Consistency.UP_FAILURE}
    assert not cluster.counts["forks"] and not cluster.counts["given"]
    finish(cluster)


@pytest.mark.parametrize("policy", InputHandling, ids=lambda policy: policy.value)
def test_input_that_comes_while_the_past_is_put_right(policy: InputHandling) -> None:
    """A micro-batch takes as long as a pulse: after a long failure it takes a while to catch up."""
    cluster = cluster_of(join(), replace(BOUND, during_stabilization=policy), cost_ms=1_100)
    cluster.leave("right")
    pass_ms(cluster, 15 * X_MS)
    cluster.back("right")
    while Consistency.STABILIZATION not in states(cluster):
        pass_ms(cluster, 250)
    healed, given = cluster.now_ms, cluster.sink.accepted
    while states(cluster) != {Consistency.STABLE}:
        pass_ms(cluster, 250)
        assert cluster.now_ms < healed + 40 * X_MS, "this does not end"
    came = [cut for cut in cluster.cuts_ms().values() if healed <= cut <= cluster.now_ms - X_MS]
    if policy is InputHandling.SUSPEND:
        assert cluster.sink.accepted == given
    else:
        assert cluster.now_ms > healed + X_MS, "this is too quick for anything to be seen"
        took = [(cluster.sink.reached_ms(JOINED, cut, stable=False) or 1e9) - cut for cut in came]
        assert max(took, default=0.0) <= X_MS + 1_100
    finish(cluster)


# --- several failures -----------------------------------------------------------------------------------


def test_overlapping_failures() -> None:
    cluster = cluster_of(join())
    cluster.leave("right")
    pass_ms(cluster, 2 * X_MS)
    cluster.leave("left")
    pass_ms(cluster, 2 * X_MS)
    first = cluster.sink.accepted
    cluster.back("right")
    pass_ms(cluster, 2 * X_MS)
    assert cluster.sink.accepted > first, "it goes on with the one that is back, without the other"
    assert behind(cluster) <= 2
    assert states(cluster) == {Consistency.UP_FAILURE}
    cluster.back("left")
    pass_ms(cluster, 5 * X_MS)
    assert states(cluster) == {Consistency.STABLE}
    finish(cluster)

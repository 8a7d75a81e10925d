"""Bounds on the delay of results: what is refused, with which words, and what it becomes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import unbroken
from unbroken import WAIT, Availability, Client, Dataflow, Generator
from unbroken.errors import FlowError, Problem
from unbroken.flow.delay_bounds import available_segments
from unbroken.flow.plan import build_topology
from unbroken.flow.program import PROGRAM, Declared, Program, differences
from unbroken.protocol.values.consistency import DelayBound, InputHandling, Reconcile

THREE = Availability(max_delay="3s")


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a plan reads no rows")


def flow_of(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **flow_options: Any) -> Dataflow:
    flow = Dataflow("bounded", nodes=4, **flow_options)
    flow.source("a", Generator(nothing, schema="k int", rate=None))
    flow.segment("a", name="first", **(first or {}))(lambda rows: rows)
    flow.segment("first", name="second", **(second or {}))(lambda rows: rows)
    flow.sink("out", "second", Client())
    return flow


def problems_of(flow: Dataflow) -> list[Problem]:
    with pytest.raises(FlowError) as caught:
        build_topology(flow)
    for problem in caught.value.problems:
        assert problem.where.startswith(f"{__file__}:") and problem.what and problem.remedy
    return caught.value.problems


# --- what it becomes ------------------------------------------------------------------------------------------


def test_without_a_bound_segments_wait() -> None:
    assert build_topology(flow_of()).availability == {}
    assert build_topology(flow_of(availability=WAIT)).availability == {}
    assert build_topology(flow_of({"availability": WAIT})).availability == {}


def test_segments_say_it_and_the_dataflow_does_for_the_others() -> None:
    flow = flow_of({"availability": Availability("2s", alpha=0.5)}, availability=THREE)
    assert build_topology(flow).availability == {
        "first": DelayBound(2_000, 0.5),
        "second": DelayBound(3_000),
    }
    flow = flow_of({"availability": WAIT}, availability=THREE)
    assert available_segments(flow) == {"second": THREE}
    assert flow.segments["first"].availability is None


GOOD: dict[str, tuple[Availability, DelayBound]] = {
    "seconds": (Availability("3s"), DelayBound(3_000)),
    "words": (Availability("3 seconds"), DelayBound(3_000)),
    "milliseconds": (Availability(1_500), DelayBound(1_500)),
    "just enough left": (Availability("1s"), DelayBound(1_000)),
    "the shortest": (Availability("500ms", alpha=0.8), DelayBound(500, 0.8)),
    "the longest": (Availability("24h"), DelayBound(86_400_000)),
    "policies": (
        Availability("3s", 0.7, "delay", "suspend", "redo"),
        DelayBound(3_000, 0.7, InputHandling.DELAY, InputHandling.SUSPEND, Reconcile.REDO),
    ),
    "undo": (Availability("3s", reconcile="undo"), DelayBound(3_000, reconcile=Reconcile.UNDO)),
    "undo with a horizon": (
        Availability("3s", reconcile="undo", state_horizon="10min"),
        DelayBound(3_000, reconcile=Reconcile.UNDO, horizon_ms=600_000),
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_works(case: str) -> None:
    said, meant = GOOD[case]
    assert build_topology(flow_of({"availability": said})).availability == {"first": meant}
    assert said.protocol() == meant


def test_it_goes_with_active_standby_and_every_guarantee_that_lets_a_result_come_again() -> None:
    for guarantee in ("exactly-once", "at-least-once"):
        flow = flow_of({"ha": "active-standby"}, availability=THREE, guarantee=guarantee)
        assert set(build_topology(flow).availability) == {"first", "second"}


def test_a_program_keeps_it() -> None:
    flow = flow_of({"availability": THREE})
    program = Program(1, "flow.py", "", build_topology(flow), {})
    later = program.followed_by(flow, "flow.py", "", 2, ["first"])
    assert later.topology.availability == {"first@2": THREE.protocol()}
    assert PROGRAM.decode(PROGRAM.encode(later)) == later


def test_other_code_must_not_change_it() -> None:
    before = flow_of({"availability": THREE})
    assert differences(Declared.of(before), flow_of({"availability": Availability(max_delay="3s")})) == []
    for after in (flow_of(), flow_of({"availability": Availability("4s")})):
        (problem,) = differences(Declared.of(before), after)
        assert (
            problem.where.endswith("segment first") and "availability was Availability(max_delay='3s'" in problem.what
        )


def test_it_is_found_where_a_dataflow_is() -> None:
    assert {"WAIT", "Availability"} <= set(unbroken.__all__)


# --- values that make no sense --------------------------------------------------------------------------------

BAD: dict[str, tuple[Any, str, str]] = {
    "a number": (3, "availability=3 is no bound", "Availability(max_delay='3s')"),
    "a word": ("never", "availability='never' is no bound", "WAIT"),
    "the name of WAIT": ("WAIT", "availability='WAIT' is no bound", "from unbroken import Availability, WAIT"),
    "as in a network": ({"max_delay": "3s"}, "availability={'max_delay': '3s'} is no bound", "Availability(max_delay="),
    "the class": (Availability, "is no bound", "Availability(max_delay='3s')"),
    "no length": (Availability("soon"), "max_delay='soon' is not a length of time", "'3s'"),
    "nothing": (Availability(None), "max_delay=None is not a length of time", "'3s'"),  # type: ignore[arg-type]
    "truth": (Availability(True), "max_delay=True is not a length of time", "'3s'"),
    "for ever": (Availability(float("inf")), "max_delay=inf is not a length of time", "'3s'"),
    "too short": (Availability("499ms"), "max_delay='499ms' is too short: a micro-batch", "500ms or more"),
    "no unit": (Availability("3"), "max_delay='3' is not a length of time", "'3s'"),
    "a number of seconds": (Availability(3), "max_delay=3 is too short", "without a unit is one of milliseconds"),
    "the past": (Availability(-3), "max_delay=-3 is too short", "500ms or more"),
    "too long": (Availability("25h"), "max_delay='25h' is too long", "WAIT"),
    "no waiting": (Availability("3s", alpha=0), "alpha=0 is not a share", "between 0 and 1"),
    "more than all": (Availability("3s", alpha=1.5), "alpha=1.5 is not a share", "between 0 and 1"),
    "all waiting": (Availability("3s", alpha=1), "alpha=1 is not a share", "between 0 and 1"),
    "percent": (Availability("3s", alpha="90%"), "alpha='90%' is not a share", "0.9"),  # type: ignore[arg-type]
    "no number": (Availability("3s", alpha=float("nan")), "alpha=nan is not a share", "0.9"),
    "nothing left": (Availability("3s", alpha=0.99), "leaves 30 ms to pass results on", "alpha=0.96 or less"),
    "little left": (Availability("500ms"), "alpha=0.9 of max_delay='500ms' leaves 50 ms", "alpha=0.8 or less"),
    "failing": (Availability("3s", during_failure="stop"), "there is no during_failure='stop'", "delay, suspend"),
    "waiting": (Availability("3s", during_failure="wait"), "no during_failure='wait'", "'suspend' waits"),
    "mending": (Availability("3s", during_stabilization="x"), "no during_stabilization='x'", "process, delay, suspend"),
    "a way": (Availability("3s", reconcile="repair"), "there is no reconcile='repair'", "fork, redo, undo"),
    "no horizon": (
        Availability("3s", reconcile="undo", state_horizon="far"),
        "state_horizon='far' is not a length of time",
        "still matter",
    ),
    "an empty horizon": (
        Availability("3s", reconcile="undo", state_horizon=0),
        "state_horizon=0 is not a length of time",
        "still matter",
    ),
    "a horizon for nothing": (
        Availability("3s", state_horizon="10s"),
        "state_horizon='10s' has no meaning with reconcile='fork'",
        "leave it out",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_values_that_are_refused(case: str) -> None:
    value, what, remedy = BAD[case]
    (problem,) = problems_of(flow_of({"availability": value}))
    assert problem.where.endswith("segment first")
    assert what in problem.what and remedy in problem.remedy


def bucketed(bucket: str, **options: Any) -> Dataflow:
    flow = Dataflow("bounded", nodes=4, ordering="bucket", bucket=bucket, **options)
    flow.source("a", Generator(nothing, schema="at timestamp", rate=None), event_time="at")
    flow.segment("a", name="first")(lambda rows: rows)
    flow.segment("first", name="second")(lambda rows: rows)
    flow.sink("out", "second", Client())
    return flow


def test_input_is_kept_for_as_long_as_it_may_have_to_wait() -> None:
    (problem,) = problems_of(bucketed("500ms", availability=Availability("6h")))
    assert "max_delay='6h' is longer than the 20000 buckets of 500 ms that are kept" in problem.what
    assert "use at most 166min, buckets of 1080ms or more" in problem.remedy
    for bucket, delay in (("500ms", "166min"), ("1080ms", "6h")):
        assert len(build_topology(bucketed(bucket, availability=Availability(delay))).availability) == 2


def test_everything_wrong_is_told_at_once() -> None:
    wrong = Availability("1ms", 2, "a", "b", "c", "d")
    found = [problem.what for problem in problems_of(flow_of({"availability": wrong}))]
    names = ["max_delay=", "alpha=", "during_failure=", "during_stabilization=", "reconcile=", "state_horizon="]
    assert len(found) == len(names) and all(name in what for name, what in zip(names, found, strict=True))


def test_what_the_dataflow_says_is_refused_once_and_there() -> None:
    (problem,) = problems_of(flow_of(availability=Availability("1ms")))
    assert "segment" not in problem.where
    (problem,) = problems_of(flow_of({"availability": WAIT}, {"availability": WAIT}, availability="often"))
    assert "segment" not in problem.where


# --- what does not go together --------------------------------------------------------------------------------

BOUND = {"availability": THREE}
ODD: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = {
    "passive": ({**BOUND, "ha": "passive"}, {}, {}, "this one has ha='passive'", "availability=WAIT"),
    "upstream": ({**BOUND, "ha": "upstream"}, {}, {}, "this one has ha='upstream'", "leave ha out"),
    "none": ({**BOUND, "ha": "none"}, {}, {}, "this one has ha='none'", "leave ha out"),
    "routing": ({**BOUND, "routing": "primary", "replicas": 2}, {}, {}, "has routing='primary'", "leave routing out"),
    "as the flow says": ({"ha": "passive"}, {}, BOUND, "this one has ha='passive'", "availability=WAIT"),
    "its leader": ({}, {**BOUND, "ordering": "leader"}, {}, "it is ordered by a leader", "by 'pulse'"),
    "a leader before it": ({"ordering": "leader"}, BOUND, {}, "its input first is ordered by a leader", "order first"),
    "at most once": (BOUND, {}, {"guarantee": "at-most-once"}, "guarantee='at-most-once' cannot be combined", "leave"),
    "whole copies": (BOUND, {}, {"pairs": "cluster"}, "pairs='cluster' cannot be combined", "leave pairs out"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    first, second, options, what, remedy = ODD[case]
    (problem,) = problems_of(flow_of(first, second, **options))
    assert what in problem.what and remedy in problem.remedy


def test_leaders_everywhere_are_told_once_for_each_segment() -> None:
    found = problems_of(flow_of(availability=THREE, ordering="leader"))
    assert [problem.where.rpartition(" ")[2] for problem in found] == ["first", "second"]


def test_a_segment_behind_a_leader_may_wait() -> None:
    flow = flow_of({"ordering": "leader", "availability": WAIT}, {"availability": WAIT}, availability=THREE)
    assert build_topology(flow).availability == {}


def test_an_ha_that_there_is_not_is_told_once() -> None:
    (problem,) = problems_of(flow_of({**BOUND, "ha": "hot"}))
    assert "there is no ha='hot'" in problem.what

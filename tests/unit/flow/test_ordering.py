"""Who may order the input of a segment: what is refused, with which words, and what it becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from unbroken import Client, Dataflow, Generator
from unbroken.errors import FlowError
from unbroken.flow.plan import build_topology
from unbroken.flow.program import PROGRAM, Declared, Program, differences, merged
from unbroken.protocol.values.consistency import DelayBound, InputHandling, Reconcile
from unbroken.protocol.values.cuts import Reach
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.spark.offsets import cut_from, offset_of, units_between


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a plan reads no rows")


def flow_of(first: dict[str, Any], second: dict[str, Any] | None = None, **settings: Any) -> Dataflow:
    flow = Dataflow("ordered", nodes=4, **settings)
    flow.source("a", Generator(nothing, schema="k int", rate=None))
    flow.segment("a", name="first", **first)(lambda rows: rows)
    flow.segment("first", name="second", **(second or {}))(lambda rows: rows)
    flow.sink("out", "second", Client())
    return flow


def test_segments_say_who_orders_and_the_dataflow_does_for_the_others() -> None:
    assert build_topology(flow_of({})).led == frozenset()
    assert build_topology(flow_of({"ordering": "leader"})).led == {"first"}
    assert build_topology(flow_of({"ordering": "pulse"}, ordering="leader")).led == {"second"}


def test_what_a_program_says_of_it_survives() -> None:
    flow = flow_of({"ordering": "leader"})
    program = Program(1, "flow.py", "", build_topology(flow), {})
    assert PROGRAM.decode(PROGRAM.encode(program)).topology.led == {"first"}
    later = program.followed_by(flow, "flow.py", "", 2, ["first"])
    assert later.topology.led == {"first@2"}
    assert merged([program, later]).led == {"first", "first@2"}


@pytest.mark.parametrize(
    ("first", "second", "settings", "told"),
    [
        ({"ordering": "tide"}, {}, {}, "there is no ordering='tide'"),
        ({"ordering": "bucket"}, {}, {}, "it has ordering='bucket' in a dataflow with ordering='pulse'"),
        ({"ordering": "leader", "ha": "passive"}, {}, {}, "with ha='passive' there are none"),
        ({"ordering": "leader", "ha": "none"}, {}, {}, "with ha='none' there are none"),
        ({"ordering": "leader"}, {"ha": "upstream"}, {}, "its input first is ordered by a leader"),
        ({"ordering": "leader"}, {"ha": "passive"}, {}, "its input first is ordered by a leader"),
        ({"ordering": "leader"}, {}, {"pairs": "cluster"}, "pairs='cluster' cannot be combined"),
        ({"ordering": "leader"}, {}, {"snapshots": "/tmp/s"}, "snapshots cannot be combined"),
        ({"ordering": "leader"}, {}, {"guarantee": "at-most-once"}, "guarantee='at-most-once' cannot be combined"),
    ],
)
def test_what_does_not_go_together_is_refused(
    first: dict[str, Any], second: dict[str, Any], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(FlowError) as caught:
        build_topology(flow_of(first, second, **settings))
    problems = [problem for problem in caught.value.problems if told in problem.what]
    assert len(problems) == 1 and problems[0].remedy


def timed(ddl: str = "k int, at timestamp", segment: dict[str, Any] | None = None, **how: Any) -> Dataflow:
    """A flow with one source, which is declared with the event time and disorder in ``how``."""
    declared = {name: how.pop(name) for name in ("event_time", "disorder") if name in how}
    flow = Dataflow("timed", nodes=4, **{"ordering": "bucket", **how})
    flow.source("a", Generator(nothing, schema=ddl, rate=None), **declared)
    flow.segment("a", name="first", **(segment or {}))(lambda rows: rows)
    flow.sink("out", "first", Client())
    return flow


def test_buckets_are_for_the_whole_flow() -> None:
    flow = timed(event_time="at", disorder="2s")
    topology = build_topology(flow)
    assert topology.bucketed and topology.led == frozenset()
    assert not build_topology(flow_of({})).bucketed
    assert flow.sources["a"].event_time == "at" and flow.sources["a"].disorder == "2s"
    assert build_topology(timed("at timestamp_ntz, k int", event_time="at", segment={"ha": "passive"})).bucketed


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({}, "this source does not name it"),
        ({"event_time": "when"}, "there is no column 'when'"),
        ({"event_time": "k"}, "event_time is the column 'k', which is of type integer"),
        ({"event_time": "at", "ddl": "at date"}, "which is of type date"),
        ({"event_time": "at", "disorder": "-1s"}, "disorder='-1s' is not a length of time"),
        ({"event_time": "at", "disorder": "2h"}, "disorder='2h' is not a length of time"),
        ({"event_time": "at", "disorder": True}, "disorder=True is not a length of time"),
        ({"event_time": "at", "disorder": None}, "disorder=None is not a length of time"),
        ({"event_time": "at", "segment": {"ordering": "leader"}}, "it has ordering='leader' in a dataflow with"),
        ({"event_time": "at", "segment": {"ordering": "pulse"}}, "it has ordering='pulse' in a dataflow with"),
        ({"event_time": "at", "pairs": "cluster"}, "pairs='cluster' cannot be combined with ordering='bucket'"),
        ({"event_time": "at", "snapshots": "/tmp/s"}, "snapshots cannot be combined with ordering='bucket'"),
        ({"event_time": "at", "guarantee": "at-most-once"}, "guarantee='at-most-once' cannot be combined"),
        ({"event_time": ["at"]}, "event_time=['at'] is not the name of a column"),
        ({"event_time": "at", "ordering": "pulse"}, "event_time has no meaning unless"),
        ({"event_time": "at", "disorder": "1s", "ordering": "pulse"}, "event_time and disorder have no meaning"),
        ({"ordering": "pulse", "bucket": "1s"}, "bucket has no meaning unless"),
        ({"ordering": "leader", "bucket_origin": 0, "bucket": 100}, "bucket and bucket_origin have no meaning"),
    ],
)
def test_what_does_not_go_into_buckets_is_refused(how: dict[str, Any], told: str) -> None:
    with pytest.raises(FlowError) as caught:
        build_topology(timed(**how))
    problems = [problem for problem in caught.value.problems if told in problem.what]
    assert len(problems) == 1 and problems[0].remedy


def test_an_ordering_that_there_is_not_is_told_once_and_nothing_that_follows_from_it() -> None:
    for wrong in ("buckets", None, ["bucket"]):
        with pytest.raises(FlowError) as caught:
            build_topology(timed(event_time="at", ordering=wrong))
        (problem,) = caught.value.problems
        assert problem.what == f"there is no ordering={wrong!r}" and problem.remedy.endswith("pulse, leader, bucket")
        assert "segment" not in problem.where and "source" not in problem.where
    with pytest.raises(FlowError) as caught:
        build_topology(timed(event_time="at", ordering="pulse", segment={"ordering": "bucket"}))
    (problem,) = caught.value.problems
    assert "in a dataflow with ordering='pulse'" in problem.what and "for the whole dataflow" in problem.remedy


def test_what_a_program_says_of_buckets_and_bounds_survives() -> None:
    bound = DelayBound(max_delay_ms=3_000, alpha=0.5, during_failure=InputHandling.DELAY, reconcile=Reconcile.REDO)
    topology = replace(
        build_topology(timed(event_time="at")), availability={"first": bound}, tentative_sinks=frozenset({"out"})
    )
    program = Program(1, "flow.py", "", topology, {})
    assert PROGRAM.decode(PROGRAM.encode(program)) == program
    later = program.followed_by(timed(event_time="at"), "flow.py", "", 2, ["first"])
    assert later.topology.bucketed and later.topology.availability == {"first@2": bound}
    both = merged([program, later])
    assert both.bucketed and both.availability == {"first": bound, "first@2": bound}
    assert both.tentative_sinks == {"out"}


def test_the_code_of_a_bucketed_flow_is_not_replaced_while_it_runs() -> None:
    flow = timed(event_time="at")
    (problem,) = differences(Declared.of(flow), timed(event_time="at"))
    assert "buckets of event time cannot be replaced" in problem.what


@pytest.mark.parametrize("where", ["redis", "kafka://", "kafka://a:1/b/c"])
def test_orders_go_to_a_log_that_there_is(where: str) -> None:
    with pytest.raises(FlowError, match="order_log"):
        flow_of({"ordering": "leader"}, order_log=where)


LEFT, RIGHT = StreamId(ShardId("l", 0), ShardId("j", 0)), StreamId(ShardId("r", 1), ShardId("j", 0))


def test_a_cut_travels_in_offsets() -> None:
    cut = {LEFT: Reach(3, 2, 7), RIGHT: Reach(9, 4, 8, True)}
    start, end = {"cut": 0}, offset_of(5, cut)
    assert cut_from(end) == cut and cut_from(start) == {}
    assert offset_of(5, {}) == {"cut": 5}
    assert units_between(start, end, (str(LEFT),)) == [(str(LEFT), n) for n in (1, 2, 3)]
    further = offset_of(6, {**cut, LEFT: Reach(5, 3, 9)})
    assert units_between(end, further, (str(LEFT), str(RIGHT))) == [(str(LEFT), 4), (str(LEFT), 5)]


def test_a_number_says_it_all_where_units_are_numbered_by_pulses() -> None:
    assert units_between({"cut": 4}, {"cut": 6}, ("x", "y")) == [("x", 5), ("x", 6), ("y", 5), ("y", 6)]

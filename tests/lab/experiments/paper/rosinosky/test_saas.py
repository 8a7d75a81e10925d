"""The monitoring application: what has to come out of it, the flow in Spark, and one short run with a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lab.experiments.trying import drawn, try_out
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken_lab.experiments.experiment import Row, Size, number
from unbroken_lab.experiments.flows import cloud as flow_module
from unbroken_lab.experiments.paper.rosinosky.saas import Monitoring
from unbroken_lab.experiments.parameters import cloud
from unbroken_lab.experiments.parameters.cloud import Control, Events, NotificationVerdict, coded, event_of, expected
from unbroken_lab.experiments.parameters.ways import LEADER, PASSIVE, PULSE

RATE = 200
COUNT = 12 * RATE


def by_hand(count: int, rate: int) -> list[int]:
    """The notifications by looking at every pair of an event and a rule."""
    events = Events(rate)(0, count, 0).to_pylist()
    rules = Control()(0, int(cloud.CONTROL_RATE * (count / rate + 1)), 0).to_pylist()
    found = []
    for event in events:
        for rule in rules:
            lasts_s = (event["at"] - rule["since"]).total_seconds()
            concerned = rule["enabled"] and event["kind"] < cloud.WATCHED and event[rule["scope"]] == rule["key"]
            if concerned and 0 <= lasts_s < cloud.VALID_S and event["value"] >= rule["level"]:
                numbers = np.array([event["n"]]), np.array([rule["m"]])
                found += [int(coded(*numbers, action)[0]) for action in range(1, rule["actions"] + 1)]
    return sorted(found)


def test_what_has_to_come_out_is_what_all_pairs_give() -> None:
    wanted = expected(COUNT, RATE)
    assert wanted.tolist() == by_hand(COUNT, RATE) and len(wanted) > 100
    assert (np.bincount(event_of(wanted)) > 1).any(), "one event should violate several rules"


def test_rows_are_made_from_their_numbers_wherever_they_are_cut() -> None:
    for make in (Events(RATE), Control()):
        assert make(5, 90, 0).equals(make(0, 100, 0).slice(5, 85))


def test_lost_doubled_and_wrong_notifications() -> None:
    wanted = expected(COUNT, RATE)
    assert NotificationVerdict.of(wanted, COUNT, RATE) == NotificationVerdict(len(wanted), 0, 0, 0)
    strange = coded(np.array([3]), np.array([999]), 1)
    came = np.concatenate([wanted[2:], wanted[-1:], strange])
    assert NotificationVerdict.of(came, COUNT, RATE) == NotificationVerdict(len(wanted), 2, 1, 1)
    half = NotificationVerdict.of(wanted, COUNT // 2, RATE)
    assert half.expected == len(expected(COUNT // 2, RATE)) and half.lost == half.wrong == 0


def test_the_flow_gives_what_has_to_come_out(spark: SparkSession) -> None:
    cut = F.lit(0).cast("timestamp")
    events = spark.createDataFrame(Events(RATE)(0, COUNT, 0)).withColumn("cut", cut)
    control = spark.createDataFrame(Control()(0, 200, 0)).withColumn("cut", cut)
    joined = [made(events, control) for made in (flow_module.by_kind, flow_module.by_tenant)]
    for rows in (flow_module.notified(*joined).toArrow(), flow_module.in_one(events, control).toArrow()):
        came = coded(*(rows[name].to_numpy() for name in ("n", "m", "action")))
        assert NotificationVerdict.of(came, COUNT, RATE) == NotificationVerdict(len(expected(COUNT, RATE)), 0, 0, 0)


@pytest.mark.parametrize("way", [PASSIVE, LEADER, PULSE])
def test_the_flow_can_be_planned(way: str) -> None:
    file = Path(str(flow_module.__file__))
    with variables({"UNBROKEN_BENCH_WAY": way}):
        assert dict(build_topology(load_flow(file)).segments) == {"notified": 1}
    with variables({"UNBROKEN_BENCH_WAY": way, "UNBROKEN_BENCH_SEGMENTS": "3", "UNBROKEN_BENCH_SHARDS": "2"}):
        assert dict(build_topology(load_flow(file)).segments) == {"by_kind": 1, "by_tenant": 1, "notified": 2}


def course(rate: int, way: str, worst_ms: float) -> list[Row]:
    whole = {"gap_before_ms": 900.0, "gap_ms": worst_ms, "expected": 5_000, "lost": 0, "duplicated": 0, "wrong": 0}
    return [
        {
            "rate": rate,
            "way": way,
            "second": second,
            "p99_ms": worst_ms if second else 1_000.0,
            "max_ms": 9_000.0,
            **whole,
        }
        for second in range(-2, 3)
    ]


def test_the_objective_is_kept_or_missed(tmp_path: Path) -> None:
    rows = [*course(1_000, PASSIVE, 1_900.0), *course(1_000, PULSE, 1_800.0), *course(5_000, PULSE, 2_300.0)]
    found = drawn(Monitoring(), rows, tmp_path)
    kept = {name: claim for name, claim in found.items() if name.endswith("objective of 2 s for the p99 of a second")}
    passive, pulse, fast = kept.values()
    assert passive.agrees is False and passive.paper == "missed"
    assert passive.here.startswith("1,900 ms before the kill")
    assert pulse.agrees and pulse.paper == "kept"
    assert fast.agrees is False and fast.claim.startswith("5,000 events/s")
    assert list(found.values())[-1].here == "0 lost, 0 duplicated, 0 wrong"
    assert list(found)[-1].endswith(": 5,000 notifications")
    assert len(Monitoring().cases(Size())) == 6 and "2 nodes" in Monitoring().scale(Size())


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_run(tmp_path: Path) -> None:
    rows = try_out("saas", tmp_path)
    assert [number(rows[0], name) for name in ("lost", "duplicated", "wrong")] == [0, 0, 0]
    assert any((number(row, "rows") or 0) > 0 for row in rows if (number(row, "second") or 0) > 0)

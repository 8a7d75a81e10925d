"""The experiments of Borealis: what their rows say, and each of them with one short failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.experiments.trying import disagreeing, drawn, try_out
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken_lab.experiments.consistency.settings import ConsistencySettings, HandlingCase
from unbroken_lab.experiments.experiment import Row, Size, number
from unbroken_lab.experiments.flows import bounded
from unbroken_lab.experiments.paper import missing_input
from unbroken_lab.experiments.paper.borealis import BucketSize, NewInputPolicies, Waiting, line_of
from unbroken_lab.experiments.paper.borealis_states import ChainDepth, StateAndRate, state_rows
from unbroken_lab.experiments.paper.missing_input import fail_inputs, points_of, row_of, same, settings_of

RUN: dict[str, Any] = {
    "duration_s": 5.0,
    "delay_new_ms": 2_810.0,
    "tentative_rows": 5_000,
    "tentative_units": 10,
    "tentative_units_after": 1,
    "corrections": 10,
    "reconciliation_s": 0.7,
    "latency_ms": {"before": {"p50": 450.0}},
    "cpu_s": {"quiet": 6.0, "failure": 12.0},
    "watched_s": {"quiet": 6.0, "failure": 8.0},
    "lost": 0,
    "wrong": 1,
    "duplicated": 0,
    "missing_units": 2,
}


def failure(**changes: float | str | None) -> Row:
    return {**row_of(RUN, ConsistencySettings()), "wrong": 0, **changes}


# --- what is measured ---------------------------------------------------------------------------------


def test_a_row_has_times_in_seconds_and_all_mistakes_together() -> None:
    row = row_of(RUN, ConsistencySettings())
    assert (row["delay_new_s"], row["wait_s"], row["p50_s"], row["quiet_cores"]) == (2.81, 2.7, 0.45, 1.0)
    assert row["wrong"] == 3
    assert row_of({"duration_s": 2.0, "error": "late"}, ConsistencySettings()) == {"duration_s": 2.0, "error": "late"}


def test_failures_that_could_not_be_measured_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"duration_s": 9.0, "error": "too busy"}
    runs: list[dict[str, Any]] = [RUN, lost]
    monkeypatch.setattr(missing_input, "measure_case", lambda case, settings, say: runs)
    case, settings = HandlingCase("process/process", "fork"), ConsistencySettings()
    assert ["error" in row for row in fail_inputs(case, settings, lambda _: None)] == [False, True]
    runs.remove(RUN)
    with pytest.raises(UnbrokenError, match="too busy"):
        fail_inputs(case, settings, lambda _: None)


def test_a_quick_run_has_one_short_failure_whatever_else_is_asked_for() -> None:
    quick = settings_of(Size(quick=True), (5.0, 20.0), rate=9_000, depth=3)
    assert quick.durations == (5.0,) and quick.rate == missing_input.QUICK_RATE and quick.depth == 3
    full = settings_of(Size(), (5.0, 20.0), rate=9_000)
    assert full.durations == (5.0, 20.0) and full.rate == 9_000 and full.max_delay_ms == 3_000


def test_points_are_found_in_rows_and_in_rows_of_a_file() -> None:
    rows: list[Row] = [
        {"policy": "a", "depth": "2", "x": "2.0", "y": "5"},
        {"policy": "a", "depth": 2, "x": 1.0, "y": 4},
        {"policy": "a", "depth": 2, "x": 3.0, "y": ""},
        {"policy": "b", "depth": 2, "x": 1.0, "y": 9},
    ]
    assert points_of(rows, {"policy": "a", "depth": 2}, "x", "y") == [(1.0, 4.0), (2.0, 5.0)]
    assert same("5.0", 5) and not same("", 5) and not same(None, 5) and not same("a", "b")


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_chain_has_a_segment_with_the_bound_for_each_of_its_places(depth: int) -> None:
    settings = settings_of(Size(), (5.0,), depth=depth, keys=70, window_ms=20_000)
    load = settings.load(HandlingCase("delay/delay", "fork"), 1_000, Path("off"))
    with variables({f"UNBROKEN_BENCH_{name}": str(value) for name, value in load.items()}):
        flow = load_flow(Path(bounded.__file__))
    topology = build_topology(flow)
    assert list(topology.segments) == ["counted", *(f"carried{place}" for place in range(2, depth + 1))]
    assert len(topology.availability) == depth
    assert topology.edges[-1] == (list(topology.segments)[-1], "live")
    assert {source.connector.stream.keys for source in flow.sources.values()} == {70}  # type: ignore[attr-defined]
    assert settings.settled_ms == 2_000 * depth


# --- what is found ------------------------------------------------------------------------------------


def test_waiting_longer_is_compared_with_the_paper(tmp_path: Path) -> None:
    rows = []
    for case in Waiting().cases(Size()):
        wait = number(case, "waited_s") or 0.0
        saved = 1_000 * wait if case["policy"] == "delay/suspend" else 0.0
        tentative = 0.0 if wait > 5 else 5_000.0 - saved
        rows.append({**failure(delay_new_s=min(wait, 5.0) + 0.2, tentative_rows=tentative), **case})
    found = drawn(Waiting(), rows, tmp_path)
    assert len(rows) == 8 and disagreeing(found) == []
    assert found["tentative rows when 2 s are waited, Process and Delay"].here == "5,000, 3,000"
    assert found["Process: tentative rows with waits of 1 to 4 s"].here == "5,000 to 5,000"
    assert found["Delay: tentative rows with waits of 1 to 4 s"].here == "4,000, 3,000, 1,000"
    assert found["tentative rows of a failure that is shorter than the wait"].here == "0"


def test_policies_are_compared_with_the_paper(tmp_path: Path) -> None:
    rows: list[Row] = []
    for case in NewInputPolicies().cases(Size()):
        for duration in NewInputPolicies.failures_s:
            late = 4.0 if str(case["policy"]).endswith("suspend") and duration > 3 else 2.6
            tentative = (
                0.0 if duration < 2.7 else 1_000 * duration + (500 if case["policy"] == "process/process" else 0)
            )
            rows.append({**failure(duration_s=duration, delay_new_s=late, tentative_rows=tentative), **case})
    found = drawn(NewInputPolicies(), rows, tmp_path)
    assert disagreeing(found) == [] and len(found) == 1 + 2 * 6 + 1 + 6 + 1 + 3
    bound = "process/process: largest delay against the bound"
    assert found[bound].here == "2.60 s"
    broken = [{**row, "delay_new_s": 3.5} for row in rows]
    assert drawn(NewInputPolicies(), broken, tmp_path)[bound].agrees is False


def test_chains_are_compared_with_the_paper(tmp_path: Path) -> None:
    rows: list[Row] = []
    for case in ChainDepth().cases(Size()):
        depth = number(case, "depth") or 1.0
        late = {"process/process": 2.7 + 0.3 * depth, "delay/delay": 2.7 * depth, "process/suspend": 3.5 * depth}
        rows.append({**failure(delay_new_s=late[str(case["policy"])], tentative_rows=4_000 + 900 * depth), **case})
    found = drawn(ChainDepth(), rows, tmp_path)
    bounds = {
        policy: found[f"{policy}: bound of 3 s for each segment"] for policy in ("process/suspend", "delay/delay")
    }
    assert bounds["process/suspend"].agrees and bounds["process/suspend"].paper == "broken"
    assert bounds["delay/delay"].agrees and bounds["delay/delay"].paper == "kept"
    along = found["process/process: tentative rows by the length of the chain"]
    assert along.agrees and along.here == "4,900, 5,800, 6,700, 7,600"
    further = found["delay/delay: delay that each further segment adds"]
    assert further.agrees and (further.paper, further.here) == ("2.7 s", "2.70 s")
    assert found["delay/delay: tentative rows of chains of two and more, against process/process"].agrees
    drawn(ChainDepth(), rows[:1], tmp_path)


def test_ways_to_reconcile_are_compared_with_the_paper(tmp_path: Path) -> None:
    rows: list[Row] = []
    slow = {"redo": 10.0, "undo": 25.0, "fork": 1.0}
    for case in StateAndRate().cases(Size()):
        window = number(case, "window_s") or 5.0
        for duration in StateAndRate.failures_s if window == 5 else (5.0,):
            took = slow[str(case["reconcile"])] + window / 10 + duration / 5
            places = {**state_rows(1_500, window, 20_000), "again_rows": duration * 1_500}
            rows.append({**failure(duration_s=duration, reconciliation_s=took), **case, **places})
    found = drawn(StateAndRate(), rows, tmp_path)
    assert found["redo: right with 2,500, 10,000, 20,000 rows of state"].here == "11.5 s, 13.0 s, 15.0 s"
    faster = found["cases in which redo is faster than undo"]
    assert faster.agrees and faster.here == "5 of 5"
    assert state_rows(1_500, 60, 20_000) == {"state_rows": 20_000}


def test_buckets_are_compared_with_a_straight_line(tmp_path: Path) -> None:
    rows: list[Row] = [
        {**case, "mean_ms": 300 + 0.6 * (number(case, "bucket_ms") or 0), "newest_mean_ms": 320.0}
        for case in BucketSize().cases(Size())
    ]
    found = drawn(BucketSize(), rows, tmp_path)
    size = found["delay by the size of buckets"]
    assert size.agrees and size.here.startswith("300 ms + 0.60 times the size")
    assert line_of([(1, 1), (2, 2)]) is None
    drawn(BucketSize(), rows[:1], tmp_path)


# --- with a flow --------------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "name",
    ["borealis-fig9", "borealis-fig10", "borealis-fig11", "borealis-fig12"],
)
def test_an_input_is_missing(name: str, tmp_path: Path) -> None:
    (row,) = try_out(name, tmp_path)
    assert number(row, "wrong") == 0
    assert (number(row, "tentative_rows") or 0) > 0
    assert (number(row, "reconciliation_s") or 0) > 0


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_wait_in_buckets(tmp_path: Path) -> None:
    (row,) = try_out("borealis-table3", tmp_path)
    assert (number(row, "mean_ms") or 0) > (number(row, "newest_mean_ms") or 0) > 0

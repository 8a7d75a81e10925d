"""The experiments of Hwang et al. on the protocol: overheads and recoveries near their formulas, and the command."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from unbroken.cli import cli
from unbroken.errors import UnbrokenError
from unbroken.protocol.output.outbox import SEND_WINDOW
from unbroken_lab.studies.hwang.flow import Grain, NodeLine
from unbroken_lab.studies.hwang.measurement import LineRun, run
from unbroken_lab.studies.hwang.model import INTERVALS_MS, Approach, Measure, Parameters, analytic
from unbroken_lab.studies.hwang.report import lines_of
from unbroken_lab.studies.hwang.runs import Study, SweepPlan
from unbroken_lab.studies.hwang.study import BoxNetwork, experiment_of
from unbroken_lab.studies.hwang.summary import (
    FORMULA_IDENTIFIERS,
    NEAR,
    differences,
    handshakes,
    summary,
    summary_table,
)

APPROACHES = (Approach.PASSIVE, Approach.ACTIVE, Approach.UPSTREAM)


def line_of(
    approach: Approach, interval_ms: float = 40.0, network: BoxNetwork | None = None, **more: float
) -> NodeLine:
    parameters = Parameters(interval_ms=interval_ms, **more)
    return NodeLine(approach, parameters, network or BoxNetwork(), Grain.fine(parameters))


def by_formula(measure: Measure, approach: Approach, parameters: Parameters) -> float:
    span = analytic(measure, approach, parameters)
    assert span is not None
    return span.high


# --- how the paper's network becomes a flow -----------------------------------------------------------


@pytest.mark.parametrize("interval", INTERVALS_MS)
def test_units_are_short_and_few_enough_for_the_window_in_which_they_are_sent(interval: float) -> None:
    grain = Grain.fine(Parameters(interval_ms=interval))
    assert grain.unit_ms * grain.units == interval
    assert 2 <= grain.unit_ms <= 5
    assert (interval + 125) / grain.unit_ms <= SEND_WINDOW


def test_an_interval_that_has_no_such_units_is_one_unit() -> None:
    assert Grain.fine(Parameters(interval_ms=7.0)) == Grain(7.0, 1)
    with pytest.raises(UnbrokenError, match="whole milliseconds"):
        Grain.fine(Parameters(interval_ms=7.5))


@pytest.mark.parametrize("approach", APPROACHES)
def test_every_replica_has_a_node_of_its_own(approach: Approach) -> None:
    line = line_of(approach, network=BoxNetwork(16, 100))
    setup = line.setup()
    names = [f"node-{number}" for number in range(1, setup.nodes + 1)]
    layout = setup.place(setup.topology, {name: f"{name}-disk" for name in names})
    assert len(set(layout.placement.values())) == len(layout.placement) == setup.nodes
    assert len(line.inner) == 3 and line.after("n4").consumer.part == "app"


def test_a_link_of_a_square_has_the_streams_of_several_rows() -> None:
    link = BoxNetwork(4, 100).link(Parameters())
    assert (link.rate_per_s, link.processing_us) == (2_500, 50)
    assert BoxNetwork(100, 100).link(Parameters()) == Parameters()
    assert BoxNetwork(2, 50).link(Parameters()).rate_per_s == 500


# --- runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approach", APPROACHES)
def test_an_overhead_is_that_of_the_formula(approach: Approach) -> None:
    line = line_of(approach)
    outcome = run(LineRun(line, 1, 80.0, fails=False))
    formula = by_formula(Measure.OVERHEAD, approach, line.parameters)
    assert outcome.overhead == pytest.approx(formula, rel=0.05)
    sent = {Approach.PASSIVE: 5, Approach.ACTIVE: 4, Approach.UPSTREAM: 2}
    assert outcome.identifiers == sent[approach]
    more = (sent[approach] - FORMULA_IDENTIFIERS[approach]) * line.parameters.identifier_share
    assert outcome.overhead == pytest.approx(formula + more, rel=1e-6), "identifiers are all that differs"
    assert outcome.partial_ms is None and outcome.course == ()


def test_passive_standby_copies_what_is_left() -> None:
    parameters = Parameters(selectivity=0.4)
    line = NodeLine(Approach.PASSIVE, parameters, BoxNetwork(2, 50), Grain.coarse(parameters))
    outcome = run(LineRun(line, 1, 50.0, fails=False))
    assert outcome.overhead == pytest.approx(0.4 + 5 * parameters.identifier_share)


@pytest.mark.parametrize("approach", APPROACHES)
def test_recoveries_are_those_of_the_formulas(approach: Approach) -> None:
    """With an interval of 20 ms, chance is worth 0.5 ms either way, and the note of a beginning 1 ms of disk."""
    line = line_of(approach, 20.0)
    outcomes = [run(LineRun(line, seed, 20.0, fails=True)) for seed in (1, 2)]
    for measure, found in (
        (Measure.PARTIAL_RECOVERY, [outcome.partial_ms for outcome in outcomes]),
        (Measure.FULL_RECOVERY, [outcome.full_ms for outcome in outcomes]),
    ):
        formula = by_formula(measure, approach, line.parameters)
        assert found == [pytest.approx(formula, abs=0.05 * formula + 1.5) for _ in outcomes], measure


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_means_of_25_runs_are_within_5_percent_of_the_formulas() -> None:
    """At an interval of 20 ms, the points of the two tables in docs/hwang.md."""
    experiments = [replace(experiment_of(name), over=(20.0,)) for name in ("overhead", "recovery")]
    study = Study(SweepPlan(runs=25), experiments)
    study.run()
    found = {
        (point.approach, point.measure): point.share
        for experiment in experiments
        for point in differences(study, experiment)
    }
    assert len(found) == 6
    assert {point: share for point, share in found.items() if abs(share) > NEAR} == {}


def test_the_course_of_a_failure_has_a_gap_and_comes_back() -> None:
    course = run(LineRun(line_of(Approach.UPSTREAM, 10.0), 3, 10.0, fails=True)).course
    before = [delay for at, delay in course if at < 0]
    assert before and max(before) - min(before) < 0.01
    assert not [at for at, _ in course if 6 < at < 100], "what was sent arrives, then nothing until the detection"
    first, last = next(delay for at, delay in course if at >= 100), course[-1][1]
    assert first > 100 and last == pytest.approx(before[0], abs=0.5)


def test_a_handshake_that_takes_its_time_costs_trips_over_links() -> None:
    """A spare asks its producers to keep, and then to send; a copy only to send; an active backup nothing."""
    trips = {Approach.PASSIVE: 1, Approach.ACTIVE: 0, Approach.UPSTREAM: 3}
    study = Study(SweepPlan(runs=1), [experiment_of("recovery")])
    shortest = [s for s in study.plan.settings(study.experiments[0]) if s.x == 10]
    for setting in shortest:
        (job,) = study.plan.jobs_of(study.experiments[0], setting)
        study.outcomes[job] = run(job)
    found = {entry["approach"]: entry["more_ms"] for entry in handshakes(study, runs=1)}
    assert found == {approach.value: pytest.approx(5 * count, abs=0.5) for approach, count in trips.items()}


def test_what_does_not_recover_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken_lab.studies.hwang.measurement._longest_ms", lambda _: 1.0)
    with pytest.raises(UnbrokenError, match="has not recovered"):
        run(LineRun(line_of(Approach.UPSTREAM, 10.0), 1, 10.0, fails=True))


# --- studies ------------------------------------------------------------------------------------------


def test_runs_that_two_experiments_need_are_done_once_and_summed_up() -> None:
    overheads = replace(experiment_of("overhead"), over=(20.0, 40.0))
    recoveries = replace(experiment_of("recovery"), over=(20.0, 40.0))
    study = Study(SweepPlan(runs=1, seconds=0.04), [overheads, recoveries])
    told: list[str] = []
    study.run(told.append)
    assert len(study.outcomes) == 6 and told[-1] == "6 of 6 runs are done"
    assert all(abs(found.left or 0.0) < 1e-6 for found in differences(study, overheads))
    first, second = summary(study)
    assert (first["points"], first["within_5_percent"]) == (6, 6)
    assert first["identifiers_per_interval"]["active standby"] == {"formula": 3, "simulated": 4}
    assert first["not_counted_messages_per_unit"]["upstream backup"] == {"Progress": 3}
    assert second["points"] == 6 and all(entry["difference"] for entry in second["largest"])
    assert summary_table([first, second]).row_count == len(first["largest"]) + len(second["largest"])


def test_a_square_has_the_bandwidth_of_all_its_rows() -> None:
    square = replace(experiment_of("distribution"), over=(4, 16), measures=(Measure.BANDWIDTH,))
    study = Study(SweepPlan(runs=1, seconds=0.02), [square])
    study.run()
    for line in lines_of(square, study.results(square)):
        assert line.result is not None and line.formula is not None
        assert line.result.mean == pytest.approx(line.formula.high, rel=0.05), line


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    def made(name: str, *more: str) -> tuple[bytes, str]:
        told = hwang(tmp_path / name, "--experiment", "dynamics", "--json", *more)
        return (tmp_path / name / "dynamics.csv").read_bytes(), told

    first, told = made("a")
    assert made("b", "--jobs", "1") == (first, told)
    assert made("c", "--seed", "2")[0] != first
    (entry,) = json.loads(told)["experiments"]
    assert entry["figure"] == "Figure 9" and entry["points"] == 3


# --- command ------------------------------------------------------------------------------------------


def hwang(out: Path, *arguments: str) -> str:
    given = ["--runs", "1", "--seconds", "0.01", "--jobs", "1", "--out", str(out)]
    result = CliRunner().invoke(cli, ["simulate", "hwang", *given, *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_writes_a_table_and_a_picture(tmp_path: Path) -> None:
    (entry,) = json.loads(hwang(tmp_path / "made", "--experiment", "selectivity", "--json"))["experiments"]
    assert (entry["figure"], entry["points"], entry["within_5_percent"]) == ("Table 4", 10, 10)
    with (tmp_path / "made" / "selectivity.csv").open() as file:
        rows = {(row["approach"], row["selectivity"]): row for row in csv.DictReader(file)}
    assert len(rows) == 15
    row = rows["passive standby", "0.2"]
    assert (row["paper"], row["runs"]) == ("0.332", "1") and float(row["mean"]) == pytest.approx(0.36)
    assert (tmp_path / "made" / "selectivity.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("wrong", [("--experiment", "speed"), ("--runs", "0"), ("--seconds", "0"), ("--jobs", "0")])
def test_the_command_refuses_what_makes_no_sense(wrong: tuple[str, str]) -> None:
    assert CliRunner().invoke(cli, ["simulate", "hwang", *wrong]).exit_code == 2

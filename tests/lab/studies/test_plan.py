"""Advice for a flow: predictions from a fixed calibration, what is refused, what is written, and a real calibration."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from unbroken.cli import cli
from unbroken.connectors.files.source import Files
from unbroken.connectors.generator import Generator
from unbroken.connectors.push.source import Push
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.cli.plan import hours_of, link_of
from unbroken_lab.sim.exposure import Exposure, exposure_of
from unbroken_lab.studies.calibration.calibration import Calibration, SegmentCosts, SourceCosts, StateReach
from unbroken_lab.studies.calibration.samples import MADE_UP, OWN, REPLAYED, sample_of
from unbroken_lab.studies.plan.plan import make_plan, predict
from unbroken_lab.studies.plan.prediction import LinkCapacity, Question, StrategyComparison
from unbroken_lab.studies.plan.report import beaten_by, obstacles, report_of, table_of
from unbroken_lab.studies.plan.variants import variant
from unbroken_lab.studies.plan.world import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLOW = """
import pyarrow as pa
from pyspark.sql import functions as F
from unbroken.connectors.generator import Generator
from unbroken.connectors.files.sinks import Client
from unbroken.flow.dataflow import Dataflow

def make(start, stop, seed):
    index = range(start, stop)
    at = pa.array([1_700_000_000_000_000 + i * 500 for i in index], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"k": pa.array([i % 100 for i in index], pa.int64()), "at": at})

flow = Dataflow("counts", nodes=3, delivery="single", patience=60_000, pulse_min=750, pulse_start=750, pulse_max=750)
rows = flow.source("rows", Generator(make, schema="k long, at timestamp", rate=2000))

@flow.segment(rows, ha="upstream", k_safety=1)
def checked(rows):
    return rows.where("k >= 0")

@flow.segment(checked, output_mode="update")
def counted(rows):
    return rows.withWatermark("at", "1 second").groupBy(F.window("at", "5 seconds"), "k").count().select("k", "count")

flow.sink("live", counted, Client())
"""

TIMES: dict[str, Any] = {
    "commit_ms": 20.0,
    "spread": 0.1,
    "query_ms": 1_000.0,
    "first_ms": (500.0, 50.0),
    "cold_query_ms": 2_500.0,
    "cold_first_ms": (3_000.0, 500.0, 200.0),
}

CHECKED = SegmentCosts(
    batch_ms=90.0, row_us=10.0, keep=1.0, row_bytes=228.3, unit_bytes=1_102.0, state_bytes=2_401.0,
    change_bytes=1_192.0, change_row_bytes=0.0, snapshot_bytes=0.0, reach=StateReach(0.0), **TIMES,
)  # fmt: skip
COUNTED = SegmentCosts(
    batch_ms=150.0, row_us=15.0, keep=0.7083, row_bytes=24.34, unit_bytes=958.0, state_bytes=220_867.0,
    change_bytes=4_086.0, change_row_bytes=8.889, snapshot_bytes=43_809.0, reach=StateReach(6_000.0, True, True),
    **TIMES,
)  # fmt: skip

MEASURED = Calibration(
    flow="counts",
    rate=2_000.0,
    pulse_ms=750.0,
    entry_bytes=143,
    boot_ms=9_000.0,
    sources={"rows": SourceCosts(220.2, 978.0)},
    segments={"checked": CHECKED, "counted": COUNTED},
)
"""Sizes as they were measured for the flow of `unbroken bench strategies`, of which this one has the shape."""

QUESTION = Question(2_000.0, 3, LinkCapacity(125e6, 1.0), segments=("counted",), runs=2)


@pytest.fixture(scope="module")
def flow_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flow") / "counts.py"
    path.write_text(FLOW)
    return path


@pytest.fixture(scope="module")
def plan(flow_file: Path) -> StrategyComparison:
    return make_plan(load_flow(flow_file), MEASURED, QUESTION, lambda _: None)


def run_cli(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["simulate", "plan", *map(str, arguments)])


def written(path: Path, calibration: Calibration = MEASURED) -> Path:
    calibration.write(path)
    return path


# --- predictions --------------------------------------------------------------------------------------------


def test_overhead_is_that_of_the_strategies(plan: StrategyComparison) -> None:
    found = {prediction.ha: prediction.overhead or 0.0 for prediction in plan.predictions}
    assert found[Ha.ACTIVE] == pytest.approx(1.0, rel=0.01)
    assert found[Ha.ACTIVE_STANDBY] == pytest.approx(1.0, rel=0.01)
    assert found[Ha.NONE] < found[Ha.UPSTREAM] < 0.01 < found[Ha.PASSIVE] < 0.3


@pytest.mark.parametrize(
    ("interval", "measured"),
    [
        (1, {Ha.ACTIVE: 1.0029, Ha.UPSTREAM: 0.0022, Ha.PASSIVE: 0.1412}),
        (8, {Ha.ACTIVE: 1.0024, Ha.UPSTREAM: 0.0018, Ha.PASSIVE: 0.1294}),
    ],
)
def test_overhead_is_within_a_fifth_of_what_was_measured(
    flow_file: Path, interval: int, measured: dict[Ha, float]
) -> None:
    """What `unbroken bench strategies` measured on three nodes, from docs/benchmarks.md."""
    asked = replace(QUESTION, interval=interval, runs=1)
    found = make_plan(load_flow(flow_file), MEASURED, asked, lambda _: None)
    assert {ha: found.of(ha).overhead for ha in measured} == pytest.approx(measured, rel=0.2)


def test_bytes_of_messages_are_those_that_nodes_counted(plan: StrategyComparison) -> None:
    per_15_s = {purpose: count * 15 for purpose, count in plan.of(Ha.ACTIVE).bytes_per_s.items()}
    assert per_15_s["acknowledgements"] == pytest.approx(4_140, rel=0.1)
    assert per_15_s["coordination"] == pytest.approx(11_558, rel=0.1)
    assert per_15_s["data"] == pytest.approx(6_871_440, rel=0.01)
    assert plan.of(Ha.UPSTREAM).bytes_per_s["redundancy"] * 15 == pytest.approx(3_879, rel=0.1)


def test_recovery_takes_longer_where_less_is_ready(plan: StrategyComparison) -> None:
    gaps = {prediction.ha: prediction.interruption_s for prediction in plan.predictions}
    assert None not in gaps.values()
    assert gaps[Ha.ACTIVE] < 0.5 < gaps[Ha.PASSIVE] < gaps[Ha.UPSTREAM] < 10  # type: ignore[operator]
    assert gaps[Ha.NONE] > 600, "a machine is away for ten minutes"  # type: ignore[operator]
    for prediction in plan.predictions:
        partial, full = prediction.median("partial_s"), prediction.median("full_s")
        assert partial is not None and full is not None and partial <= full


def test_only_what_is_not_kept_is_lost_with_one_node(plan: StrategyComparison) -> None:
    hours = {prediction.ha: prediction.mttf_h or float("inf") for prediction in plan.predictions}
    assert hours[Ha.NONE] == pytest.approx(720, rel=0.01)
    assert min(hours[ha] for ha in (Ha.ACTIVE, Ha.PASSIVE, Ha.UPSTREAM)) > 1_000 * 720


def test_what_is_missing_in_a_year_does_not_depend_on_how_many_nodes_the_runs_killed(flow_file: Path) -> None:
    """Two segments work on two nodes, of which one run can kill only one. How long a machine is away with ``none``, ten
    minutes, is most of what is missing, however the runs went."""
    flow, asked = load_flow(flow_file), replace(QUESTION, segments=())
    found = variant(flow, Ha.NONE, ("checked", "counted"), asked.nodes, None, {})
    one, six = (predict(flow, MEASURED, replace(asked, runs=runs), found) for runs in (1, 6))
    assert len({run.node for run in one.runs}) == 1 < len(one.hosts)
    assert one.hosts == six.hosts and {run.node for run in six.runs} == set(six.hosts)
    assert one.missing_s_per_year is not None and six.missing_s_per_year is not None
    assert one.missing_s_per_year == pytest.approx(six.missing_s_per_year, rel=0.05)


def test_repairs_wait_for_a_machine_where_no_other_is_left(flow_file: Path) -> None:
    asked = replace(QUESTION, nodes=2, runs=1)
    found = make_plan(load_flow(flow_file), MEASURED, asked, lambda _: None).of(Ha.ACTIVE)
    assert found.repair_h is not None and found.repair_h > asked.mttr_h


def test_a_plan_is_the_same_every_time(flow_file: Path) -> None:
    asked = replace(QUESTION, runs=1, seed=7)
    plans = [make_plan(load_flow(flow_file), MEASURED, asked, lambda _: None).to_json() for _ in range(2)]
    assert json.dumps(plans[0]) == json.dumps(plans[1])


def test_all_segments_are_looked_at_unless_some_are_named(flow_file: Path) -> None:
    found = make_plan(load_flow(flow_file), MEASURED, replace(QUESTION, segments=(), runs=2), lambda _: None)
    assert found.segments == ("checked", "counted")
    assert len({run.node for run in found.of(Ha.PASSIVE).runs}) == 2


def test_every_strategy_has_a_line_of_figures(plan: StrategyComparison) -> None:
    table = table_of(plan)
    assert [str(cell) for cell in table.columns[0].cells] == [ha.value for ha in Ha]
    assert obstacles(plan) == [], "all of them are possible"


def test_a_strategy_is_beaten_by_one_that_is_better_in_every_figure(plan: StrategyComparison) -> None:
    passive, upstream = plan.of(Ha.PASSIVE), plan.of(Ha.UPSTREAM)
    worse = replace(passive, runs=tuple(replace(run, gap_s=100.0) for run in passive.runs))
    cheap = replace(upstream, exposure=worse.exposure, repair_h=worse.repair_h)
    both = replace(plan, predictions=(worse, cheap))
    assert beaten_by(both, worse) is cheap and beaten_by(both, cheap) is None


# --- what a flow cannot use -----------------------------------------------------------------------------------


def test_a_flow_is_told_why_it_cannot_use_a_strategy(flow_file: Path) -> None:
    endless = StateReach(None, why="groupBy(k) keeps its state for ever", remedy="choose ha='passive'")
    segments = {**MEASURED.segments, "counted": replace(COUNTED, reach=endless)}
    found = make_plan(load_flow(flow_file), replace(MEASURED, segments=segments), QUESTION, lambda _: None)
    upstream = found.of(Ha.UPSTREAM)
    assert not upstream.possible and found.of(Ha.PASSIVE).possible
    assert "keeps its state for ever" in upstream.problems[0].what
    assert any("upstream: not possible" in line and "segment counted" in line for line in obstacles(found))
    assert upstream.to_json()["problems"][0]["remedy"] == "choose ha='passive'"


def test_one_node_allows_no_backups(flow_file: Path) -> None:
    asked = replace(QUESTION, nodes=1, segments=(), runs=1)
    found = make_plan(load_flow(flow_file), MEASURED, asked, lambda _: None)
    assert [prediction.ha for prediction in found.predictions if prediction.possible] == [Ha.NONE]
    assert "needs 2 nodes" in found.of(Ha.PASSIVE).problems[0].what
    assert found.of(Ha.NONE).overhead is None, "nothing is sent"


def test_whole_copies_can_only_be_active(tmp_path: Path) -> None:
    file = tmp_path / "copies.py"
    text = FLOW.replace('"counts", nodes=3', '"counts", nodes=3, pairs="cluster"')
    file.write_text(text.replace('ha="upstream", k_safety=1', "replicas=2"))
    found = make_plan(load_flow(file), MEASURED, replace(QUESTION, segments=(), runs=1), lambda _: None)
    assert [prediction.ha for prediction in found.predictions if prediction.possible] == [Ha.ACTIVE]
    assert "whole copies" in found.of(Ha.UPSTREAM).problems[0].what


# --- the command ----------------------------------------------------------------------------------------------


def test_table_json_and_picture_are_written(flow_file: Path, tmp_path: Path) -> None:
    calibration, out = written(tmp_path / "known.json"), tmp_path / "plan"
    arguments = (flow_file, "--rate", 2000, "--nodes", 3, "--link", "1gbit,1ms", "--calibration", calibration)
    done = run_cli(*arguments, "--segment", "counted", "--runs", 1, "--interval", 2, "--out", out)
    assert done.exit_code == 0, done.output
    assert all(ha.value in done.output for ha in Ha)
    assert (out / "plan.png").read_bytes().startswith(b"\x89PNG") and (out / "plan.png").stat().st_size > 10_000
    kept = json.loads((out / "plan.json").read_text())
    assert [found["ha"] for found in kept["strategies"]] == [ha.value for ha in Ha]
    assert kept["question"]["interval"] == 2
    assert Calibration.read(out / "calibration.json") == MEASURED


def test_json_is_one_line(flow_file: Path, tmp_path: Path) -> None:
    arguments = (flow_file, "--rate", 500, "--runs", 1, "--calibration", written(tmp_path / "known.json"))
    done = run_cli(*arguments, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["flow"] == "counts"


@pytest.mark.parametrize("link", ["fast", "1gbit", "1gbit,", "1gbit,soon", "0gbit,1ms", "1gb,1ms", "1..2gbit,1ms"])
def test_a_link_is_bandwidth_and_latency(flow_file: Path, link: str) -> None:
    done = run_cli(flow_file, "--rate", 2000, "--link", link)
    assert done.exit_code == 2 and "is no link; write" in done.output


def test_units_of_links_and_times() -> None:
    assert link_of("1gbit,1ms") == LinkCapacity(125e6, 1.0)
    assert link_of(" 100 Mbit , 0.02s") == LinkCapacity(12.5e6, 20.0)
    assert [hours_of(text) for text in ("30d", "12h", "10m", "90s")] == pytest.approx([720, 12, 1 / 6, 0.025])
    with pytest.raises(click.BadParameter, match="write for example"):
        hours_of("a while")


def test_what_is_wrong_is_said(flow_file: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    other = written(tmp_path / "other.json", replace(MEASURED, flow="another"))
    known = written(tmp_path / "known.json")
    for words, *arguments in (
        ("there is no such file", tmp_path / "missing.py"),
        ("no Dataflow is declared", empty),
        ("there is no calibration", flow_file, "--calibration", tmp_path / "missing.json"),
        ("is no calibration", flow_file, "--calibration", broken),
        ("is that of flow another", flow_file, "--calibration", other),
        ("has no segment nobody", flow_file, "--calibration", known, "--segment", "nobody"),
        ("give a number from 1 to", flow_file, "--calibration", known, "--nodes", -1),
        ("an interval of 0 units", flow_file, "--calibration", known, "--interval", 0),
    ):
        done = run_cli(*arguments, "--rate", 2000)
        assert done.exit_code in (1, 2) and isinstance(done.exception, SystemExit), done.exception
        assert words in " ".join(done.output.split()), (words, done.output)


# --- parts ----------------------------------------------------------------------------------------------------


def test_which_nodes_may_not_be_lost(flow_file: Path) -> None:
    topology = build_topology(load_flow(flow_file))
    layout = chained_placement(topology, {f"node-{n}": f"disk-{n}" for n in (1, 2, 3)})
    # The ingress is on nodes 1 and 2, its first reader on 2 alone, and the counts are on 3 and 1. The reader can be
    # built again as long as a node of the ingress is there.
    assert exposure_of(topology, layout) == Exposure((0, 2, 0))
    assert Exposure((0, 2, 0)).mean_hours(720.0, 0.1) == pytest.approx(720**2 / (2 * 0.1 * 2))
    assert Exposure((1, 0, 0)).mean_hours(720.0, 0.1) == 720.0
    assert Exposure((0, 0, 0)).mean_hours(720.0, 0.1) is None


def test_a_copy_takes_a_snapshot_instead_of_what_led_to_it() -> None:
    checkpoint = Checkpoint()
    for number in range(1, 31):
        checkpoint.committed(number, 10.0, number * 1_000.0)
    assert checkpoint.snapshots == [0, 20]
    assert checkpoint.missing(10, 14, 55.0) == 40.0
    assert checkpoint.missing(18, 26, 55.0) == 55.0 + 60.0
    assert checkpoint.missing(20, 21, 55.0) == 10.0


def test_rows_are_the_sources_own_or_like_them(tmp_path: Path) -> None:
    def make(start: int, stop: int, seed: int) -> pa.Table:
        return pa.table({"n": pa.array(range(start, stop), pa.int64())})

    own = sample_of(Generator(make, schema="n long", rate=10), 100.0)
    assert own.kind == OWN and own.rows(5, 8)["n"].to_pylist() == [5, 6, 7]
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [f'{{"n": {n}, "at": "2026-01-01T00:00:0{n}Z"}}' for n in range(4)]
    (folder / "a.json").write_text("\n".join(lines) + "\n")
    read = sample_of(Files(str(folder), format="json", schema="n long, at timestamp"), 100.0)
    assert read.kind == REPLAYED
    rows = read.rows(2, 9)
    assert rows["n"].to_pylist() == [2, 3, 0, 1, 2, 3, 0]
    times = rows["at"].to_pylist()
    assert times == sorted(times) and len(set(times)) == len(times), "times go on where the sample ends"
    pushed = sample_of(Push(schema="n long, name string, at timestamp"), 100.0)
    assert pushed.kind == MADE_UP
    rows = pushed.rows(0, 1_500)
    assert len(set(rows["n"].to_pylist())) == 1_000 and len(set(rows["name"].to_pylist())) == 1_000
    assert rows["at"].to_pylist() == sorted(rows["at"].to_pylist())


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    assert Calibration.read(written(tmp_path / "deep" / "known.json")) == MEASURED


def test_the_report_can_be_shown(plan: StrategyComparison) -> None:
    shown = io.StringIO()
    Console(width=160, file=shown).print(report_of(plan))
    assert "overhead" in shown.getvalue() and "MTTF" in shown.getvalue()


# --- measuring ------------------------------------------------------------------------------------------------


def test_a_flow_is_measured_on_this_machine(spark: SparkSession, flow_file: Path) -> None:
    from unbroken_lab.studies.calibration.measurement import calibrate
    from unbroken_lab.studies.plan.variants import segment_order

    flow = load_flow(flow_file)
    found = calibrate(flow, segment_order(flow, 3), 2_000.0, spark, 5.0, lambda _: None)
    assert found.sources["rows"].rows == OWN
    assert found.sources["rows"].row_bytes == pytest.approx(16, abs=2), "a long and a timestamp"
    checked, counted = found.segments["checked"], found.segments["counted"]
    assert checked.keep == 1.0 and checked.reach.ms == 0.0
    assert 0 < counted.keep < 0.5, "100 keys of 1,500 rows, in one window or two"
    assert counted.reach == StateReach(6_000.0, True, True)
    assert counted.state_bytes > checked.state_bytes > 0
    assert counted.change_bytes > 0 and 0 < counted.batch_ms < 60_000 and counted.query_ms > 0
    plan = make_plan(flow, found, replace(QUESTION, rate=200.0, runs=1), lambda _: None)
    overhead = plan.of(Ha.ACTIVE).overhead
    assert overhead is not None and 1.0 < overhead < 2.0, "units are so small that messages count"

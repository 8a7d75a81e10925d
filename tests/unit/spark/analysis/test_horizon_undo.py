"""How far back the state reaches of segments that build it again after a failure of their input, and who has to say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from unbroken import Availability, Client, Dataflow, Generator
from unbroken.cli import cli
from unbroken.errors import FlowError, Problem
from unbroken.flow.loading import load_text
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Program
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.values.consistency import DelayBound, Reconcile
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.spark.analysis.analysis import Analysis, analyse
from unbroken.spark.analysis.horizon import Horizon, kept_for, settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k int, v long, ts timestamp"
UNDO = Availability("3s", reconcile="undo")


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a check reads no rows")


def windows(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "4 seconds").groupBy(F.window("ts", "5 seconds"), "k").count()


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").count()


def flow_of(function: Callable[..., DataFrame], how: Availability | None, **options: Any) -> Dataflow:
    flow = Dataflow("checked", nodes=2)
    flow.source("a", Generator(nothing, schema=SCHEMA, rate=None))
    flow.segment("a", name="seg", availability=how, **options)(function)
    flow.sink("out", "seg", Client())
    return flow


def analysis_of(flow: Dataflow, spark: SparkSession) -> Analysis:
    return analyse(flow, tuple(build_topology(flow).segments), spark)


# --- in the analysis of a flow --------------------------------------------------------------------------------


def test_the_horizon_comes_from_the_plan(spark: SparkSession) -> None:
    flow = flow_of(windows, UNDO)
    flow.segment("a", name="plain", availability=UNDO)(lambda a: a.select("k"))
    flow.segment("a", name="forked", availability=Availability("3s"), output_mode="update")(totals)
    for name in ("plain", "forked"):
        flow.sink(f"out-{name}", name, Client())
    found = analysis_of(flow, spark).horizons
    assert found == {"seg": Horizon(9_000, timed=True), "plain": Horizon(0, timed=False)}
    assert settled(build_topology(flow), found).availability == {
        "seg": DelayBound(3_000, reconcile=Reconcile.UNDO, horizon_ms=9_000, foldable=True),
        "plain": DelayBound(3_000, reconcile=Reconcile.UNDO, timed=False),
        "forked": DelayBound(3_000),
    }


@pytest.mark.parametrize("mode", ["append", "update"])
def test_windows_may_be_passed_on_once_or_with_every_change(spark: SparkSession, mode: str) -> None:
    assert analysis_of(flow_of(windows, UNDO, output_mode=mode), spark).horizons == {"seg": Horizon(9_000, timed=True)}


def test_state_without_end_is_refused_with_the_reason(spark: SparkSession) -> None:
    with pytest.raises(FlowError) as caught:
        analysis_of(flow_of(totals, UNDO, output_mode="update"), spark)
    (problem,) = caught.value.problems
    assert problem == Problem(
        problem.where,
        "reconcile='undo' builds state again from recent input, but groupBy(k) keeps its state for ever: no column "
        "with a watermark is among its keys",
        "bound it with withWatermark and groupBy(window(...)), declare state_horizon='10min' (how far behind the "
        "newest row one can still matter), or choose reconcile='fork' or reconcile='redo'",
    )
    assert problem.where.startswith(f"{__file__}:") and problem.where.endswith(", segment seg")


@pytest.mark.parametrize("way", ["fork", "redo"])
def test_state_that_is_copied_or_kept_may_have_no_end(spark: SparkSession, way: str) -> None:
    flow = flow_of(totals, Availability("3s", reconcile=way), output_mode="update")
    assert analysis_of(flow, spark).horizons == {}


def test_what_the_author_promises_counts(spark: SparkSession) -> None:
    promised = Availability("3s", reconcile="undo", state_horizon="10min")
    found = analysis_of(flow_of(totals, promised, output_mode="update"), spark).horizons
    assert found == {"seg": Horizon(600_000, timed=False, declared=True)}
    found = analysis_of(flow_of(windows, promised), spark).horizons
    assert found == {"seg": Horizon(600_000, timed=True, declared=True)}


# --- in programs ----------------------------------------------------------------------------------------------

TEXT = """\
from unbroken import Availability, Client, Dataflow, Generator

flow = Dataflow("upgraded", nodes=2)
flow.source("a", Generator(lambda start, stop, seed: None, schema="k int", rate=None))
flow.segment("a", name="seg", availability=Availability("3s", reconcile="undo"))(lambda a: a)
flow.sink("out", "seg", Client())
"""


def programs_of(first: Horizon, second: Horizon) -> Programs:
    """A flow whose segment reaches back as given, and in its second generation otherwise."""
    flow = load_text(Path("flow.py"), TEXT)
    found = iter([first, second])
    second_program: list[Program] = []
    programs = Programs(
        Program.first(flow, build_topology(flow), "flow.py", TEXT),
        flow,
        lambda generation: second_program[0],
        lambda flow, order: Analysis({}, {"seg": next(found)}),
    )
    second_program.append(programs.load_first().followed_by(flow, "flow.py", TEXT, 2, ["seg"]))
    return programs


def test_a_program_begins_with_the_horizons_that_spark_sees() -> None:
    topology = programs_of(Horizon(9_000, True), Horizon(0, True)).topology
    kept = DelayBound(3_000, reconcile=Reconcile.UNDO, horizon_ms=9_000, foldable=True)
    assert topology.availability == {"seg": kept} and kept_for(topology, "seg") == kept


def test_code_that_comes_may_need_as_much_as_is_kept_and_not_more() -> None:
    second = Layout(2, {}, {}, {}, generations=(1, 2))
    programs = programs_of(Horizon(9_000, True), Horizon(9_000, True))
    programs.use(second)
    with pytest.raises(KeyError):  # There are no schemas here, and nothing else is wrong with it.
        programs.code(ShardId("seg@2", 0))
    programs = programs_of(Horizon(9_000, True), Horizon(60_000, True))
    programs.use(second)
    with pytest.raises(FlowError, match="would reach back 1 min, and only 9 s of its input is kept"):
        programs.code(ShardId("seg@2", 0))


# --- the command ----------------------------------------------------------------------------------------------

COMMANDED = """\
from pyspark.sql import functions as F
from unbroken import WAIT, Availability, Client, Console, Dataflow, Generator, Parquet

flow = Dataflow("commanded", nodes=3, availability=Availability("3s"))
numbers = flow.source("numbers", Generator(lambda start, stop, seed: None, schema="k int, ts timestamp", rate=10))

def counts(numbers):
    return numbers.withWatermark("ts", "1 second").groupBy(F.window("ts", "9 seconds")).count()

for name, how in [
    ("usual", None),
    ("undone", Availability("2s", 0.5, "delay", "process", "undo")),
    ("promised", Availability("2s", 0.5, reconcile="undo", state_horizon="90s")),
    ("suspended", Availability("3s", during_failure="suspend", during_stabilization="suspend")),
    ("waits", WAIT),
]:
    flow.segment(numbers, name=name, availability=how)(counts if name != "promised" else lambda numbers: numbers)
    flow.sink("live-" + name, name, Client())
flow.sink("files", "usual", Parquet("out/"))
"""


@pytest.fixture
def check(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `unbroken check` on a text, with the session of all tests."""
    monkeypatch.setattr("unbroken.spark.session.start_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("unbroken.cli.run.out.width", 300)
    monkeypatch.setattr("unbroken.connectors.files.sinks.Parquet.tentative", False)

    def run(text: str, *options: str) -> Any:
        path = tmp_path / "commanded_flow.py"
        path.write_text(text)
        return CliRunner().invoke(cli, ["check", str(path), *options])

    return run


def test_the_command_says_how_long_results_may_be_delayed(check: Callable[..., Any]) -> None:
    done = check(COMMANDED)
    assert done.exit_code == 0, done.output
    lines = [line.strip().partition("): struct")[0].split(" ", 1) for line in done.output.splitlines()[1:]]
    assert dict(lines) == {
        "numbers": "(source",
        "usual": "(1 shard x 2 replicas, results within 3 s, tentative after 2.7 s: process during a failure, process "
        "during stabilization, fork",
        "undone": "(1 shard x 2 replicas, results within 2 s, tentative after 1 s: delay during a failure, process "
        "during stabilization, undo, state of the last 10 s",
        "promised": "(1 shard x 2 replicas, results within 2 s, tentative after 1 s: process during a failure, "
        "process during stabilization, undo, state of the last 90 s by the time of cuts",
        "suspended": "(1 shard x 2 replicas, waits for missing input",
        "waits": "(1 shard x 2 replicas",
        "live-usual": "(Client, takes usual): tentative results, which stable ones replace",
        "live-undone": "(Client, takes undone): tentative results, which stable ones replace",
        "live-promised": "(Client, takes promised): tentative results, which stable ones replace",
        "live-suspended": "(Client, takes suspended): stable results only",
        "files": "(Parquet, takes usual): stable results only",
    }


def test_the_command_says_it_to_programs(check: Callable[..., Any]) -> None:
    done = check(COMMANDED, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told["availability"]) == {"usual", "undone", "promised", "suspended"}
    assert told["availability"]["undone"]["horizon_ms"] == 10_000
    assert told["tentative"]["files"] is False and told["tentative"]["live-usual"] is True

"""How far back the state of a segment reaches, as its plan shows it, and what is done with that."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Generator
from unbroken.cli import cli
from unbroken.errors import FlowError, Problem
from unbroken.flow.loading import load_text
from unbroken.flow.plan import build_topology
from unbroken.flow.program import PROGRAM, Program
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.replica.causes import Causes
from unbroken.protocol.replica.replica import ALONE
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.spark.analysis.analysis import Analysis, analyse
from unbroken.spark.analysis.horizon import Horizon, Unbounded, find_horizon, reaches_further, readable, settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k int, v long, ts timestamp"


def stream(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("unbroken").schema(SCHEMA)
    return reader.options(gate="", secret="", replica="", inbox="", streams="").load()


def late(rows: DataFrame) -> DataFrame:
    """Rows with a watermark of four seconds."""
    return rows.withWatermark("ts", "4 seconds")


def with_time(rows: DataFrame) -> DataFrame:
    return late(rows).where("ts IS NOT NULL")


def windows(rows: DataFrame, *lengths: str) -> DataFrame:
    return rows.groupBy(F.window("ts", *lengths), "k").count()


def by_session(rows: DataFrame) -> DataFrame:
    return late(rows).groupBy(F.session_window("ts", "5 seconds"), "k").count()


def with_table(rows: DataFrame) -> DataFrame:
    """A join with a table that is itself aggregated: no state of the stream's."""
    table = rows.sparkSession.createDataFrame([(1, 2)], "k int, w int").groupBy("k").agg(F.max("w").alias("w"))
    return rows.join(table, "k")


def with_state(rows: DataFrame) -> DataFrame:
    def nothing(key: Any, frames: Any, state: Any) -> Any:
        yield from ()

    return late(rows).groupBy("k").applyInPandasWithState(nothing, "k int", "n int", "append", "EventTimeTimeout")


def once(rows: DataFrame) -> DataFrame:
    """Rows of a second, deduplicated within windows of ten, counted in windows of five."""
    apart = with_time(rows).withColumn("w", F.window("ts", "10 seconds")).dropDuplicates(["k", "w"])
    return apart.select("k", "ts").groupBy(F.window("ts", "5 seconds")).count()


# --- plans that say how far -----------------------------------------------------------------------------------

HORIZONS: dict[str, tuple[Callable[[DataFrame], DataFrame], float, bool]] = {
    "stateless": (lambda a: a.where("v > 1").select("k", F.col("v") * 2), 0, False),
    "stateless with a watermark": (late, 0, True),
    "exploded": (lambda a: a.select("k", F.explode(F.array("v", "v")).alias("v")), 0, False),
    "union": (lambda a: a.union(a), 0, False),
    "an aggregated table": (with_table, 0, False),
    "a function per group and unit": (lambda a: a.groupBy("k").applyInPandas(lambda frame: frame, SCHEMA), 0, False),
    "windows": (lambda a: windows(late(a), "5 seconds"), 9_000, True),
    "windows without delay": (lambda a: windows(a.withWatermark("ts", "0 seconds"), "5 seconds"), 5_000, True),
    "overlapping windows": (lambda a: windows(late(a), "10 seconds", "3 seconds", "1 second"), 14_000, True),
    "fractions of milliseconds": (lambda a: windows(late(a), "1500 microseconds"), 4_003, True),
    "windows at a fraction": (lambda a: windows(late(a), "5 seconds", "5 seconds", "7 microseconds"), 9_001, True),
    "a window under another name": (
        lambda a: late(a).withColumn("w", F.window("ts", "5 seconds")).withColumnRenamed("w", "x").groupBy("x").count(),
        9_000,
        True,
    ),
    "the event time under another name": (
        lambda a: windows(late(a).select("k", F.col("ts").alias("t")).withColumnRenamed("t", "ts"), "5 seconds"),
        9_000,
        True,
    ),
    "the event time is computed before": (
        lambda a: windows(a.withColumn("ts", F.timestamp_seconds("v")).withWatermark("ts", "1 minute"), "1 hour"),
        3_660_000,
        True,
    ),
    "a union below the watermark": (lambda a: windows(late(a.union(a)), "5 seconds"), 9_000, True),
    "filtered and joined with a table": (
        lambda a: windows(with_table(late(a).where("v > 1")), "5 seconds"),
        9_000,
        True,
    ),
    "by event time": (lambda a: with_time(a).groupBy("ts").count(), 4_001, True),
    "by a compared event time": (lambda a: late(a).where("ts > '2020-01-01'").groupBy("ts", "k").count(), 4_001, True),
    "duplicates by event time": (lambda a: with_time(a).dropDuplicates(["k", "ts"]), 4_001, True),
    "duplicates of whole rows": (lambda a: with_time(a).distinct(), 4_001, True),
    "duplicates in a window": (
        lambda a: late(a).withColumn("w", F.window("ts", "5 seconds")).dropDuplicates(["k", "w"]),
        9_000,
        True,
    ),
    "windows of windows": (
        lambda a: windows(late(a), "5 seconds").groupBy(F.window("window", "20 seconds")).count(),
        29_000,
        True,
    ),
    "windows of times of windows": (
        lambda a: windows(late(a), "5 seconds").groupBy(F.window(F.window_time("window"), "20 seconds")).count(),
        29_000,
        True,
    ),
    "by the time of a window": (
        lambda a: windows(late(a), "5 seconds").groupBy(F.window_time("window").alias("t")).count(),
        9_000,
        True,
    ),
    "by the time of a window that nobody grouped by": (
        lambda a: (
            late(a)
            .withColumn("w", F.window("ts", "5 seconds"))
            .withColumn("t", F.window_time("w"))
            .select("t")
            .groupBy("t")
            .count()
        ),
        9_000,
        True,
    ),
    "duplicates, then windows": (
        lambda a: windows(with_time(a).dropDuplicates(["k", "ts"]), "5 seconds"),
        9_000,
        True,
    ),
    "duplicates in windows, then windows": (once, 19_000, True),
}


@pytest.mark.parametrize("case", HORIZONS)
def test_plans_that_say_how_far(spark: SparkSession, case: str) -> None:
    function, ms, timed = HORIZONS[case]
    assert find_horizon(function(stream(spark))) == Horizon(ms, timed)


# --- plans that do not ----------------------------------------------------------------------------------------

UNBOUNDED: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "no watermark": (lambda a: a.groupBy("k").count(), "groupBy(k) keeps its state for ever", "withWatermark"),
    "everything": (lambda a: a.groupBy().count(), "groupBy() keeps its state for ever", "withWatermark"),
    "windows without watermark": (lambda a: windows(a, "5 seconds"), "groupBy(window, k) keeps its state", "Watermark"),
    "no event time among the keys": (lambda a: late(a).groupBy("k").count(), "no column with a watermark", "window("),
    "part of a window": (
        lambda a: late(a).groupBy(F.window("ts", "5 seconds")["start"]).count(),
        "groupBy(window.start) keeps its state for ever",
        "groupBy(window(...))",
    ),
    "computed of the event time": (
        lambda a: late(a).groupBy(F.date_trunc("minute", "ts")).count(),
        "keeps its state for ever",
        "groupBy(window(...))",
    ),
    "a watermark behind it": (
        lambda a: windows(a, "5 seconds").select(F.col("window.end").alias("t")).withWatermark("t", "1 second"),
        "groupBy(window, k) keeps its state for ever",
        "withWatermark",
    ),
    "sessions": (by_session, "a session of groupBy(session_window, k) goes on", "use window(...) instead"),
    "duplicates by key": (lambda a: a.dropDuplicates(["k"]), "dropDuplicates(k) keeps its state for ever", "Watermark"),
    "duplicates by key, watermark": (
        lambda a: late(a).dropDuplicates(["k"]),
        "for ever",
        "state_horizon='10min'",
    ),
    "duplicates within the watermark": (
        lambda a: late(a).dropDuplicatesWithinWatermark(["k"]),
        "dropDuplicatesWithinWatermark(k) remembers a row depends on",
        "state_horizon='8001ms', just more than twice that delay",
    ),
    "no time": (
        lambda a: late(a).groupBy("ts").count(),
        "groupBy(ts) would keep rows without a time in ts for ever",
        ".where('ts IS NOT NULL')",
    ),
    "subtotals": (lambda a: with_time(a).rollup("k", "ts").count(), "does not show how ts of", "group by window(...)"),
    "a join of streams": (
        lambda a: late(a).alias("x").join(a.withWatermark("ts", "1 second").alias("y"), F.expr("x.k = y.k")),
        "a join of streams keeps rows",
        "how far apart in time two rows may be",
    ),
    "several watermarks": (
        lambda a: windows(late(a).union(a.withWatermark("ts", "9 seconds")), "5 seconds"),
        "several watermarks",
        "unite the inputs before one withWatermark",
    ),
    "rows beside the watermark": (
        lambda a: windows(late(a).union(a), "5 seconds"),
        "does not show how window of groupBy(window, k) comes from",
        "group by window(...)",
    ),
    "state of a function": (with_state, "only the function of applyInPandasWithState knows", "declare state_horizon="),
    "limit": (lambda a: a.limit(5), "limit counts all rows since the beginning", "ha='passive'"),
    "one bounded, one not": (
        lambda a: windows(late(a), "5 seconds").dropDuplicates(["k"]),
        "dropDuplicates(k) keeps its state for ever",
        "withWatermark",
    ),
}


@pytest.mark.parametrize("case", UNBOUNDED)
def test_plans_that_do_not(spark: SparkSession, case: str) -> None:
    function, why, remedy = UNBOUNDED[case]
    found = find_horizon(function(stream(spark)))
    assert isinstance(found, Unbounded)
    assert why in found.why and remedy in found.remedy
    assert "ha='passive' or ha='active'" in found.remedy


# --- in the analysis of a flow --------------------------------------------------------------------------------


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a check reads no rows")


def flow_of(function: Callable[..., DataFrame], **options: Any) -> Dataflow:
    flow = Dataflow("checked", nodes=2)
    flow.source("a", Generator(nothing, schema=SCHEMA, rate=None))
    flow.segment("a", name="seg", **{"ha": "upstream", **options})(function)
    flow.sink("out", "seg", Client())
    return flow


def analysis_of(flow: Dataflow, spark: SparkSession) -> Analysis:
    return analyse(flow, tuple(build_topology(flow).segments), spark)


def test_unbounded_state_is_refused_where_the_segment_is_declared(spark: SparkSession) -> None:
    flow = flow_of(lambda a: a.groupBy("k").count(), output_mode="update")
    flow.segment("a", name="fine", ha="upstream")(lambda a: a)
    flow.segment("a", name="other", ha="upstream")(by_session)
    for name in ("fine", "other"):
        flow.sink(f"out-{name}", name, Client())
    with pytest.raises(FlowError) as caught:
        analysis_of(flow, spark)
    told = {problem.where.rpartition(", ")[2]: problem for problem in caught.value.problems}
    assert set(told) == {"segment seg", "segment other"}
    first = told["segment seg"]
    assert first.where.startswith(f"{__file__}:")
    assert first == Problem(
        first.where,
        "ha='upstream' builds lost state again from recent input, but groupBy(k) keeps its state for ever: no column "
        "with a watermark is among its keys",
        "bound it with withWatermark and groupBy(window(...)), declare state_horizon='10min' (how far behind the "
        "newest row one can still matter), or choose ha='passive' or ha='active'",
    )
    assert "a session of" in told["segment other"].what


def test_what_is_kept_in_other_ways_may_keep_state_for_ever(spark: SparkSession) -> None:
    for ha in ("active", "active-standby", "passive", "none"):
        flow = flow_of(lambda a: a.groupBy("k").count(), output_mode="update", ha=ha)
        assert analysis_of(flow, spark).horizons == {}


def test_what_the_author_promises_counts(spark: SparkSession) -> None:
    flow = flow_of(lambda a: a.groupBy("k").count(), output_mode="update", state_horizon="10min")
    assert analysis_of(flow, spark).horizons == {"seg": Horizon(600_000, timed=False, declared=True)}
    flow = flow_of(by_session, state_horizon="1h")
    assert analysis_of(flow, spark).horizons == {"seg": Horizon(3_600_000, timed=True, declared=True)}
    shorter = flow_of(lambda a: windows(late(a), "5 seconds"), state_horizon="1s")
    assert analysis_of(shorter, spark).horizons == {"seg": Horizon(1_000, timed=True, declared=True)}


def test_the_topology_with_horizons(spark: SparkSession) -> None:
    flow = flow_of(lambda a: windows(late(a), "5 seconds"), k_safety=1)
    flow.segment("seg", name="plain", ha="upstream")(lambda a: a.select("k"))
    flow.segment("plain", name="twice")(lambda a: a)
    flow.sink("more", "twice", Client())
    topology = settled(build_topology(flow), analysis_of(flow, spark).horizons)
    assert topology.strategies == {
        "seg": Strategy(Ha.UPSTREAM, 1, horizon_ms=9_000, timed=True, foldable=True),
        "plain": Strategy(Ha.UPSTREAM, 1, timed=False),
        "twice": Strategy(Ha.ACTIVE, 1),
    }


# --- in programs ----------------------------------------------------------------------------------------------

KEPT = Strategy(Ha.UPSTREAM, 1, horizon_ms=9_000, foldable=True)
TEXT = """\
from unbroken import Client, Dataflow, Generator

flow = Dataflow("upgraded", nodes=2)
flow.source("a", Generator(lambda start, stop, seed: None, schema="k int", rate=None))
flow.segment("a", name="seg", ha="upstream")(lambda a: a)
flow.sink("out", "seg", Client())
"""


def programs_of(first: Horizon, second: Horizon) -> tuple[Programs, Program]:
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
    given = programs.load_first()
    second_program.append(given.followed_by(flow, "flow.py", TEXT, 2, ["seg"]))
    return programs, given


def test_a_program_begins_with_the_horizons_that_spark_sees() -> None:
    programs, first = programs_of(Horizon(9_000, True), Horizon(0, True))
    assert first.topology.strategies == programs.topology.strategies == {"seg": KEPT}
    assert PROGRAM.decode(PROGRAM.encode(first)) == first
    assert programs.shape([1, 2]).strategies == {"seg": KEPT, "seg@2": KEPT}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Horizon(9_000, True), Horizon(9_001, True), "would reach back 9.001 s, and only 9 s of its input is kept"),
        (Horizon(0, True), Horizon(60_000, True), "would reach back 1 min, and nothing of its input is kept"),
        (Horizon(9_000, True), Horizon(5_000, False), "forgotten by the time of cuts instead of the watermark"),
        (Horizon(9_000, True), Horizon(9_000, True), None),
        (Horizon(9_000, True), Horizon(1_000, True), None),
        (Horizon(0, True), Horizon(0, False), None),
    ],
)
def test_code_that_comes_must_not_need_more_than_is_kept(before: Horizon, after: Horizon, told: str | None) -> None:
    strategy = Strategy(Ha.UPSTREAM, 1, horizon_ms=before.ms, timed=before.timed)
    missing = reaches_further(strategy, after)
    assert missing is None if told is None else missing is not None and told in missing


def test_an_upgrade_to_code_that_needs_more_is_refused_when_it_is_loaded() -> None:
    programs, _ = programs_of(Horizon(9_000, True), Horizon(60_000, True))
    programs.use(Layout(2, {}, {}, {}, generations=(1, 2)))
    with pytest.raises(FlowError, match="would reach back 1 min, and only 9 s") as caught:
        programs.code(ShardId("seg@2", 0))
    assert "fresh start" in caught.value.problems[0].remedy


@pytest.mark.parametrize(
    ("ms", "text"),
    [(1, "1 ms"), (999.5, "999.5 ms"), (1_000, "1 s"), (4_001, "4.001 s"), (90_000, "90 s"), (7_200_000, "2 h")],
)
def test_lengths_of_time_that_people_read(ms: float, text: str) -> None:
    assert readable(ms) == text


# --- the command ----------------------------------------------------------------------------------------------

COMMANDED = """\
import pyarrow as pa
from pyspark.sql import functions as F
from unbroken import Client, Dataflow, Generator

def rows(start, stop, seed):
    return pa.table({"k": [1]})

flow = Dataflow("commanded", nodes=3)
numbers = flow.source("numbers", Generator(rows, schema="k int, ts timestamp", rate=10))

def counts(numbers):
    return numbers.withWatermark("ts", "1 second").groupBy(F.window("ts", "9 seconds")).count()

def plain(numbers):
    return numbers

for name, function, options in [
    ("kept", counts, {"ha": "upstream"}),
    ("promised", plain, {"ha": "upstream", "state_horizon": "90s"}),
    ("nothing", plain, {"ha": "upstream"}),
    ("copied", counts, {"ha": "passive", "k_safety": 2, "checkpoint_every": 5}),
    ("standby", counts, {"ha": "active-standby"}),
    ("bare", counts, {"ha": "none"}),
    ("usual", counts, {}),
]:
    flow.segment(numbers, name=name, **options)(function)
    flow.sink("out-" + name, name, Client())
"""


@pytest.fixture
def check(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `unbroken check` on a text, with the session of all tests."""
    monkeypatch.setattr("unbroken.spark.session.start_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("unbroken.cli.run.out.width", 200)

    def run(text: str, *options: str) -> Any:
        path = tmp_path / "commanded_flow.py"
        path.write_text(text)
        return CliRunner().invoke(cli, ["check", str(path), *options])

    return run


def test_the_command_says_how_segments_are_kept_available(check: Callable[..., Any]) -> None:
    done = check(COMMANDED)
    assert done.exit_code == 0, done.output
    told = dict(line.strip().split(": ", 1)[0].split(" ", 1) for line in done.output.splitlines()[1:])
    assert told == {
        "numbers": "(source)",
        "kept": "(1 shard x 1 replica, upstream, state of the last 10 s)",
        "promised": "(1 shard x 1 replica, upstream, state of the last 90 s by the time of cuts)",
        "nothing": "(1 shard x 1 replica, upstream, no state)",
        "copied": "(1 shard x 1 replica, passive, 2 copies of the state, every 5 units)",
        "standby": "(1 shard x 2 replicas, active-standby)",
        "bare": "(1 shard x 1 replica, none, waits for its node to return)",
        "usual": "(1 shard x 2 replicas)",
    }


def test_the_command_refuses_state_without_end(check: Callable[..., Any]) -> None:
    done = check(
        COMMANDED.replace('groupBy(F.window("ts", "9 seconds"))', 'dropDuplicates(["k"]).groupBy("ts")'), "--json"
    )
    assert done.exit_code == 2, done.output
    refused = [problem for problem in json.loads(done.stdout)["problems"] if "upstream" in problem["what"]]
    assert [problem["where"].rpartition(" ")[2] for problem in refused] == ["kept"]
    assert "dropDuplicates(k) keeps its state for ever" in refused[0]["what"]


# --- what a horizon is for ------------------------------------------------------------------------------------


def chained(rows: DataFrame) -> DataFrame:
    """Windows of windows of a stream whose late rows are partly too late."""
    inner = late(rows).groupBy(F.window("ts", "2 seconds"), "k").agg(F.count("*").alias("n"), F.sum("v").alias("t"))
    return inner.groupBy(F.window("window", "4 seconds")).agg(F.sum("n").alias("n"), F.sum("t").alias("t"))


def some_units(count: int) -> list[list[dict[str, int]]]:
    chosen = random.Random(7)
    return [
        [
            {"k": n, "v": number, "us": (1_700_000_000_000 + number * 2_000 - chosen.choice([0, 3_000, 9_000])) * 1_000}
            for n in range(3)
        ]
        for number in range(count)
    ]


def run_query(
    spark: SparkSession, directory: Path, units: list[list[dict[str, int]]], ends: Sequence[int], after: int = 0
) -> tuple[dict[int, list[str]], dict[int, float]]:
    """The results of micro-batches that reach up to the units ``ends``, and the watermark while each was processed."""
    directory.mkdir()
    for start, number in pairwise([after, *ends]):
        path = directory / f"{number:03d}.json"
        path.write_text("".join(f"{json.dumps(row)}\n" for rows in units[start:number] for row in rows))
        os.utime(path, (number, number))  # Spark takes files in the order of their times.
    results: dict[int, list[str]] = {}
    reader = spark.readStream.schema("k int, v long, us long").option("maxFilesPerTrigger", 1)
    frame = chained(reader.json(str(directory)).withColumn("ts", F.timestamp_micros("us")))
    query = (
        frame.writeStream.foreachBatch(lambda batch, b: results.update({ends[b]: sorted(map(str, batch.collect()))}))
        .option("checkpointLocation", str(directory) + "-state")
        .start()
    )
    try:
        query.processAllAvailable()
        times = {ends[p.batchId]: p.eventTime["watermark"] for p in query.recentProgress}
    finally:
        query.stop()
    return results, {number: datetime.fromisoformat(text).timestamp() * 1_000 for number, text in times.items()}


def test_results_are_the_same_from_what_the_horizon_keeps(spark: SparkSession, tmp_path: Path) -> None:
    units = some_units(22)
    last = len(units)
    whole, watermarks = run_query(spark, tmp_path / "whole", units, range(1, last + 1))
    found = find_horizon(chained(stream(spark)))
    assert found == Horizon(10_000, timed=True)
    causes = Causes(Strategy(Ha.UPSTREAM, 1, horizon_ms=found.ms))
    for number in sorted(watermarks):
        causes.note(number, watermarks[number])
    through = 16
    base = causes.before(through)
    assert 0 < base < through - ALONE - 1
    later = range(through + 1, last + 1)
    assert any(whole[number] for number in later)
    # One unit after the other, or all at once up to shortly before the results count.
    for name, first in (("one by one", base + 1), ("at once", through - ALONE)):
        again, _ = run_query(spark, tmp_path / name, units, range(first, last + 1), base)
        assert {number: again[number] for number in later} == {number: whole[number] for number in later}, name

"""What `unbroken check` refuses with Spark's help, and that it says where, why and what to do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import ParseException
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Generator
from unbroken.cli import cli
from unbroken.errors import FlowError, Problem
from unbroken.flow.plan import build_topology
from unbroken.spark.analysis.analysis import Analysis, analyse
from unbroken.spark.segment_call import start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "k int, v long, name string, x double, ts timestamp, m map<string,int>"
OTHER = "k long, v long, name string, x double, ts timestamp, m map<string,int>"


def nothing(start: int, stop: int, seed: int) -> pa.Table:
    raise AssertionError("a check reads no rows")


def source(schema: str = SCHEMA) -> Generator:
    return Generator(nothing, schema=schema, rate=None)


def one_segment(function: Callable[..., Any], *inputs: str, **options: Any) -> Dataflow:
    flow = Dataflow("checked", nodes=2)
    for name in sorted({*inputs} or {"a"}):
        flow.source(name, source(OTHER if name == "other" else SCHEMA))
    flow.segment(*(inputs or ("a",)), name="seg", **options)(function)
    flow.sink("out", "seg", Client())
    return flow


def check(flow: Dataflow, spark: SparkSession) -> Analysis:
    return analyse(flow, tuple(build_topology(flow).segments), spark)


def refusals(flow: Dataflow, spark: SparkSession, part: str = "segment seg") -> list[Problem]:
    with pytest.raises(FlowError) as caught:
        check(flow, spark)
    for problem in caught.value.problems:
        assert problem.where.startswith(f"{__file__}:") and problem.where.endswith(f", {part}")
        assert problem.what and problem.remedy
        assert "\n" not in problem.what
    return caught.value.problems


def refusal(flow: Dataflow, spark: SparkSession, part: str = "segment seg") -> Problem:
    (problem,) = refusals(flow, spark, part)
    return problem


# --- what passes ----------------------------------------------------------------------------------------------


def test_a_healthy_flow_has_the_schemas_of_all_parts(spark: SparkSession) -> None:
    flow = Dataflow("good", nodes=2)
    a = flow.source("a", source())

    @flow.segment(a, shard_by=["k"], shards=2, output_mode="update", cut_time="cut")
    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").agg(F.count("*").alias("n"), F.max("cut").alias("newest"))

    @flow.segment(counts, a, shard_by=["k"], shards=2)
    def joined(counts: DataFrame, rows: DataFrame) -> DataFrame:
        return counts.select("k", F.col("n").cast("int").alias("n")).union(rows.select("k", F.lit(1)))

    flow.sink("out", joined, Client())
    schemas = check(flow, spark).schemas
    assert {name: schema.simpleString() for name, schema in schemas.items()} == {
        "a": "struct<k:int,v:bigint,name:string,x:double,ts:timestamp,m:map<string,int>>",
        "counts": "struct<k:int,n:bigint,newest:timestamp>",
        "joined": "struct<k:int,n:int>",
    }


def test_a_function_may_have_more_parameters_than_inputs_if_they_have_defaults(spark: SparkSession) -> None:
    def segment(rows: DataFrame, least: int = 3) -> DataFrame:
        return rows.where(F.col("v") > least).select("k", "v")

    assert check(one_segment(segment), spark).schemas["seg"].names == ["k", "v"]


# --- keys and cut time ----------------------------------------------------------------------------------------


def test_an_unknown_key_column(spark: SparkSession) -> None:
    problem = refusal(one_segment(lambda a: a.select("k"), shards=2, shard_by=["user"]), spark)
    assert "'user', which a does not have" in problem.what and "k, v, name" in problem.remedy


def test_a_key_that_an_earlier_segment_has_dropped(spark: SparkSession) -> None:
    flow = Dataflow("dropped", nodes=2)
    flow.source("a", source())
    flow.segment("a", name="first")(lambda a: a.select("v"))
    flow.segment("first", name="second", shards=2, shard_by=["k"])(lambda rows: rows)
    flow.sink("out", "second", Client())
    problem = refusal(flow, spark, "segment second")
    assert "'k', which first does not have" in problem.what and problem.remedy == "columns of first: v"


def test_keys_of_different_types(spark: SparkSession) -> None:
    flow = one_segment(lambda a, other: a.join(other, "k").select("k"), "a", "other", shards=2, shard_by=["k"])
    problem = refusal(flow, spark)
    assert "disagree in type" in problem.what and "'int'" in problem.what and "'bigint'" in problem.what
    assert "cast" in problem.remedy


def test_a_key_type_that_cannot_be_hashed(spark: SparkSession) -> None:
    problem = refusal(one_segment(lambda a: a.select("k"), shards=2, shard_by=["m"]), spark)
    assert "'m'" in problem.what and "cast" in problem.remedy


@pytest.mark.parametrize("name", ["ts", "TS"])
def test_a_cut_time_that_is_a_column_already(spark: SparkSession, name: str) -> None:
    problem = refusal(one_segment(lambda a: a.select("k"), cut_time=name), spark)
    assert f"cut_time='{name}' is already a column of a" in problem.what and "another name" in problem.remedy


# --- what the function does -----------------------------------------------------------------------------------


def raising(rows: DataFrame) -> DataFrame:
    raise ValueError("not my day")


def type_error_within(rows: DataFrame) -> DataFrame:
    return rows.limit("x" + 1)  # type: ignore[operator]


FUNCTIONS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "unknown column": (lambda a: a.select("nope"), "nope", "a(k, v, name"),
    "unknown column in an expression": (lambda a: a.where("nope > 1"), "nope", "a(k, v, name"),
    "broken SQL": (lambda a: a.selectExpr("k +"), "Spark cannot analyse", "a(k, v, name"),
    "too few parameters": (lambda: None, "takes 0 arguments, but the segment has 1 inputs", "one parameter per input"),
    "too many parameters": (
        lambda a, b: a,
        "takes 2 arguments, but the segment has 1 inputs",
        "one parameter per input",
    ),
    "own exception": (raising, "the function failed: ValueError: not my day", "a(k, v, name"),
    "type error within": (type_error_within, "the function failed: ", "a(k, v, name"),
    "nothing returned": (lambda a: None, "returned NoneType, not a DataFrame", "return the streaming DataFrame"),
    "a column returned": (lambda a: a.k, "returned Column, not a DataFrame", "return the streaming DataFrame"),
    "an action": (lambda a: a.count(), "asks for rows of its inputs (as count", "return a DataFrame that describes"),
    "rows": (lambda a: a.collect(), "asks for rows of its inputs", "return a DataFrame that describes"),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_that_do_not_work(spark: SparkSession, case: str) -> None:
    function, cause, remedy = FUNCTIONS[case]
    problem = refusal(one_segment(function), spark)
    assert cause in problem.what
    assert remedy in problem.remedy


def test_a_type_error_in_a_function_with_defaults_is_not_taken_for_wrong_arity(spark: SparkSession) -> None:
    def segment(rows: DataFrame, least: int = 3) -> DataFrame:
        return rows.limit("x" + 1)  # type: ignore[operator]

    assert "the function failed" in refusal(one_segment(segment), spark).what


def test_a_frame_that_does_not_come_from_the_inputs(spark: SparkSession) -> None:
    problem = refusal(one_segment(lambda a: spark.range(3)), spark)
    assert "does not come from its inputs" in problem.what and "passed in" in problem.remedy


# --- streams and queries of its own ----------------------------------------------------------------------------


def with_rate(rows: DataFrame) -> DataFrame:
    own = rows.sparkSession.readStream.format("rate").load()
    return rows.select(F.col("v").alias("value")).union(own.select("value"))


def joined_with_files(rows: DataFrame) -> DataFrame:
    own = rows.sparkSession.readStream.schema("k int, more string").json(str(Path(__file__).parent))
    return rows.join(own, "k").select("k", "more")


def with_another_input(rows: DataFrame) -> DataFrame:
    own = rows.sparkSession.readStream.format("unbroken").schema(rows.schema)
    return rows.union(own.options(gate="", token="", replica="", inbox="", streams="").load())


FOREIGN: dict[str, tuple[Callable[..., Any], str]] = {
    "rate": (with_rate, "(rate)"),
    "files": (joined_with_files, "(FileSource"),
    "made like an input": (with_another_input, "(unbroken)"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_stream_of_its_own(spark: SparkSession, case: str) -> None:
    function, kind = FOREIGN[case]
    problem = refusal(one_segment(function), spark)
    assert f"reads a stream of its own {kind}" in problem.what and "flow.source(" in problem.remedy


def test_an_input_of_another_segment(spark: SparkSession) -> None:
    seen: list[DataFrame] = []
    flow = Dataflow("borrowing", nodes=2)
    flow.source("a", source())

    @flow.segment("a", name="first")
    def first(a: DataFrame) -> DataFrame:
        seen.append(a)
        return a.select("k")

    flow.segment("a", name="second")(lambda a: a.select("k").union(seen[0].select("k")))
    for name in ("first", "second"):
        flow.sink(f"out-{name}", name, Client())
    assert "a stream of its own (unbroken)" in refusal(flow, spark, "segment second").what


def starting(rows: DataFrame) -> DataFrame:
    rows.writeStream.format("memory").queryName("own").start()
    return rows


def starting_in_secret(rows: DataFrame) -> DataFrame:
    with contextlib.suppress(Exception):
        rows.writeStream.foreachBatch(lambda frame, number: None).start()
    return rows


def starting_into_a_table(rows: DataFrame) -> DataFrame:
    rows.writeStream.toTable("own")
    return rows


def starting_in_a_thread(rows: DataFrame) -> DataFrame:
    with ThreadPoolExecutor(1) as others:
        others.submit(starting, rows)
    return rows


@pytest.mark.parametrize("function", [starting, starting_in_secret, starting_into_a_table, starting_in_a_thread])
def test_a_query_of_its_own_is_not_started(spark: SparkSession, function: Callable[..., Any]) -> None:
    before = {query.id for query in spark.streams.active}
    problem = refusal(one_segment(function), spark)
    assert "the function of segment seg starts a query of its own (writeStream." in problem.what
    assert "declare a sink" in problem.remedy
    assert {query.id for query in spark.streams.active} == before


def starting_around_python(rows: DataFrame) -> DataFrame:
    rate = rows.sparkSession.readStream.format("rate").load()
    rate._jdf.writeStream().format("memory").queryName("around").start()
    return rows


def starting_around_python_and_failing(rows: DataFrame) -> DataFrame:
    starting_around_python(rows)
    raise ValueError("on purpose")


def test_a_query_that_was_started_around_python_is_stopped(spark: SparkSession) -> None:
    before = {query.id for query in spark.streams.active}
    problem = refusal(one_segment(starting_around_python), spark)
    assert "the function of segment seg starts a query of its own (around)" in problem.what
    assert {query.id for query in spark.streams.active} == before
    refusal(one_segment(starting_around_python_and_failing), spark)
    assert {query.id for query in spark.streams.active} == before


def merging(frame: DataFrame, place: str) -> None:
    frame.mergeInto("own", F.lit(True)).whenNotMatched().insertAll().merge()


WRITES: dict[str, Callable[[DataFrame, str], Any]] = {
    "write.parquet": lambda frame, place: frame.write.parquet(place),
    "write.json": lambda frame, place: frame.write.mode("append").json(place),
    "write.csv": lambda frame, place: frame.write.csv(place),
    "write.orc": lambda frame, place: frame.write.orc(place),
    "write.text": lambda frame, place: frame.selectExpr("string(id)").write.text(place),
    "write.save": lambda frame, place: frame.write.format("parquet").save(place),
    "write.saveAsTable": lambda frame, place: frame.write.option("path", place).saveAsTable("own"),
    "write.insertInto": lambda frame, place: frame.write.insertInto("own"),
    "write.jdbc": lambda frame, place: frame.write.jdbc(f"jdbc:derby:{place};create=true", "own"),
    "writeTo.append": lambda frame, place: frame.writeTo("own").append(),
    "writeTo.createOrReplace": lambda frame, place: frame.writeTo("own").createOrReplace(),
    "mergeInto.merge": merging,
    "DataFrame.foreachPartition": lambda frame, place: frame.foreachPartition(print),
    "SQL: InsertIntoDir": lambda frame, place: frame.sparkSession.sql(
        f"INSERT OVERWRITE DIRECTORY '{place}' USING parquet SELECT 1 AS id"
    ),
    "SQL: CreateTableAsSelect": lambda frame, place: frame.sparkSession.sql(
        f"CREATE TABLE own USING parquet LOCATION '{place}' AS SELECT 1 AS id"
    ),
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in a thread"])
@pytest.mark.parametrize("kind", WRITES)
def test_a_segment_writes_nothing(spark: SparkSession, kind: str, elsewhere: bool, tmp_path: Path) -> None:
    place = tmp_path / "own"

    def segment(rows: DataFrame) -> DataFrame:
        some = spark.range(3)
        with contextlib.suppress(Exception):
            if elsewhere:
                with ThreadPoolExecutor(1) as others:
                    others.submit(WRITES[kind], some, str(place)).result(60)
            else:
                WRITES[kind](some, str(place))
        return rows.select("k")

    problem = refusal(one_segment(segment), spark)
    assert "the function of segment seg" in problem.what and f"({kind})" in problem.what
    assert "before the flow is started" in problem.remedy
    assert not place.exists()


def test_a_segment_may_read_a_table_and_use_sql(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "known"))

    def segment(rows: DataFrame) -> DataFrame:
        spark.read.parquet(str(tmp_path / "known")).createOrReplaceTempView("known")
        assert spark.sql("SELECT count(*) AS n FROM known").first() == (3,)
        with pytest.raises(ParseException):
            spark.sql("SELEC 1")
        return rows.select("k")

    check(one_segment(segment), spark)


def test_queries_of_replicas_are_started_beside_a_segment_that_is_looked_at(
    spark: SparkSession, tmp_path: Path
) -> None:
    """On a node other threads start them meanwhile, and they continue."""
    queries: list[StreamingQuery] = []

    def segment(rows: DataFrame) -> DataFrame:
        with ThreadPoolExecutor(1) as others:
            others.submit(start).result(60)
        return rows.select("k")

    def start() -> None:
        rate = spark.readStream.format("rate").load()
        writer = rate.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(len(queries))))
        queries.append(start_query(writer, "replica"))

    try:
        assert check(one_segment(segment), spark).schemas["seg"].names == ["k"]
        start()
        assert all(query.isActive for query in queries)
    finally:
        for query in queries:
            query.stop()


@pytest.mark.parametrize("url", ["s3://bucket/snapshots", "nofs:/snapshots"])
def test_snapshots_where_spark_cannot_write(spark: SparkSession, url: str, tmp_path: Path) -> None:
    flow = one_segment(lambda a: a.select("k"))
    flow.settings = flow.settings.model_copy(update={"snapshots": url})
    with pytest.raises(FlowError) as caught:
        check(flow, spark)
    (problem,) = caught.value.problems
    assert f"Spark cannot write snapshots to {url}: No FileSystem for scheme" in problem.what
    for good in (str(tmp_path), f"file://{tmp_path}", "hdfs://node:8020/snapshots", "hdfs:/snapshots"):
        flow.settings = flow.settings.model_copy(update={"snapshots": good})
        check(flow, spark)


@pytest.mark.parametrize("place", ["~/snapshots", "s3:bucket", " /snapshots"])
def test_snapshots_in_places_that_are_not_what_they_seem(spark: SparkSession, place: str) -> None:
    flow = one_segment(lambda a: a.select("k"))
    flow.settings = flow.settings.model_copy(update={"snapshots": place})
    with pytest.raises(FlowError) as caught:
        check(flow, spark)
    (problem,) = caught.value.problems
    assert "the place of snapshots" in problem.what and "write " in problem.remedy


def test_output_modes_that_spark_cannot_run(spark: SparkSession) -> None:
    problem = refusal(one_segment(lambda a: a.groupBy("k").count()), spark)
    assert "output mode 'append'" in problem.what and "watermark" in problem.remedy
    check(one_segment(lambda a: a.groupBy("k").count(), output_mode="update"), spark)
    windows = one_segment(lambda a: a.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 second")).count())
    check(windows, spark)


def test_sorting_a_stream_is_refused(spark: SparkSession) -> None:
    problem = refusal(one_segment(lambda a: a.orderBy("k")), spark)
    assert "Spark cannot run it" in problem.what


# --- columns --------------------------------------------------------------------------------------------------


def test_columns_that_occur_twice(spark: SparkSession) -> None:
    problem = refusal(one_segment(lambda a: a.select("k", F.col("v").alias("K"))), spark)
    assert "more than once: k" in problem.what and "rename" in problem.remedy


@pytest.mark.parametrize("name", ["__ub_hash", "__ub_shard_0", "__UB_x"])
def test_reserved_columns(spark: SparkSession, name: str) -> None:
    problem = refusal(one_segment(lambda a: a.select("k", F.col("v").alias(name))), spark)
    assert name.lower() in problem.what and "reserved" in problem.what and "rename" in problem.remedy


# --- determinism ----------------------------------------------------------------------------------------------


NONDETERMINISTIC: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "rand": (lambda a: a.select("k", F.rand(7).alias("r")), "rand(7)", "xxhash64"),
    "uuid": (lambda a: a.selectExpr("k", "uuid() AS u"), "uuid()", "xxhash64"),
    "current_timestamp": (
        lambda a: a.select("k", F.current_timestamp().alias("t")),
        "current_timestamp()",
        "cut_time=",
    ),
    "monotonically_increasing_id": (
        lambda a: a.select("k", F.monotonically_increasing_id().alias("i")),
        "monotonically_increasing_id()",
        "at the source",
    ),
    "first": (lambda a: a.groupBy("k").agg(F.first("v").alias("f")), "first(v)", "min_by"),
    "collect_list": (lambda a: a.groupBy("k").agg(F.collect_list("v").alias("l")), "collect_list(v)", "sort_array"),
}


@pytest.mark.parametrize("case", NONDETERMINISTIC)
def test_what_differs_between_replicas(spark: SparkSession, case: str) -> None:
    function, expression, remedy = NONDETERMINISTIC[case]
    # Spark itself refuses some of these in streams as well.
    problem, *others = refusals(one_segment(function, output_mode="update"), spark)
    assert all("Spark cannot run it" in other.what for other in others)
    assert problem.what.startswith(f"{expression}: ")
    assert remedy in problem.remedy


def test_everything_is_told_at_once_and_nothing_as_an_echo(spark: SparkSession) -> None:
    flow = Dataflow("many", nodes=2)
    flow.source("a", source())
    flow.segment("a", name="one")(lambda a: a.select(F.rand().alias("r"), F.expr("uuid()").alias("u")))
    flow.segment("a", name="two")(lambda a: a.select("nope"))
    flow.segment("two", name="echo")(lambda rows: rows.select("nope"))
    flow.segment("one", name="three")(lambda rows: rows.groupBy("u").count())
    for name in ("echo", "three"):
        flow.sink(f"out-{name}", name, Client())
    with pytest.raises(FlowError) as caught:
        check(flow, spark)
    parts = sorted(problem.where.rpartition(" ")[2] for problem in caught.value.problems)
    assert parts == ["one", "one", "three", "two"]


# --- the command ----------------------------------------------------------------------------------------------

HEAD = """\
import pyarrow as pa
from pyspark.sql import functions as F
from unbroken import Client, Dataflow, Generator

def rows(start, stop, seed):
    return pa.table({"k": list(range(start, stop))})

flow = Dataflow("commanded", nodes=2)
numbers = flow.source("numbers", Generator(rows, schema="k long", rate=10))
"""

GOOD = """
@flow.segment(numbers, output_mode="update")
def counts(numbers):
    return numbers.groupBy("k").count()

flow.sink("out", counts, Client())
"""

FAULTY = """
@flow.segment(numbers)
def random(numbers):
    return numbers.select(F.rand().alias("r"))

@flow.segment(numbers)
def counts(numbers):
    return numbers.groupBy("k").count()

@flow.segment(numbers)
def unknown(numbers):
    return numbers.select("missing")

for part in (random, counts, unknown):
    flow.sink("out-" + part.name, part, Client())
"""


def run_check(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: it starts and stops a Spark session."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "unbroken", "check", str(path), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def flow_file(directory: Path, text: str) -> Path:
    path = directory / "commanded_flow.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return path


@pytest.mark.spark
def test_the_command_accepts_a_good_file(tmp_path: Path) -> None:
    done = run_check(flow_file(tmp_path, GOOD), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ok": True,
        "flow": "commanded",
        "schemas": {"numbers": "struct<k:bigint>", "counts": "struct<k:bigint,count:bigint>"},
    }


class Borrowed:
    """The session of all tests, handed to a command that stops the session it has started."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        self.stopped = True


def test_the_command_refuses_a_faulty_file_with_all_its_faults(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = flow_file(tmp_path, FAULTY)
    borrowed = Borrowed(spark)
    monkeypatch.setattr("unbroken.spark.session.start_session", lambda *_: borrowed)
    done = CliRunner().invoke(cli, ["check", str(path), "--json"])
    assert done.exit_code == 2, done.output
    assert borrowed.stopped
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    told = {problem["where"].rpartition(" ")[2]: problem for problem in answer["problems"]}
    assert set(told) == {"random", "counts", "unknown"}
    for problem in answer["problems"]:
        assert problem["where"].startswith(f"{path}:") and problem["remedy"]
    assert "rand(" in told["random"]["what"]
    assert "append" in told["counts"]["what"]
    assert "missing" in told["unknown"]["what"]


def test_the_command_refuses_without_spark_what_needs_no_spark(tmp_path: Path) -> None:
    path = flow_file(tmp_path, GOOD)
    done = run_check(path, "--nodes", "1")
    assert done.returncode == 2
    assert "refused" in done.stderr and "only 1 nodes" in done.stderr and "Traceback" not in done.stderr
    missing = run_check(tmp_path / "missing.py", "--json")
    assert missing.returncode == 2
    assert json.loads(missing.stdout)["problems"][0]["what"] == "there is no such file"

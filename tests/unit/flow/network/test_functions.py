"""What each operator makes of rows, and what Spark says of whole networks."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kit.places import ROOT
from unbroken.cli import cli
from unbroken.errors import FlowError, Problem
from unbroken.flow.network.base import OperatorPlace, WrongUse
from unbroken.flow.network.operators import OPERATORS
from unbroken.flow.plan import build_topology
from unbroken.spark.analysis.analysis import Analysis, analyse
from unit.flow.network.written import load, network

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOCS = ROOT / "docs" / "networks.md"
CLICKS = "user string, ms long, at timestamp, ok boolean, day date"
VIEWS = "id string, seen timestamp, page string"
START = datetime(2026, 1, 1)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def clicks(spark: SparkSession) -> DataFrame:
    rows = [
        ("ann", 50, at(10), True, START.date()),
        ("ann", 150, at(50), False, START.date()),
        ("bob", 250, at(70), None, at(86_400).date()),
        (None, None, None, None, None),
    ]
    return spark.createDataFrame(rows, CLICKS)


@pytest.fixture(scope="module")
def views(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("ann", at(15), "home"), ("eve", at(15), "shop")], VIEWS)


def function(name: str, parameters: dict[str, Any], *inputs: str) -> Any:
    return OPERATORS[name].model_validate(parameters).function(OperatorPlace(inputs, Path.cwd(), 1))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


# --- row by row -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "comparison", "value", "wanted"),
    [
        ("ms", "=", 150, [150]),
        ("ms", "!=", 150, [50, 250]),
        ("ms", "<", 150, [50]),
        ("ms", "<=", 150, [50, 150]),
        ("ms", ">", 99.5, [150, 250]),
        ("ms", ">=", 150, [150, 250]),
        ("ms", "in", [50, 250, 7], [50, 250]),
        ("user", "=", "ann", [50, 150]),
        ("user", "in", ["bob", "eve"], [250]),
        ("user", "contains", "n", [50, 150]),
        ("user", "like", "_o%", [250]),
        ("ok", "=", True, [50]),
        ("ok", "!=", True, [150]),
        ("at", ">", "2026-01-01T00:00:50", [250]),
        ("at", ">=", "2026-01-01 00:00:50", [150, 250]),
        ("day", "=", "2026-01-02", [250]),
    ],
)
def test_filter(clicks: DataFrame, field: str, comparison: str, value: Any, wanted: list[int]) -> None:
    found = function("filter", {"field": field, "is": comparison, "value": value}, "clicks")(clicks)
    assert found.columns == clicks.columns
    assert sorted(row.ms for row in found.collect()) == wanted


def test_filter_by_null_and_by_sql(clicks: DataFrame) -> None:
    assert function("filter", {"field": "user", "is": "is null"}, "clicks")(clicks).count() == 1
    assert function("filter", {"field": "user", "is": "is not null"}, "clicks")(clicks).count() == 3
    assert function("filter", {"where": "ms > 200 OR user IS NULL"}, "clicks")(clicks).count() == 2


@pytest.mark.parametrize(
    ("field", "comparison", "value"),
    [("ms", "=", "150"), ("ms", "=", True), ("user", "=", 5), ("ok", "=", 1), ("at", ">", "soon"), ("ms", "like", "5")],
)
def test_values_that_do_not_fit_the_field(clicks: DataFrame, field: str, comparison: str, value: Any) -> None:
    with pytest.raises(WrongUse, match=field):
        function("filter", {"field": field, "is": comparison, "value": value}, "clicks")(clicks)


def test_map(clicks: DataFrame) -> None:
    found = function("map", {"who": "upper(user)", "s": "ms / 1000", "one": 1, "yes": True}, "clicks")(clicks)
    assert found.columns == ["who", "s", "one", "yes"]
    assert ("BOB", 0.25, 1, True) in rows(found)


def test_union_and_dup(clicks: DataFrame) -> None:
    turned = clicks.select(*reversed(clicks.columns))
    found = function("union", {}, "clicks", "turned")(clicks, turned)
    assert found.columns == clicks.columns and rows(found) == sorted(rows(clicks) * 2, key=repr)
    with pytest.raises(WrongUse, match=r"clicks and other do not have the same columns: \['ok'\]"):
        function("union", {}, "clicks", "other")(clicks, clicks.drop("ok"))
    assert rows(function("dup", {}, "clicks")(clicks)) == rows(clicks)


# --- with state, on a batch -----------------------------------------------------------------------------------


def test_count(clicks: DataFrame) -> None:
    assert rows(function("count", {}, "clicks")(clicks)) == [(4,)]
    found = function("count", {"by": "user", "as": "n"}, "clicks")(clicks)
    assert found.columns == ["user", "n"] and rows(found) == [("ann", 2), ("bob", 1), (None, 1)]


def test_uniq_has_the_fields_only(clicks: DataFrame) -> None:
    found = function("uniq", {"field": "user"}, "clicks")(clicks)
    assert found.columns == ["user"] and rows(found) == [("ann",), ("bob",), (None,)]
    found = function("uniq", {}, "clicks")(clicks.union(clicks))
    assert found.columns == clicks.columns and rows(found) == rows(clicks)


def test_aggregate(clicks: DataFrame) -> None:
    values = {"n": "count(*)", "worst": "max(ms)"}
    assert rows(function("aggregate", {"values": values}, "clicks")(clicks)) == [(4, 250)]
    found = function("aggregate", {"by": "user", "values": values}, "clicks")(clicks)
    assert found.columns == ["user", "n", "worst"]
    assert rows(found) == [("ann", 2, 150), ("bob", 1, 250), (None, 1, None)]
    window = {"time": "at", "size": "1 minute", "slide": "30s"}
    found = function("aggregate", {"window": window, "by": ["user"], "values": values}, "clicks")(clicks)
    assert found.columns == ["window_start", "window_end", "user", "n", "worst"]
    assert rows(found) == sorted(
        [
            (at(-30), at(30), "ann", 1, 50),
            (at(0), at(60), "ann", 2, 150),
            (at(30), at(90), "ann", 1, 150),
            (at(30), at(90), "bob", 1, 250),
            (at(60), at(120), "bob", 1, 250),
        ],
        key=repr,
    )


ANN = [("ann", 50, at(15), "home"), ("ann", 150, at(15), "home")]
ALONE = [("bob", 250, None, None), (None, None, None, None)]
EVE = [("eve", None, at(15), "shop")]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("inner", ANN), ("left", ANN + ALONE), ("right", ANN + EVE), ("full", ANN + ALONE + EVE)],
)
def test_join(clicks: DataFrame, views: DataFrame, kind: str, wanted: list[Any]) -> None:
    left = clicks.select("ms", "user")
    found = function("join", {"on": {"user": "id"}, "kind": kind}, "clicks", "views")(left, views)
    assert found.columns == ["user", "ms", "seen", "page"] and rows(found) == sorted(wanted, key=repr)


def test_join_semi_and_within(clicks: DataFrame, views: DataFrame) -> None:
    found = function("join", {"on": {"user": "id"}, "kind": "semi"}, "clicks", "views")(clicks, views)
    assert found.columns == clicks.columns and [row.ms for row in found.collect()] == [50, 150]
    near = {"on": {"user": "id"}, "time": {"clicks": "at", "views": "seen"}, "within": "5s"}
    found = function("join", near, "clicks", "views")(clicks, views)
    assert [row.ms for row in found.collect()] == [50]
    same = views.withColumnRenamed("id", "user").withColumnRenamed("seen", "at")
    with pytest.raises(WrongUse, match="both have the column 'at'"):
        function("join", {"on": "user"}, "clicks", "views")(clicks, same)


# --- with state, from micro-batch to micro-batch --------------------------------------------------------------


class Stream:
    """Runs an operator on micro-batches: one file of each input is one of them."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory

    def _input(self, name: str, schema: str, batches: list[list[dict[str, Any]]]) -> DataFrame:
        folder = self._directory / name
        folder.mkdir()
        for number, batch in enumerate(batches):
            path = folder / f"{number}.json"
            path.write_text("".join(json.dumps(row, default=str) + "\n" for row in batch))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))

    def run(
        self, function: Any, mode: str, inputs: dict[str, tuple[str, list[list[dict[str, Any]]]]]
    ) -> list[list[tuple[Any, ...]]]:
        """The result of each micro-batch."""
        out: list[list[tuple[Any, ...]]] = []
        frames = [self._input(name, schema, batches) for name, (schema, batches) in inputs.items()]
        query = (
            function(*frames)
            .writeStream.outputMode(mode)
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(lambda frame, _: out.append(rows(frame)))
            .start()
        )
        try:
            assert query.awaitTermination(60), "the query takes more than a minute"
        finally:
            query.stop()
        return out


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def click(user: str, seconds: int, ms: int = 1) -> dict[str, Any]:
    return {"user": user, "at": at(seconds), "ms": ms}


def test_a_count_goes_on(stream: Stream) -> None:
    batches = [[click("ann", 1), click("bob", 1)], [click("ann", 2)], [click("eve", 2)]]
    found = stream.run(function("count", {"by": "user"}, "clicks"), "update", {"clicks": (CLICKS, batches)})
    assert found == [[("ann", 1), ("bob", 1)], [("ann", 2)], [("eve", 1)]]


def test_uniq_remembers_and_forgets_behind_the_watermark(stream: Stream) -> None:
    batches = [[click("ann", 10)] * 2, [click("ann", 10), click("ann", 11)], [click("bob", 100)], [click("ann", 10)]]
    parameters = {"field": ["user", "at"], "time": "at", "watermark": "5s"}
    found = stream.run(function("uniq", parameters, "clicks"), "append", {"clicks": (CLICKS, batches)})
    assert found == [[("ann", at(10))], [("ann", at(11))], [("bob", at(100))], []]


def test_windows_are_passed_on_once_when_the_watermark_has_passed_them(stream: Stream) -> None:
    batches = [
        [click("ann", 10, 5), click("ann", 50, 7)],
        [click("ann", 55, 9)],
        [click("ann", 80)],
        [click("bob", 90)],
    ]
    parameters = {
        "window": {"time": "at", "size": "1 minute"},
        "watermark": "10 seconds",
        "by": "user",
        "values": {"n": "count(*)", "worst": "max(ms)"},
    }
    found = stream.run(function("aggregate", parameters, "clicks"), "append", {"clicks": (CLICKS, batches)})
    assert [row for batch in found for row in batch] == [(at(0), at(60), "ann", 3, 9)]


def test_an_outer_join_gives_up_waiting_behind_the_watermark(stream: Stream) -> None:
    batches = [[click("ann", 10), click("bob", 10)], [click("eve", 100)], [click("eve", 200)]]
    shown = [
        [{"id": "ann", "seen": at(12), "page": "home"}],
        [{"id": "x", "seen": at(100), "page": "home"}],
        [{"id": "x", "seen": at(200), "page": "home"}],
    ]
    parameters = {
        "on": {"user": "id"},
        "kind": "left",
        "time": {"clicks": "at", "views": "seen"},
        "watermark": "10s",
        "within": "20s",
    }
    joined = function("join", parameters, "clicks", "views")
    found = stream.run(
        lambda left, right: joined(left.select("user", "at"), right),
        "append",
        {"clicks": (CLICKS, batches), "views": (VIEWS, shown)},
    )
    assert ("ann", at(10), at(12), "home") in found[0]
    assert [row for batch in found[1:] for row in batch if row[0] == "bob"] == [("bob", at(10), None, None)]


# --- whole networks -------------------------------------------------------------------------------------------


def check(text: str, spark: SparkSession, path: Path = Path("net.yaml")) -> Analysis:
    flow = load(text, path)
    return analyse(flow, tuple(build_topology(flow).segments), spark)


def refusals(operators: str, spark: SparkSession) -> list[Problem]:
    used = "both: {input: [clicks, views], join: {on: {user: id}}}"
    with pytest.raises(FlowError) as caught:
        check(network(f"{used}\n{operators}"), spark)
    return caught.value.problems


@pytest.mark.parametrize(
    ("operator", "what"),
    [
        ("{input: clicks, filter: {field: mss, is: '>', value: 1}}", "mss"),
        ("{input: clicks, filter: {field: ms, is: '>', value: x}}", "cannot be compared with 'x'"),
        ("{input: clicks, filter: {where: 'ms > ('}}", "PARSE_SYNTAX_ERROR"),
        ("{input: clicks, map: {a: 'upper(nobody)'}}", "nobody"),
        ("{input: clicks, map: {a: no_such_function(ms)}}", "no_such_function"),
        ("{input: clicks, map: {a: rand()}}", "rand"),
        ("{input: [clicks, views], union: {}}", "do not have the same columns"),
        ("{input: clicks, uniq: {field: nobody}}", "nobody"),
        ("{input: clicks, aggregate: {by: user, values: {a: ms}}}", "MISSING_AGGREGATION"),
        ("{input: clicks, aggregate: {by: user, values: {a: first(ms)}}}", "first"),
        ("{input: clicks, count: {by: user}, output_mode: append}", "output mode 'append'"),
        ("{input: [clicks, views], join: {on: {user: id}, kind: left}}", "output mode 'append'"),
        ("{input: clicks, count: {by: user}, shards: 2, shard_by: USER}", "'USER'"),
        ("{input: [clicks, views], custom: {function: operator:neg}}", "takes 1 arguments, but the segment has 2"),
    ],
)
def test_what_spark_refuses_has_the_line_of_the_operator(spark: SparkSession, operator: str, what: str) -> None:
    (problem,) = refusals(f"x: {operator}", spark)
    assert problem.where == "net.yaml:7, operator x"
    assert what in problem.what and problem.remedy


def test_all_operators_that_spark_refuses_are_told_at_once(spark: SparkSession) -> None:
    found = refusals("x: {input: clicks, map: {a: '('}}\ny: {input: views, map: {a: ')'}}", spark)
    assert [problem.where for problem in found] == ["net.yaml:7, operator x", "net.yaml:8, operator y"]


def test_functions_of_a_file_travel_to_sparks_python_processes(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from pyspark.sql import functions as F\n"
        "SCALE = 3\n"
        "def scale(x):\n"
        "    return x * SCALE\n"
        "def scaled(rows, column):\n"
        "    return rows.select(F.udf(scale, 'long')(column).alias('scaled'))\n"
    )
    text = network("x: {input: clicks, custom: {from: mine.py, function: scaled, with: {column: ms}}}")
    flow = load(text, tmp_path / "net.yaml")
    frame = spark.createDataFrame([(2,), (5,)], "ms long")
    assert rows(flow.segments["x"].function(frame)) == [(15,), (6,)]


def documented() -> str:
    """The example of the documentation."""
    return DOCS.read_text().partition("```yaml\n")[2].partition("```")[0]


def test_the_documented_example(spark: SparkSession, tmp_path: Path) -> None:
    schemas = check(documented(), spark, tmp_path / "clicks.yaml").schemas
    assert schemas["per_minute"].names == ["window_start", "window_end", "host", "clicks", "worst"]


def test_unbroken_check_takes_a_network(tmp_path: Path) -> None:
    """A file with mistakes: those are found before Spark is started."""
    path = tmp_path / "clicks.yaml"
    path.write_text(documented().replace("filter:", "filtre:"))
    result = CliRunner().invoke(cli, ["check", str(path), "--json"])
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["ok"] is False and "did you mean 'filter'?" in answer["problems"][0]["remedy"]

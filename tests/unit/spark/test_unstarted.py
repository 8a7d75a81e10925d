"""A flow's file declares Python functions at its top level, before Spark is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import types

from unbroken.data.ddl import parse_type
from unbroken.errors import FlowError, UnbrokenError
from unbroken.flow.loading import load_text

HEAD = """\
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from unbroken import Client, Dataflow, Generator

flow = Dataflow("declared", nodes=2)
numbers = flow.source("numbers", Generator(rate=10))
"""

FUNCTIONS = """
@F.udf("long")
def plus(x):
    return x + 1

@F.udf("a int, b array<string>", useArrow=False)
def both(x):
    return (1, ["x"])

@F.pandas_udf("long")
def twice(x: pd.Series) -> pd.Series:
    return x * 2

text = F.udf(lambda x: str(x))
SHAPE = StructType.fromDDL("n long, more map<string,int>")
"""

SEGMENT = """
@flow.segment(numbers, shards=2)
def computed(numbers):
    inside = F.udf(lambda x: x + 1, "long")
    made = numbers.select("n", plus("n").alias("p"), inside("n").alias("i"), twice("n").alias("t"),
                          both("n").alias("b"), text("n").alias("s"))
    assert plus._unwrapped.evalType == text._unwrapped.evalType == inside._unwrapped.evalType, "made otherwise"
    assert both._unwrapped.evalType != inside._unwrapped.evalType, "not as it was asked for"
    return made

flow.sink("out", computed, Client())
"""

DECLARED = {
    "long": types.LongType(),
    " INT ": types.IntegerType(),
    "decimal(5,2)": types.DecimalType(5, 2),
    "array<string>": types.ArrayType(types.StringType()),
    "map<string, array<int>>": types.MapType(types.StringType(), types.ArrayType(types.IntegerType())),
    "struct<a:int,b:string>": types.StructType().add("a", "integer").add("b", "string"),
    "a int, b string": types.StructType().add("a", "integer").add("b", "string"),
    "a: int": types.StructType().add("a", "integer"),
    "date date": types.StructType().add("date", "date"),
}


@pytest.mark.parametrize("text", DECLARED)
def test_types_as_spark_reads_them(text: str) -> None:
    assert parse_type(text) == DECLARED[text]


@pytest.mark.spark
def test_types_are_those_that_spark_reads(spark: object) -> None:
    for text in DECLARED:
        assert parse_type(text) == types._parse_datatype_string(text)


@pytest.mark.parametrize("text", ["", "blabla", "array<int", "long long long", "interval day to second", "int)"])
def test_types_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UnbrokenError, match="cannot be read before Spark is started; give an object of pyspark"):
        parse_type(text)


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    """Where no test has started Spark."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, *code.split(" ")], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.spark
def test_functions_that_a_file_declares(tmp_path: Path) -> None:
    path = tmp_path / "declared_flow.py"
    path.write_text(HEAD + FUNCTIONS + SEGMENT)
    done = in_a_process(f"-m unbroken check {path} --json")
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["schemas"]["computed"] == (
        "struct<n:bigint,p:bigint,i:bigint,t:bigint,b:struct<a:int,b:array<string>>,s:string>"
    )
    assert told["shard_by"] == {"computed": {"numbers": ["*"]}}


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ("BIG = F.col('n') > 3", "uses Spark while it is loaded, before Spark is started", "inside of the functions"),
        ("ONE = F.lit(1)", "uses Spark while it is loaded, before Spark is started", "F.udf) may stay"),
        ("odd = F.udf(lambda x: x, 'void')", "The type 'void' cannot be read", "give an object of pyspark.sql.types"),
        ("assert 1 > 2, 'mine'", "AssertionError: mine", "correct that line"),
    ],
)
def test_what_cannot_be_done_before_spark_is_started(tmp_path: Path, line: str, what: str, remedy: str) -> None:
    path = tmp_path / "early_flow.py"
    path.write_text(f"{HEAD}\n{line}\n")
    done = in_a_process(f"-m unbroken check {path} --json")
    assert done.returncode == 2, done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["where"] == f"{path}:{HEAD.count(chr(10)) + 2}"
    assert what in problem["what"] and remedy in problem["remedy"]


def test_pyspark_is_left_as_it_was(tmp_path: Path) -> None:
    from pyspark.sql import udf

    before = (types._parse_datatype_string, udf._parse_datatype_string)
    with pytest.raises(FlowError):
        load_text(tmp_path / "broken.py", "raise ValueError('mine')")
    assert (types._parse_datatype_string, udf._parse_datatype_string) == before

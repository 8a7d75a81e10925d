"""Lets a flow's file declare Python functions before Spark is started, as ``@F.udf("long")`` at its top level does.

PySpark reads types that are written as text in the JVM, which there is not when a file is loaded. While one is, they
are read in Python instead. Whether a function takes its rows by Arrow is a setting of the session, so that is looked up
when the function is first used: a function means the same whether it was declared before Spark was started or after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from unbroken.data.ddl import parse_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_ARROW = "spark.sql.execution.pythonUDF.arrow.enabled"


@contextmanager
def functions_before_spark() -> Iterator[None]:
    """While a flow's file is loaded; does nothing if Spark runs."""
    from pyspark import SparkContext
    from pyspark.sql import types, udf

    builtin: Any = import_module("pyspark.sql.functions.builtin")

    if SparkContext._active_spark_context is not None:
        yield
        return
    # A file may start Spark itself, and then go on declaring functions.
    parse = _reading(types._parse_datatype_string)
    replaced: list[tuple[Any, str, Any]] = [
        (types, "_parse_datatype_string", parse),
        (udf, "_parse_datatype_string", parse),
        (builtin, "_create_py_udf", _creating(builtin._create_py_udf)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    try:
        for module, name, value in replaced:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _reading(original: Callable[[str], DataType]) -> Callable[[str], DataType]:
    def parse(text: str) -> DataType:
        from pyspark import SparkContext

        return parse_type(text) if SparkContext._active_spark_context is None else original(text)

    return parse


def _creating(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(f: Callable[..., Any], returnType: DataType | str, useArrow: bool | None = None) -> Any:
        from pyspark import SparkContext
        from pyspark.util import PythonEvalType

        made = original(f, returnType, useArrow)
        function = made._unwrapped
        undecided = useArrow is None and function.evalType == PythonEvalType.SQL_BATCHED_UDF
        if undecided and SparkContext._active_spark_context is None:
            function._create_judf = _choosing(function, function._create_judf)
        return made

    return create


def _choosing(function: Any, create: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Spark's part of a function as the session says that functions are made."""

    def choose(*arguments: Any, **named: Any) -> Any:
        from pyspark.sql import SparkSession
        from pyspark.util import PythonEvalType

        session = SparkSession._getActiveSessionOrCreate()
        if session.conf.get(_ARROW) == "true":
            function.evalType = PythonEvalType.SQL_ARROW_BATCHED_UDF
        return create(*arguments, **named)

    return choose

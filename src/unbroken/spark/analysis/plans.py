"""Looking into Spark's logical plans through py4j."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Both are objects of the JVM.
Plan = Any
Expression = Any


def analysed(frame: DataFrame) -> Plan:
    """The analysed plan of a DataFrame, which shows what the user wrote; optimisation would replace some of it.

    Raises
    ------
    UnbrokenError
        If the DataFrame belongs to Spark Connect, whose plans cannot be looked into.
    """
    try:
        java_frame = frame._jdf
    except (AttributeError, PySparkException) as error:
        raise UnbrokenError(
            "the plan of a Spark Connect DataFrame cannot be checked: "
            "build the segment with a classic session (SparkSession.builder.master(...))"
        ) from error
    return java_frame.queryExecution().analyzed()


def items(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def class_of(node: Any) -> str:
    """The name of a plan's or expression's class, without its package."""
    name: str = node.getClass().getName()
    return name.rsplit(".", 1)[-1].rstrip("$")


def id_of(column: Expression) -> int:
    """The number by which Spark tells columns of a plan apart, whatever they are called."""
    return int(column.exprId().id())


def names_of(columns: list[Expression]) -> str:
    """Columns and expressions as their author would write them."""
    return ", ".join(
        column.name() if class_of(column) == "AttributeReference" else column.sql().replace("`", "")
        for column in columns
    )


def streaming_nodes(plan: Plan) -> Iterator[Plan]:
    """The streaming part of a plan; what is computed of tables alone begins anew with every micro-batch."""
    if plan.isStreaming():
        yield plan
    for child in items(plan.children()) + items(plan.subqueries()):
        yield from streaming_nodes(child)

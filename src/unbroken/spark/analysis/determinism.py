"""Finds what would make replicas of a segment differ, before it runs.

Replicas stay identical only if a micro-batch's result depends on nothing but its rows, as a set: not on
clocks, randomness, the machine, the number of a partition or the order in which rows arrive. The analysed
logical plan shows every expression and operator that the user wrote (optimisation would already have
replaced some, such as ``current_timestamp``), so the check walks that plan and compares class names with
tables of what is known to differ. Whatever Spark itself calls non-deterministic is refused as well.

Sums and averages of doubles are accepted although they depend on order in their last bits: digests compare
floating-point columns by tolerance. Python functions are taken at their word: Spark treats them as
deterministic unless marked otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import is_instance_of

from unbroken.spark.analysis.plans import Expression, Plan, analysed, class_of, items
from unbroken.spark.analysis.refusals import (
    AES_RANDOM,
    BY_CLASS,
    LIMITED,
    ORDER_BLIND,
    OTHERWISE,
    PROCESSING_TIME,
    PYTHON_FUNCTION,
    PYTHON_TABLE_FUNCTION,
    SAMPLED,
    Refusal,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAN_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.PlanExpression"


@dataclass(frozen=True)
class Finding:
    """One thing that would make replicas differ: as the user wrote it, why, and what to use instead."""

    expression: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.expression}: {self.why}\n    -> {self.remedy}"


def find_nondeterminism(df: DataFrame) -> list[Finding]:
    """Everything in a streaming or batch DataFrame that could differ between replicas; empty if nothing.

    Findings come in the order of the plan from the result backwards, each once.

    Raises
    ------
    UnbrokenError
        If the DataFrame belongs to Spark Connect, whose plans cannot be looked into.
    """
    plan = analysed(df)
    walker = _Walker(df.sparkSession._jvm, df.sparkSession.sparkContext._gateway)
    findings = walker.plan(plan)
    return list(dict.fromkeys(findings))


class _Walker:
    """Walks plans and expressions through py4j; each visit yields the findings at that node and below."""

    def __init__(self, jvm: Any, gateway: Any) -> None:
        package = getattr(jvm.org.apache.spark.sql.catalyst.util, "package$")
        self._pretty = getattr(package, "MODULE$")
        self._gateway = gateway

    def plan(self, node: Plan) -> Iterator[Finding]:
        yield from self._operator(node)
        for expression in items(node.expressions()):
            yield from self._expression(expression, parent="")
        if class_of(node) == "GlobalLimit" and class_of(node.child()) == "LocalLimit":
            # A limit is one node for all partitions above one for each: one finding is enough.
            node = node.child()
        for child in items(node.children()) + items(node.subqueries()):
            yield from self.plan(child)

    def _operator(self, node: Plan) -> Iterator[Finding]:
        name = class_of(node)
        if name == "Sample":
            share = node.upperBound() - node.lowerBound()
            yield _finding(f"sample({share:g})", SAMPLED)
        elif name in ("GlobalLimit", "LocalLimit", "Offset", "Tail") and not _is_sorted(node.child()):
            count = items(node.expressions())[0].toString()
            word = "limit" if name.endswith("Limit") else name.lower()
            yield _finding(f"{word}({count})", LIMITED)
        elif name == "FlatMapGroupsInPandasWithState" and "ProcessingTime" in str(node.timeout()):
            yield _finding("applyInPandasWithState(..., ProcessingTimeTimeout)", PROCESSING_TIME)
        elif name == "TransformWithStateInPySpark" and "ProcessingTime" in node.timeMode().toString():
            yield _finding("transformWithState(..., timeMode='processingTime')", PROCESSING_TIME)

    def _expression(self, node: Expression, parent: str) -> Iterator[Finding]:
        """``parent`` is the class of what this expression is directly inside of."""
        name = class_of(node)
        children = items(node.children())
        refusal = self._refusal(node, name, parent, children)
        if refusal:
            yield _finding(self._pretty.toPrettySQL(node, True), refusal)
        # The wrapper that Spark puts around each aggregate was not written by the user.
        inside = parent if name == "AggregateExpression" else name
        for child in children:
            yield from self._expression(child, inside)

    def _refusal(self, node: Expression, name: str, parent: str, children: list[Expression]) -> Refusal | None:
        if name in ("CollectList", "CollectSet") and parent in ORDER_BLIND:
            return None
        if name == "ListAgg" and len(children) > 2:
            return None  # It has an ORDER BY.
        if name == "Mode" and node.reverseOpt().isDefined():
            return None  # mode(x, true): of several the smallest.
        if name == "AesEncrypt":
            return AES_RANDOM if _has_random_vector(children) else None
        if name in BY_CLASS:
            return BY_CLASS[name]
        if node.deterministic() or not all(child.deterministic() for child in children):
            return None
        if is_instance_of(self._gateway, node, _PLAN_EXPRESSION):
            return None  # A subquery: its own plan is walked and the cause found there.
        if name == "PythonUDTF":
            return PYTHON_TABLE_FUNCTION
        return PYTHON_FUNCTION if "Python" in name else OTHERWISE


def _finding(expression: str, refusal: Refusal) -> Finding:
    return Finding(expression, refusal.why, refusal.remedy)


def _is_sorted(node: Plan) -> bool:
    """Whether a limit's input is in one total order, so that the rows it takes are the same everywhere."""
    name = class_of(node)
    if name in ("LocalLimit", "Offset", "GlobalLimit", "Project", "SubqueryAlias"):
        return _is_sorted(node.child())
    return name == "Sort" and bool(getattr(node, "global")())


def _has_random_vector(arguments: list[Expression]) -> bool:
    """Whether aes_encrypt(input, key, mode, padding, vector, extra) makes up its initialisation vector."""
    mode, vector = arguments[2], arguments[4]
    empty = vector.foldable() and vector.sql() in ("CAST('' AS BINARY)", "X''")
    return empty and mode.toString().upper() != "ECB"

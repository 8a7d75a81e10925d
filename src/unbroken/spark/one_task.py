"""A micro-batch as one task, where it cannot be more anyway.

With one partition of state all rows of a micro-batch meet in one task. Spark does not see that they can be there from
the beginning: it shuffles them, with a stage before and one after, which of a small micro-batch is a fifth to a third
of the work, and for the two inputs of a join twice. If the rows below an operator with state come in one partition,
which ``coalesce(1)`` says, there is nothing to shuffle. It has to be said right below the operator: some others, such
as watermarks and Python functions, forget how rows are spread.

Rows that meet state twice on their way, such as windows of windows, are shuffled in between as before: two aggregations
in one task would get hold of each other's state.

State and results stay what they are, so a checkpoint may be gone on with either way.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from unbroken.spark.plans import Plan, analysed, class_of, items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

WITH_STATE = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "Join",
        "TransformWithStateInPySpark",
    }
)
"""Operators on streams that bring all rows with equal keys together."""


def as_one_task(frame: DataFrame) -> DataFrame:
    """A streaming ``frame`` with the rows below its operators with state in one partition, if that is of use."""
    from pyspark.sql import DataFrame

    session = frame.sparkSession
    if session.conf.get("spark.sql.shuffle.partitions") != "1":
        return frame
    try:
        plan = analysed(frame)
        if _deepest(plan) != 1:
            return frame
        jvm: Any = session.sparkContext._jvm
        changed = _Rewriting(jvm).rewritten(plan)
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, changed), session)
    except (Py4JError, TypeError) as error:
        # Another Spark than this was written for: all is as it should be, and takes a little longer.
        log.warning("micro-batches are shuffled, because their plan cannot be changed: %s", error)
        return frame


def _deepest(node: Plan) -> int:
    """How many operators with state rows meet at most on their way."""
    below = max((_deepest(child) for child in _streams(node)), default=0)
    return below + _has_state(node)


def _has_state(node: Plan) -> bool:
    return class_of(node) in WITH_STATE and len(_streams(node)) == node.children().size()


def _streams(node: Plan) -> list[Plan]:
    return [child for child in items(node.children()) if child.isStreaming()]


class _Rewriting:
    """Makes another plan of one, through py4j."""

    def __init__(self, jvm: Any) -> None:
        self._repartition = jvm.org.apache.spark.sql.catalyst.plans.logical.Repartition
        self._list = jvm.java.util.ArrayList
        self._sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq

    def rewritten(self, node: Plan) -> Plan:
        """The plan with its streams in one partition where they meet state."""
        if _has_state(node):
            after = [self._repartition(1, False, child) for child in items(node.children())]
        elif not _streams(node):
            return node
        else:
            after = [self.rewritten(child) if child.isStreaming() else child for child in items(node.children())]
        listed = self._list()
        for child in after:
            listed.add(child)
        return node.withNewChildren(self._sequence(listed))

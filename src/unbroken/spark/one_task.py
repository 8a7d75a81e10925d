"""A micro-batch as one task, where it cannot be more anyway.

With one partition of state all rows of a micro-batch meet in one task. Spark does not see that they can be there from
the beginning: it shuffles them, with a stage before and one after, which of a small micro-batch is a fifth to a third
of the work, and for the two inputs of a join twice. If the rows below an operator with state come in one partition,
which ``coalesce(1)`` says, there is nothing to shuffle. It has to be said right below the operator: some others, such
as watermarks and Python functions, forget how rows are spread.

A plan with two operators with state, one above the other or side by side, is left as it is: in one task they would get
hold of each other's state. So is one in which the user says how rows are spread, and one of which it cannot be seen
what the optimiser makes of it; with the others, state and results stay what they are, so that a checkpoint may be gone
on with either way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from unbroken.spark.analysis.plans import Plan, analysed, class_of, items

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

LEFT_ALONE = frozenset(
    {"Except", "Intersect", "RebalancePartitions", "Repartition", "RepartitionByExpression", "WithCTE"}
)
"""How rows are spread is said by the user; or another operator with state comes of it in the end."""


def as_one_task(frame: DataFrame) -> DataFrame:
    """A streaming ``frame`` with the rows below its operators with state in one partition, if that is of use."""
    from pyspark.sql import DataFrame

    session = frame.sparkSession
    if session.conf.get("spark.sql.shuffle.partitions") != "1":
        return frame
    try:
        plan = analysed(frame)
        if not _suitable(plan):
            return frame
        jvm: Any = session.sparkContext._jvm
        changed = _Rewriting(jvm).rewritten(plan)
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, changed), session)
    except (Py4JError, PySparkException, TypeError) as error:
        # Another Spark than this was written for: all is as it should be, and takes a little longer.
        log.warning("micro-batches are shuffled, because their plan cannot be changed: %s", error)
        return frame


def _suitable(plan: Plan) -> bool:
    """Whether rows meet state at one place, with nothing around it that decides how they come there."""
    on_the_way = list(_all_streams(plan))
    places = [node for node in on_the_way if _has_state(node)]
    if len(places) != 1 or any(class_of(node) in LEFT_ALONE for node in on_the_way):
        return False
    # The optimiser changes the order of joins, and with it what is kept of their rows, unless something is in between.
    return class_of(places[0]) != "Join" or not any(
        class_of(node) == "Join" for child in _streams(places[0]) for node in _all_streams(child)
    )


def _all_streams(node: Plan) -> Iterator[Plan]:
    """A plan and what is below it, as far as it is on streams."""
    yield node
    for child in _streams(node):
        yield from _all_streams(child)


def _has_state(node: Plan) -> bool:
    """Both sides of a join have to be streams; what else has state may get its beginning from a table."""
    name, streams = class_of(node), len(_streams(node))
    return name in WITH_STATE and (streams == node.children().size() if name == "Join" else streams > 0)


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
            after = [
                self._repartition(1, False, child) if child.isStreaming() else child for child in items(node.children())
            ]
        elif not _streams(node):
            return node
        else:
            after = [self.rewritten(child) if child.isStreaming() else child for child in items(node.children())]
        listed = self._list()
        for child in after:
            listed.add(child)
        return node.withNewChildren(self._sequence(listed))

"""Whether the rows of a segment's inputs may be split as its author says; and how, if the author does not say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.data.schema import arrow_schema
from unbroken.data.sharding import EVERYTHING, check_key_type, key_columns_of
from unbroken.errors import Problem, UnbrokenError
from unbroken.flow.dataflow import Segment
from unbroken.flow.shard_keys import Need, Origin, ShardBy, Underivable, derived, parted, written
from unbroken.spark.analysis.lineage import find_needs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    Schemas = Mapping[str, StructType]


@dataclass(frozen=True)
class Splitting:
    """What is wrong with how rows are split; or, if nothing is and none were named, the columns they are split by."""

    problems: tuple[Problem, ...] = ()
    derived: ShardBy | None = None


def splitting(segment: Segment, frame: DataFrame, schemas: Schemas) -> Splitting:
    """How the inputs of a segment with several shards are split. ``frame`` is its result, over placeholders."""
    if segment.shards == 1 or segment.routing == "primary":
        return Splitting()
    needs = find_needs(frame, segment.name, schemas)
    if segment.routing == "random":
        return Splitting(tuple(_random_problems(segment, needs)))
    if any(segment.shard_by.values()):
        return Splitting(tuple(_split_problems(segment, needs, schemas)))
    return _derive(segment, needs, schemas)


def _random_problems(segment: Segment, needs: list[Need]) -> list[Problem]:
    if not needs:
        return []
    what = (
        f"routing='random' parts rows that {needs[0].operator} brings together: each replica would have a part of the "
        "result"
    )
    return [Problem(segment.where, what, "use routing='hashing' with shard_by, or leave routing out")]


def _split_problems(segment: Segment, needs: list[Need], schemas: Schemas) -> list[Problem]:
    """All operators that the columns of the author part rows of, with columns that would do instead."""
    found = _derived(segment, needs, schemas)
    out = []
    for need in parted(needs, segment.shard_by):
        if need.offers:
            parts = f"parts rows that {need.operator} brings together"
            what = f"{written(segment.shard_by)} {parts}: each of {segment.shards} shards would have a part of them"
        else:
            what = f"{need.operator} {need.why}, and there are {segment.shards} shards"
        if isinstance(found, Underivable):
            remedy = need.remedy if not need.offers else found.remedy
        else:
            remedy = f"write {written(found)}, or leave shard_by out"
        out.append(Problem(segment.where, what, remedy))
    return out


def _derive(segment: Segment, needs: list[Need], schemas: Schemas) -> Splitting:
    found = _derived(segment, needs, schemas)
    if isinstance(found, Underivable):
        what = f"shards={segment.shards}, but {found.why}"
        return Splitting((Problem(segment.where, what, found.remedy),))
    bare = [name for name, columns in found.items() if columns == (EVERYTHING,) and not _values(schemas[name])]
    if bare:
        what = f"shards={segment.shards}, but {bare[0]} has no column by which rows could be split"
        remedy = "add a column that is not floating-point and not nested, or name one in shard_by"
        return Splitting((Problem(segment.where, what, remedy),))
    return Splitting(derived=found)


def _derived(segment: Segment, needs: list[Need], schemas: Schemas) -> dict[str, tuple[str, ...]] | Underivable:
    def fit(position: Origin) -> bool:
        kinds = {schemas[name][column].dataType for name, column in position}
        return len(kinds) == 1 and all(_exact(column, kind) for kind in kinds for _, column in position)

    return derived(needs, list(dict.fromkeys(segment.inputs)), fit)


def _exact(column: str, kind: DataType) -> bool:
    """Whether a column can be a shard column unasked: replicas may differ in the last bits of floating-point ones."""
    from pyspark.sql.types import DoubleType, FloatType

    try:
        check_key_type(column, kind)
    except UnbrokenError:
        return False
    return not isinstance(kind, FloatType | DoubleType)


def _values(schema: StructType) -> list[str]:
    return key_columns_of(arrow_schema(schema), (EVERYTHING,))

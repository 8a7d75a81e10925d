"""Which rows the operators of a segment bring together, by columns of its inputs, read from the analysed plan.

Each column of the plan is followed from the inputs upwards for as long as its values stay what they were: renamed,
selected, filtered, united, joined. What is computed is another column: rows that agree in ``n % 5`` need not agree in
``n``. An operator that this module does not know is taken to need all rows, rather than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unbroken.flow.shard_keys import ONE_SHARD, Need, Origin, merged
from unbroken.spark.analysis.plans import (
    Expression,
    Plan,
    analysed,
    class_of,
    id_of,
    items,
    names_of,
    streaming_nodes,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

INPUT, SEGMENT = "input", "segment"
"""The options by which a streaming DataFrame is known to be an input, and of which segment."""

InputColumns = Mapping[int, Origin]
"""The columns of a plan whose values are those of columns of the inputs, by Spark's number of the column."""

_PASSING = frozenset(
    {
        "CollectMetrics",
        "CTERelationDef",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "LateralJoin",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "SubqueryAlias",
        "UpdateEventTimeWatermarkColumn",
        "View",
    }
)
"""Operators that judge every row by itself and keep the columns of their input, with others or without."""

_ROWWISE = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow"})
"""Operators that make other columns, without looking at rows together; their functions are taken at their word."""

_GROUPING = {
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
}
_COGROUPING = {"FlatMapCoGroupsInArrow": "cogroup.applyInArrow", "FlatMapCoGroupsInPandas": "cogroup.applyInPandas"}
_SPARK_NAMES = {"GlobalLimit": "limit", "LocalLimit": "limit", "Except": "subtract", "Intersect": "intersect"}

_KEPT_LEFT = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"})
_KEPT_RIGHT = frozenset({"Inner", "Cross", "RightOuter"})
"""Joins after which a column of that side is what it was; the others put null where nothing matches."""

_LOOKED_AT = 256
"""Rows of an Expand that are compared one by one. Windows that overlap can make very many more, all alike."""

COMPUTE_BEFORE = "compute the key in a segment before this one and shard by it here"


def find_needs(frame: DataFrame, segment: str, schemas: Mapping[str, StructType]) -> list[Need]:
    """The operators of a segment that bring rows together, from the inputs on."""
    reader = _Reader(segment, {name: frozenset(schema.names) for name, schema in schemas.items()})
    reader.columns(analysed(frame))
    return reader.needs


def foreign_streams(frame: DataFrame, segment: str) -> list[str]:
    """The kinds of streams that a segment reads beside its inputs."""
    leaves = [node for node in streaming_nodes(analysed(frame)) if not node.children().size()]
    others = [node for node in leaves if class_of(node) != "CTERelationRef" and _input_of(node, segment) is None]
    return list(dict.fromkeys(_kind(node) for node in others))


def _input_of(leaf: Plan, segment: str) -> str | None:
    """The input of this segment that a leaf of its plan is, if it is one."""
    if class_of(leaf) != "StreamingRelationV2" or leaf.sourceName() != "unbroken":
        return None
    options = leaf.extraOptions()
    name: str | None = options.get(INPUT)
    return name if options.get(SEGMENT) == segment else None


def _kind(leaf: Plan) -> str:
    return str(leaf.sourceName()) if class_of(leaf).startswith("StreamingRelation") else class_of(leaf)


class _Reader:
    """Walks a plan from its leaves upwards, and notes the operators that bring rows together on the way."""

    def __init__(self, segment: str, names: Mapping[str, frozenset[str]]) -> None:
        self.needs: list[Need] = []
        self._segment = segment
        self._names = names
        self._shared: dict[int, list[Origin | None]] = {}

    def columns(self, node: Plan) -> InputColumns:
        """The columns that a plan takes over from the inputs."""
        if not node.isStreaming():
            return {}
        name = class_of(node)
        if not node.children().size():
            return self._leaf(node, name)
        if name == "WithCTE":
            return self._with_shared(node)
        below = [self.columns(child) for child in items(node.children())]
        if name in _PASSING:
            return below[0]
        if name in _ROWWISE:
            return {}
        if name == "Project":
            return _selected(items(node.projectList()), below[0])
        if name == "Expand":
            return _expanded(node, below[0])
        if name == "Union":
            return _united(node, below)
        if name == "Join":
            return self._joined(node, below)
        return self._grouped(node, name, below)

    def _leaf(self, node: Plan, name: str) -> InputColumns:
        if name == "CTERelationRef":
            known = self._shared.get(int(node.cteId()))
            pairs = zip(items(node.output()), known, strict=True) if known is not None else ()
            return {id_of(column): origin for column, origin in pairs if origin is not None}
        source = _input_of(node, self._segment)
        if source is None:
            return {}
        named = [(column, str(column.name())) for column in items(node.output())]
        return {
            id_of(column): frozenset({(source, name)}) for column, name in named if name in self._names.get(source, ())
        }

    def _with_shared(self, node: Plan) -> InputColumns:
        """A query with parts that have names; each is read once, however often it is used."""
        *definitions, query = items(node.children())
        for definition in definitions:
            found = self.columns(definition)
            self._shared[int(definition.id())] = [found.get(id_of(column)) for column in items(definition.output())]
        return self.columns(query)

    def _grouped(self, node: Plan, name: str, below: list[InputColumns]) -> InputColumns:
        """An operator with groups of one input; its columns above it."""
        first = items(node.children())[0]
        if name == "Aggregate":
            keys = items(node.groupingExpressions())
            self._need(f"groupBy({names_of(keys)})", keys, below[0])
            grouped = {id_of(key): below[0][id_of(key)] for key in keys if _is_column(key) and id_of(key) in below[0]}
            return _selected(items(node.aggregateExpressions()), grouped)
        if name in ("Deduplicate", "DeduplicateWithinWatermark"):
            keys = items(node.keys())
            within = "WithinWatermark" if name.endswith("Watermark") else ""
            self._need(f"dropDuplicates{within}({names_of(keys)})", keys, below[0])
            return below[0]
        if name == "Distinct":
            self._need("distinct()", items(first.output()), below[0])
            return below[0]
        if name in _GROUPING:
            keys = items(node.groupingAttributes())
            self._need(f"groupBy({names_of(keys)}).{_GROUPING[name]}", keys, below[0])
        elif name == "TransformWithStateInPySpark":
            self._transformed(node, first, below[0])
        elif name in _COGROUPING:
            left, right = items(node.children())
            pairs = zip(items(left.output())[: node.leftGroupingLen()], items(right.output()), strict=False)
            self._need_pairs(_COGROUPING[name], list(pairs), below)
        else:
            shown = _SPARK_NAMES.get(name, name)
            why = "brings rows together in a way that the plan does not show"
            self.needs.append(Need(shown, (), why))
        return {}

    def _transformed(self, node: Plan, child: Plan, below: InputColumns) -> None:
        keys = items(child.output())[: node.groupingAttributesLen()]
        operator = f"groupBy({names_of(keys)}).transformWithState"
        if node.hasInitialState():
            why = "has an initial state, of which every shard would take the whole"
            self.needs.append(Need(operator, (), why, f"feed it in as rows of another input, or {ONE_SHARD}"))
        else:
            self._need(operator, keys, below)

    def _joined(self, node: Plan, below: list[InputColumns]) -> InputColumns:
        left, right = items(node.children())
        kind = str(node.joinType().toString())
        if left.isStreaming() and right.isStreaming():
            condition = node.condition()
            pairs = _equal_pairs(condition.get()) if condition.isDefined() else []
            shown = condition.get().sql().replace("`", "") if condition.isDefined() else ""
            self._need_pairs(f"join({shown})", pairs, below)
        kept = [*([below[0]] if kind in _KEPT_LEFT else []), *([below[1]] if kind in _KEPT_RIGHT else [])]
        return {number: origin for columns in kept for number, origin in columns.items()}

    def _need(self, operator: str, keys: list[Expression], below: InputColumns) -> None:
        offers = tuple(dict.fromkeys(below[id_of(key)] for key in keys if _is_column(key) and id_of(key) in below))
        if not keys:
            why, remedy = "brings all rows together", f"group by a column of the input, or {ONE_SHARD}"
        else:
            why = "groups by what is computed, and by no column as the input has it"
            remedy = f"{COMPUTE_BEFORE}, or {ONE_SHARD}"
        self.needs.append(Need(operator, offers, *(() if offers else (why, remedy))))

    def _need_pairs(self, operator: str, pairs: list[tuple[Expression, Expression]], below: list[InputColumns]) -> None:
        offers: dict[Origin, None] = {}
        for one, other in pairs:
            if not (_is_column(one) and _is_column(other)):
                continue
            for left, right in ((one, other), (other, one)):
                both = merged(below[0].get(id_of(left)), below[1].get(id_of(right)))
                if both is not None:
                    offers[both] = None
        why = "does not say that a column of one input equals one of the other, both as the inputs have them"
        remedy = f"join on columns of the same type ({COMPUTE_BEFORE}), or {ONE_SHARD}"
        self.needs.append(Need(operator, tuple(offers), *(() if offers else (why, remedy))))


def _selected(expressions: list[Expression], below: InputColumns) -> InputColumns:
    """What a list of columns, some of them renamed, takes over."""
    out: dict[int, Origin] = {}
    for expression in expressions:
        inner = _unwrapped(expression.child()) if class_of(expression) == "Alias" else expression
        if _is_column(inner) and id_of(inner) in below:
            out[id_of(expression)] = below[id_of(inner)]
    return out


def _unwrapped(expression: Expression) -> Expression:
    """Without casts to the type that it has."""
    while class_of(expression) == "Cast" and expression.dataType().equals(expression.child().dataType()):
        expression = expression.child()
    return expression


def _expanded(node: Plan, below: InputColumns) -> InputColumns:
    """Every row becomes several, which differ in some of the columns."""
    rows: Any = node.projections()
    places = range(rows.size()) if rows.size() <= _LOOKED_AT else (0, rows.size() - 1)
    out: dict[int, Origin] = {}
    for position, column in enumerate(items(node.output())):
        made = [rows.apply(place).apply(position) for place in places]
        if all(_is_column(each) for each in made) and len({id_of(each) for each in made}) == 1:
            origin = below.get(id_of(made[0]))
            if origin is not None:
                out[id_of(column)] = origin
    return out


def _united(node: Plan, below: list[InputColumns]) -> InputColumns:
    """A column of a union is that of each of its inputs at the same place."""
    rows = [[found.get(id_of(column)) for column in items(child.output())] for child, found in _with(node, below)]
    out: dict[int, Origin] = {}
    for column, origins in zip(items(node.output()), zip(*rows, strict=True), strict=True):
        together: Origin | None = frozenset()
        for origin in origins:
            together = merged(together, origin)
        if together:
            out[id_of(column)] = together
    return out


def _with(node: Plan, below: list[InputColumns]) -> list[tuple[Plan, InputColumns]]:
    return list(zip(items(node.children()), below, strict=True))


def _equal_pairs(condition: Expression) -> list[tuple[Expression, Expression]]:
    """The two sides of everything that has to be equal for a condition to hold."""
    name = class_of(condition)
    if name == "And":
        return [*_equal_pairs(condition.left()), *_equal_pairs(condition.right())]
    return [(condition.left(), condition.right())] if name in ("EqualTo", "EqualNullSafe") else []


def _is_column(expression: Expression) -> bool:
    return class_of(expression) == "AttributeReference"

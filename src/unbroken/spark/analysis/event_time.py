"""How the keys of a stateful operator hang on event time, read from the logical plan.

Spark forgets the state of a key when the watermark has passed the event-time column among its keys: the column itself,
or the end of a window of it. Spark marks such columns in their metadata, and the mark follows a column through
renaming. The mark alone does not say how long a window is, nor that every row has passed the watermark, so the column
is followed down the plan to where it was made. Whatever is not known to pass a column on unchanged ends the search
without an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.spark.analysis.plans import Expression, Plan, class_of, items

DELAY = "spark.watermarkDelayMs"
SESSION = "spark.sessionWindow"

_PASSING = frozenset(
    {
        "Deduplicate",
        "Filter",
        "Generate",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "ResolvedHint",
        "SubqueryAlias",
        "View",
    }
)
"""Operators with one input whose columns come out as they went in, fewer or more rows aside."""


@dataclass(frozen=True)
class Key:
    """An event-time column by which state is kept, in terms of the time of the rows that its operator gets.

    The state of a row is forgotten at most ``span_us`` after its time, or a fraction of a millisecond later unless
    ``whole``: watermarks are whole milliseconds. ``nullable``: a row without time could be kept, and would be for ever.
    """

    span_us: int
    whole: bool
    nullable: bool


def marked(column: Expression, mark: str) -> bool:
    """Whether a column carries one of Spark's marks."""
    return class_of(column) in ("AttributeReference", "Alias") and bool(column.metadata().contains(mark))


def delay_ms(column: Expression) -> int:
    """The delay of the watermark that a marked column has passed."""
    return int(column.metadata().getLong(DELAY))


def trace(column: Expression, below: Plan) -> Key | None:
    """What is known of a marked column of ``below``; None if it cannot be followed to the watermark."""
    span, whole, certain = 0, True, False
    node, wanted = below, _id(column)
    while (name := class_of(node)) != "EventTimeWatermark":
        if name in ("Project", "Aggregate", "Expand"):
            made = _definition(node, name, wanted)
            if made is None:
                return None
            wanted = made.column
            span, whole, certain = span + made.span_us, whole and made.whole, certain or made.span_us > 0
            if name == "Aggregate":
                # What is below has been looked at as the key of that operator.
                grouped = wanted in {_id(key) for key in items(node.groupingExpressions()) if _is_column(key)}
                return Key(span, whole, nullable=False) if grouped else None
        following = _streaming_input(node, name)
        if following is None:
            return None
        node = following
    if _id(node.eventTime()) != wanted:
        return None
    return Key(span, whole, nullable=not certain and not _never_null(column, below))


@dataclass(frozen=True)
class _Made:
    """A column is made of another one, by putting it into windows if ``span_us`` is not 0."""

    column: int
    span_us: int = 0
    whole: bool = True


def _definition(node: Plan, name: str, wanted: int) -> _Made | None:
    """How ``node`` makes a column of one of its input."""
    if name == "Expand":
        return _expanded(node, wanted)
    columns = items(node.projectList() if name == "Project" else node.aggregateExpressions())
    for column in columns:
        if _id(column) == wanted:
            return _made(column.child() if class_of(column) == "Alias" else column)
    return None


def _expanded(node: Plan, wanted: int) -> _Made | None:
    """Every row becomes several: one for each of the windows that overlap, or for each of several groupings."""
    places = [place for place, column in enumerate(items(node.output())) if _id(column) == wanted]
    if len(places) != 1:
        return None
    first, *others = [row.apply(places[0]) for row in items(node.projections())]
    made = _made(first)
    if made is None or not made.span_us:
        return made if all(_is_column(other) and _id(other) == _id(first) for other in others) else None
    # Windows that overlap differ in their start alone, and there can be very many of them.
    return made if all(class_of(other) == "CreateNamedStruct" for other in others) else None


def _made(expression: Expression) -> _Made | None:
    if _is_column(expression):
        return _Made(_id(expression))
    references = {_id(column) for column in items(expression.references().toSeq())}
    if len(references) != 1:
        return None
    (column,) = references
    if class_of(expression) == "CreateNamedStruct":
        return _windowed(expression, column)
    return _Made(column) if _is_window_time(expression) else None


def _windowed(struct: Expression, column: int) -> _Made | None:
    """Windows of time: a structure of start and end, the end being the start and so many microseconds."""
    fields = items(struct.children())
    if [field.toString() for field in fields[::2]] != ["start", "end"]:
        return None
    start, end = _unwrapped(fields[1]), _unwrapped(fields[3])
    if class_of(end) != "Add" or not end.left().semanticEquals(start) or class_of(end.right()) != "Literal":
        return None
    return _Made(column, int(end.right().value()), all(number % 1000 == 0 for number in _numbers(end)))


def _unwrapped(expression: Expression) -> Expression:
    while class_of(expression) in ("KnownNullable", "PreciseTimestampConversion"):
        expression = expression.child()
    return expression


def _numbers(expression: Expression) -> list[int]:
    if class_of(expression) == "Literal":
        return [int(expression.value())]
    return [number for child in items(expression.children()) for number in _numbers(child)]


def _is_window_time(expression: Expression) -> bool:
    """``window_time``: the last moment of a window, a microsecond before its end."""
    last = _unwrapped(expression)
    if class_of(last) != "Subtract" or last.right().toString() != "1":
        return False
    end = _unwrapped(last.left())
    return class_of(end) == "GetStructField" and end.ordinal() == 1 and _is_column(end.child())


def _streaming_input(node: Plan, name: str) -> Plan | None:
    """Where the rows of an operator come from, if that is one stream."""
    streaming = [child for child in items(node.children()) if child.isStreaming()]
    known = name in _PASSING or name in ("Project", "Expand", "Join")
    return streaming[0] if known and len(streaming) == 1 else None


def _never_null(column: Expression, below: Plan) -> bool:
    if not column.nullable():
        return True
    known = items(below.constraints().toSeq())
    return any(class_of(fact) == "IsNotNull" and _is_the(fact.child(), _id(column)) for fact in known)


def _is_column(expression: Expression) -> bool:
    return class_of(expression) == "AttributeReference"


def _is_the(expression: Expression, wanted: int) -> bool:
    return _is_column(expression) and _id(expression) == wanted


def _id(column: Expression) -> int:
    return int(column.exprId().id())

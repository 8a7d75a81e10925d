"""Operators that look at one row at a time and keep nothing: filter, map, union and dup."""

from __future__ import annotations

from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from unbroken.errors import WrongValue
from unbroken.flow.network.base import Operator, OperatorPlace, Sql, WrongUse, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from unbroken.flow.dataflow import SegmentFunction

_NULLNESS = ("is null", "is not null")
_TEXTUAL = ("contains", "like")


class Filter(Operator):
    """Lets the rows pass that meet a condition: a comparison of one field, or any SQL condition.

    As in SQL, a comparison with a field that is null is not met, also ``!=``.
    """

    field: str | None = Field(default=None, description="the column to look at")
    comparison: Literal["=", "!=", "<", "<=", ">", ">=", "contains", "like", "in", "is null", "is not null"] | None = (
        Field(default=None, alias="is", description="how the field is compared with the value")
    )
    value: Any = Field(default=None, description="what the field is compared with; a list with 'in'")
    where: Sql | None = Field(default=None, description="a condition in SQL, instead of field, is and value")

    @model_validator(mode="after")
    def _one_form(self) -> Filter:
        given = self.model_fields_set
        if self.where is not None:
            if given - {"where"}:
                raise WrongValue("'where' stands for the whole condition", "remove field, is and value, or 'where'")
            return self
        if self.field is None or self.comparison is None:
            raise WrongValue("the condition is not complete", "give field, is and value, or where with a SQL condition")
        if self.comparison in _NULLNESS:
            if "value" in given:
                raise WrongValue(f"{self.comparison!r} compares with nothing", "remove 'value'")
            return self
        if "value" not in given:
            raise WrongValue(f"{self.comparison!r} needs something to compare with", "give 'value'")
        self._check_value()
        return self

    def _check_value(self) -> None:
        if self.comparison == "in":
            if not isinstance(self.value, list) or not self.value:
                raise WrongValue("'in' needs a list of values", "write for example value: [a, b]")
            if not all(_is_scalar(item) for item in self.value):
                raise WrongValue("the list of 'in' has something else than text, numbers and booleans", "remove it")
        elif self.value is None:
            raise WrongValue("nothing compares with null", "write is: is null, or is: is not null")
        elif not _is_scalar(self.value):
            raise WrongValue(f"{self.comparison!r} compares with one value", "use 'in' for a list")
        elif self.comparison in _TEXTUAL and not isinstance(self.value, str):
            raise WrongValue(f"{self.comparison!r} looks for text", "put the value in quotes")

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return self._apply

    def _apply(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if self.where is not None:
            return rows.where(F.expr(self.where))
        return rows.where(self._condition(rows))

    def _condition(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as F

        field = F.col(quoted(self.field or ""))
        if self.comparison in _NULLNESS:
            return field.isNull() if self.comparison == "is null" else field.isNotNull()
        kind = rows.select(field).schema.fields[0].dataType
        if self.comparison in _TEXTUAL:
            if kind.typeName() != "string":
                raise WrongUse(f"{self.comparison!r} looks into text, but {self.field!r} is {kind.simpleString()}")
            text = str(self.value)
            return field.contains(text) if self.comparison == "contains" else field.like(text)
        if self.comparison == "in":
            return field.isin([self._literal(item, kind) for item in self.value])
        literal = self._literal(self.value, kind)
        comparisons = {
            "=": field == literal,
            "!=": field != literal,
            "<": field < literal,
            "<=": field <= literal,
            ">": field > literal,
            ">=": field >= literal,
        }
        return comparisons[str(self.comparison)]

    def _literal(self, value: Any, kind: DataType) -> Column:
        """The value in the type of the field. Spark would convert the field instead, and fail on the first bad row."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType

        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = (
            (isinstance(kind, NumericType) and number)
            or (isinstance(kind, StringType) and isinstance(value, str))
            or (isinstance(kind, BooleanType) and isinstance(value, bool))
            or (isinstance(kind, DateType | TimestampType | TimestampNTZType) and _is_time(value))
        )
        if not fits:
            raise WrongUse(f"the field {self.field!r} is {kind.simpleString()} and cannot be compared with {value!r}")
        return F.lit(value) if number else F.lit(value).cast(kind)


class Map(Operator):
    """Computes the columns of its result, each by a SQL expression of the input's columns."""

    columns: dict[str, Sql] = Field(min_length=1, description="a SQL expression for each column of the result")

    @model_validator(mode="before")
    @classmethod
    def _all_keys_are_columns(cls, data: Any) -> Any:
        if data == {}:
            raise WrongValue("no column is named", "write a SQL expression for each column of the result")
        return {"columns": data}

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return self._apply

    def _apply(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return rows.select(*(F.expr(sql).alias(name) for name, sql in self.columns.items()))


class Union(Operator):
    """Passes on the rows of all its inputs, which have the same columns, in any order."""

    least_inputs: ClassVar[int] = 2
    most_inputs: ClassVar[int | None] = None

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return partial(_united, place.inputs)


def _united(inputs: tuple[str, ...], *frames: DataFrame) -> DataFrame:
    first = {name.lower() for name in frames[0].columns}
    for name, frame in zip(inputs, frames, strict=True):
        columns = {column.lower() for column in frame.columns}
        if columns != first:
            raise WrongUse(
                f"{inputs[0]} and {name} do not have the same columns: {sorted(columns ^ first)} are only in one of "
                "them",
                "choose the columns with map",
            )
    return reduce(lambda one, other: one.unionByName(other), frames)


class Dup(Operator):
    """Passes its rows on as they are: for a sink that shows a source, or a second side of a join."""

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return _same


def _same(rows: DataFrame) -> DataFrame:
    return rows


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value) is not None
    except ValueError:
        return False

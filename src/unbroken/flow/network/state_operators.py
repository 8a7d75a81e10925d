"""Operators that remember what they have seen: count, uniq and aggregate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, model_validator

from unbroken.errors import WrongValue
from unbroken.flow.network.base import (
    Columns,
    KeyColumns,
    Length,
    Operator,
    OperatorPlace,
    PositiveLength,
    Sql,
    quoted,
    spark_interval,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from unbroken.flow.dataflow import SegmentFunction

WINDOW_START, WINDOW_END = "window_start", "window_end"
"""The columns that say which window a row of the result is about."""


class Count(Operator):
    """Counts the rows since the beginning: all of them, or those of each value of some columns."""

    by: Columns = Field(default=(), description="the columns whose values are counted apart")
    name: str = Field(default="count", alias="as", min_length=1, description="the column of the result")

    @model_validator(mode="after")
    def _own_name(self) -> Count:
        _refuse_taken([self.name], self.by)
        return self

    def default_mode(self) -> str:
        return "update"

    def keys(self, inputs: tuple[str, ...]) -> list[KeyColumns]:
        return [{inputs[0]: column} for column in self.by]

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return self._apply

    def _apply(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return rows.groupBy(*_columns(self.by)).agg(F.count("*").alias(self.name))


class Uniq(Operator):
    """Passes on each combination of values once.

    The result has the fields only: other columns would be those of any of the rows that agree in the fields, and
    replicas would not agree on which.
    """

    field: Columns = Field(default=(), description="the columns to compare by; all columns if there are none")
    time: str | None = Field(default=None, description="one of the fields: the time of a row's event")
    watermark: Length | None = Field(default=None, description="how late a row may be; what is older is forgotten")

    @model_validator(mode="after")
    def _time_is_compared(self) -> Uniq:
        if (self.time is None) != (self.watermark is None):
            raise WrongValue("'time' and 'watermark' belong together", "give both or none of them")
        if self.time is not None and self.field and self.time.lower() not in (name.lower() for name in self.field):
            raise WrongValue(
                "'time' is not one of the fields, so nothing could ever be forgotten",
                "add it to 'field', or remove 'time' and 'watermark'",
            )
        return self

    def keys(self, inputs: tuple[str, ...]) -> list[KeyColumns] | None:
        return [{inputs[0]: column} for column in self.field] or None

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return self._apply

    def _apply(self, rows: DataFrame) -> DataFrame:
        if self.time is not None and self.watermark is not None:
            rows = rows.withWatermark(self.time, spark_interval(self.watermark))
        return (rows.select(*_columns(self.field)) if self.field else rows).dropDuplicates()


class Window(BaseModel):
    """Stretches of time, one after the other, or overlapping if they begin more often than they are long."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: str = Field(description="the timestamp column that decides")
    size: PositiveLength = Field(description="the length of a window, such as '1 minute'")
    slide: PositiveLength | None = Field(
        default=None, description="how often a window begins; one after the other by default"
    )

    @model_validator(mode="after")
    def _no_gaps(self) -> Window:
        if self.slide is not None and self.slide > self.size:
            raise WrongValue("'slide' is longer than 'size', so rows between windows would be lost", "shorten it")
        return self


class Aggregate(Operator):
    """SQL aggregates of the rows that agree in some columns, within windows of time if there are any.

    With a watermark a window's result is passed on once, when nothing can be added to it any more. Without one, it is
    passed on again with every change.
    """

    window: Window | None = Field(default=None, description="time, size and slide of the windows")
    watermark: Length | None = Field(default=None, description="how late a row may be, by the time of the window")
    by: Columns = Field(default=(), description="the columns whose values are aggregated apart")
    values: dict[str, Sql] = Field(min_length=1, description="a SQL aggregate for each further column, as count(*)")

    @model_validator(mode="after")
    def _fits(self) -> Aggregate:
        if self.watermark is not None and self.window is None:
            raise WrongValue("a watermark closes windows, but there is no 'window'", "add one, or remove 'watermark'")
        _refuse_taken(self.values, (*self.by, *((WINDOW_START, WINDOW_END) if self.window else ())))
        return self

    def default_mode(self) -> str:
        return "update" if self.watermark is None else "append"

    def keys(self, inputs: tuple[str, ...]) -> list[KeyColumns]:
        return [{inputs[0]: column} for column in self.by]

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return self._apply

    def _apply(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        values = [F.expr(sql).alias(name) for name, sql in self.values.items()]
        if self.window is None:
            return rows.groupBy(*_columns(self.by)).agg(*values)
        if self.watermark is not None:
            rows = rows.withWatermark(self.window.time, spark_interval(self.watermark))
        size, slide = spark_interval(self.window.size), self.window.slide
        window = F.window(quoted(self.window.time), size, None if slide is None else spark_interval(slide))
        # Not "window": the input may have a column of that name, to group or to aggregate by.
        totals = rows.groupBy(window.alias("__window"), *_columns(self.by)).agg(*values)
        return totals.select(
            F.col("__window.start").alias(WINDOW_START),
            F.col("__window.end").alias(WINDOW_END),
            *_columns((*self.by, *self.values)),
        )


def _columns(names: tuple[str, ...]) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(quoted(name)) for name in names]


def _refuse_taken(names: object, taken: tuple[str, ...]) -> None:
    known = {name.lower() for name in taken}
    for name in names if isinstance(names, list | dict) else ():
        if name.lower() in known:
            raise WrongValue(f"{name!r} would be two columns of the result", "choose another name")

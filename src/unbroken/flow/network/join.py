"""The operator that brings rows of two inputs together."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from unbroken.errors import Flaw, WrongValue
from unbroken.flow.network.base import (
    KeyColumns,
    Length,
    Operator,
    OperatorPlace,
    WrongUse,
    milliseconds,
    quoted,
    spark_interval,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from unbroken.flow.dataflow import SegmentFunction

_SPARK_KINDS = {
    "inner": "inner",
    "left": "left_outer",
    "right": "right_outer",
    "full": "full_outer",
    "semi": "left_semi",
}


def _pairs(value: Any) -> Any:
    """Columns that have the same name on both sides may be listed."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return {name: name for name in names}
    if not isinstance(names, dict):
        raise WrongValue(f"{value!r} does not name columns", "write on: [column], or on: {left column: right column}")
    return names


def _watermarks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: milliseconds(delay) for name, delay in value.items()}
    return milliseconds(value)


class Join(Operator):
    """Pairs of rows of its two inputs that agree in some columns, and, if asked for, lie close in time.

    The result has the columns compared by, under the names they have on the left, then the other columns of the left,
    then those of the right.
    """

    least_inputs: ClassVar[int] = 2
    most_inputs: ClassVar[int | None] = 2

    on: Annotated[dict[str, str], BeforeValidator(_pairs)] = Field(
        min_length=1, description="columns with the same name on both sides, or a mapping from the left to the right"
    )
    kind: Literal["inner", "left", "right", "full", "semi"] = Field(
        default="inner", description="which rows are passed on without a partner; semi: rows of the left with one"
    )
    time: str | dict[str, str] | None = Field(
        default=None, description="the timestamp column of each input, as a mapping from input to column"
    )
    watermark: Annotated[int | dict[str, int] | None, BeforeValidator(_watermarks)] = Field(
        default=None, description="how late a row may be: for both inputs, or a mapping from input to length"
    )
    within: Length | None = Field(default=None, description="how far apart in time two rows of a pair may be")

    def keys(self, inputs: tuple[str, ...]) -> list[KeyColumns]:
        return [{inputs[0]: left, inputs[1]: right} for left, right in self.on.items()]

    def problems(self, inputs: tuple[str, ...]) -> list[Flaw]:
        out = []
        if len(set(inputs)) < 2:
            out.append(Flaw("both sides are the same input", "put a 'dup' between one side and its input"))
        for what, values in (("time", self.time), ("watermark", self.watermark)):
            for name in values if isinstance(values, dict) else ():
                if name not in inputs:
                    out.append(Flaw(f"{what!r} names {name!r}, which is not an input", f"use {' and '.join(inputs)}"))
        timed = [name for name in inputs if self._time(name) is not None]
        if self.within is not None and len(timed) < 2:
            example = ", ".join(f"{name}: column" for name in inputs)
            out.append(
                Flaw(
                    "'within' compares times, but 'time' does not name a column of both inputs",
                    f"write time: {{{example}}}",
                )
            )
        late = [name for name in inputs if self._delay(name) is not None and name not in timed]
        if late:
            out.append(Flaw(f"'watermark' needs the time of rows of {late[0]!r}", "name its column in 'time'"))
        return out

    def _time(self, name: str) -> str | None:
        return self.time.get(name) if isinstance(self.time, dict) else self.time

    def _delay(self, name: str) -> int | None:
        return self.watermark.get(name) if isinstance(self.watermark, dict) else self.watermark

    def function(self, place: OperatorPlace) -> SegmentFunction:
        return partial(self._apply, place.inputs)

    def _apply(self, inputs: tuple[str, ...], left: DataFrame, right: DataFrame) -> DataFrame:
        self._refuse_common(inputs, left, right)
        one, other = (self._watched(name, rows) for name, rows in zip(inputs, (left, right), strict=True))
        joined = one.alias("l").join(other.alias("r"), self._condition(inputs), _SPARK_KINDS[self.kind])
        return joined.select(*self._result(left.columns, right.columns))

    def _refuse_common(self, inputs: tuple[str, ...], left: DataFrame, right: DataFrame) -> None:
        if self.kind == "semi":
            return
        rights = {name.lower() for name in right.columns} - {name.lower() for name in self.on.values()}
        twice = [name for name in left.columns if name.lower() in rights]
        if twice:
            raise WrongUse(
                f"{inputs[0]} and {inputs[1]} both have the column {twice[0]!r}: rename one of them with map"
            )

    def _watched(self, name: str, rows: DataFrame) -> DataFrame:
        time, delay = self._time(name), self._delay(name)
        return rows if time is None or delay is None else rows.withWatermark(time, spark_interval(delay))

    def _condition(self, inputs: tuple[str, ...]) -> Column:
        from pyspark.sql import functions as F

        conditions = [_left(a) == _right(b) for a, b in self.on.items()]
        if self.within is not None:
            here, there = _left(self._time(inputs[0]) or ""), _right(self._time(inputs[1]) or "")
            apart = F.expr(f"INTERVAL '{self.within}' MILLISECONDS")
            conditions += [here >= there - apart, here <= there + apart]
        return reduce(lambda a, b: a & b, conditions)

    def _result(self, lefts: list[str], rights: list[str]) -> list[Column]:
        compared = {name.lower() for name in self.on}
        out = [self._key(a, b).alias(a) for a, b in self.on.items()]
        out += [_left(name) for name in lefts if name.lower() not in compared]
        if self.kind != "semi":
            compared = {name.lower() for name in self.on.values()}
            out += [_right(name) for name in rights if name.lower() not in compared]
        return out

    def _key(self, left: str, right: str) -> Column:
        """The side of a key that is there; both are equal if both are."""
        from pyspark.sql import functions as F

        if self.kind == "right":
            return _right(right)
        return F.coalesce(_left(left), _right(right)) if self.kind == "full" else _left(left)


def _left(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"l.{quoted(name)}")


def _right(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"r.{quoted(name)}")

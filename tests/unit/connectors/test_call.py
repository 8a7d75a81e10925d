"""The sink that is a function: what it is called with, and which functions are refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from unbroken import Call, Unit
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

TABLE = pa.table({"n": [1, 2, 3]})


def header(stream: str, number: int, final: bool = False) -> UnitHeader:
    return UnitHeader(StreamId.parse(stream), number, number, 1_234, Digest(3, 1), final=final)


def test_the_function_gets_the_rows_and_which_unit_they_are(tmp_path: Path) -> None:
    calls: list[tuple[Any, Unit]] = []
    sink = Call(lambda table, unit: calls.append((table.to_pylist(), unit)))
    assert sink.problems() == [] and not sink.client and not sink.idempotent and sink.occupied() is None
    writer = sink.open(tmp_path)
    assert writer.deliver(header("sums.1>out.0", 7, final=True), TABLE)
    assert calls == [([{"n": 1}, {"n": 2}, {"n": 3}], Unit("sums", 1, 7, 1_234, final=True))]
    writer.close()


def test_a_unit_is_known_by_the_same_name_after_its_code_was_replaced(tmp_path: Path) -> None:
    """So that a function that sees it again, from whichever code, can tell."""
    units: list[Unit] = []
    writer = Call(lambda _table, unit: units.append(unit)).open(tmp_path)
    for stream in ("sums.0>out.0", "sums@2.0>out.0"):
        writer.deliver(header(stream, 3), TABLE)
    assert units[0] == units[1]


def test_a_unit_without_rows_is_no_call(tmp_path: Path) -> None:
    def never(_table: pa.Table, _unit: Unit) -> None:
        raise AssertionError("called")

    assert Call(never).open(tmp_path).deliver(header("sums.0>out.0", 1), TABLE.slice(0, 0))


def test_what_the_function_raises_is_for_the_node_to_see(tmp_path: Path) -> None:
    def failing(_table: pa.Table, _unit: Unit) -> None:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        Call(failing).open(tmp_path).deliver(header("sums.0>out.0", 1), TABLE)


def two(_table: pa.Table, _unit: Unit, *, loud: bool = False) -> None: ...


@pytest.mark.parametrize("function", [two, partial(two, loud=True), lambda *anything: None, print])
def test_what_can_be_called_with_two_arguments_will_do(function: Any) -> None:
    assert Call(function).problems() == []


@pytest.mark.parametrize("function", ["print", None, lambda table: None, lambda: None, lambda a, b, c: None])
def test_everything_else_is_refused_with_a_remedy(function: Any) -> None:
    (problem,) = Call(function).problems()
    assert problem.what and problem.remedy

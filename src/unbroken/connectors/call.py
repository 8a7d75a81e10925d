"""A sink that is a function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.errors import Flaw
from unbroken.protocol.values.ids import segment_of
from unbroken.protocol.values.units import UnitHeader


@dataclass(frozen=True)
class Unit:
    """Which unit a function is called with: number ``number`` of what shard ``shard`` of ``segment`` produces.

    These three are the same whenever the unit is delivered again, and no other unit has them. ``cut_ms`` is the time at
    which its rows were cut at the sources, in milliseconds since the epoch; ``final`` says that no unit follows.
    """

    segment: str
    shard: int
    number: int
    cut_ms: int
    final: bool = False


class Call(SinkConnector):
    """Calls ``function(table, unit)`` with the rows of each unit that has any, as an Arrow table.

    It is called on a node, on a thread of the sink's, with one unit of a shard at a time and in their order; for
    different shards at the same time. Coming back means that the unit is taken; an exception means that it is not known
    to be. What it was given before is not known to it, so the flow has to say what may happen when something fails:
    ``guarantee="at-least-once"`` or ``guarantee="at-most-once"``.

    Parameters
    ----------
    function
        Takes an Arrow table and a `Unit`.
    """

    idempotent = False

    def __init__(self, function: Callable[[pa.Table, Unit], object]) -> None:
        self.function = function

    def problems(self) -> list[Flaw]:
        if not callable(self.function):
            return [
                Flaw(f"Call is given {self.function!r}, which cannot be called", "give it a function of (table, unit)")
            ]
        try:
            inspect.signature(self.function).bind(None, None)
        except ValueError:
            return []  # Some built-in functions do not say what they take.
        except TypeError as error:
            return [
                Flaw(f"The function of Call cannot be called with a table and a unit ({error})", "let it take both")
            ]
        return []

    def open(self, flow_dir: Path) -> CallWriter:
        return CallWriter(self.function)


class CallWriter(SinkWriter):
    """Hands units with rows to the function; one without has nothing to hand over."""

    def __init__(self, function: Callable[[pa.Table, Unit], object]) -> None:
        self._function = function

    def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        if table.num_rows:
            producer = header.stream.producer
            unit = Unit(segment_of(producer.part), producer.index, header.number, header.cut_ms, header.final)
            self._function(table, unit)
        return True

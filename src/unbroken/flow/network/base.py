"""What every operator has to say for itself, and the kinds of values that operators take."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from unbroken.errors import Flaw, UnbrokenError, WrongValue
from unbroken.quantities import UNITS_MS

if TYPE_CHECKING:
    from unbroken.flow.dataflow import SegmentFunction

KeyColumns = Mapping[str, str]
"""A column of each input such that rows which belong together agree in them."""


class WrongUse(UnbrokenError):
    """An operator that does not fit the columns of its inputs; found when Spark analyses the network."""


@dataclass(frozen=True)
class OperatorPlace:
    """Where an operator stands: the names of its inputs, the folder of the network, the generation of the code.

    ``modules`` are the Python files that were loaded for this network so far, so that each is run once.
    """

    inputs: tuple[str, ...]
    folder: Path
    generation: int
    modules: dict[Path, ModuleType] = field(default_factory=dict, compare=False)


class Operator(BaseModel):
    """The parameters of an operator, and how it becomes a segment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    least_inputs: ClassVar[int] = 1
    most_inputs: ClassVar[int | None] = 1

    @abstractmethod
    def function(self, place: OperatorPlace) -> SegmentFunction:
        """The segment's function; raises UnbrokenError if the operator cannot be made here."""

    def default_mode(self) -> str:
        """The output mode unless the network says another."""
        return "append"

    def keys(self, inputs: tuple[str, ...]) -> list[KeyColumns] | None:
        """The keys in all of which rows that belong together agree; rows may be split by some or all of them.

        None: every row stands for itself, or only the user knows. Empty: all rows belong together.
        """
        return None

    def problems(self, inputs: tuple[str, ...]) -> list[Flaw]:
        """What is wrong with the parameters given these inputs."""
        return []


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _distinct(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Spark does not tell upper from lower case."""
    twice = [name for name in columns if sum(name.lower() == other.lower() for other in columns) > 1]
    if twice:
        raise WrongValue(f"the column {twice[0]!r} is named twice", "name it once")
    return columns


def milliseconds(value: Any) -> Any:
    """``"10 seconds"``, ``"10s"`` and the like as milliseconds."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]+)\s*", value.lower()) if isinstance(value, str) else None
    if match is None or match[2] not in UNITS_MS:
        raise WrongValue(f"{value!r} is not a length of time", "write for example '500ms', '10 seconds' or '1 minute'")
    length = int(match[1]) * UNITS_MS[match[2]]
    if length > 366 * 86_400_000:
        raise WrongValue(f"{value!r} is too long", "use at most 366 days")
    return length


def _expression(value: Any) -> Any:
    """YAML takes ``1`` and ``true`` for what they are; in SQL they are expressions like others."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str) and not value.strip():
        raise WrongValue("the SQL expression is empty", "write a column or an expression")
    return value


def _positive(value: int) -> int:
    if value < 1:
        raise WrongValue("it must be longer than 0", "write for example '10 seconds'")
    return value


Columns = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), AfterValidator(_distinct)]
"""One column, or a list of them."""

Sql = Annotated[str, BeforeValidator(_expression)]

Length = Annotated[int, BeforeValidator(milliseconds)]
"""A length of time in milliseconds; it may be 0."""

PositiveLength = Annotated[Length, AfterValidator(_positive)]
"""A length of time that passes."""


def spark_interval(length_ms: int) -> str:
    """A length of time as Spark reads it."""
    return f"{length_ms} milliseconds"


def quoted(column: str) -> str:
    """A column's name as SQL takes it, whatever characters it has."""
    return "`" + column.replace("`", "``") + "`"

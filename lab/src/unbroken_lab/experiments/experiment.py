"""What an experiment is: parameters, cases that are measured one after the other, what it claims, and how it is drawn.

The experiments of the papers, the comparison with other systems and the benchmarks of Unbroken itself are all of this
one type; ``registry`` has them by name, and ``records`` runs them and keeps what they leave.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[[str], None]
Value = str | float | int | bool | None
Row = Mapping[str, Value]
Rows = Sequence[Row]

ERROR = "error"
"""The column that says why a case has no figures."""


@dataclass(frozen=True)
class Size:
    """How large to run an experiment: ``quick`` shows that it runs, and measures nothing worth keeping."""

    quick: bool = False

    def of(self, full: float, quick: float) -> float:
        return quick if self.quick else full


@dataclass(frozen=True)
class Parameter:
    """What can be set in an experiment: a field of its class, and an option of its command."""

    name: str
    default: Value
    about: str
    kind: type


def parameter(default: Any, about: str, kind: type | None = None) -> Any:
    """A field of an experiment that can be set; ``kind`` is the type of its values where the default is None."""
    return field(default=default, metadata={"about": about, "kind": kind or type(default)})


@dataclass(frozen=True)
class ReportColumn:
    """A figure as the table of a report shows it: the column of the rows, its head, and how a number is written.

    Without ``digits`` it is text. ``divisor`` turns milliseconds into seconds where that reads better.
    """

    name: str
    head: str
    unit: str = ""
    digits: int | None = None
    divisor: float = 1.0

    def shown(self, row: Row) -> str:
        value = row.get(self.name)
        if value is None or value == "":
            return "-"
        if self.digits is None:
            return str(value)
        return f"{float(value) / self.divisor:,.{self.digits}f}{self.unit}"


@dataclass(frozen=True)
class PaperValue:
    """A number that a paper gives or draws, to be put beside what was measured.

    ``read_off`` are those that were read off a figure, which is not exact.
    """

    what: str
    value: str
    read_off: bool = False


@dataclass(frozen=True)
class ReportClaim:
    """One line of a report: what is looked at, what the paper has, what was measured here, and whether they agree.

    Where no paper has it, the aim of this project stands in its place (``aimed``). ``agrees`` follows from figures
    alone; it is None where there is nothing to compare with. What explains a difference is found by looking at the data
    and written by hand, never here.
    """

    claim: str
    paper: str
    here: str
    agrees: bool | None = None


def seen(claim: str, here: str) -> ReportClaim:
    """Something that was measured and that no paper has."""
    return ReportClaim(claim, "", here)


def aimed(claim: str, aim: str, here: float | None, met: Callable[[float], bool], unit: str = "") -> ReportClaim:
    """A figure beside what this project aims at; one that could not be measured agrees with nothing."""
    if here is None:
        return ReportClaim(claim, f"aim: {aim}", "unknown")
    return ReportClaim(claim, f"aim: {aim}", f"{here:,.4g}{unit}", met(here))


def none_of(rows: Rows, *columns: str, claim: str = "rows lost or duplicated") -> ReportClaim:
    """That these columns are 0 in all rows. A number below 0, rows that came too often, counts as well."""
    wrong = sum(abs(number(row, column) or 0) for row in rows for column in columns)
    return aimed(claim, "0", wrong, lambda value: value == 0)


def compared(claim: str, ratio: float | None) -> ReportClaim:
    """A ratio that was measured and that nothing is aimed at."""
    return seen(claim, "unknown" if ratio is None else f"{ratio:.3f}")


class Experiment(ABC):
    """One figure or table of a paper, one comparison, or one benchmark.

    A class with parameters is a frozen dataclass whose fields are made by ``parameter``; values that make no sense are
    refused when it is made. ``measure`` gives the rows of one case: one for a point, many for the course of a run.
    Every row of an experiment ends up in one CSV file with the columns of its case, so a name means the same in all of
    them. What the paper had and a small machine has not is said in ``scale``, which is written on the figure.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    """Authors, year and figure; for a benchmark of this project, its command."""
    paper: ClassVar[Sequence[PaperValue]] = ()
    columns: ClassVar[Sequence[ReportColumn]] = ()
    """The figures that the report shows as a table, one line for each of ``lines``; none: claims and figure say it."""
    caption: ClassVar[str] = ""
    """How to read that table."""

    @abstractmethod
    def scale(self, size: Size) -> str:
        """What is smaller here than in the paper, or what the figures depend on, in one line."""

    @abstractmethod
    def cases(self, size: Size) -> Sequence[Row]:
        """The cases in the order in which they are measured, each with the columns that tell it from the others.

        What cannot be measured here is refused before anything is started.
        """

    @abstractmethod
    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        """Run one case; columns of the case are added to every row."""

    @abstractmethod
    def draw(self, rows: Rows, figure: Figure) -> None:
        """Draw what was measured; cases that failed are not among the rows."""

    @abstractmethod
    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        """What was measured, and what the paper has there, for the table of the page of results."""

    def lines(self, rows: Rows) -> Rows:
        """The rows that the table of the report shows, those of cases that failed included."""
        return rows

    def settings(self) -> dict[str, Value]:
        """The parameters of this run."""
        return {each.name: getattr(self, each.name) for each in parameters_of(type(self))}


def parameters_of(kind: type[Experiment]) -> list[Parameter]:
    """What can be set, in the order of the class."""
    if not is_dataclass(kind):
        return []
    found = [each for each in fields(kind) if "about" in each.metadata]
    assert all(each.default is not MISSING for each in found)
    return [Parameter(each.name, each.default, each.metadata["about"], each.metadata["kind"]) for each in found]


def run_cases(
    experiment: Experiment, size: Size, say: Say, keep: Callable[[Rows], None], before: Rows = ()
) -> list[Row]:
    """Measure all cases of which ``before`` has nothing. One that fails is kept with its error, and the others go on;
    ``keep`` is given all rows so far after each case, also those of ``before`` whose cases come later, because a run
    takes long and may be ended."""
    cases = experiment.cases(size)
    rows = [chosen(good(before), **case) for case in cases]
    for place, case in enumerate(cases):
        name = ", ".join(f"{key} {value}" for key, value in case.items())
        if rows[place]:
            say(f"{experiment.name}: {name}: measured before")
            continue
        say(f"{experiment.name}: {name}")
        try:
            rows[place] = [{**case, **row} for row in experiment.measure(case, size, say)]
        except UnbrokenError as error:
            # A run takes long: what the other cases give is worth having.
            say(f"{experiment.name}: {name}: failed: {error}")
            rows[place] = [{**case, ERROR: str(error)}]
        keep(list(chain(*rows)))
    return list(chain(*rows))


def machine() -> str:
    """What the figures were measured on, as far as it matters."""
    return f"{os.cpu_count()} cores"


def good(rows: Rows) -> list[Row]:
    return [row for row in rows if not row.get(ERROR)]


def chosen(rows: Rows, **columns: Value) -> list[Row]:
    """The rows with these values, also of rows that were read back from a file as text."""
    return [row for row in rows if all(str(row.get(column)) == str(value) for column, value in columns.items())]


def number(row: Row, column: str) -> float | None:
    """A figure of a row, also of one that was read back from a file."""
    value = row.get(column)
    return None if value is None or value == "" else float(value)


def flat(figures: Mapping[str, Any], above: str = "") -> dict[str, Value]:
    """Nested figures as one row: ``{"gap_ms": {"before": 5}}`` becomes ``{"gap_ms.before": 5}``.

    Lists of texts become one text with a line for each; of other lists every element has its place in the name.
    """
    row: dict[str, Value] = {}
    for key, value in figures.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            row |= flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            row[name] = "\n".join(value)
        elif isinstance(value, list | tuple):
            row |= flat({str(place): each for place, each in enumerate(value)}, f"{name}.")
        else:
            row[name] = value
    return row


def parted(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Names that are written with commas between them, each once; one that is not ``known`` is refused."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        said = f"there is no {what} {', '.join(unknown)}" if unknown else f"no {what} was named"
        raise UnbrokenError(f"{said}; use some of: {','.join(known)}")
    return tuple(dict.fromkeys(names))


def ratio_of(value: float | None, to: float | None) -> float | None:
    """How many times something is something else; None if that cannot be told."""
    return None if value is None or not to else value / to

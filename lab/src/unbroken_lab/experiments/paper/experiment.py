"""What an experiment of a paper is: cases that are measured one after the other, and how they are drawn."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

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
class PaperValue:
    """A number that a paper gives or draws, to be put beside what was measured.

    ``read_off`` are those that were read off a figure, which is not exact.
    """

    what: str
    value: str
    read_off: bool = False


class Experiment(ABC):
    """One figure or table of a paper.

    ``measure`` gives the rows of one case: one for a point, many for the course of a run. Every row of an experiment
    ends up in one CSV file with the columns of its case, so a name means the same in all of them. What the paper had
    and a small machine has not is said in ``scale``, which is written on the figure.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    """Authors, year and figure."""
    paper: ClassVar[Sequence[PaperValue]] = ()

    @abstractmethod
    def scale(self, size: Size) -> str:
        """What is smaller here than in the paper, in one line."""

    @abstractmethod
    def cases(self, size: Size) -> Sequence[Row]:
        """The cases in the order in which they are measured, each with the columns that tell it from the others."""

    @abstractmethod
    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        """Run one case; columns of the case are added to every row."""

    @abstractmethod
    def draw(self, rows: Rows, figure: Figure) -> None:
        """Draw what was measured; cases that failed are not among the rows."""

    @abstractmethod
    def findings(self, rows: Rows) -> Sequence[str]:
        """What the rows say, in sentences with the numbers in them, for the page of results."""


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


AGREES = "As in the paper: "
DIFFERS = "Unlike the paper: "


def compared(agrees: bool, sentence: str, why: str) -> str:
    """A finding that repeats what a paper found, or does not: the page of results lists the two apart.

    ``why`` is said where they differ: what is known to make the difference, in a sentence of its own.
    """
    return f"{AGREES}{sentence}" if agrees else f"{DIFFERS}{sentence.rstrip('.')}. {why}"

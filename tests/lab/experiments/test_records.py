"""What is kept of an experiment, and how a run that was ended goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import ERROR, Experiment, ReportClaim, Row, Rows, Say, Size, chosen, seen
from unbroken_lab.experiments.records import read_csv, run_and_keep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Squares(Experiment):
    """Two rows for each number, and numbers that cannot be measured."""

    name = "squares"
    title = "Squares"
    source = "nobody"

    def __init__(self, broken: Sequence[float] = (), until: float | None = None) -> None:
        self.broken, self.until = broken, until
        self.measured: list[float] = []

    def scale(self, size: Size) -> str:
        return "small"

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"n": n, "kind": "odd" if n % 2 else "even"} for n in (1, 2.0, 3)]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        n = float(case["n"] or 0)
        if n == self.until:
            raise KeyboardInterrupt
        if n in self.broken:
            raise UnbrokenError(f"{n:g} is broken")
        self.measured.append(n)
        return [{"second": second, "square": n * n} for second in (0, 1)]

    def draw(self, rows: Rows, figure: Figure) -> None:
        figure.subplots().plot([1, 2], [3, 4])

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        return [seen("rows", str(len(rows)))]


def test_a_run_that_was_ended_goes_on_with_what_it_has_not_measured(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_and_keep(Squares(until=2), tmp_path, Size(), said.append)
    again = Squares()
    kept = run_and_keep(again, tmp_path, Size(), said.append, resume=True)
    assert again.measured == [2, 3]
    assert "squares: n 1, kind odd: measured before" in said
    rows = read_csv(tmp_path / "squares.csv")
    assert [row["n"] for row in rows] == ["1", "1", "2.0", "2.0", "3", "3"], "in the order of the cases"
    assert [(claim["claim"], claim["here"]) for claim in kept.claims] == [("rows", "6")]


def test_cases_that_failed_are_tried_again_and_their_time_is_added(tmp_path: Path) -> None:
    first = run_and_keep(Squares(broken=[3]), tmp_path, Size(), lambda sentence: None)
    assert first.failed == ["3 is broken"]
    again = Squares()
    kept = run_and_keep(again, tmp_path, Size(), lambda sentence: None, resume=True)
    assert again.measured == [3] and not kept.failed
    assert kept.took_s >= first.took_s
    assert not any(row.get(ERROR) for row in read_csv(tmp_path / "squares.csv"))


def test_what_later_cases_have_left_stays_when_an_earlier_one_is_measured_again(tmp_path: Path) -> None:
    run_and_keep(Squares(broken=[1, 2]), tmp_path, Size(), lambda sentence: None)
    with pytest.raises(KeyboardInterrupt):
        run_and_keep(Squares(until=2), tmp_path, Size(), lambda sentence: None, resume=True)
    assert [row["n"] for row in read_csv(tmp_path / "squares.csv")] == ["1", "1", "3", "3"]
    last = Squares()
    run_and_keep(last, tmp_path, Size(), lambda sentence: None, resume=True)
    assert last.measured == [2] and len(read_csv(tmp_path / "squares.csv")) == 6


def test_without_resume_everything_is_measured_again(tmp_path: Path) -> None:
    for _ in range(2):
        again = Squares()
        run_and_keep(again, tmp_path, Size(), lambda sentence: None)
        assert again.measured == [1, 2, 3]


def test_a_quick_run_is_not_gone_on_with_by_a_real_one(tmp_path: Path) -> None:
    run_and_keep(Squares(), tmp_path, Size(quick=True), lambda sentence: None)
    with pytest.raises(UnbrokenError, match="is from a quick run, which cannot be gone on with"):
        run_and_keep(Squares(), tmp_path, Size(), lambda sentence: None, resume=True)


def test_rows_are_chosen_by_values_as_they_are_in_a_file() -> None:
    rows: Rows = [{"n": "1", "way": "a"}, {"n": 1, "way": "b"}, {"n": 2, "way": "a"}]
    assert chosen(rows, n=1) == list(rows[:2])
    assert chosen(rows, n=1, way="a") == list(rows[:1])

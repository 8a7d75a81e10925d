"""What all experiments have in common: parameters that become options, rows, columns and a place in the registry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from unbroken.cli import cli
from unbroken.errors import UnbrokenError
from unbroken_lab.cli.experiments import bench, figures_table
from unbroken_lab.experiments.experiment import (
    ERROR,
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Say,
    Size,
    aimed,
    flat,
    parameter,
    parameters_of,
    parted,
)
from unbroken_lab.experiments.records import numeric, read_csv, run_and_keep, write_csv
from unbroken_lab.experiments.registry import experiment_of, kind_of, names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Doubles(Experiment):
    """Twice each number."""

    name = "core"
    title = "Doubles"
    source = "a test"
    columns = (ReportColumn("n", "number", digits=0), ReportColumn("deep.twice", "doubled", " ms", 1))

    numbers: str = parameter("1,2", "Numbers to double.")
    broken: float | None = parameter(None, "One that cannot be doubled.", float)

    def scale(self, size: Size) -> str:
        return "small"

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"n": float(each)} for each in self.numbers.split(",")]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        n = float(case["n"] or 0)
        if n == self.broken:
            raise UnbrokenError("it is broken")
        return [flat({"deep": {"twice": 2 * n}, "story": ["one", "two"]})]

    def draw(self, rows: Rows, figure: Figure) -> None:
        figure.subplots().plot([1], [2])

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        return [aimed("numbers", "2", float(len(rows)), lambda value: value == 2)]


@pytest.mark.parametrize("name", names())
def test_every_experiment_can_be_made_and_has_quick_cases(name: str) -> None:
    experiment = experiment_of(name)
    assert experiment.name == name and experiment.title and experiment.source
    assert experiment.scale(Size()) and experiment.scale(Size(quick=True))
    assert len(experiment.cases(Size(quick=True))) <= len(experiment.cases(Size()))
    assert all(each.about for each in parameters_of(type(experiment)))
    assert experiment.settings() == {each.name: each.default for each in parameters_of(type(experiment))}


@pytest.mark.parametrize("name", names())
def test_every_experiment_has_a_command_with_its_parameters(name: str) -> None:
    options = {option.name for option in bench.commands[name].params}
    assert options >= {each.name for each in parameters_of(kind_of(name))}
    assert options >= {"directory", "quick", "resume", "redraw", "as_json"}


def test_an_experiment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnbrokenError, match="no experiment 'nothing'"):
        kind_of("nothing")


def test_nested_figures_become_one_row() -> None:
    nested = {"a": 1, "b": {"c": None, "d": {"e": 2.5}}, "story": ["x", "y"], "terms": [{"node": "n"}, {"node": "m"}]}
    assert flat(nested) == {
        "a": 1,
        "b.c": None,
        "b.d.e": 2.5,
        "story": "x\ny",
        "terms.0.node": "n",
        "terms.1.node": "m",
    }


def test_rows_of_a_file_get_their_numbers_back(tmp_path: Path) -> None:
    rows: Rows = [{"n": 1, "x": 2.5, "yes": True, "text": "a\nb"}, {"n": 2, "no": False, "none": None}]
    write_csv(tmp_path / "rows.csv", rows)
    assert numeric(read_csv(tmp_path / "rows.csv")) == [rows[0], {"n": 2, "no": False}]


def test_names_with_commas_between_them() -> None:
    assert parted("b, a,b", ("a", "b"), "letter") == ("b", "a")
    with pytest.raises(UnbrokenError, match="no letter c; use some of: a,b"):
        parted("a,c", ("a", "b"), "letter")


def test_a_figure_that_is_not_known_agrees_with_nothing() -> None:
    assert aimed("x", "below 2", None, lambda value: value < 2) == ReportClaim("x", "aim: below 2", "unknown", None)
    assert aimed("x", "below 2", 2.0, lambda value: value < 2, " s") == ReportClaim("x", "aim: below 2", "2 s", False)


def test_a_column_is_written_as_it_says() -> None:
    assert ReportColumn("gap_ms", "gap", " s", 2, 1000).shown({"gap_ms": "12345"}) == "12.35 s"
    assert ReportColumn("gap_ms", "gap").shown({"gap_ms": ""}) == "-"


def test_the_command_runs_an_experiment_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = bench.commands["core"]
    for place in ("kind", "_options"):
        command.__dict__.pop(place, None)
    monkeypatch.setitem(command.__dict__, "kind", Doubles)
    try:
        asked = ["bench", "core", "--numbers", "3,4", "--broken", "4", "--out", str(tmp_path)]
        done = CliRunner().invoke(cli, [*asked, "--json"])
        assert done.exit_code == 1, done.output
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["parameters"] == {"numbers": "3,4", "broken": 4.0} and told["failed"] == ["it is broken"]
        assert told["rows"] == [{"n": 3.0, "deep.twice": 6.0, "story": "one\ntwo"}, {"n": 4.0, ERROR: "it is broken"}]
        assert told["claims"] == [{"claim": "numbers", "paper": "aim: 2", "here": "1", "agrees": False}]
        shown = CliRunner().invoke(cli, [*asked, "--redraw"]).output
        assert "doubled" in shown and "6.0 ms" in shown and "failed: it is broken" in shown
    finally:
        command.__dict__.pop("_options", None)


def test_a_line_that_failed_shows_what_it_was() -> None:
    table = figures_table(Doubles(), [{"n": "1", "deep.twice": "2"}, {"n": "2", "deep.twice": "", ERROR: "broken"}])
    assert [[str(cell) for cell in column.cells] for column in table.columns] == [["1", "2"], ["2.0 ms", "failed"]]


def test_what_was_measured_with_other_parameters_is_not_resumed(tmp_path: Path) -> None:
    run_and_keep(Doubles("1"), tmp_path, Size(), lambda _: None)
    with pytest.raises(UnbrokenError, match="was measured with numbers 1, broken None"):
        run_and_keep(Doubles("1,2"), tmp_path, Size(), lambda _: None, resume=True)


def test_listing_the_commands_loads_no_experiment() -> None:
    """Completion in a shell and the list of commands would wait for Spark's Python otherwise."""
    script = """
import sys
from click.testing import CliRunner
from unbroken.cli import cli
assert "hwang-fig11" in CliRunner().invoke(cli, ["bench", "--help"]).output
assert not [name for name in sys.modules if name.startswith("unbroken_lab.experiments.cost")], "loaded"
assert "pyspark" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

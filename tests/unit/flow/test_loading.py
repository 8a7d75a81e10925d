"""From a file to the dataflow that it declares; a file that fails is refused with the line that is wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from unbroken.errors import FlowError, Problem
from unbroken.flow.loading import load_flow


def write(directory: Path, text: str, name: str = "flow_file.py") -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(text))
    return path


def refused(path: Path) -> Problem:
    with pytest.raises(FlowError) as caught:
        load_flow(path)
    (problem,) = caught.value.problems
    assert str(path) in problem.where and problem.what and problem.remedy
    assert str(problem) in str(caught.value)
    return problem


def test_a_file_with_one_flow_is_loaded(tmp_path: Path) -> None:
    text = "from unbroken import Dataflow\nfrom helper_of_flow import NAME\nflow = Dataflow(NAME)\nalso = flow\n"
    (tmp_path / "helper_of_flow.py").write_text("NAME = 'mine'\n")
    flow = load_flow(write(tmp_path, text))
    assert flow.name == "mine" and flow.where == f"{tmp_path / 'flow_file.py'}:3"


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "missing.py").what
    assert "no such file" in refused(tmp_path).what
    assert "not a Python file" in refused(write(tmp_path, "flow = 1", "flow.txt")).what


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("\nflow = (", 2, "SyntaxError"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def f():\n    1 / 0\nf()", 2, "ZeroDivisionError: division by zero"),
        ("import no_such_module_anywhere", 1, "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)", 2, "SystemExit: 3"),
        ("from unbroken import Availability\nAvailability()", 2, "missing 1 required positional argument: 'max_delay'"),
    ],
)
def test_a_file_that_fails_to_load(tmp_path: Path, text: str, line: int, cause: str) -> None:
    path = write(tmp_path, text)
    problem = refused(path)
    assert problem.where == f"{path}:{line}"
    assert cause in problem.what and "run it with python" in problem.remedy


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        ("Availability('3s', during_failures='delay')", "did you mean 'during_failure'? use one of: alpha, during"),
        ("flow.source('a', Push('k int'), eventtime='k')", "did you mean 'event_time'? use one of: connector, dis"),
        ("flow.segment('a', availabilty=None)", "did you mean 'availability'? use one of: availability, check"),
        ("Push('k int', heart_beat='2s')", "did you mean 'heartbeat'? use one of: heartbeat, max"),
        ("(lambda: 5)(sep=5)", "run it with python"),
    ],
)
def test_arguments_that_there_are_not(tmp_path: Path, call: str, meant: str) -> None:
    text = f"from unbroken import Availability, Dataflow, Push\nflow = Dataflow('f')\n{call}\n"
    problem = refused(write(tmp_path, text))
    assert problem.where.endswith(":3") and "unexpected keyword argument" in problem.what
    assert meant in problem.remedy


def test_refusals_within_the_file_come_through_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, "from unbroken import Dataflow\nflow = Dataflow('1 bad name')\n")
    problem = refused(path)
    assert problem.where == f"{path}:2, dataflow" and "cannot be a name" in problem.what


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("x = 1", "no Dataflow is declared"),
        ("from unbroken import Dataflow\na, b = Dataflow('a'), Dataflow('b')", "2 Dataflows are declared"),
        ("from unbroken import Dataflow\ndef f():\n    return Dataflow('a')", "no Dataflow is declared"),
    ],
)
def test_exactly_one_flow(tmp_path: Path, text: str, cause: str) -> None:
    problem = refused(write(tmp_path, text))
    assert problem.what == cause and "flow = Dataflow('name')" in problem.remedy


def test_loading_again_takes_the_file_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, "from unbroken import Dataflow\nflow = Dataflow('one')\n")
    assert load_flow(path).name == "one"
    write(tmp_path, "from unbroken import Dataflow\nflow = Dataflow('another')\n")
    assert load_flow(path).name == "another"

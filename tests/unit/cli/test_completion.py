"""Completion: a script for each shell, and the names of local runs, nodes and shards."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from unbroken.cli import cli
from unbroken.cli.completion import SHELLS
from unit.cli.asking import ask, run_directory


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run_directory(tmp_path, "clicks")
    return tmp_path


def offered(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    *before, incomplete = words
    found = ShellComplete(cli, {}, "unbroken", "_UNBROKEN_COMPLETE").get_completions(before, incomplete)
    return [item.value for item in found]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script(shell: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("no bash here to say its version")
    told = ask("completion", shell)
    assert told.exit_code == 0 and "_UNBROKEN_COMPLETE" in told.stdout and "unbroken" in told.stdout
    assert "unbroken completion" in ask("completion", "--help").output


def test_an_unknown_shell_is_refused() -> None:
    assert ask("completion", "tcsh").exit_code == 2


def test_commands_and_options() -> None:
    assert offered("re") == ["reinit", "resume"]
    assert "recovery" in offered("bench", "")
    assert offered("status", "--wa") == ["--watch"]


def test_names_of_flows_nodes_and_shards(runs: Path) -> None:
    assert offered("status", "") == ["clicks"]
    assert offered("drain", "") == ["node-1", "node-2", "standby-1"] == offered("kill", "")
    assert offered("reinit", "t") == ["totals.0", "totals.1"]
    assert offered("reinit", "") == ["ingress.0", "joined.0", "totals.0", "totals.1"]
    assert offered("reinit", "totals.0", "node-2") == ["node-2"]
    assert offered("drain", "node-1", "cl") == ["clicks"]


def test_files_where_a_flow_may_be_one() -> None:
    found = ShellComplete(cli, {}, "unbroken", "_UNBROKEN_COMPLETE").get_completions(["topology"], "cl")
    assert [(item.value, item.type) for item in found] == [("clicks", "plain"), ("cl", "file")]


def test_the_run_in_another_directory(runs: Path) -> None:
    other = run_directory(runs / "elsewhere", "orders")
    (other / "logs" / "node-9.log").touch()
    assert "node-9" in offered("drain", "--dir", str(other), "")


def test_nothing_is_offered_where_nothing_is_known(runs: Path) -> None:
    (runs / ".unbroken" / "clicks" / "shape.json").write_text("not JSON")
    assert offered("reinit", "t") == []
    assert offered("drain", "--dir", "nowhere", "") == []

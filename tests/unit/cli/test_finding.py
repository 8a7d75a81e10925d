"""Which run a command is about: by its name, by its directory, by its ZooKeeper, or because there is only one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.support import TOKEN
from unbroken.cli.shared import EXIT_UNREACHABLE, NamedRun, RunAddress, find_run
from unbroken.errors import Refused, UnbrokenError, Unreachable
from unit.cli.asking import ask, facts, run_directory


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNBROKEN_TOKEN", raising=False)
    return tmp_path


def test_the_only_run_below_this_directory(here: Path) -> None:
    directory = run_directory(here, "clicks")
    assert find_run(None, None).flow == "clicks"
    assert find_run("clicks", None).directory == Path(".unbroken/clicks")
    assert find_run(None, directory).token() == TOKEN


def test_several_runs_have_to_be_told_apart(here: Path) -> None:
    with pytest.raises(Unreachable, match=r"which flow.*none.*--zookeeper"):
        find_run(None, None)
    run_directory(here, "clicks")
    run_directory(here, "orders")
    with pytest.raises(Unreachable, match="clicks, orders"):
        find_run(None, None)
    with pytest.raises(Unreachable, match="no flow has been started"):
        find_run("sales", None)


def test_a_flow_on_other_machines(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "token").write_text(f"{TOKEN}\n")
    run_directory(here, "clicks")
    found = find_run("orders", None, "zk1:2181", here / "token")
    assert found == RunAddress("orders", "zk1:2181", here / "token") and found.token() == TOKEN
    with pytest.raises(Refused, match="--token-file, or UNBROKEN_TOKEN"):
        find_run("orders", None, "zk1:2181").token()
    monkeypatch.setenv("UNBROKEN_TOKEN", TOKEN)
    assert find_run("orders", None, "zk1:2181").token() == TOKEN
    monkeypatch.setenv("UNBROKEN_TOKEN", "short")
    with pytest.raises(UnbrokenError, match="too short: 5 characters"):
        find_run("orders", None, "zk1:2181").token()


def test_a_directory_is_not_overruled_by_the_environment(here: Path) -> None:
    directory = run_directory(here, "clicks", "127.0.0.1:2")
    assert NamedRun("clicks", directory, "zk1:2181").place().zookeeper == "127.0.0.1:2"


@pytest.mark.parametrize("words", [["status"], ["history"], ["topology"], ["pause"], ["resume"], ["drain", "node-1"]])
def test_a_run_that_is_not_there(here: Path, words: list[str]) -> None:
    told = ask(*words)
    assert told.exit_code == EXIT_UNREACHABLE and "Name one" in told.stderr
    assert facts(*words)["exit_code"] == EXIT_UNREACHABLE


def test_a_damaged_file_says_so(here: Path) -> None:
    directory = run_directory(here, "clicks")
    (directory / "run.json").write_text("{")
    told = ask("status")
    assert told.exit_code == 1 and "is damaged" in told.stderr

"""`unbroken ui` and `unbroken bench page`, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from unbroken.cli import cli


def test_the_page_of_a_simulated_flow_is_served_until_it_is_told_to_end(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "unbroken", "simulate", "page", "--replicas", "10", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            with urllib.request.urlopen(found["page"], timeout=30) as answer:
                assert b"Unbroken" in answer.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_flow_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["ui", "nothing"])
    assert result.exit_code == 3, result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "page", "--replicas", "5"], "10<=x<=2000"),
        (["run", __file__, "--demo", "--no-page"], "leave one of them out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2 and said in result.stderr


def test_help_has_examples() -> None:
    told = CliRunner().invoke(cli, ["ui", "--help"], env={"COLUMNS": "200"}).output
    assert "unbroken ui clicks --demo" in told
    assert "--faults" in CliRunner().invoke(cli, ["simulate", "page", "--help"], env={"COLUMNS": "200"}).output
    assert "--page-port" in CliRunner().invoke(cli, ["run", "--help"], env={"COLUMNS": "200"}).output


def test_what_an_update_costs_without_a_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from unbroken_lab.experiments.cost import page as bench

    monkeypatch.setattr(bench, "chromium", lambda: None)
    result = CliRunner().invoke(cli, ["bench", "page", "--quick", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout.splitlines()[-1])
    (row,) = line["rows"]
    assert row["updates"] >= 2 and "browser_ms.p50" not in row
    assert row["server_ms.p50"] > 0 and row["replicas"] >= 10
    server, browser = line["claims"]
    assert server["agrees"] is (row["server_ms.p99"] <= 100) and browser["here"] == "unknown"

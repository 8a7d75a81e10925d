"""The pytest plugin in a pytest of its own: who gets the cluster, and what is told and removed afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import pytest

import unbroken.testing.warm.pool


class Run:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def describe(self):
        return f"logs of {self.name}: /somewhere"

    def remove(self):
        self.log("removed " + self.name)


class Cluster:
    def __init__(self, directory):
        assert directory.is_dir()
        self.made = []

    def log(self, sentence):
        with open("log", "a") as file:
            file.write(sentence + "\\n")

    def __enter__(self):
        self.log("started")
        return self

    def __exit__(self, *_):
        self.log("ended")

    def run(self, name):
        self.made.append(Run(name, self.log))

    def take_runs(self):
        made, self.made = self.made, []
        return made


unbroken.testing.warm.pool.WarmCluster = Cluster
"""

TESTS = """
def test_without_it():
    pass


def test_that_passes(unbroken_cluster):
    unbroken_cluster.run("one that passed")


def test_that_fails(unbroken_cluster):
    unbroken_cluster.run("one that failed")
    unbroken_cluster.run("another one")
    assert False


def test_that_looks_at_what_another_test_has_made(unbroken_cluster):
    assert False


def test_after_that(unbroken_cluster):
    pass
"""


def run_pytest(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "unbroken.testing.plugin", "-p", "no:cacheprovider", *arguments]
    # The package may be installed, and the plugin would then be there twice.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_runs_of_failed_tests_are_told_and_those_of_others_removed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    told = run_pytest(tmp_path, "-q")
    assert "2 failed, 3 passed" in told, told
    assert told.count("logs of one that failed: /somewhere") == 1
    assert told.count("logs of another one: /somewhere") == 2, "it is the last run, too"
    assert "logs of one that passed" not in told
    assert (tmp_path / "log").read_text().splitlines() == ["started", "removed one that passed", "ended"]


def test_nothing_is_started_or_loaded_for_tests_that_do_not_ask(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it():\n    assert not {'pyspark', 'pyarrow', 'kazoo'} & set(sys.modules)\n"
    )
    assert "1 passed" in run_pytest(tmp_path, "-q")
    assert "unbroken_cluster [session scope]" in run_pytest(tmp_path, "--fixtures", "-q")

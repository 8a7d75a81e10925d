"""The examples of the documentation of the test kit, run as a reader would run them: on real nodes, by pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import write_files

DEADLINE_S = 1_200


@pytest.mark.cluster
@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_examples_pass(tmp_path: Path) -> None:
    write_files("docs/testing.md", tmp_path)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = ["-p", "unbroken.testing.plugin", "-p", "no:cacheprovider", "-q", "--durations=0", "-vv"]
    command = [sys.executable, "-m", "pytest", *arguments, f"--basetemp={tmp_path / 'kept'}"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    print(done.stdout)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    program = subprocess.run(
        [sys.executable, "check_clicks.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert program.stdout.count("was frozen, the longest gap was") == 3, program.stdout + program.stderr

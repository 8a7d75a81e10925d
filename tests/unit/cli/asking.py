"""Asking the command line in the same process, and statuses to be shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kit.support import TOKEN
from unbroken.cli import cli
from unbroken.coordination.run_info import RunInfo
from unbroken.flow.program import PROGRAM, Program
from unbroken.protocol.values.layout import Topology


def ask(*words: str, **options: Any) -> Result:
    """What a command does, without the environment of whoever runs the tests."""
    nothing = {"UNBROKEN_ZOOKEEPER": None, "UNBROKEN_TOKEN": None, "COLUMNS": "100"}
    return CliRunner().invoke(cli, list(words), env={**nothing, **options.pop("env", {})}, **options)


def facts(*words: str, **options: Any) -> dict[str, Any]:
    """The one JSON object that a command prints."""
    value = json.loads(ask(*words, "--json", **options).stdout)
    assert isinstance(value, dict)
    return value


def run_directory(root: Path, name: str, zookeeper: str = "127.0.0.1:1") -> Path:
    """What a run leaves in its directory, for the commands that look for it."""
    directory = root / ".unbroken" / name
    (directory / "logs").mkdir(parents=True)
    (directory / "token").write_text(TOKEN)
    for log in ("zookeeper", "node-1", "node-2", "standby-1"):
        (directory / "logs" / f"{log}.log").touch()
    shape = Topology((), {"totals": 2, "joined": 1}, (), (), {})
    (directory / "shape.json").write_bytes(PROGRAM.encode(Program(1, "flow.py", "", shape, {})))
    RunInfo(name, zookeeper, directory / "token", directory, os.getpid()).write()
    return directory

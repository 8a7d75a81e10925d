"""The directory of a local run: how other commands find the run, and when it may be deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psutil

from unbroken.coordination.run_info import RUN_FILE, RunInfo
from unbroken.errors import Refused, UnbrokenError
from unbroken.flow.program import Program
from unbroken.local.zookeeper_server import serves
from unbroken.spark.analysis.resumption import conflicts

SHAPE_FILE = "shape.json"
MARKS = (RUN_FILE, SHAPE_FILE, "token")
"""What a directory is recognised by as that of a run; deleted last."""


def is_running(run: RunInfo) -> bool:
    """Whether a run continues: its ZooKeeper answers, and its owner lives (another process may have got the port)."""
    host, _, port = run.zookeeper.rpartition(":")
    owned = run.pid is None or psutil.pid_exists(run.pid)
    return owned and port.isdigit() and serves(host, int(port))


def can_resume(directory: Path, fresh: bool) -> bool:
    """Whether ``directory`` holds a run to go on with; False if one may begin there, with ``fresh`` after deleting it.

    Raises UnbrokenError if neither may be.
    """
    if not directory.exists():
        return False
    if not directory.is_dir():
        raise UnbrokenError(f"{directory} is not a directory. Give another one with --dir.")
    if not any(directory.iterdir()):
        return False
    marked = any((directory / mark).is_file() for mark in MARKS)
    if not marked:
        raise UnbrokenError(
            f"{directory} holds files, but none that tell it is the directory of an earlier run, so it is left alone. "
            "Give another directory with --dir, or delete it yourself."
        )
    if (directory / RUN_FILE).is_file():
        info = RunInfo.read(directory)
        if is_running(info):
            raise UnbrokenError(
                f"flow {info.flow} runs in {directory} (process {info.pid}). Stop it first, or give another directory "
                "with --dir."
            )
    # Without these three nothing had begun that could be gone on with.
    return not fresh and all((directory / mark).is_file() for mark in MARKS)


def shape_of(program: Program) -> dict[str, Any]:
    """What has to stay as it is for the state of a run to be of use: all that its file declares."""
    topology = program.topology
    return {
        "sources": list(topology.sources),
        "segments": dict(topology.segments),
        "sinks": list(topology.sinks),
        "edges": [list(edge) for edge in topology.edges],
        "program": {**program.to_json(), "text": ""},
    }


def write_shape(directory: Path, program: Program) -> None:
    (directory / SHAPE_FILE).write_text(json.dumps(shape_of(program), indent=1))


def refuse_other_shape(directory: Path, program: Program) -> None:
    """Raise Refused if the run in ``directory`` cannot be continued with a program.

    Columns that Spark finds are not known here, nor whether the run has been upgraded since: its nodes compare those.
    """
    try:
        before = json.loads((directory / SHAPE_FILE).read_text())
        run = Program.from_json(before["program"])
    except (ValueError, KeyError, TypeError) as error:
        what = f"{directory / SHAPE_FILE} is damaged ({type(error).__name__}: {error})"
        raise UnbrokenError(f"{what}. Start over with --fresh.") from error
    problems = conflicts(run, program, program.file, runs_given=False)
    if problems:
        details = "; ".join(problem.what.partition(": ")[2] for problem in problems)
        raise Refused(
            f"{directory} holds the state of a flow that is declared otherwise: {details}. Run the file it was started "
            "with, give another directory with --dir, or start over with --fresh, which deletes the state."
        )


def clear(directory: Path) -> None:
    """Delete what is in a run's directory, what marks it as one last: an interrupted deletion can be repeated."""
    if not directory.exists():
        return
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name in MARKS):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()

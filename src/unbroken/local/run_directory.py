"""The directory of a local run: how other commands find the run, and when it may be deleted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import psutil

from unbroken.codecs.codec import Undecodable
from unbroken.coordination.run_info import RUN_FILE, RunInfo
from unbroken.errors import Refused, UnbrokenError
from unbroken.flow.program import PROGRAM, Program
from unbroken.local.zookeeper_server import serves
from unbroken.spark.analysis.resumption import differences

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


def write_shape(directory: Path, program: Program) -> None:
    """Keep what has to stay as it is for the state of a run to be of use: all that its file declares."""
    (directory / SHAPE_FILE).write_bytes(PROGRAM.encode(replace(program, text="")))


def refuse_other_shape(directory: Path, program: Program) -> None:
    """Raise Refused if the run in ``directory`` cannot be continued with a program.

    Columns that Spark finds are not known here, nor whether the run has been upgraded since: its nodes compare those.
    """
    try:
        run = PROGRAM.decode((directory / SHAPE_FILE).read_bytes())
    except Undecodable as error:
        what = f"{directory / SHAPE_FILE} is damaged ({error})"
        raise UnbrokenError(f"{what}. Start over with --fresh.") from error
    found = differences(run, program, runs_given=False)
    if found:
        details = "; ".join(flaw.what for flaw in found)
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

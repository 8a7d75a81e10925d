"""The directory of a local run: how other commands find the run, and when it may be deleted."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from unbroken.cluster.zookeeper import serves
from unbroken.errors import UnbrokenError

RUN_FILE = "run.json"
MARKS = (RUN_FILE, "token")
"""What a directory is recognised by as that of a run; deleted last."""


@dataclass(frozen=True)
class RunInfo:
    """How to reach a running flow, kept in its directory for the other commands; ``pid`` is who owns the run."""

    flow: str
    zookeeper: str
    token_file: Path
    directory: Path
    pid: int | None = None

    def write(self) -> None:
        value = {"flow": self.flow, "zookeeper": self.zookeeper, "token_file": str(self.token_file), "pid": self.pid}
        unfinished = self.directory / f"{RUN_FILE}.tmp"
        unfinished.write_text(json.dumps(value))
        unfinished.replace(self.directory / RUN_FILE)

    @classmethod
    def read(cls, directory: Path) -> RunInfo:
        try:
            value = json.loads((directory / RUN_FILE).read_text())
            token_file = Path(value["token_file"])
            return cls(value["flow"], value["zookeeper"], token_file, directory, value.get("pid"))
        except FileNotFoundError:
            raise UnbrokenError(
                f"no flow has been started in {directory}. Start one with `unbroken run FILE`, "
                "or name its directory with --dir."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            what = f"{directory / RUN_FILE} is damaged ({type(error).__name__}: {error})"
            raise UnbrokenError(f"{what}. If no flow runs there, delete {directory}.") from error

    def running(self) -> bool:
        """Whether the run goes on: its ZooKeeper answers, and who owns it lives (another may have got the port)."""
        host, _, port = self.zookeeper.rpartition(":")
        owned = self.pid is None or psutil.pid_exists(self.pid)
        return owned and port.isdigit() and serves(host, int(port))


def refuse_used(directory: Path, fresh: bool) -> None:
    """Raise UnbrokenError unless a run may begin in ``directory``, with ``fresh`` after deleting what is there."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UnbrokenError(f"{directory} is not a directory. Give another one with --dir.")
    if not any(directory.iterdir()):
        return
    marked = any((directory / mark).is_file() for mark in MARKS)
    if not marked:
        raise UnbrokenError(
            f"{directory} holds files, but none that tell it is the directory of an earlier run, so it is left alone. "
            "Give another directory with --dir, or delete it yourself."
        )
    if (directory / RUN_FILE).is_file():
        info = RunInfo.read(directory)
        if info.running():
            raise UnbrokenError(
                f"flow {info.flow} runs in {directory} (process {info.pid}). Stop it first, or give another directory "
                "with --dir."
            )
    if not fresh:
        raise UnbrokenError(
            f"{directory} holds the state of an earlier run. Give another directory with --dir, "
            "or start over with --fresh, which deletes it (results in sinks stay where they are)."
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

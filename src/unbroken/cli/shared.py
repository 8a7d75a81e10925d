"""What the commands have in common: where they print, how they exit, and how they find the run they are about."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from unbroken.errors import UnbrokenError

EXIT_REFUSED = 2
"""The flow cannot be run as declared, or the command was used wrongly."""

EXIT_FAILED = 1

ANSWER_DEADLINE_S = 5.0
"""How long a command that asks a running flow waits for its ZooKeeper: one that runs answers at once."""

out = Console()
errors = Console(stderr=True)


def of_run(command: Callable[..., None]) -> Callable[..., None]:
    """The two ways in which a command is told which run it is about; see ``find_run``."""
    directory = click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory of the run.")
    return click.argument("flow_name", required=False)(directory(command))


@contextlib.contextmanager
def coordinated(flow_name: str | None, directory: Path | None) -> Iterator[tuple[Any, str]]:
    """A session with the ZooKeeper of a run, and the flow's name."""
    from unbroken.cluster.documents import connect

    info = find_run(flow_name, directory)
    client = connect(info.zookeeper, 10, ANSWER_DEADLINE_S)
    try:
        yield client, info.flow
    finally:
        client.stop()
        client.close()


def find_run(flow_name: str | None, directory: Path | None) -> Any:
    """The run named on the command line, or the only one below ./.unbroken."""
    from unbroken.cluster.launcher import RUN_FILE, RunInfo

    if directory is not None:
        return RunInfo.read(directory)
    if flow_name is not None:
        return RunInfo.read(Path(".unbroken") / flow_name)
    found = sorted(path.parent for path in Path(".unbroken").glob(f"*/{RUN_FILE}"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UnbrokenError(f"which flow? Runs below ./.unbroken: {names}. Name one, or give --dir.")
    return RunInfo.read(found[0])

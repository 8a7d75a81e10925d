"""What the commands have in common: where they print, how they exit, and how they find the run they are about."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from unbroken.cli.completion import RUNS, complete_flow
from unbroken.errors import DeadlinePassed, FlowError, Refused, UnbrokenError, Unreachable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from kazoo.client import KazooClient

EXIT_OK = 0
EXIT_FAILED = 1
"""It was tried and went wrong: an error, a wrong result, a flow without a node left."""

EXIT_REFUSED = 2
"""Nothing was done: the flow cannot be run as declared, the order makes no sense as things are, or the command was used
wrongly."""

EXIT_UNREACHABLE = 3
"""There is no such run, or it does not answer."""

EXIT_DEADLINE = 4
"""What was asked for has not happened in time. It stays asked for."""

EXIT_DEGRADED = 5
"""The flow goes on, and something about it is not as it should be (``status --check``)."""

EXIT_INTERRUPTED = 130
"""Ctrl-C while something was under way."""

ANSWER_DEADLINE_S = 5.0
"""How long a command that asks a running flow waits for its ZooKeeper: one that runs answers at once."""

out = Console()
errors = Console(stderr=True)

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def exit_code(error: UnbrokenError) -> int:
    """How a command ends with an error."""
    match error:
        case FlowError() | Refused():
            return EXIT_REFUSED
        case Unreachable():
            return EXIT_UNREACHABLE
        case DeadlinePassed():
            return EXIT_DEADLINE
    return EXIT_FAILED


def say(text: str) -> None:
    """Tell a person something beside the result."""
    errors.print(text, highlight=False, markup=False, soft_wrap=True)


def answer(as_json: bool, text: str, **facts: Any) -> None:
    """The result of a command: a sentence, or facts for a program."""
    if as_json:
        click.echo(json.dumps({"ok": True, **facts}))
    else:
        out.print(text, highlight=False, markup=False, soft_wrap=True)


# --- which run --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedRun:
    """A running flow, as it was named on the command line: by its directory, or by its ZooKeeper."""

    flow_name: str | None = None
    directory: Path | None = None
    zookeeper: str | None = None
    token_file: Path | None = None

    def place(self) -> RunAddress:
        """Where it is; raises Unreachable if there is none."""
        return find_run(self.flow_name, self.directory, self.zookeeper, self.token_file)

    @contextlib.contextmanager
    def coordinated(self) -> Iterator[tuple[KazooClient, str]]:
        """A session with its ZooKeeper, and its name."""
        from unbroken.coordination.client import check_access
        from unbroken.coordination.documents import connect

        place = self.place()
        client = connect(place.zookeeper, 10, ANSWER_DEADLINE_S, token=place.token())
        try:
            flow = place.flow or _only_flow(client, place.zookeeper)
            check_access(client, flow)
            yield client, flow
        finally:
            client.stop()
            client.close()


@dataclass(frozen=True)
class RunAddress:
    """How a running flow is reached; ``directory`` is that of a local run."""

    flow: str
    zookeeper: str
    token_file: Path | None
    directory: Path | None = None

    def token(self) -> str:
        """What its nodes ask for."""
        from unbroken.security.keys import check_token
        from unbroken.transport.auth import read_token

        given = os.environ.get("UNBROKEN_TOKEN")
        if self.token_file is not None:
            return read_token(self.token_file)
        if not given:
            raise Refused("only those who have the flow's token may ask for that: give --token-file, or UNBROKEN_TOKEN")
        return check_token(given)

    def named(self) -> RunAddress:
        """The same with the name of the flow, asked of ZooKeeper if it was not given."""
        if self.flow:
            return self
        with NamedRun(None, None, self.zookeeper, self.token_file).coordinated() as (_, flow):
            return RunAddress(flow, self.zookeeper, self.token_file, self.directory)


Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
CommandBody = Callable[..., None]


def run_options(
    metavar: str = "[FLOW]", completer: Completer = complete_flow, *, local: bool = False
) -> Callable[[CommandBody], CommandBody]:
    """The ways in which a command is told which run it is about, given to it as ``run``.

    A ``local`` one can only be a run of this machine.
    """
    elsewhere = (
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            help="The token of a flow that is not a local run (or UNBROKEN_TOKEN).",
        ),
        click.option(
            "--zookeeper",
            envvar="UNBROKEN_ZOOKEEPER",
            metavar="HOST:PORT",
            help="ZooKeeper of a flow that is not a local run (or UNBROKEN_ZOOKEEPER).",
        ),
    )
    here = (
        click.option(
            "--dir", "directory", type=click.Path(path_type=Path), help="Directory of a local run; .unbroken/FLOW."
        ),
        click.argument("flow_name", metavar=metavar, required=False, shell_complete=completer),
    )

    def decorate(command: CommandBody) -> CommandBody:
        @functools.wraps(command)
        def told(
            *args: Any,
            flow_name: str | None,
            directory: Path | None,
            zookeeper: str | None = None,
            token_file: Path | None = None,
            **others: Any,
        ) -> None:
            command(*args, run=NamedRun(flow_name, directory, zookeeper, token_file), **others)

        for option in here if local else (*elsewhere, *here):
            told = option(told)
        return told

    return decorate


on_run = run_options()


def find_run(
    flow_name: str | None,
    directory: Path | None,
    zookeeper: str | None = None,
    token_file: Path | None = None,
) -> RunAddress:
    """The run named on the command line, or the only one below ./.unbroken; raises Unreachable if there is none.

    With a ``zookeeper`` it need not be a run of this machine, and its name may be left out if it is the only one there.
    """
    from unbroken.coordination.run_info import RUN_FILE, RunInfo

    if directory is None and zookeeper is not None:
        return RunAddress(flow_name or "", zookeeper, token_file)
    if directory is None and flow_name is not None:
        directory = RUNS / flow_name
    if directory is None:
        found = sorted(path.parent for path in RUNS.glob(f"*/{RUN_FILE}"))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise Unreachable(f"which flow? Runs below ./.unbroken: {names}. Name one, or give --dir or --zookeeper.")
        directory = found[0]
    info = RunInfo.read(directory)
    return RunAddress(info.flow, info.zookeeper, token_file or info.token_file, directory)


def _only_flow(client: KazooClient, zookeeper: str) -> str:
    """The flow that a ZooKeeper has, if it is one."""
    from kazoo.exceptions import NoNodeError

    try:
        found = sorted(client.get_children("/unbroken"))
    except NoNodeError:
        found = []
    if len(found) != 1:
        raise Unreachable(f"which flow? The ZooKeeper at {zookeeper} knows: {', '.join(found) or 'none'}. Name one.")
    return str(found[0])


@contextlib.contextmanager
def quiet() -> Iterator[Console]:
    """Keep what Spark and its JVM write to stderr off the screen: the command's own words are what is asked for.

    Gives a way to stderr for those meanwhile.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        with os.fdopen(os.dup(kept), "w", buffering=1) as screen:
            yield Console(file=screen, stderr=True)
    finally:
        os.dup2(kept, 2)
        os.close(kept)

"""The command line: ``unbroken COMMAND``, one module for each kind of command."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

import click

from unbroken import __version__
from unbroken.cli import adopt, init, journal, kill, page, pause, prepare, requests, run, skip, status, zookeeper
from unbroken.cli.command import group

ENTRY_POINTS = "unbroken.commands"
"""Where other distributions name what they add to the command line."""

COMMANDS: dict[str, tuple[click.Command, ...]] = {
    "Begin": (init.init, run.check, run.run),
    "See": (status.status, status.topology, status.history, journal.journal, page.ui),
    "Operate": (
        requests.drain,
        requests.reinit,
        requests.upgrade,
        pause.pause,
        pause.resume,
        skip.skip,
        adopt.adopt,
    ),
    "Try what fails": (kill.kill,),
    "Set up": (run.node, zookeeper.zookeeper, prepare.prepare, init.completion),
}
"""By what a person wants to do."""


@group(
    context_settings={"help_option_names": ["-h", "--help"]},
    elsewhere=dict.fromkeys(("bench", "chaos", "demo", "simulate"), "unbroken-lab"),
    examples=[
        ("unbroken init clicks && cd clicks", "a commented project to begin with"),
        ("unbroken run flow.py", "run it on this machine"),
        ("unbroken status --watch", "see how it is, from a second terminal"),
        ("unbroken kill node-1", "and see that nobody downstream notices"),
    ],
)
@click.version_option(__version__)
def cli() -> None:
    """Keep PySpark streaming pipelines producing results through failures.

    Every command has --help with examples, and --json where it prints something. Exit codes: 0 done, 1 failed,
    2 refused, 3 no such flow or no answer, 4 not in time, 5 not well (status --check), 130 interrupted.
    """
    # kazoo reports every attempt to connect; what comes of them is said once, by the command.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


def add_commands_of_others() -> None:
    """Add the commands of other distributions, such as ``unbroken-lab``.

    Each entry point of the group is a mapping like `COMMANDS`. One that cannot be loaded is reported and left out, so
    that the commands that operate a flow work all the same.
    """
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            cli.fill(entry.load())
        except Exception as error:
            click.echo(f"commands of {entry.value} are missing: {type(error).__name__}: {error}", err=True)


cli.fill(COMMANDS)
add_commands_of_others()


def main() -> None:
    """Entry point of the ``unbroken`` command."""
    cli(prog_name="unbroken")

"""The command line: ``unbroken COMMAND``, one module for each kind of command."""

from __future__ import annotations

import logging
from typing import Any

import click

from unbroken import __version__
from unbroken.cli import hwang, looking, measuring, operating, papers, peers, planning, reliability, running, simulating
from unbroken.cli.shared import EXIT_FAILED, EXIT_REFUSED, errors
from unbroken.errors import FlowError, UnbrokenError

COMMANDS = (
    *(running.check, running.run, running.node, running.demo),
    *(looking.status, looking.history),
    *(operating.drain, operating.reinit, operating.upgrade),
    *(measuring.bench, measuring.chaos, simulating.simulate),
)


class _Commands(click.Group):
    """Turns Unbroken's own errors into messages; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlowError as error:
            for problem in error.problems:
                errors.print(f"[bold red]refused[/] {problem.where}", highlight=False)
                errors.print(f"  {problem.what}", highlight=False, markup=False)
                errors.print(f"  -> {problem.remedy}", highlight=False, markup=False)
            ctx.exit(EXIT_REFUSED)
        except UnbrokenError as error:
            errors.print("[bold red]error[/]", end=" ")
            errors.print(str(error), highlight=False, markup=False)
            ctx.exit(EXIT_FAILED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Keep PySpark streaming pipelines producing results through failures."""
    # kazoo reports every attempt to connect; what comes of them is said once, by the command.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


for command in (*reliability.COMMANDS, *planning.COMMANDS, *hwang.COMMANDS):
    simulating.simulate.add_command(command)

for command in (*papers.COMMANDS, *peers.COMMANDS):
    measuring.bench.add_command(command)

for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Entry point of the ``unbroken`` command."""
    cli()

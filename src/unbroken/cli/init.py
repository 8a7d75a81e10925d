"""Commands to begin with: ``init`` and ``completion``."""

from __future__ import annotations

from pathlib import Path

import click

from unbroken.cli.command import command
from unbroken.cli.completion import SHELLS, WHERE, script
from unbroken.cli.shared import AS_JSON, answer

SOURCES = ("generator", "files", "kafka", "push")
"""As in ``unbroken.cli.starter``; written here so that the help needs nothing else."""


@command(
    examples=[
        ("unbroken init", "a project in this directory"),
        ("unbroken init clicks --source kafka", "one in clicks/, whose rows come from Kafka"),
        ("unbroken init clicks && cd clicks && unbroken run flow.py", "results on the screen in half a minute"),
    ]
)
@click.argument("directory", metavar="[DIR]", default=Path("."), type=click.Path(path_type=Path))
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default="generator",
    show_default=True,
    help="Where its rows come from: made by itself, files in a directory, a Kafka topic, or programs that push them.",
)
@click.option("--name", help="Name of the flow; that of the directory by default.")
@AS_JSON
def init(directory: Path, source: str, name: str | None, as_json: bool) -> None:
    """Write a small commented project: a flow, a test that kills a node, and what to try.

    Nothing is ever overwritten. What it writes can be checked and run as it is.
    """
    from unbroken.cli.starter import name_for, project, write

    flow = name or name_for(directory)
    written = write(directory, project(flow, source))
    enter = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    listed = "\n".join(f"  {path}" for path in written)
    text = f"{flow}: written\n{listed}\nnext: {enter}unbroken run flow.py"
    answer(as_json, text, flow=flow, source=source, directory=str(directory), files=[str(path) for path in written])


@command(examples=[(f"unbroken completion {shell}", f"for your shell: {WHERE[shell]}") for shell in SHELLS])
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what a shell has to run to complete commands, options, flows, nodes and shards.

    Names of flows, nodes and shards are those of local runs below ./.unbroken, or of the one that --dir names.
    """
    click.echo(script(shell, ctx.find_root().command))

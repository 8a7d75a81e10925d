"""``unbroken demo``: a flow that loses a node, and every result of it compared with what it should be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON, errors, out


@command(
    examples=[
        ("unbroken demo", "about two minutes; tables and a picture in build/demo"),
        ("unbroken demo --seconds 40 --json", "a shorter one, with its figures as JSON"),
    ]
)
@click.option("--out", "directory", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True)
@click.option("--rate", default=2_000, show_default=True, help="Packets per second.")
@click.option("--seconds", default=70, show_default=True, help="Length of the packet stream.")
@click.option("--no-kill", is_flag=True, help="Leave all nodes alive.")
@AS_JSON
def demo(directory: Path, rate: int, seconds: int, no_kill: bool, as_json: bool) -> None:
    """Run the network-monitoring flow on three nodes, kill one, and show that nobody downstream notices.

    Every single result is compared with what it should be. Exit code 0 says that all of them are right.
    """
    from unbroken_lab.demo.runner import run_demo

    console = errors if as_json else out
    code = run_demo(directory, rate=rate, seconds=seconds, kill=not no_kill, console=console)
    if as_json:
        figures = directory / "result.json"
        found = json.loads(figures.read_text()) if code in (0, 1) else {}
        click.echo(json.dumps({"ok": code == 0, "directory": str(directory), **found}))
    sys.exit(code)

"""The command line: ``unbroken COMMAND``, one module for each kind of command."""

from __future__ import annotations

import logging

import click

from unbroken import __version__
from unbroken.cli import (
    adopting,
    coordinating,
    hwang,
    killing,
    looking,
    measuring,
    operating,
    page,
    papers,
    pausing,
    peers,
    planning,
    reliability,
    running,
    simulating,
    skipping,
    starting,
)
from unbroken.cli.command import group

COMMANDS: dict[str, tuple[click.Command, ...]] = {
    "Begin": (starting.init, running.check, running.run, running.demo),
    "See": (looking.status, looking.topology, looking.history, page.ui),
    "Operate": (
        operating.drain,
        operating.reinit,
        operating.upgrade,
        pausing.pause,
        pausing.resume,
        skipping.skip,
        adopting.adopt,
    ),
    "Try what fails": (killing.kill, measuring.chaos, simulating.simulate),
    "Measure": (measuring.bench,),
    "Set up": (running.node, coordinating.zookeeper, starting.completion),
}
"""By what a person wants to do."""


@group(
    context_settings={"help_option_names": ["-h", "--help"]},
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


simulating.simulate.fill(
    {"Commands": (*simulating.COMMANDS, *reliability.COMMANDS, *planning.COMMANDS, *hwang.COMMANDS)}
)
measuring.bench.fill(
    {"Unbroken itself": (*measuring.COMMANDS, page.bench_page), "Beside others": (*papers.COMMANDS, *peers.COMMANDS)}
)
cli.fill(COMMANDS)


def main() -> None:
    """Entry point of the ``unbroken`` command."""
    cli(prog_name="unbroken")
